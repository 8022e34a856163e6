"""Terminal views: a live view of a run in a terminal, from the files in its folder."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ding_lite.basics import printable, require_extra
from ding_lite.reports.experiments import RETURNS
from ding_lite.reports.labels import label_of, readable
from ding_lite.reports.rows import GrowingFile, MetricColumns, Numbers
from ding_lite.reports.runs import CONFIG, METRICS, ReportError, missing, read_object, search
from ding_lite.sinks import format_duration, sparkline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_WIDE = 28  # characters of a bar
_QUIET_S = 60.0  # seconds without a new row, after which a run may have ended
_LONGEST_S = 1e9  # `time.sleep` takes not much more
_TOPICS = ("evaluate", "collect", "learn", "time", "system")  # in this order; others follow


def watch_run(
    folder: str | os.PathLike[str],
    *,
    once: bool = False,
    every_s: float = 1.0,
    wait: bool = False,
    terminal: Console | None = None,
) -> None:
    """Show a run until Ctrl-C: latest values, progress, returns so far, and the time of the last row.

    The run may be restarted. If the output is not a terminal, the whole view is printed after each change.

    Args:
        folder: folder of the run.
        once: show the current state, and return.
        every_s: seconds between two updates.
        wait: if there is no run in the folder yet, say so and wait for one.
        terminal: the output; standard output by default.

    Raises:
        ReportError: there is no run in the folder and `wait` is false, both `once` and `wait` are true, or every_s is not
            positive, or larger than 1e9.
        ImportError: the extra `cli` is not installed.
    """
    require_extra("rich", "cli", "watching a run")
    from rich.console import Console

    if not 0 < every_s <= _LONGEST_S:  # also NaN
        raise ReportError(f"--every {every_s:g}: expected more than 0 seconds, and at most {_LONGEST_S:g}.")
    terminal = terminal or Console(highlight=False)
    watch = Watch(Path(folder))
    if once and wait:
        raise ReportError("--once shows the current state, and --wait waits for a run: use only one of them.")
    if not wait or watch.folder.is_file():
        _require_run(watch, once)
    if once:
        terminal.print(watch.view())
        return
    with suppress(KeyboardInterrupt):
        (_follow_live if terminal.is_terminal else _follow)(watch, terminal, every_s)


def _require_run(watch: Watch, once: bool) -> None:
    """Raise an error for a folder in which no run has begun. A run writes `CONFIG` before its first row."""
    watch.look()
    if watch.is_there or (not once and (watch.folder / CONFIG).is_file()):
        return
    waiting = "" if once else f" ding-lite watch {watch.folder} --wait waits until a run begins there."
    if not watch.folder.exists():
        raise ReportError(f"{missing(watch.folder)}{waiting}")
    inside = next(search(watch.folder), None)
    if inside is not None:
        raise ReportError(f"{watch.folder} is not a run. There is one in {inside}: ding-lite watch {inside} follows it.")
    raise ReportError(f"{watch.folder} is not a run: it has no {METRICS}, the file that online_logger(cfg) writes.{waiting}")


def _follow_live(watch: Watch, terminal: Console, every_s: float) -> None:
    from rich.live import Live

    with Live(watch.view(), console=terminal, auto_refresh=False) as live:
        while True:
            watch.look()
            live.update(watch.view(), refresh=True)
            time.sleep(every_s)


def _follow(watch: Watch, terminal: Console, every_s: float) -> None:
    watch.look()
    terminal.print(watch.view())  # also before the first row
    while True:
        if watch.look():
            terminal.print(watch.view())
        time.sleep(every_s)


class Watch:
    """The current state of a run, read from its folder.

    Args:
        folder: folder of the run, which may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.columns = MetricColumns()
        self._config: Mapping[str, Any] = {}
        self._tail = GrowingFile(folder / METRICS)

    @property
    def is_there(self) -> bool:
        """Whether the file of rows existed at the last `look`."""
        return self._tail.modified is not None

    def look(self) -> bool:
        """Read new rows. Returns whether there were any."""
        is_news = False
        while True:
            rows, is_other = self._tail.read()
            if is_other:
                self.columns, self._config = MetricColumns(), {}
            if not rows:
                break
            self.columns.take(rows)
            is_news = True
        if is_news:  # a run that goes on may have other settings
            self._config = read_object(self.folder / CONFIG)[0] or self._config
        return is_news

    def view(self) -> RenderableType:
        """The view for the terminal."""
        from rich.console import Group
        from rich.text import Text

        head = Text(printable(str(self._config.get("exp_name") or self.folder)), "bold")
        env = self._config.get("env")
        about = [env.get("id") if isinstance(env, Mapping) else None, f"seed {self._config.get('seed')}"]
        if self._config:
            head.append("  " + printable(", ".join(str(part) for part in about if part)), "dim")
        words, style = self.state()
        parts: list[RenderableType] = [head, Text(printable(words), style)]
        if self.columns.count:
            parts += [*self._progress(), *self._sparklines(), self._newest()]
        return Group(*parts)

    def state(self) -> tuple[str, str]:
        """A sentence with the time since the last row, or what the view waits for; and its style."""
        if self._tail.modified is None:  # does not exist
            return _waiting(self.folder, bool(self.columns.count)), "yellow"
        if not self.columns.count:
            return f"{self.folder / METRICS} has no row yet", "yellow"
        age = max(time.time() - self._tail.modified, 0.0)
        shown = f"{self.columns.count:,} rows, the last one {format_duration(age)} ago"
        return (shown, "green") if age < _QUIET_S else (f"{shown}: the run is slow, or it has ended", "yellow")

    def _progress(self) -> Iterator[RenderableType]:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        most, done, spent = self._config.get("max_step"), self.columns.last("total_step"), self.columns.last("time_s")
        if not isinstance(most, int) or done is None or most < 1:
            return
        fraction = min((done + 1) / most, 1.0)
        shown = f"{fraction:.0%} of {most:,} iterations"
        if spent is not None:
            shown += f" in {format_duration(spent)}, at most {format_duration(spent * (1 - fraction) / fraction)} left"
        line = Table.grid(padding=(0, 2))
        line.add_row(ProgressBar(total=1.0, completed=fraction, width=_WIDE), shown)
        yield line

    def _sparklines(self) -> Iterator[RenderableType]:
        from rich.table import Table

        lines = Table.grid(padding=(0, 2))
        for metric in RETURNS:
            values = self.columns.values(metric)
            if len(values):
                lines.add_row(
                    label_of(metric), history(values, _WIDE), f"{readable(values[-1])}, best {readable(values.max())}"
                )
        if lines.row_count:
            yield lines

    def _newest(self) -> Table:
        from rich.columns import Columns as SideBySide
        from rich.table import Table
        from rich.text import Text

        lines = Table.grid(padding=(0, 2))
        for topic, names in groupby(sorted(self.columns.newest, key=_place), _topic):
            cells = []
            for name in names:
                if (shown := self._shown(name)) is not None:
                    cells.append(Text.assemble((printable(name.partition("/")[2] or name), "dim"), " ", shown, no_wrap=True))
            lines.add_row(Text(printable(topic), "bold"), SideBySide(cells, padding=(0, 3)))
        return lines

    def _shown(self, name: str) -> str | None:
        """The latest value, for a mean with its range; None for the minimum and maximum of a shown mean."""
        path, _, kind = name.rpartition("_")
        if kind in ("min", "max") and f"{path}_mean" in self.columns.newest:
            return None
        newest = self.columns.newest
        ends = [newest.get(f"{path}_{end}") for end in ("min", "max")] if kind == "mean" else [None]
        among = "" if None in ends else f" ({_shown_number(ends[0])} to {_shown_number(ends[-1])})"
        return _shown_number(newest[name]) + among


