"""Consoles: output of a run in progress, as lines of text or, on a terminal, as a live view."""

from __future__ import annotations

import atexit
import importlib.util
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO, TypeGuard

from ding_lite.basics import EnduringStream, is_closed, printable, require_extra, warn_caller
from ding_lite.sinks.sink_groups import plain_row

_CURVES = ("evaluate/episode_return_mean", "collect/episode_return_mean")
_GROUPS = ("counters", "evaluate", "collect", "learn", "time", "system")
_BARS = "▁▂▃▄▅▆▇█"
_MARGIN = 10  # characters for the name of a group
_SLOT = 30  # characters for most names with their values
_LARGEST = sys.float_info.max


def make_console(every_s: float = 1.0, stream: TextIO | None = None) -> Console:
    """A `LiveConsole` if the stream is a capable terminal and rich is installed, else a `Console`."""
    target = sys.stdout if stream is None else stream
    can_draw = _is_terminal(target) and "utf" in str(target.encoding).lower() and os.environ.get("TERM", "dumb") != "dumb"
    return (LiveConsole if can_draw and importlib.util.find_spec("rich") else Console)(every_s, stream)


class Console:
    """Prints a line of text for each row.

    Args:
        every_s: minimum seconds between two lines; the caller checks `due`.
        stream: the output; standard output by default.
    """

    def __init__(self, every_s: float = 1.0, stream: TextIO | None = None) -> None:
        self.every_s, self._stream = every_s, stream
        self._last = -math.inf
        self._has_warned = False

    def due(self) -> bool:
        """Whether `every_s` seconds have passed since the last line."""
        return time.monotonic() - self._last >= self.every_s

    def write(self, line: Mapping[str, Any], row: Mapping[str, Any] | None = None, done: float | None = None) -> None:
        """Print the `name value` pairs of `line` that are not None. `row` and `done` are for `LiveConsole`."""
        self._last = time.monotonic()
        self.say("  ".join(f"{name} {_readable(value)}" for name, value in line.items() if value is not None))

    def say(self, text: str) -> None:
        """Print text without control characters. If it cannot be written, there is one warning; not if the reader of the pipe
        has ended, or the terminal is closed."""
        print(printable(text, keep="\n"), file=self._output(), flush=True)

    def close(self) -> None:
        """Does nothing, because nothing is open between two lines."""

    def _output(self) -> EnduringStream:
        return EnduringStream(sys.stdout if self._stream is None else self._stream, self._warn)

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            name = "standard output" if self._stream is None else "the output of the console"
            warn_caller(
                f"{name} cannot be written to ({problem}), so lines about the progress of the run are lost. The run goes on. "
                "Send the output to a file that can be written, as in `python train.py > train.log`.",
            )


class LiveConsole(Console):
    """A live view at the bottom of the terminal: progress, the latest values in groups, and curves of the mean return.

    Output of other code by `print`, `sys.stdout` or `sys.stderr` appears above it. The view is drawn only during calls, without
    a thread; a call takes about 1 ms, and so does output of other code.

    Args:
        every_s: minimum seconds between two updates of the view.
        stream: the output; standard output by default.

    Raises:
        ImportError: rich is not installed.
    """

    def __init__(self, every_s: float = 1.0, stream: TextIO | None = None) -> None:
        require_extra("rich", "cli", "LiveConsole()")
        super().__init__(every_s, stream)
        self._live: Any = None

    def write(self, line: Mapping[str, Any], row: Mapping[str, Any] | None = None, done: float | None = None) -> None:
        """Take the latest values, and update the view if `due`.

        Args:
            line: shown if there is no row.
            row: the latest row. Names that are not in it keep their last value.
            done: finished fraction of the run, in [0, 1]; None if unknown.
        """
        if self._live is None:
            self._start(done)
        row = plain_row(line if row is None else row)
        self._values.update({name: value for name, value in row.items() if value is not None})
        self._done = done
        for name, curve in self._curves.items():
            if isinstance(value := row.get(name), (int, float)) and math.isfinite(value):
                curve.add(value)
        if self.due():
            self._last = time.monotonic()
            self._live.update(self._page(), refresh=True)

    def say(self, text: str) -> None:
        """Print text that stays, above the view."""
        if self._live is None:
            super().say(text)
        else:
            self._live.console.print(printable(text, keep="\n"), markup=False, highlight=False, emoji=False, soft_wrap=True)

    def close(self) -> None:
        """End the view; the last values stay on the terminal. A later `write` begins a new view."""
        if self._live is not None:
            atexit.unregister(self.close)
            try:
                self._live.update(self._page())
            finally:
                self._live.stop()
                self._live = None

    def _start(self, done: float | None) -> None:
        from rich.console import Console as Terminal
        from rich.live import Live

        self._values: dict[str, Any] = {}
        self._curves = {name: _Curve() for name in _CURVES}
        self._began, self._last, self._done_before = time.monotonic(), -math.inf, done or 0.0
        terminal = Terminal(file=self._output(), highlight=False)  # type: ignore[arg-type]
        out, err = _is_terminal(sys.stdout), _is_terminal(sys.stderr)  # output redirected to a file stays so
        self._live = Live(console=terminal, auto_refresh=False, redirect_stdout=out, redirect_stderr=err)
        atexit.register(self.close)  # shows the cursor again
        self._live.start()

    def _page(self) -> Any:
        """The content of the view. It is created here, because output of other code only draws the same content again. Segments
        instead of a `Text`, whose lines rich would wrap, in twice the time."""
        from rich.segment import Segment, Segments
        from rich.style import Style

        width: int = self._live.console.width
        parts = [*self._progress(width)]
        for group, cells in _cells(self._values, self._curves).items():
            if cells:
                parts += [("\n" + group.ljust(_MARGIN), "bold"), *_laid_out(cells, width - _MARGIN)]
        return Segments([Segment(text, Style.parse(style) if style else None) for text, style in parts])

    def _progress(self, width: int) -> Iterator[tuple[str, str]]:
        spent = time.monotonic() - self._began
        done = min(max(self._done or 0.0, 0.0), 1.0)
        if self._done is not None:
            bar = max(width - 40, 10)
            yield "━" * round(bar * done), "green"
            yield "─" * (bar - round(bar * done)) + f" {done:4.0%}  ", ""
        yield f"{format_duration(spent)} elapsed", ""
        if done > self._done_before:
            yield f", {format_duration(spent * (1 - done) / (done - self._done_before))} left", ""


