"""Files of metrics: each row is a line, whole on disk before `write` returns, whatever happens to the process then."""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ding_lite.basics import move_aside, write_atomically, writing
from ding_lite.sinks.groups import plain_row

_SPELT = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that JSON does not know, by the text that stands for them; Protocol Buffers and JavaScript write them so, too."""


def read_row(line: str | bytes) -> dict[str, Any]:
    """The row in a line of `metrics.jsonl`, as it was written: NaN and infinities, which stand there as text, are numbers.

    Raises:
        ValueError: the line is no JSON object.

    Example:
        >>> read_row('{"env_step": 8, "learn/loss": "-Infinity", "evaluate/return_mean": null}')
        {'env_step': 8, 'learn/loss': -inf, 'evaluate/return_mean': None}
    """
    try:
        row = json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(row, dict):
        raise ValueError(f"{type(row).__name__} instead of an object")
    return {name: _number_of(value) for name, value in row.items()}


class _Lines(ABC):
    """A file that grows by whole lines, and can be cut back to a step."""

    def __init__(self, path: str | PathLike[str], after: int | None, step: str) -> None:
        self.path = Path(path)
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        if after is None:
            move_aside(self.path)
        elif self.path.exists():
            self._cut(after, step)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def close(self) -> None:  # noqa: B027  nothing is open between two rows
        """Nothing is left to do."""

    @abstractmethod
    def _step_of(self, line: bytes, step: str) -> Any:
        """What stands in this column of the line, or None; the lines come in order. ValueError where it is no row."""

    def _cut(self, after: int, step: str) -> None:
        """Leave of the file what is not beyond this step; all of it or nothing happens, also where the process is killed."""
        *lines, _ = self.path.read_bytes().split(b"\n")  # behind the last line break there is nothing, or half a line
        kept = []
        for number, line in enumerate(lines, 1):
            try:
                at = self._step_of(line, step)
                if at is None or float(at) <= after:
                    kept.append(line.rstrip(b"\r") + b"\n")
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"line {number} of {self.path} is no row of metrics ({error}): mend it, or move the file away."
                ) from error
        write_atomically(self.path, b"".join(kept))


class JsonLines(_Lines):
    """One JSON object a line, which every reader of JSON takes.

    NaN and infinities, which JSON does not know, are the texts "NaN", "Infinity" and "-Infinity"; None is null. `read_row`
    gives each row back as it was, but for text that is one of these three words.

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

    def __init__(self, path: str | PathLike[str], after: int | None = None, step: str = "env_step") -> None:
        super().__init__(path, after, step)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one line.

        Raises:
            OSError: the disk refuses. The file is as it was, and later rows can be written; in a `SinkGroup` training goes on.
        """
        append_whole(self.path, json.dumps(_spelt(plain_row(row)), allow_nan=False).encode() + b"\n")

    def _step_of(self, line: bytes, step: str) -> Any:
        return read_row(line).get(step)


class Csv(_Lines):
    """A table with a line of names and one line a row, for spreadsheets.

    None is an empty cell; NaN and infinities are nan, inf and -inf; lists, dicts and text of several lines stand there as JSON.
    A row with a new name makes the table wider: the file is written anew, whole or not at all.

    Args:
        path: of the file; its folder is made. An earlier file is moved aside as `JsonLines` does it.
        after: as of `JsonLines`.
        step: as of `JsonLines`.

    Raises:
        ValueError: a line of the file has more or fewer cells than the first; the file is as it was.
    """

    def __init__(self, path: str | PathLike[str], after: int | None = None, step: str = "env_step") -> None:
        self._names: dict[str, None] = {}
        super().__init__(path, after, step)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one line, or write the file anew where the row has a new name.

        Raises:
            OSError: the disk refuses. The file is as it was, and later rows can be written; in a `SinkGroup` training goes on.
        """
        cells = {name: _cell(value) for name, value in plain_row(row).items()}
        names = {**self._names, **dict.fromkeys(cells)}
        line = _csv_line(cells.get(name) for name in names)
        if len(names) == len(self._names) and self.path.exists():
            append_whole(self.path, line)
            return
        lines = self.path.read_bytes().split(b"\n")[1:-1] if self.path.exists() else []
        wider = b"," * (len(names) - len(self._names))
        write_atomically(self.path, b"".join([_csv_line(map(_cell, names)), *(old + wider + b"\n" for old in lines), line]))
        self._names = names

    def _step_of(self, line: bytes, step: str) -> Any:
        try:
            cells = next(csv.reader([line.decode()], strict=True))
        except csv.Error as error:
            raise ValueError(str(error)) from error
        if not self._names:
            self._names = dict.fromkeys(cells)
            return None
        if len(cells) != len(self._names):
            raise ValueError(f"{len(cells)} cells under {len(self._names)} names")
        return dict(zip(self._names, cells)).get(step) or None


def append_whole(path: Path, content: bytes) -> None:
    """Add to the end of a file, all of it or nothing.

    Raises:
        WriteError: the disk refuses; the file is as it was.
    """
    # Opened for each line: nothing to close, nothing in a buffer, and a few dozen microseconds.
    with writing(path), open(path, "ab", buffering=0) as file:
        end = file.tell()
        written = 0
        try:
            while written < len(content):  # the system takes what there is room for, and says why not more when asked again
                written += file.write(content[written:])
        except OSError:
            file.truncate(end)  # or the next line would be joined to half a one
            raise


def _spelt(value: Any) -> Any:
    """The same with text for the numbers that JSON does not know."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _spelt(part) for name, part in value.items()}
    return [_spelt(part) for part in value] if isinstance(value, list) else value


def _number_of(value: Any) -> Any:
    """The inverse of `_spelt`."""
    if isinstance(value, str):
        return _SPELT.get(value, value)
    if isinstance(value, dict):
        return {name: _number_of(part) for name, part in value.items()}
    return [_number_of(part) for part in value] if isinstance(value, list) else value


def _cell(value: Any) -> Any:
    needs_json = isinstance(value, (list, dict)) or (isinstance(value, str) and not value.isprintable())
    return json.dumps(_spelt(value), allow_nan=False) if needs_json else value


def _csv_line(cells: Iterable[Any]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue().encode()
