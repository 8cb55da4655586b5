"""Charts: curves over steps as inline SVG, in the page's colours, drawn for wide and again for narrow screens."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

# The page's CSS variables, each drawn as a colour that nothing else uses and replaced afterwards.
colours = {
    "ink": "#01f0a1",
    "faint": "#01f0a2",
    "rule": "#01f0a3",
    "first": "#01f0a4",
    "second": "#01f0a5",
    "third": "#01f0a6",
    "alert": "#01f0a7",
}
_widths = {"wide": 960, "narrow": 360}
_HEIGHT = 260
width_of = {"line": 1.8, "thin": 0.8, "marked": 1.8, "dashed": 1.4}


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart; values that are not finite leave a gap."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    colour: Literal["first", "second", "third", "faint"]
    style: Literal["line", "thin", "marked", "dashed"] = "line"


def chart(name: str, title: str, series: Sequence[Series], unit: str, marks: Sequence[tuple[float, str]] = ()) -> str:
    """HTML of both drawings of one chart; `marks` are vertical lines (step, label), `title` is read out.

    name: unique in the page, because identifiers inside an SVG are global to the page.
    """
    drawn = [s for s in series if any(math.isfinite(y) for y in s.y)]
    if not drawn:
        return '<p class="none">Nothing was recorded for this chart.</p>'
    return "\n".join(
        f'<div class="chart {kind}" role="img" aria-label="{html.escape(title)}">'
        f"{_svg(f'{name}-{kind}', drawn, unit, marks, width)}</div>"
        for kind, width in _widths.items()
    )


def _svg(name: str, series: Sequence[Series], unit: str, marks: Sequence[tuple[float, str]], width: int) -> str:
    import matplotlib  # not with this file: a driver that only counts and reports at its end must start fast
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 11, "text.color": colours["ink"]}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(width / 72, _HEIGHT / 72), layout="constrained")
        axes = figure.add_subplot()
        for s in series:
            mark: dict[str, Any] = {"marker": "o", "markersize": 4} if s.style == "marked" or len(s.x) == 1 else {}
            dashes = "--" if s.style == "dashed" else "-"
            axes.plot(
                s.x, s.y, color=colours[s.colour], label=s.label, linestyle=dashes, linewidth=width_of[s.style], **mark
            )
        for step, label in marks:
            axes.axvline(step, color=colours["alert"], linewidth=1, linestyle=":")
            if label:
                axes.annotate(
                    label, (step, 1), xycoords=("data", "axes fraction"), xytext=(4, -10), textcoords="offset points",
                    color=colours["alert"], fontsize=10,
                )  # fmt: skip
        axes.set_xlabel("step", color=colours["faint"])
        axes.set_ylabel(unit, color=colours["faint"])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.tick_params(color=colours["rule"], labelcolor=colours["faint"])
        axes.grid(color=colours["rule"], linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(colours["rule"])
        axes.legend(
            frameon=False, labelcolor=colours["ink"], ncols=len(series), loc="lower left", bbox_to_anchor=(0, 1),
            borderaxespad=0.2, columnspacing=1.2, handlelength=1.6,
        )  # fmt: skip
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(out.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """An SVG document as an element of a page: no header, its own identifiers, the page's colours and size."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    for variable, colour in colours.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return svg.replace("<svg ", '<svg aria-hidden="true" ', 1)
