"""A pipeline as a table of text, and as a picture."""

from __future__ import annotations

import html
import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from ding_lite.basics.files import write_atomically
from ding_lite.basics.messages import printable, require_extra
from ding_lite.pipeline.contracts import Contract
from ding_lite.pipeline.data_flow import objects_named
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.used_middleware import middleware_of

_COLOURS = {
    "evaluate": "#d7e8f7",
    "explore": "#fbe7c6",
    "collect": "#fbe7c6",
    "process": "#e3dcf3",
    "learn": "#d6eed9",
    "record": "#eeeeee",
    "": "#ffffff",
}
_INK, _FAINT = "#222222", "#666666"
_CELL = 40  # width at which a table's column wraps, in characters
_BOX_WIDTH, _MARGIN, _GAP, _LINE, _TITLE = 470, 90, 26, 15, 26


def pipeline_table(pipeline: Sequence[Entry]) -> str:
    """Stage, middleware, reads, writes, objects and lane of each middleware, in aligned columns.

    The column of objects is present if a contract fills or draws from any.
    """
    names = _names_in(pipeline)
    rows = [("stage", "middleware", "reads", "writes", "objects", "lane")]
    for entry in pipeline:
        terms = entry.contract
        if terms is None:
            rows.append(("-", entry.name, "(no contract)", "(no contract)", "(no contract)", "all"))
            continue
        reads = [*terms.reads, *terms.reads_after, *(f"{name}?" for name in terms.may_read)]
        writes = [*terms.all_writes, *terms.writes_after, *(f"{name}?" for name in terms.may_write)]
        objects = [f"{verb} {_listed(things)}" for verb, things in _flow(terms, names)]
        rows.append((terms.stage or "-", entry.name, _listed(reads), _listed(writes), _listed(objects), terms.lane))
    shown = [row if names else (*row[:4], row[5]) for row in rows]
    lines = [line for row in shown for line in zip_longest(*(textwrap.wrap(cell, _CELL) for cell in row), fillvalue="")]
    widths = [max(len(line[column]) for line in lines) for column in range(len(shown[0]))]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def _names_in(pipeline: Sequence[Entry]) -> dict[int, str]:
    return objects_named([used.contract for used in middleware_of(pipeline) if used.contract is not None])


def _flow(terms: Contract, names: Mapping[int, str]) -> list[tuple[str, list[str]]]:
    """The objects that are filled and drawn from, with verbs."""
    both = ("fills", terms.fills), ("draws", terms.draws)
    return [(verb, [names[id(thing)] for thing in things]) for verb, things in both if things]


def draw_pipeline(pipeline: Sequence[Entry], context: str, path: Path) -> Path:
    """Write the picture of a pipeline: a box for each middleware, coloured by stage, and the loop back to the first.

    Raises:
        ValueError: the path ends neither in .svg nor in .png, or there is nothing to draw.
        ImportError: a PNG without the extra `plot`.
        WriteError: the path cannot be written.
    """
    if not pipeline:
        raise ValueError("task.draw() has nothing to draw: use() some middleware first.")
    writers = {".svg": _as_svg, ".png": _as_png}
    if path.suffix not in writers:
        raise ValueError(f"task.draw({str(path)!r}) writes .svg or .png: change the ending.")
    write_atomically(path, writers[path.suffix](_scene(pipeline, context)))
    return path


@dataclass
class _Box:
    top: float
    height: float
    colour: str


@dataclass
class _Text:
    x: float
    y: float
    words: str
    size: int = 12
    colour: str = _FAINT
    bold: bool = False
    anchor: str = "start"

    def __post_init__(self) -> None:
        self.words = printable(self.words)  # a name may contain what no file of text can have


@dataclass
class _Arrow:
    points: list[tuple[float, float]]


@dataclass
class _Scene:
    width: float
    height: float
    shapes: list[_Box | _Text | _Arrow]


