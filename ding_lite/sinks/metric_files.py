"""Files of metrics: each row is a line, complete in the file before `write` returns."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ding_lite.basics import move_aside, write_atomically, writing
from ding_lite.basics.json_numbers import SPELT, json_number
from ding_lite.sinks.sink_groups import plain_row


def read_row(line: str | bytes) -> dict[str, Any]:
    """The row in a line of `metrics.jsonl`; NaN and infinities, stored as text, are numbers again.

    Raises:
        ValueError: the line is not a JSON object.

    Example:
        >>> read_row('{"env_step": 8, "learn/loss": "-Infinity", "evaluate/return_mean": null}')
        {'env_step': 8, 'learn/loss': -inf, 'evaluate/return_mean': None}
    """
    try:
        row = json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got a {type(row).__name__}")
    return {name: value_of_json(value) for name, value in row.items()}


def read_rows(lines: Sequence[bytes]) -> list[dict[str, Any] | None]:
    """The rows in lines of `metrics.jsonl`, as `read_row`; None for a line that is not a row."""
    whole = b",".join(lines)
    try:
        rows = json.loads(b"[" + whole + b"]")  # three times as fast as line by line
        if len(rows) == len(lines) and {dict}.issuperset(map(type, rows)):
            if b'NaN"' in whole or b'Infinity"' in whole:
                return [value_of_json(row) for row in rows]
            return rows  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        pass  # a line is damaged
    return [_row(line) for line in lines]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        return read_row(line)
    except ValueError:
        return None


class _Lines(ABC):
    """A file to which whole lines are appended, and from which rows after a step can be removed."""

    _head_lines = 0
    """Number of lines before the first row."""

    def __init__(self, path: str | PathLike[str], after: float | None, step: str, rows: int | None) -> None:
        self.path = Path(path)
        self.rows = 0
        """Number of rows in the file."""
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        if after is None:
            move_aside(self.path)
        elif self.path.exists():
            with writing(self.path):  # a folder, for example, cannot be continued
                self._cut(after, step, rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def close(self) -> None:  # noqa: B027  nothing is open between two rows
        """Does nothing, because nothing is open between two rows."""

    @abstractmethod
    def _step_of(self, line: bytes, step: str) -> Any:
        """The value of this column in the line, or None; called for the lines in order. Raises ValueError for an invalid
        line."""

    def _cut(self, after: float, step: str, rows: int | None) -> None:
        """Keep the first `rows`, or, if their number is unknown, those up to the step. The file is replaced atomically."""
        *lines, _ = self.path.read_bytes().split(b"\n")  # after the last line break, there is nothing or an unfinished line
        kept = []
        for number, line in enumerate(lines, 1):
            try:
                at = self._step_of(line, step)
                is_row = number > self._head_lines
                if not is_row or (at is None or float(at) <= after if rows is None else self.rows < rows):
                    kept.append(line.rstrip(b"\r") + b"\n")
                    self.rows += is_row
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"line {number} of {self.path} is not a row of metrics ({error}): correct the line, or move the file away."
                ) from error
        write_atomically(self.path, b"".join(kept))


class JsonLines(_Lines):
    """Writes each row as a line with a JSON object.

    JSON has no NaN and infinities: they are written as the texts "NaN", "Infinity" and "-Infinity". None is null. `read_row`
    returns the original row, except that text equal to one of these three words becomes a number.

    An existing file of an earlier run is renamed to `metrics.1.jsonl` and so on, never overwritten. With `after`, it is
    continued instead.

    Args:
        path: path of the file; its folder is created.
        after: continue the existing file after this step: rows of later steps, and an unfinished last line, are removed, so
            that no step appears twice. None for a new file; infinite to keep all rows.
        step: column of the step; rows without it are kept.
        rows: with `after`, the number of rows to keep, the first ones, whatever their steps: there may be several rows of a
            step, and a counter may go down. None if it is unknown.

    Raises:
        ValueError: a line of the existing file is not a JSON object; the file is unchanged.
        WriteError: the existing file cannot be continued; for example, it is a folder.
    """

    def __init__(
        self, path: str | PathLike[str], after: float | None = None, step: str = "env_step", rows: int | None = None
    ) -> None:
        super().__init__(path, after, step, rows)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one line.

        Raises:
            OSError: the row cannot be written. The file is unchanged, and later rows can be written.
        """
        plain = plain_row(row)
        try:
            line = json.dumps(plain, allow_nan=False)
        except ValueError:  # NaN or infinite
            line = json.dumps(json_value(plain), allow_nan=False)
        append_whole(self.path, line.encode() + b"\n")
        self.rows += 1

    def _step_of(self, line: bytes, step: str) -> Any:
        return read_row(line).get(step)


