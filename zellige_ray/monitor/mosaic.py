"""The mosaic: a plan as a Zellige tiling, ranks down, time across, one tile per piece of work, coloured by sequence."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Plan
from zellige_ray.placement.segments import Segment, plan_segments
from zellige_ray.words import counted

if TYPE_CHECKING:
    from zellige_ray.placement.stream import PolicyFigures

PLASTER, INK, GROUT, FAINT = "#fbf7ee", "#2b2a33", "#fbf7ee", "#e9e1d0"
# Glazes of Fez: cobalt, emerald, saffron, terracotta, turquoise, plum, olive, brick, sky, rose, jade, ochre.
ANCHORS = (
    "#1f4e9e", "#0f7b5c", "#e0a526", "#c4542d", "#159ba0", "#6d3b7f",
    "#7d8c2b", "#9b2d30", "#4f8fd0", "#d0708a", "#46a57a", "#a8741a",
)  # fmt: skip
FILLERS = ("#dccfb4", "#b9ad97", "#cfd3c4", "#a9afa2", "#d9c3b2", "#c0c6ca", "#cbbcc6", "#e4dac6")
LABELLED = 14  # anchors named in the legend
TALL = 0.86  # of a row: the height of a tile


def mosaic_picture(plan: Plan, cluster: Cluster, cost: CostModel, ending: str) -> bytes:
    """The picture as a file's content, `.svg` or `.png`."""
    return _drawn(mosaic_figure(plan, cluster, cost), ending, pad_inches=0.25)


