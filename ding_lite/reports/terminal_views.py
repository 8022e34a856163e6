"""Terminal views: a run as it goes on, in a terminal, from what it writes into its folder."""

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
from ding_lite.sinks import readable_time, sparkline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_WIDE = 28  # letters of a bar
_QUIET_S = 60.0  # without a new row, after which a run may have ended
_TOPICS = ("evaluate", "collect", "learn", "time", "system")  # in this order, and others behind them


def watch_run(
    folder: str | os.PathLike[str],
    *,
    once: bool = False,
    every_s: float = 1.0,
    wait: bool = False,
    terminal: Console | None = None,
) -> None:
    """Show a run until Ctrl-C: its newest numbers, how far it is, its returns so far, when the last row came.

    The run may begin anew. What is not a terminal gets the whole view whenever there is news.

    Args:
        folder: of the run.
        once: show what there is, and return.
        every_s: seconds between two looks at the folder.
        wait: if there is no run in the folder yet, say so and wait for one.
        terminal: where to; standard output, by default.

    Raises:
        ReportError: there is no run in the folder, and not `wait`; both `once` and `wait`; or no time between two looks.
        ImportError: the extra `cli` is not installed.
    """
    require_extra("rich", "cli", "watching a run")
    from rich.console import Console

    if every_s <= 0:
        raise ReportError(f"--every {every_s:g} is no time between two looks: give it more than 0 seconds.")
    terminal = terminal or Console(highlight=False)
    watch = Watch(Path(folder))
    if once and wait:
        raise ReportError("--once shows what there is, and --wait waits for a run: give one of them.")
    if not wait or watch.folder.is_file():
        _require_run(watch, once)
    if once:
        terminal.print(watch.view())
        return
    with suppress(KeyboardInterrupt):
        (_follow_live if terminal.is_terminal else _follow)(watch, terminal, every_s)


def _require_run(watch: Watch, once: bool) -> None:
    """Refuse a folder in which no run has begun; where one has, `CONFIG` is there before the first row."""
    watch.look()
    if watch.is_there or (not once and (watch.folder / CONFIG).is_file()):
        return
    waiting = "" if once else f" ding-lite watch {watch.folder} --wait waits until a run begins there."
    if not watch.folder.exists():
        raise ReportError(f"{missing(watch.folder)}{waiting}")
    inside = next(search(watch.folder), None)
    if inside is not None:
        raise ReportError(f"{watch.folder} is no run. There is one in {inside}: ding-lite watch {inside} follows it.")
    raise ReportError(f"{watch.folder} is no run: there is no {METRICS} in it, which online_logger(cfg) writes.{waiting}")


def _follow_live(watch: Watch, terminal: Console, every_s: float) -> None:
    from rich.live import Live

    with Live(watch.view(), console=terminal, auto_refresh=False) as live:
        while True:
            watch.look()
            live.update(watch.view(), refresh=True)
            time.sleep(every_s)


def _follow(watch: Watch, terminal: Console, every_s: float) -> None:
    watch.look()
    terminal.print(watch.view())  # where there is no row yet, it says what is waited for
    while True:
        if watch.look():
            terminal.print(watch.view())
        time.sleep(every_s)


class Watch:
    """What is known of a run so far.

    Args:
        folder: of the run; it need not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.columns = MetricColumns()
        self._config: Mapping[str, Any] = {}
        self._tail = GrowingFile(folder / METRICS)

    @property
    def is_there(self) -> bool:
        """Whether there was a file of rows at the last look."""
        return self._tail.modified is not None

    def look(self) -> bool:
        """Read what was added since the last look; whether that was anything."""
        is_news = False
        while True:
            rows, is_other = self._tail.read()
            if is_other:
                self.columns, self._config = MetricColumns(), {}
            if not rows:
                break
            for row in rows:
                self.columns.take(row)
            is_news = True
        if is_news and not self._config:
            self._config, _ = read_object(self.folder / CONFIG)
        return is_news

    def view(self) -> RenderableType:
        """What a terminal shows."""
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
        """How long ago the last row came, or what is waited for; and in which style that is said."""
        if self._tail.modified is None:  # not there
            return _waiting(self.folder, bool(self.columns.count)), "yellow"
        if not self.columns.count:
            return f"{self.folder / METRICS} is there, and holds no row yet", "yellow"
        age = max(time.time() - self._tail.modified, 0.0)
        shown = f"{self.columns.count:,} rows, the last one {readable_time(age)} ago"
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
            shown += f" in {readable_time(spent)}, at most {readable_time(spent * (1 - fraction) / fraction)} left"
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
        """The newest value; beside a mean its range, so that the ends of that range are not shown again."""
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
    """Numbers as a line of small bars; where there are more values than room, means of several.

    Example:
        >>> history(np.array([0.0, 1.0, 2.0, 7.0]), 10), history(np.array([0.0, 2.0, 5.0, 9.0]), 2)
        ('▁▂▃█', '▁█')
    """
    return sparkline([float(part.mean()) for part in np.array_split(values, min(width, len(values))) if len(part)])


def _waiting(folder: Path, was_there: bool) -> str:
    if was_there:
        return f"{folder / METRICS} is no longer there: waiting for another"
    if not folder.is_dir():
        return f"waiting for {folder / METRICS}: the folder is not there yet"
    inside = next(search(folder), None)
    other = f" (there is a run in {inside}: watch that one?)" if inside else ""
    return f"waiting for {folder / METRICS}{other}"


def _topic(name: str) -> str:
    return name.partition("/")[0] if "/" in name else "counters"


def _place(name: str) -> tuple[int, str]:
    topic = _topic(name)
    order = ("counters", *_TOPICS)
    return (order.index(topic), "") if topic in order else (len(order), topic)
