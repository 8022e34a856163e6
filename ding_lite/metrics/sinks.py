"""Sinks: where a run's numbers are written, so that a person or a program finds them.

Room: ding_lite.metrics, floor 1. Imports the basics.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from ding_lite.basics import move_aside, write_atomically


class Sink(Protocol):
    """Takes rows of numbers, one at a time."""

    def write(self, row: Mapping[str, float | int | str | None]) -> None:
        """Take one row."""


class JsonLines:
    """One JSON object a line. Each line is complete on disk before `write` returns, whatever happens to the process then.

    A file from an earlier run in the same folder is moved aside, to `metrics.1.jsonl` and so on, never overwritten; or, where
    that run goes on, so does the file.

    Args:
        path: of the file; its folder is made.
        after: go on with the file that is there, from this step: rows beyond it, and a last line that was never finished, are
            cut, so that no step stands twice. None for a new file.
        step: the column that counts; rows without it stay.

    Raises:
        ValueError: a line in the middle of the file that is no JSON object; the file is as it was.
    """

    def __init__(self, path: Path, after: int | None = None, step: str = "env_step") -> None:
        self.path = path
        self._failed = False
        path.parent.mkdir(parents=True, exist_ok=True)
        if after is None:
            move_aside(path)
        elif path.exists():
            self._cut(after, step)

    def _cut(self, after: int, step: str) -> None:
        """Leave of the file what is not beyond this step; all of it or nothing happens, also where the process is killed."""
        *lines, _ = self.path.read_bytes().split(b"\n")  # behind the last line break there is nothing, or half a line
        kept = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"{type(row).__name__} instead of an object")
            except ValueError as error:
                raise ValueError(
                    f"line {number} of {self.path} is no row of metrics ({error}): mend it, or move the file away."
                ) from error
            if row.get(step) is None or row[step] <= after:
                kept.append(line + b"\n")
        write_atomically(self.path, b"".join(kept))

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one line. Where the disk refuses, training goes on, with one warning."""
        line = json.dumps({key: _json_number(value) for key, value in row.items()}).encode() + b"\n"
        try:
            self._append(line)
            self._failed = False
        except OSError as error:
            if not self._failed:
                warnings.warn(f"the metrics are not written to {self.path} for now: {error}.", stacklevel=2)
            self._failed = True

    def _append(self, line: bytes) -> None:
        # Opened for each line: nothing to close, nothing in a buffer, and a few dozen microseconds.
        with open(self.path, "ab", buffering=0) as file:
            end = file.tell()
            if file.write(line) < len(line):
                file.truncate(end)  # or the next line would be joined to half a one
                raise OSError(f"there is no room for a line of {len(line)} bytes")


class Console:
    """One line of text a row, no more often than every `every_s` seconds, except where it is urgent.

    Args:
        every_s: seconds between two lines.
        stream: standard output, unless told otherwise.
    """

    def __init__(self, every_s: float = 1.0, stream: TextIO | None = None) -> None:
        self.every_s, self._stream = every_s, stream
        self._last = -math.inf

    def due(self) -> bool:
        """Whether it is time for the next line."""
        return time.monotonic() - self._last >= self.every_s

    def write(self, row: Mapping[str, Any]) -> None:
        """Print the row: `name value` pairs, what is None left out."""
        self._last = time.monotonic()
        cells = [f"{name} {_readable(value)}" for name, value in row.items() if value is not None]
        self.say("  ".join(cells))

    def say(self, text: str) -> None:
        """Print text. A closed pipe does not stop a run."""
        with contextlib.suppress(BrokenPipeError):
            print(text, file=self._stream or sys.stdout, flush=True)


def _json_number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value  # JSON knows neither NaN nor infinity


def _readable(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def readable_time(seconds: float) -> str:
    """Seconds as hours, minutes and seconds.

    Example:
        >>> readable_time(75), readable_time(3700)
        ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
