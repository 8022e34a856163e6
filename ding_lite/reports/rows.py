"""Rows: metrics of a run as columns, and reading of their file, which may still be growing."""

from __future__ import annotations

import contextlib
import itertools
import os
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ding_lite.sinks import read_rows

Numbers: TypeAlias = "npt.NDArray[np.float64]"

_CHUNK = 1 << 20  # bytes read at once
_BEFORE = 64  # bytes before the last read position, to detect that the file was replaced


class MetricColumns:
    """Columns of numbers by name, filled with rows, which may have different names. Only finite numbers are stored; NaN and
    infinities appear only in `newest` and `not_finite`.

    Example:
        >>> columns = MetricColumns()
        >>> columns.take([{"env_step": 0, "loss": None}, {"env_step": 8, "loss": 2.0}, {"env_step": 16, "eps": 0.5}])
        >>> columns.series("loss", "env_step")
        (array([8.]), array([2.]))
    """

    def __init__(self) -> None:
        self.count = 0
        """Number of rows."""
        self.newest: dict[str, float] = {}
        """The latest number of each name, including NaN and infinities."""
        self.not_finite: Counter[str] = Counter()
        """Number of NaN and infinities of each name, without NaN before its first number, with which rates begin."""
        self._infinite: set[str] = set()
        """Names with an infinity before their first number."""
        self._places: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def names(self) -> list[str]:
        """All names with a finite number, in the order of first appearance."""
        return list(self._values)

    def take(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take rows."""
        for names, same in itertools.groupby(rows, tuple):
            alike = list(same)
            table = _table(alike)
            if table is not None and self.not_finite.keys().isdisjoint(names):
                self._take_table(names, table)
            else:
                self._take_columns(names, alike)
            self.count += len(alike)

    def _take_table(self, names: Sequence[str], table: Numbers) -> None:
        """Take rows of finite numbers: the same as `_take_columns`, but several times as fast."""
        places = np.arange(self.count, self.count + len(table)).tobytes()
        for name, numbers in zip(names, np.ascontiguousarray(table.T)):
            if name not in self._values:
                self._places[name], self._values[name] = array("q"), array("d")
            self._places[name].frombytes(places)
            self._values[name].frombytes(numbers.tobytes())
        self.newest.update(zip(names, table[-1].tolist()))

    def _take_columns(self, names: Sequence[str], alike: Sequence[Mapping[str, Any]]) -> None:
        """Take rows with these names, which may hold anything."""
        found = [(name, *_numbers(column)) for name, column in zip(names, zip(*(row.values() for row in alike)))]
        for name, _, numbers in found:
            self._note_not_finite(name, numbers)
            if len(numbers):
                self.newest[name] = float(numbers[-1])
        masks = [np.isfinite(numbers) for _, _, numbers in found]
        finite = [(name, places[mask], numbers[mask]) for (name, places, numbers), mask in zip(found, masks) if mask.any()]
        for name, places, numbers in sorted(finite, key=lambda one: int(one[1][0])):
            self._places.setdefault(name, array("q")).frombytes((places + self.count).tobytes())
            self._values.setdefault(name, array("d")).frombytes(numbers.tobytes())

    def _note_not_finite(self, name: str, numbers: Numbers) -> None:
        """Count NaN and infinities; NaN that were counted before the first number are removed."""
        bad = ~np.isfinite(numbers)
        if not bad.any() and name not in self.not_finite:
            return
        if name not in self._values:
            first = len(bad) if bad.all() else int(bad.argmin())
            if np.isinf(numbers[:first]).any():
                self._infinite.add(name)
            if first < len(bad) and name not in self._infinite:
                del self.not_finite[name]  # a Counter allows this for missing names
                bad = bad[first:]
        if bad.any():
            self.not_finite[name] += int(np.count_nonzero(bad))

    def last(self, name: str) -> float | None:
        """The latest finite number of this name, or None."""
        return self._values[name][-1] if name in self._values else None

    def values(self, name: str) -> Numbers:
        """All finite numbers of this name, in order."""
        return np.array(self._values.get(name, ()), float)

    def series(self, name: str, x: str) -> tuple[Numbers, Numbers]:
        """(x, y) of the rows that have both, with x strictly increasing: if x repeats or decreases, the later rows count."""
        if name not in self._values or x not in self._values:
            return np.empty(0), np.empty(0)
        xs, ys = _of_common_rows(self._places[x], self._values[x], self._places[name], self._values[name])
        lowest_after = np.minimum.accumulate(xs[::-1])[::-1]
        counts = np.append(xs[:-1] < lowest_after[1:], True) if len(xs) else np.empty(0, bool)
        return xs[counts], ys[counts]


def _of_common_rows(
    x_places: array[int], x_values: array[float], y_places: array[int], y_values: array[float]
) -> tuple[Numbers, Numbers]:
    """The values of the rows that two columns have in common."""
    xs, ys = np.array(x_values), np.array(y_values)
    if x_places == y_places:  # the usual case; finding the common ones takes much longer
        return xs, ys
    of_x, of_y = np.array(x_places), np.array(y_places)
    found = np.minimum(of_x.searchsorted(of_y), len(of_x) - 1)
    both = of_x[found] == of_y
    return xs[found[both]], ys[both]


def _table(rows: Sequence[Mapping[str, Any]]) -> Numbers | None:
    """The values of rows with the same names, [rows, names]; None if one is not a finite number."""
    values = list(itertools.chain.from_iterable(row.values() for row in rows))
    if not {float, int}.issuperset(map(type, values)):
        return None
    try:
        table = np.array(values, np.float64).reshape(len(rows), -1)
    except OverflowError:  # a whole number of more than 308 digits
        return None
    return table if np.isfinite(table).all() else None


def _numbers(column: Sequence[Any]) -> tuple[npt.NDArray[np.int64], Numbers]:
    """The numbers of a column, and their places in it."""
    if {float, int}.issuperset(map(type, column)):
        with contextlib.suppress(OverflowError):
            return np.arange(len(column)), np.array(column, np.float64)
    found = [(place, number) for place, value in enumerate(column) if (number := _number(value)) is not None]
    places, numbers = zip(*found) if found else ((), ())
    return np.array(places, np.int64), np.array(numbers, np.float64)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return None


class GrowingFile:
    """A file of rows that may not exist yet, may grow, and may be cut or replaced.

    Args:
        path: path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modified: float | None = None
        """Time of its last change, in seconds of `time.time`; None if it does not exist."""
        self.unreadable = 0
        """Number of lines that are not rows."""
        self._offset = 0
        self._before = b""

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The rows added since the last call, at most a few megabytes; and whether the file was replaced or cut, so that rows
        read before are obsolete. An unfinished line is read later."""
        rows: list[dict[str, Any]] = []
        is_other = False
        while not rows:
            lines, began_anew = self._lines()
            is_other |= began_anew
            if not lines:
                break
            found = read_rows(lines)
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
        except IsADirectoryError as error:
            what = "it is a folder, and not the file that online_logger(cfg) writes: move it away"
            raise IsADirectoryError(error.errno, what, str(self.path)) from error
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        whole = b"".join(lines)
        self._offset += len(whole)
        self._before = (self._before + whole)[-_BEFORE:]
        return lines, is_other