class _Curve:
    """The whole history of a number as a line of small bars, averaged to at most 31 points."""

    def __init__(self) -> None:
        self._points: list[float] = []
        self._waiting: list[float] = []
        self._each = 1  # values per point

    def add(self, value: float) -> None:
        self._waiting.append(value)
        if len(self._waiting) == self._each:
            self._points.append(_mean(self._waiting))
            self._waiting = []
        if len(self._points) == 32:
            self._points = [_mean(self._points[at : at + 2]) for at in range(0, 32, 2)]
            self._each *= 2

    def __str__(self) -> str:
        return sparkline(self._points)


def _cells(values: Mapping[str, Any], curves: Mapping[str, _Curve]) -> dict[str, list[tuple[str, str]]]:
    """The shown (name, text) pairs of each group; a mean is shown with its range and its curve."""
    groups: dict[str, list[tuple[str, str]]] = {group: [] for group in _GROUPS}
    for name, value in values.items():
        group, _, label = (name if "/" in name else f"counters/{name}").partition("/")
        path, _, kind = name.rpartition("_")
        if name == "time_s" or isinstance(value, (list, dict)) or (kind in ("min", "max") and f"{path}_mean" in values):
            continue
        text = printable(" ".join(_readable(value).split()))
        if kind == "mean":
            label, ends = label.removesuffix("_mean"), [values.get(f"{path}_{end}") for end in ("min", "max")]
            text += "" if None in ends else f" ({_readable(ends[0])} to {_readable(ends[1])})"
        shown = f"{text} {curves[name]}" if name in curves else text
        groups.setdefault(printable(group), []).append((printable(label), shown))
    return groups


def _laid_out(cells: Sequence[tuple[str, str]], width: int) -> Iterator[tuple[str, str]]:
    """The cells in lines and aligned columns, as (text, style) pairs."""
    slots = max(1, width // _SLOT)
    slot, used = max(width // slots, 1), 0
    for label, text in cells:
        length = len(label) + len(text) + 1
        needed = -(-(length + 2) // slot)
        if used and used + needed > slots:
            yield "\n" + " " * _MARGIN, ""
            used = 0
        yield f"{label} ", "dim"
        yield text + " " * (needed * slot - length), ""
        used += needed


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)  # divided first, because the sum may overflow


def _is_terminal(stream: TextIO | None) -> TypeGuard[TextIO]:
    return stream is not None and hasattr(stream, "isatty") and not is_closed(stream) and stream.isatty()


def _readable(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}" if 100 <= abs(value) < 1e15 else f"{value:.3g}"
    return f"{value:,}" if type(value) is int else str(value)


def sparkline(values: Sequence[float]) -> str:
    """Numbers as a line of small bars, the lowest at the bottom.

    Example:
        >>> sparkline([0.0, 1.0, 2.0, 7.0])
        '▁▂▃█'
    """
    values = [min(max(value, -_LARGEST), _LARGEST) for value in values]
    low, high = min(values, default=0.0), max(values, default=0.0)
    if math.isinf(high - low):  # overflow
        return sparkline([value / 4 for value in values])
    return "".join(_BARS[round((value - low) / ((high - low) or 1.0) * (len(_BARS) - 1))] for value in values)


def format_duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds.

    Example:
        >>> format_duration(75), format_duration(3700)
        ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
