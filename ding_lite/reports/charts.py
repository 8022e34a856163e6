"""Charts: figures of learning curves, with a thin line for each seed, and a thick line and a band for their mean."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ding_lite.basics import printable, require_extra
from ding_lite.reports.curves import Curve
from ding_lite.reports.labels import label_of, tick, time_unit
from ding_lite.reports.rows import Numbers

Dashes: TypeAlias = Literal["-", "--", "-."]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6e6e6e")
"""Colours for all kinds of colour vision (Okabe and Ito, 2008), without yellow, which is hard to see on white."""

INK, GRID = "#24292f", "#d8dee4"
"""Colours of text and axes, and of grid lines."""

DASHES: tuple[Dashes, ...] = ("-", "--", "-.")
"""Dashes of the thick lines, if there are more experiments than colours."""

_MOST = 1e290  # larger values are clipped
LEGEND = "Thick: interquartile mean of the seeds, dotted where not all were measured. Thin: each seed. Shaded: 95% bootstrap."
"""How to read the lines."""

_DPI = 100
_ACROSS = (0, (2, 3))  # dashes of a threshold
_STEPS = [1, 2, 2.5, 5, 10]  # between ticks
_DECIMALS = re.compile(r"(\.\d\d)\d+")  # more digits are not visible
_PRELUDE = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>|<style type=\"text/css\">.*?</style>", re.DOTALL)


_LOOK = {
    "font.size": 8.5,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ding_lite",
    "text.color": INK,
    "text.parse_math": False,  # because names may contain dollar signs
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.01,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "path.simplify": True,
}


@dataclass(frozen=True)
class Line:
    """One experiment in a chart."""

    name: str
    curve: Curve
    place: int
    """Index of the experiment, which determines colour and dashes in all charts."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    lines: Sequence[Line]
    metric: str
    x: str
    title: str = ""
    """Title, if there are several panels."""
    threshold: float | None = None
    """A target value, drawn as a horizontal line."""


