"""Plan pictures: which of a run's kept plans are worth a look, drawn as mosaics from the files of its folder."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import StepEvent
from zellige_ray.placement import Cluster, CostModel, HardwareProfile, Plan, load_hardware, load_model, plan_from_json
from zellige_ray.words import counted

MAX_SVG_BYTES = 2 * 2**20  # a plan of many ranks is a smaller picture as pixels


@dataclass(frozen=True, slots=True)
class PlanPicture:
    """A mosaic as a data URI, what it is, and what it shows in words."""

    source: str
    caption: str
    alt: str


def plan_pictures(folder: Path, steps: list[StepEvent]) -> Iterator[PlanPicture]:
    """The last plan, and the one of the longest step, of those that the folder still has.

    Nothing where the folder has no plans, or not what they were made with. Raises ConfigError or PlanError for a file
    that was changed.
    """
    plans, hardware, model = (folder / n for n in (run_folder.PLANS, run_folder.HARDWARE, run_folder.MODEL))
    kept = [s for s in steps if _file(plans, s).is_file()]
    if not kept or not hardware.is_file() or not model.is_file():
        return
    profile, preset = load_hardware(hardware), load_model(model)
    cost = CostModel(profile, preset)
    chosen = {
        s.step: (s, why) for s, why in ((max(kept, key=lambda s: s.seconds), "the longest"), (kept[-1], "the last"))
    }
    for step, why in reversed(chosen.values()):
        plan = plan_from_json(json.loads(_file(plans, step).read_text(encoding="utf-8")))
        sequences, ranks = counted(plan.num_sequences, "sequence"), counted(plan.world_size, "rank")
        caption = f"Step {step.step}, {why}: {sequences} on {ranks}, "
        caption += f"predicted {step.predicted_s:.2f} s, measured {step.seconds:.2f} s."
        yield PlanPicture(_draw(plan, plan_cluster(profile, plan), cost), caption, plan_words(plan))


def _file(plans: Path, step: StepEvent) -> Path:
    return plans / f"step-{step.step:06d}.json"


def plan_cluster(profile: HardwareProfile, plan: Plan) -> Cluster:
    """The ranks of a plan: those of the profile, or as many equal ones where the pool had another size by then."""
    if profile.world_size == plan.world_size:
        return profile.cluster()
    return Cluster.uniform(1, plan.world_size, profile.memory_bytes)


def plan_words(plan: Plan) -> str:
    """What the picture shows, for those who don't see it."""
    cut: dict[str, int] = {}
    for round_ in plan.rounds:
        owners: dict[int, set[int]] = {}
        for shard in round_.shards():
            owners.setdefault(shard.sequence, set()).add(shard.rank)
        cut |= {round_.ids[i]: len(ranks) for i, ranks in owners.items() if len(ranks) > 1}
    longest = ", ".join(f"{name} over {counted(ranks, 'rank')}" for name, ranks in list(cut.items())[:8])
    whole = counted(plan.num_sequences - len(cut), "sequence")
    return f"Mosaic of the plan: {whole} whole on a rank, {len(cut)} cut" + (f": {longest}" if cut else "")


def _draw(plan: Plan, cluster: Cluster, cost: CostModel) -> str:
    import matplotlib

    from zellige_ray.monitor.mosaic import mosaic_figure

    figure = mosaic_figure(plan, cluster, cost)
    style = {"bbox_inches": "tight", "pad_inches": 0.2}
    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": plan.hash}):
        figure.savefig(out, format="svg", metadata={"Date": None}, **style)
    if len(out.getvalue()) <= MAX_SVG_BYTES:
        return f"data:image/svg+xml;base64,{base64.b64encode(out.getvalue()).decode()}"
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110, **style)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