class Csv(_Lines):
    """Writes a table with a line of names and a line for each row, for spreadsheets.

    None is an empty cell; NaN and infinities are nan, inf and -inf; lists, dicts and text of several lines are JSON. For a row
    with a new name, the file is rewritten atomically with a new column. Empty rows before the first name are left out.

    Args:
        path: path of the file; its folder is created. An existing file is renamed, see `JsonLines`.
        after: see `JsonLines`.
        step, rows: see `JsonLines`.

    Raises:
        ValueError: a line of the existing file has more or fewer cells than the first; the file is unchanged.
        WriteError: see `JsonLines`.
    """

    _head_lines = 1

    def __init__(
        self, path: str | PathLike[str], after: float | None = None, step: str = "env_step", rows: int | None = None
    ) -> None:
        self._names: dict[str, None] = {}
        super().__init__(path, after, step, rows)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one line, or rewrite the file if the row has a new name.

        Raises:
            OSError: the row cannot be written. The file is unchanged, and later rows can be written.
        """
        cells = plain_row(row)
        for name, value in cells.items():
            if isinstance(value, (str, list, dict)):
                cells[name] = _cell(value)
        names = {**self._names, **dict.fromkeys(cells)}
        if not names:  # the line of names would be empty
            return
        line = _csv_line(map(cells.get, names))
        if len(names) == len(self._names) and self.path.exists():
            append_whole(self.path, line)
            self.rows += 1
            return
        lines = self.path.read_bytes().split(b"\n")[1:-1] if self.path.exists() else []
        wider = b"," * (len(names) - len(self._names))
        write_atomically(self.path, b"".join([_csv_line(map(_cell, names)), *(old + wider + b"\n" for old in lines), line]))
        self._names, self.rows = names, len(lines) + 1

    def _step_of(self, line: bytes, step: str) -> Any:
        try:
            cells = next(csv.reader([line.decode()], strict=True))
        except csv.Error as error:
            raise ValueError(str(error)) from error
        if not self._names:
            self._names = dict.fromkeys(map(_name_of, cells))
            return None
        if len(cells) != len(self._names):
            raise ValueError(f"expected {len(self._names)} cells, got {len(cells)}")
        return dict(zip(self._names, cells)).get(step) or None


def append_whole(path: Path, content: bytes) -> None:
    """Append all of this content to a file, or nothing.

    Raises:
        WriteError: the file cannot be written; it is unchanged.
    """
    # Opened for each line, so that there is nothing to close and no buffer; takes a few dozen microseconds.
    with writing(path), open(path, "ab", buffering=0) as file:
        end = file.tell()
        written = 0
        try:
            while written < len(content):  # the system may write a part, and raise an error in the next call
                written += file.write(content[written:])
        except OSError:
            file.truncate(end)  # otherwise the next line would follow half of this one
            raise


def json_value(value: Any) -> Any:
    """The same value with text for NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, dict):
        return {name: json_value(part) for name, part in value.items()}
    return [json_value(part) for part in value] if isinstance(value, list) else value


def value_of_json(value: Any) -> Any:
    """The inverse of `json_value`."""
    if isinstance(value, str):
        return SPELT.get(value, value)
    if isinstance(value, dict):
        return {name: value_of_json(part) for name, part in value.items()}
    return [value_of_json(part) for part in value] if isinstance(value, list) else value


def _cell(value: Any) -> Any:
    needs_json = isinstance(value, (list, dict)) or (isinstance(value, str) and not value.isprintable())
    return json.dumps(json_value(value), allow_nan=False) if needs_json else value


def _name_of(cell: str) -> str:
    """The name of a column in its cell: the inverse of `_cell`."""
    with contextlib.suppress(ValueError):
        if cell.startswith('"') and isinstance(name := json.loads(cell), str) and _cell(name) == cell:
            return name
    return cell


def _csv_line(cells: Iterable[Any]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue().encode()