def style_of(place: int) -> tuple[str, Dashes]:
    """Colour and dashes of the experiment with this index."""
    return PALETTE[place % len(PALETTE)], DASHES[place // len(PALETTE) % len(DASHES)]


def draw(
    panels: Sequence[Panel], size: tuple[int, int] = (500, 300), *, legend: bool = False, named: bool = True, seeds: bool = True
) -> Figure:
    """A figure with these panels beside each other.

    Args:
        panels: the panels, at least one.
        size: size of a panel, in pixels.
        legend: whether to add a legend below the axes.
        named: whether to add the name of the metric and the title.
        seeds: whether to draw a line for each seed.

    Raises:
        ImportError: the extra `plot` is not installed.
    """
    require_extra("matplotlib", "plot", "a chart")
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", _LOOK]):  # independent of the user's settings
        figure = Figure(figsize=(size[0] * len(panels) / _DPI, size[1] / _DPI), dpi=_DPI, layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
            _fill(axes, panel, seeds)
            if named:
                axes.set_ylabel(printable(label_of(panel.metric), keep="\n"))
                axes.set_title(printable(panel.title, keep="\n"), loc="left")
        if legend:
            _add_legend(figure, panels)
    return figure


def write(figure: Figure, kind: str, background: str = "white") -> bytes:
    """The figure as a file of this kind, such as "svg" or "png"; the same bytes each time.

    Args:
        figure: a result of `draw`.
        kind: format of the file.
        background: a colour, or "none".
    """
    from matplotlib import style

    written = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    around = "tight" if figure.legends else None  # long names make the figure larger
    with style.context(["default", _LOOK]):
        figure.savefig(
            written, format=kind, dpi=2 * _DPI, facecolor=background, bbox_inches=around, pad_inches=0.08, metadata=undated
        )
    return written.getvalue()


def inline_svg(figure: Figure, prefix: str, colours: Mapping[str, str]) -> str:
    """The figure as an SVG element of a page.

    Args:
        figure: a result of `draw`.
        prefix: prefix for its ids, unique in the page.
        colours: replacements for colours, such as CSS variables of the page.
    """
    svg = _PRELUDE.sub("", write(figure, "svg", "none").decode())
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(
        r' width="[\d.]+pt"| height="[\d.]+pt"', "", svg, count=2
    )  # of the outermost: the page decides how large it is
    svg = re.sub(r' d="[^"]*"', lambda path: _DECIMALS.sub(r"\1", path[0]).replace("\n", ""), svg)
    for ours, theirs in colours.items():
        svg = svg.replace(ours, theirs)
    return svg.strip()


def _fill(axes: Axes, panel: Panel, seeds: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    longest = max((float(line.curve.x[-1]) for line in panel.lines), default=0.0)
    unit_s, unit = time_unit(longest) if panel.x == "time_s" else (1.0, "")
    for line in panel.lines:
        _draw_line(axes, line, unit_s, seeds)
    if panel.threshold is not None:
        axes.axhline(min(max(panel.threshold, -_MOST), _MOST), color=INK, linewidth=0.8, linestyle=_ACROSS, zorder=1.5)
    axes.set_xlabel(printable(f"{label_of(panel.x)} ({unit})" if unit else label_of(panel.x), keep="\n"))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=not unit, steps=_STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=_STEPS))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.tick_params(length=0)


def _draw_line(axes: Axes, line: Line, unit_s: float, seeds: bool) -> None:
    colour, dashes = style_of(line.place)
    curve = line.curve
    mean, low, high = (_drawable(numbers) for numbers in (curve.mean, curve.low, curve.high))
    x, partly = _drawable(curve.x / unit_s), ~curve.is_whole
    if len(curve.seeds) > 1:
        axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
        for seed_x, seed_y in curve.seeds if seeds else ():
            axes.plot(_drawable(seed_x / unit_s), _drawable(seed_y), color=colour, linewidth=0.7, alpha=0.45)
    marker = "o" if len(x) == 1 else ""
    axes.plot(x, np.where(partly, np.nan, mean), dashes, color=colour, linewidth=1.9, marker=marker)
    if partly.any():
        partly = partly | np.append(partly[1:], False) | np.append(False, partly[:-1])  # one point more, so that lines meet
        axes.plot(x, np.where(partly, mean, np.nan), ":", color=colour, linewidth=1.6)


def _drawable(numbers: Numbers) -> Numbers:
    """The numbers, clipped so that differences do not overflow in matplotlib."""
    return np.clip(numbers, -_MOST, _MOST)


def _add_legend(figure: Figure, panels: Sequence[Panel]) -> None:
    from matplotlib.lines import Line2D

    lines = {line.place: line for panel in panels for line in panel.lines}
    entries = []
    for place in sorted(lines):
        colour, dashes = style_of(place)
        entries.append((Line2D([], [], color=colour, linestyle=dashes, linewidth=1.9), lines[place].name))
    if any(panel.threshold is not None for panel in panels):
        value = f" {tick(panels[0].threshold)}" if len(panels) == 1 and panels[0].threshold is not None else ""
        entries.append((Line2D([], [], color=INK, linestyle=_ACROSS, linewidth=0.8), f"stop value{value}"))
    columns = 1 if max(len(name) for _, name in entries) > 26 else min(len(entries), 3 * len(panels))
    title = LEGEND if any(len(line.curve.seeds) > 1 for line in lines.values()) else None
    legend = figure.legend(
        [handle for handle, _ in entries], ["-"] * len(entries), loc="outside lower left", ncols=columns, title=title,
        title_fontsize=6.5, alignment="left",
    )  # fmt: skip
    for text, (_, name) in zip(legend.get_texts(), entries):
        text.set_text(printable(name, keep="\n"))  # afterwards, because matplotlib skips names that begin with "_"
