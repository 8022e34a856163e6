"""Reports on overlapping: speed-up, waiting times and advice, as text, trace and picture."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from ding_lite.basics.files import write_atomically, writing
from ding_lite.basics.messages import printable
from ding_lite.basics.user_output import show
from ding_lite.engine.middleware_steps import LEARN
from ding_lite.engine.timelines import Timeline
from ding_lite.pipeline.contracts import LANES

_SATURATED = 0.85  # share of wall time in which lanes compute; above it, the interpreter is the bottleneck
_COLOURS = ("#8fbbe0", "#f3c677", "#9fcfa3", "#c9b8e8")  # by iteration, in turn
_INK, _FAINT = "#222222", "#888888"
_WIDTH, _MARGIN, _ROW, _TOP = 1100, 90, 46, 50


class TimelineMixin:
    """The part of a task that records running and waiting times, in runs with overlapping iterations."""

    _timeline: Timeline | None

    def timeline(self, path: str | PathLike[str], iterations: int = 12) -> Path:
        """Write the times of all steps in the last run.

        Args:
            path: ends in .json for a trace for https://ui.perfetto.dev or chrome://tracing, with the picture in another file
                beside it; or in .svg for the picture alone.
            iterations: number of iterations in the picture, the last ones. The trace has all, up to 10,000 events per lane.

        Raises:
            RuntimeError: the task has not run with `async_mode=True` or `max_lag`.
            ValueError: the path has another ending, or iterations < 1.
            WriteError: an OSError; the path cannot be written.
        """
        timeline, path = self._require_timeline("timeline()"), Path(path)
        if iterations < 1:
            raise ValueError(f"task.timeline(iterations={iterations!r}) draws none: give 1 or more.")
        if path.suffix not in (".json", ".svg"):
            raise ValueError(f"task.timeline({str(path)!r}) writes .json or .svg: change the ending.")
        if path.suffix == ".json":
            trace = {"traceEvents": list(_trace(timeline)), "displayTimeUnit": "ms"}
            write_atomically(path, json.dumps(trace).encode())
        write_atomically(path.with_suffix(".svg"), _picture(timeline, iterations).encode())
        return path

    def report(self, path: str | PathLike[str] | None = None) -> str:
        """Print busy and waiting times of each lane in the last run, speed-up and advice. Returns the text.

        Args:
            path: text file to write instead of printing.

        Raises:
            RuntimeError: the task has not run with `async_mode=True` or `max_lag`.
            WriteError: an OSError; the path cannot be written.
        """
        text = "\n".join(_report(self._require_timeline("report()")))
        if path is None:
            show(text)
        else:
            with writing(path):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_text(f"{text}\n", encoding="utf-8", errors="replace")
        return text

    def _require_timeline(self, verb: str) -> Timeline:
        if self._timeline is None or not self._timeline.iterations:
            raise RuntimeError(
                f"task.{verb} has no data: only runs with async_mode=True, or max_lag, are recorded. "
                "Write task.start(async_mode=True, ...), and call it after task.run()."
            )
        return self._timeline


def _trace(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for lane, name in enumerate(LANES):
        if not timeline.ran[lane]:
            continue
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": lane, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": lane, "args": {"sort_index": lane}}
        for step, iteration, begun, ended in timeline.ran[lane]:
            yield {
                "ph": "X",
                "name": step.name,
                "cat": name,
                "pid": 0,
                "tid": lane,
                "ts": (begun - timeline.begun) / 1e3,
                "dur": (ended - begun) / 1e3,
                "args": {"iteration": iteration},
            }
        for waited in timeline.waited_for[lane]:
            edge = waited.edge
            what = f"waits for {edge.source.name}: {edge.why}" if edge else "waits: task.finish"
            yield {
                "ph": "X",
                "name": what,
                "cat": "wait",
                "pid": 0,
                "tid": lane,
                "ts": (waited.begun - timeline.begun) / 1e3,
                "dur": (waited.ended - waited.begun) / 1e3,
                "args": {"iteration": waited.iteration},
            }


def _picture(timeline: Timeline, iterations: int) -> str:
    first = timeline.first + max(0, timeline.iterations - iterations)
    shown = [[ran for ran in lane if ran[1] >= first] for lane in timeline.ran]
    lanes = [lane for lane, events in enumerate(shown) if events]
    begun = min(ran[2] for events in shown for ran in events)
    ended = max(ran[3] for events in shown for ran in events)
    scale = (_WIDTH - _MARGIN - 20) / max(1, ended - begun)
    height = _TOP + _ROW * len(lanes) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_MARGIN}" y="26" font-size="14" font-weight="bold" fill="{_INK}">iterations {first} to '
        f"{timeline.first + timeline.iterations - 1}, {(ended - begun) / 1e6:.1f} ms; one colour per iteration</text>",
    ]
    for row, lane in enumerate(lanes):
        top = _TOP + _ROW * row
        parts.append(f'<text x="{_MARGIN - 10}" y="{top + 22}" text-anchor="end" fill="{_INK}">{LANES[lane]}</text>')
        parts.append(f'<rect x="{_MARGIN}" y="{top}" width="{_WIDTH - _MARGIN - 20}" height="{_ROW - 12}" fill="#f4f4f4"/>')
        for step, iteration, start, stop in shown[lane]:
            x, width = _MARGIN + (start - begun) * scale, (stop - start) * scale
            name, colour = html.escape(printable(step.name)), _COLOURS[iteration % len(_COLOURS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{top}" width="{max(width, 0.5):.1f}" height="{_ROW - 12}" fill="{colour}">'
                f"<title>{name}, iteration {iteration}: {(stop - start) / 1e6:.2f} ms</title></rect>"
            )
            label = next((text for text in (f"{name} {iteration}", str(iteration)) if width > 7 * len(text)), "")
            if label:
                parts.append(f'<text x="{x + width / 2:.1f}" y="{top + 21}" text-anchor="middle" fill="{_INK}">{label}</text>')
    axis = _TOP + _ROW * len(lanes) + 8
    parts.append(f'<text x="{_MARGIN}" y="{axis + 12}" fill="{_FAINT}">0</text>')
    parts.append(
        f'<text x="{_WIDTH - 20}" y="{axis + 12}" text-anchor="end" fill="{_FAINT}">{(ended - begun) / 1e6:.1f} ms</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _report(timeline: Timeline) -> Iterator[str]:
    wall = max(1, timeline.ended - timeline.begun)
    work = _work(timeline, wall)
    total, longest = sum(work), max(max(work), 1)
    yield f"{timeline.iterations:,} iterations in {wall / 1e9:.2f} s"
    for lane, name in enumerate(LANES):
        if not timeline.ran[lane]:
            continue
        busy, waited, reasons = timeline.busy_ns[lane] / wall, sum(timeline.waiting_ns[lane].values()) / wall, ""
        if timeline.elsewhere_ns[lane]:  # time in which others do its work does not count as waiting
            waited = min(waited, max(0.0, 1 - busy))
        else:
            waits = sorted(timeline.waiting_ns[lane].items(), key=lambda item: -item[1])[:3]
            reasons = "; ".join(
                f"{spent / wall:.0%} for {what} ({why})" for (what, why), spent in waits if spent / wall >= 0.005
            )
        yield f"  {name:8} busy {busy:4.0%}, waits {waited:4.0%}" + (f": {reasons}" if reasons else "")
    yield f"speed-up over sequential: {total / wall:.2f}; best possible for this pipeline: {total / longest:.2f}"
    yield from _advice(timeline, wall, work)


def _work(timeline: Timeline, wall: int) -> list[int]:
    """The time that each lane would take alone: its busy time without waiting for the interpreter."""
    if sum(timeline.cpu_ns) < _SATURATED * wall:
        return list(timeline.busy_ns)
    lanes = zip(timeline.busy_ns, timeline.cpu_ns, timeline.released_ns)  # a lane that shares a thread has no CPU time here
    return [max(0, min(busy, cpu + released)) if cpu else busy for busy, cpu, released in lanes]


def _advice(timeline: Timeline, wall: int, work: list[int]) -> Iterator[str]:
    total = max(1, sum(work))
    collect, learn = work[LANES.index("collect")] / total, work[LEARN] / total
    cpu = timeline.cpu_ns[LANES.index("collect")]
    barred = max(sum(spent for (_, why), spent in lane.items() if "no contract" in why) for lane in timeline.waiting_ns) / wall
    if total / wall >= 0.9 * total / max(max(work), 1) and total / wall > 1.2:
        yield "advice: overlapping cannot gain more; to go faster, make the busiest lane faster."
    elif barred > 0.1:
        yield f"advice: {barred:.0%} of the time is spent waiting for middleware without a contract: declare what they access."
    elif collect > 0.2 and cpu > 0.5 * work[LANES.index("collect")] and sum(timeline.cpu_ns) > _SATURATED * wall:
        yield (
            f"advice: collection takes {collect:.0%} of the time and holds the GIL: use make_envs(..., workers=2, "
            "backend='process')."
        )
    elif max(collect, learn) > 0.9:
        who, rest = ("collection", "training") if collect > learn else ("training", "collection")
        fix = "use more workers" if collect > learn else "collect more per iteration, or make gradient steps cheaper"
        yield f"advice: {who} takes {max(collect, learn):.0%} of the time, so little {rest} can overlap with it: {fix}."
    else:
        lane = work.index(max(work))
        waits = [(spent, *key) for key, spent in timeline.waiting_ns[lane].items()]
        if waits:
            spent, what, why = max(waits)
            spent = spent if not timeline.elsewhere_ns[lane] else min(spent, wall - timeline.busy_ns[lane])
            fix = "a larger max_lag evens out varying times" if "max_lag" in why else "look there first"
            finding = f"the busiest lane, {LANES[lane]}, spends {spent / wall:.0%} of the time waiting for {what} ({why})"
            yield f"advice: {finding}: {fix}."