def _scene(pipeline: Sequence[Entry], context: str) -> _Scene:
    shapes: list[_Box | _Text | _Arrow] = [_Text(_MARGIN, 24, f"one iteration on {context}", 14, _INK, bold=True)]
    top = 40.0
    middles = []
    names = _names_in(pipeline)
    for position, entry in enumerate(pipeline):
        stage = (entry.contract.stage if entry.contract else None) or ""
        lines = _box_lines(entry, names)
        height = _TITLE + _LINE * len(lines) + 8
        shapes.append(_Box(top, height, _COLOURS[stage]))
        shapes.append(_Text(_MARGIN + 12, top + 19, entry.name, 14, _INK, bold=True))
        shapes.append(_Text(_MARGIN + _BOX_WIDTH - 12, top + 19, stage or "no contract", 12, anchor="end"))
        for row, line in enumerate(lines):
            shapes.append(_Text(_MARGIN + 12, top + _TITLE + 11 + _LINE * row, line))
        middles.append(top + height / 2)
        if position + 1 < len(pipeline):
            centre = _MARGIN + _BOX_WIDTH / 2
            shapes.append(_Arrow([(centre, top + height), (centre, top + height + _GAP)]))
        top += height + _GAP
    side = _MARGIN - 40
    shapes.append(_Arrow([(_MARGIN, middles[-1]), (side, middles[-1]), (side, middles[0]), (_MARGIN, middles[0])]))
    shapes.append(_Text(side - 8, (middles[0] + middles[-1]) / 2, "renew", anchor="end"))
    return _Scene(_MARGIN + _BOX_WIDTH + 20, top - _GAP + 20, shapes)


def _box_lines(entry: Entry, names: Mapping[int, str]) -> list[str]:
    terms = entry.contract
    if terms is None:
        return [entry.location.rpartition("/")[2]]
    reads = (*terms.reads, *terms.reads_after, *(f"{name}?" for name in terms.may_read))
    writes = (*terms.all_writes, *terms.writes_after, *(f"{name}?" for name in terms.may_write))
    rows = [("reads", reads), ("writes", writes), *_flow(terms, names)]
    return [line for verb, listed in rows if listed for line in _wrapped(verb, listed)]


def _wrapped(verb: str, names: Iterable[str]) -> list[str]:
    return textwrap.wrap(f"{verb} {_listed(names)}", 68)


def _as_svg(scene: _Scene) -> bytes:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{scene.width:g}" height="{scene.height:g}" '
        f'viewBox="0 0 {scene.width:g} {scene.height:g}" font-family="Helvetica, Arial, sans-serif">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{_FAINT}"/></marker></defs>',
        f'<rect width="{scene.width:g}" height="{scene.height:g}" fill="white"/>',
    ]
    for shape in scene.shapes:
        if isinstance(shape, _Box):
            parts.append(
                f'<rect x="{_MARGIN}" y="{shape.top:g}" width="{_BOX_WIDTH}" height="{shape.height:g}" rx="8" '
                f'fill="{shape.colour}" stroke="{_FAINT}"/>'
            )
        elif isinstance(shape, _Arrow):
            points = " ".join(f"{x:g},{y:g}" for x, y in shape.points)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{_FAINT}" marker-end="url(#head)"/>')
        else:
            weight = ' font-weight="bold"' if shape.bold else ""
            parts.append(
                f'<text x="{shape.x:g}" y="{shape.y:g}" font-size="{shape.size}" fill="{shape.colour}"{weight} '
                f'text-anchor="{shape.anchor}">{html.escape(shape.words)}</text>'
            )
    return ("\n".join([*parts, "</svg>"]) + "\n").encode()


def _as_png(scene: _Scene) -> bytes:
    require_extra("matplotlib", "plot", "task.draw() to a PNG")
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    dpi = 100
    figure = Figure(figsize=(scene.width / dpi, scene.height / dpi), dpi=dpi)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))
    axes.axis("off")
    for shape in scene.shapes:
        if isinstance(shape, _Box):
            outline = (_MARGIN + 6, shape.top + 6), _BOX_WIDTH - 12, shape.height - 12
            axes.add_patch(FancyBboxPatch(*outline, boxstyle="round,pad=6", facecolor=shape.colour, edgecolor=_FAINT))
        elif isinstance(shape, _Arrow):
            axes.plot(*zip(*shape.points[:-1]), color=_FAINT, linewidth=1)
            axes.annotate("", shape.points[-1], shape.points[-2], arrowprops={"arrowstyle": "-|>", "color": _FAINT})
        else:
            weight, align = ("bold" if shape.bold else "normal"), {"start": "left", "end": "right"}[shape.anchor]
            points = shape.size * 72 / dpi
            axes.text(shape.x, shape.y, shape.words, size=points, color=shape.colour, weight=weight, ha=align)
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=dpi)
    return written.getvalue()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "-"