def mosaic_figure(plan: Plan, cluster: Cluster, cost: CostModel) -> Any:
    """The picture as a matplotlib figure, made without pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    segments, ends = plan_segments(plan, cluster, cost)
    size, end = cluster.world_size, ends[-1]
    figure = Figure(figsize=(15, min(60.0, max(4.2, 2.4 + 0.27 * size))), facecolor=PLASTER)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_facecolor(PLASTER)
    colors = _colors(plan, segments)
    order = [r for ranks in cluster.ranks_by_node() for r in ranks]
    row = {rank: k for k, rank in enumerate(order)}
    _tiles(axes, segments, colors, row)
    _labels(axes, segments, colors, row, end)
    _nodes(axes, cluster, row, end)
    _frame(axes, plan, cost, ends, size, [f"{r}" for r in order])
    _legend(axes, plan, segments, colors)
    return figure


def _colors(plan: Plan, segments: list[Segment]) -> dict[str, str]:
    """Anchors vivid in order of length, fillers muted."""
    cut = {s.sequence for s in segments if s.sequence and not s.whole}
    out: dict[str, str] = {}
    ids = [i for r in plan.rounds for i in r.ids]
    vivid = [i for i in ids if i in cut]
    out |= {i: ANCHORS[k % len(ANCHORS)] for k, i in enumerate(vivid)}
    out |= {i: FILLERS[k % len(FILLERS)] for k, i in enumerate(i for i in ids if i not in cut)}
    return out


def _tiles(axes: Any, segments: list[Segment], colors: dict[str, str], row: dict[int, int]) -> None:
    from matplotlib.collections import PolyCollection

    groups: dict[str, tuple[list[Any], list[Any]]] = {
        k: ([], []) for k in ("linear", "attention", "exchange", "flight")
    }
    for s in segments:
        low, high = row[s.rank] - TALL / 2, row[s.rank] + TALL / 2
        if s.kind == "flight":
            low = high - 0.2
        box = [(s.start_s, low), (s.stop_s, low), (s.stop_s, high), (s.start_s, high)]
        groups[s.kind][0].append(box)
        groups[s.kind][1].append(colors.get(s.sequence, PLASTER))
    for kind, alpha in (("linear", 0.62), ("attention", 1.0)):
        boxes, faces = groups[kind]
        axes.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors=GROUT, linewidths=0.45, alpha=alpha))
    for kind, hatch in (("exchange", "////"), ("flight", "//////")):
        style: dict[str, Any] = {
            "facecolors": "none" if kind == "exchange" else PLASTER,
            "edgecolors": INK,
            "hatch": hatch,
        }
        axes.add_collection(PolyCollection(groups[kind][0], linewidths=0.25, zorder=3, **style))


def _labels(axes: Any, segments: list[Segment], colors: dict[str, str], row: dict[int, int], end: float) -> None:
    """Names on the tiles of anchors that are wide enough for one."""
    for rank, name, start, stop in _runs(segments):
        if stop - start > 0.075 * end:
            ink = INK if _light(colors[name]) else "white"
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.5, "color": ink, "zorder": 4}
            axes.text((start + stop) / 2, row[rank], _short(name), **style)


def _light(color: str) -> bool:
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return 0.3 * red + 0.59 * green + 0.11 * blue > 150


def _runs(segments: list[Segment]) -> list[tuple[int, str, float, float]]:
    """Stretches in which a rank computes tiles of one anchor: (rank, sequence, start, stop)."""
    out: list[tuple[int, str, float, float]] = []
    for s in segments:
        if s.kind == "attention" and not s.whole:
            if out and out[-1][:2] == (s.rank, s.sequence) and s.start_s - out[-1][3] < 1e-9 + 1e-6 * s.stop_s:
                out[-1] = (*out[-1][:3], s.stop_s)
            else:
                out.append((s.rank, s.sequence, s.start_s, s.stop_s))
    return out


def _short(name: str) -> str:
    return name if len(name) <= 16 else "…" + name[-15:]


def _nodes(axes: Any, cluster: Cluster, row: dict[int, int], end: float) -> None:
    """Fine rules between nodes, and their names at the left."""
    for number, ranks in enumerate(cluster.ranks_by_node()):
        rows = [row[r] for r in ranks]
        if number:
            axes.axhline(min(rows) - 0.5, color=INK, linewidth=0.6, alpha=0.5)
        middle = (min(rows) + max(rows)) / 2
        name = f"node {cluster.node_of_rank[ranks[0]]}"
        axes.text(-0.035 * end, middle, name, rotation=90, ha="right", va="center", fontsize=9, color=INK)


def _frame(axes: Any, plan: Plan, cost: CostModel, ends: list[float], size: int, names: list[str]) -> None:
    end, predicted = ends[-1], plan.predicted
    axes.set_xlim(0, end * 1.005)
    axes.set_ylim(size - 0.4, -0.6)
    step = max(1, size // 64)
    axes.set_yticks(range(0, size, step), names[::step], fontsize=7)
    axes.tick_params(length=0, colors=INK)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("seconds of the step (all layers and passes of a phase put together)", color=INK)
    above: dict[str, Any] = {"xytext": (0, 5), "textcoords": "offset points", "va": "bottom", "annotation_clip": False}
    axes.annotate("rank", (-0.008 * end, -0.55), ha="right", fontsize=8, color=INK, **above)
    for stop in ends[:-1]:
        axes.axvline(stop, color=INK, linewidth=1.4)
    axes.axvline(end, color=INK, linewidth=1.2)
    title = (
        f"{plan.policy}: {counted(plan.num_sequences, 'sequence')} on {counted(size, 'rank')}, model {cost.model.name}"
    )
    if predicted is not None:
        bound = predicted.lower_bound_s
        axes.axvline(bound, color="#c1272d", linewidth=1.5, linestyle=(0, (4, 2)), zorder=5)
        side, shift = ("right", -0.004) if bound > 0.9 * end else ("left", 0.004)
        label = f"lower bound {bound:.4g} s"
        axes.annotate(label, (bound + shift * end, -0.55), ha=side, fontsize=8.5, color="#c1272d", **above)
        title += f"  —  step {predicted.step_s:.4g} s, {predicted.gap:.2%} over the bound"
    axes.set_title(title, loc="left", color=INK, fontsize=12.5, pad=24, fontweight="bold")


def _legend(axes: Any, plan: Plan, segments: list[Segment], colors: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    cut = {s.sequence for s in segments if s.sequence and not s.whole}
    tokens = {i: n for r in plan.rounds for i, n in zip(r.ids, r.tokens_S.tolist(), strict=True)}
    anchors = [i for i in tokens if i in cut]
    kinds = [
        Patch(facecolor=FILLERS[1], edgecolor=GROUT, label="fillers: whole on a rank"),
        Patch(facecolor=ANCHORS[0], alpha=0.62, edgecolor=GROUT, label="pale: token-wise layers"),
        Patch(facecolor=ANCHORS[0], edgecolor=GROUT, label="full: attention"),
        Patch(facecolor="none", edgecolor=INK, hatch="////", linewidth=0.3, label="waiting for an exchange"),
        Patch(facecolor=PLASTER, edgecolor=INK, hatch="//////", linewidth=0.3, label="strip: exchange in flight"),
        Patch(facecolor=PLASTER, edgecolor=FAINT, label="blank: idle"),
    ]
    named = [Patch(facecolor=colors[i], label=f"{_short(i)}  {tokens[i]:,} tokens") for i in anchors[:LABELLED]]
    if len(anchors) > LABELLED:
        named.append(Patch(facecolor="none", label=f"and {len(anchors) - LABELLED} more anchors"))
    style: dict[str, Any] = {"loc": "upper left", "frameon": False, "fontsize": 8, "labelcolor": INK}
    first = axes.legend(handles=kinds, title="reading", bbox_to_anchor=(1.005, 1.0), **style)
    first._legend_box.align = "left"
    axes.add_artist(first)
    if named:
        height = axes.figure.get_size_inches()[1]
        second = axes.legend(
            handles=named, title="anchors: cut over ranks", bbox_to_anchor=(1.005, 1 - 1.75 / height), **style
        )
        second._legend_box.align = "left"


def comparison_picture(rows: list[PolicyFigures], title: str, ending: str) -> bytes:
    """Bars of the mean step time of each policy, the lower bound as a line; a file's content, `.svg` or `.png`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    done = [x for x in rows if not x.failed]
    figure = Figure(figsize=(9, 1.3 + 0.42 * max(1, len(done))), facecolor=PLASTER)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_facecolor(PLASTER)
    names = [x.policy if x.policy == x.resolved else f"{x.policy}\n{x.resolved}" for x in done]
    faces = [ANCHORS[0] if x.policy.startswith("zellige") else FILLERS[2] for x in done]
    axes.barh(range(len(done)), [x.step_s for x in done], color=faces, edgecolor=GROUT, height=0.78)
    for k, x in enumerate(done):
        axes.text(x.step_s, k, f"  {x.step_s:.4g} s, {x.gap:+.1%}", va="center", fontsize=8, color=INK)
    if done:
        axes.axvline(done[0].lower_bound_s, color="#c1272d", linewidth=1.4, linestyle=(0, (4, 2)))
        axes.set_xlim(0, max(x.step_s for x in done) * 1.18)
    axes.set_yticks(range(len(done)), names, fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(length=0, colors=INK)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("mean step, seconds (dashed: lower bound)", color=INK, fontsize=9)
    axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
    return _drawn(figure, ending)


def _drawn(figure: Any, ending: str, **more: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format=ending[1:], dpi=160, facecolor=PLASTER, bbox_inches="tight", **more)
    return out.getvalue()
