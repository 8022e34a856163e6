"""Rows: the numbers that a run writes line by line, kept as columns; and the file of them, which may still be growing."""

from __future__ import annotations

import math
import os
from array import array
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ding_lite.sinks import read_row

Numbers: TypeAlias = "npt.NDArray[np.float64]"

_CHUNK = 1 << 20  # bytes read at once
_BEFORE = 64  # bytes before the place of the last look, by which the file is known again


class MetricColumns:
    """Numbers under names, taken row by row. A row has what it has: what is no finite number counts as absent where values
    are drawn or summed up; only `newest` and `not_finite` tell of NaN and infinities.

    Example:
        >>> columns = MetricColumns()
        >>> for row in {"env_step": 0, "loss": None}, {"env_step": 8, "loss": 2.0}, {"env_step": 16, "eps": 0.5}:
        ...     columns.take(row)
        >>> columns.series("loss", "env_step")
        (array([8.]), array([2.]))
    """

    def __init__(self) -> None:
        self.count = 0
        """Rows taken."""
        self.newest: dict[str, float] = {}
        """The newest number under each name, NaN and infinities too."""
        self.not_finite: Counter[str] = Counter()
        """How many NaN and infinities there were under each name; but for NaN before its first number, as rates begin."""
        self._infinite: set[str] = set()
        self._places: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def names(self) -> list[str]:
        """Every name that had a number, in the order of first appearance."""
        return list(self._values)

    def take(self, row: Mapping[str, Any]) -> None:
        """Take one row."""
        for name, value in row.items():
            number = _number(value)
            if number is None:
                continue
            self.newest[name] = number
            if not math.isfinite(number):
                self.not_finite[name] += 1
                if math.isinf(number):
                    self._infinite.add(name)
                continue
            if name not in self._values:
                if name not in self._infinite:
                    del self.not_finite[name]  # which a Counter takes also where there is none
                self._places[name], self._values[name] = array("q"), array("d")
            self._places[name].append(self.count)
            self._values[name].append(number)
        self.count += 1

    def last(self, name: str) -> float | None:
        """The newest finite number under this name, or None."""
        return self._values[name][-1] if name in self._values else None

    def values(self, name: str) -> Numbers:
        """Every number under this name, row by row."""
        return np.array(self._values.get(name, ()), float)

    def series(self, name: str, x: str) -> tuple[Numbers, Numbers]:
        """(x, y) of the rows that have both, with x strictly increasing: where it stays or goes back, the later row counts."""
        if name not in self._values or x not in self._values:
            return np.empty(0), np.empty(0)
        _, of_x, of_y = np.intersect1d(self._places[x], self._places[name], assume_unique=True, return_indices=True)
        xs, ys = np.array(self._values[x])[of_x], np.array(self._values[name])[of_y]
        lowest_after = np.minimum.accumulate(xs[::-1])[::-1]
        counts = np.append(xs[:-1] < lowest_after[1:], True) if len(xs) else np.empty(0, bool)
        return xs[counts], ys[counts]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return None


class GrowingFile:
    """A file of rows that may not be there yet, may grow, and may be cut or replaced by another.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modified: float | None = None
        """When it was last written, in seconds of `time.time`; None while it is not there."""
        self.unreadable = 0
        """Lines that were no rows."""
        self._offset = 0
        self._before = b""

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The rows added since the last look, a few megabytes of them at most; and whether they are those of another file
        (or of this one, cut shorter), so that what was read before counts no more. Half a line is left for later."""
        rows: list[dict[str, Any]] = []
        is_other = False
        while not rows:
            lines, began_anew = self._lines()
            is_other |= began_anew
            if not lines:
                break
            found = [_row(line) for line in lines]
            self.unreadable += found.count(None)
            rows = [row for row in found if row is not None]
        return rows, is_other

    def _lines(self) -> tuple[list[bytes], bool]:
        """Whole lines that were not read before, and whether they are of another file."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset - len(self._before))
                is_other = file.read(len(self._before)) != self._before
                if is_other:
                    self._offset, self._before, self.unreadable = 0, b"", 0
                    file.seek(0)
                lines = file.readlines(_CHUNK)
                self.modified = os.fstat(file.fileno()).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            self.modified = None
            return [], False
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        whole = b"".join(lines)
        self._offset += len(whole)
        self._before = (self._before + whole)[-_BEFORE:]
        return lines, is_other


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        return read_row(line)
    except ValueError:
        return None