def _shown_number(value: float | None) -> str:
    return readable(value) if value is None or math.isfinite(value) else str(value)  # nan, inf or -inf


def history(values: Numbers, width: int) -> str:
    """Numbers as a line of at most `width` small bars; if there are more, each bar is the mean of several.

    Example:
        >>> history(np.array([0.0, 1.0, 2.0, 7.0]), 10), history(np.array([0.0, 2.0, 5.0, 9.0]), 2)
        ('▁▂▃█', '▁█')
    """
    parts = [part for part in np.array_split(values, min(width, len(values))) if len(part)]
    return sparkline([float((part / len(part)).sum()) for part in parts])  # divided first, because the sum may overflow


def _waiting(folder: Path, was_there: bool) -> str:
    if was_there:
        return f"{folder / METRICS} does not exist any more: waiting for a new one"
    if not folder.is_dir():
        return f"waiting for {folder / METRICS}: the folder does not exist yet"
    inside = next(search(folder), None)
    other = f" (there is a run in {inside}: watch that one?)" if inside else ""
    return f"waiting for {folder / METRICS}{other}"


def _topic(name: str) -> str:
    return name.partition("/")[0] if "/" in name else "counters"


def _place(name: str) -> tuple[int, str]:
    topic = _topic(name)
    order = ("counters", *_TOPICS)
    return (order.index(topic), "") if topic in order else (len(order), topic)
