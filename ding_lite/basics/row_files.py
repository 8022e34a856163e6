"""Row files: the rows of replay buffers in files of their own, so that a save of the run writes only those that are new."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ding_lite.basics.checkpoint_files import CheckpointError, load_checkpoint, plain
from ding_lite.basics.files import write_atomically
from ding_lite.basics.value_types import types_of, with_types

_SMALLEST, _LARGEST = 4 << 20, 8 << 20  # bytes of rows in a file; a run waits while one is written
_DEEPEST = 3  # levels of dicts in which rows are looked for: parts, name, key
_IMMUTABLE = {str, int, float, bool, complex, type(None)}


@dataclass(frozen=True, eq=False)
class NumberedRows:
    """Stands for the rows of a replay buffer in the state of the buffer, so that only new rows are copied and written. It is
    valid until the buffer changes.

    Rows are numbered in the order in which they were pushed; row n is at position n % capacity of the columns.
    """

    version: object
    """Another object after rows were replaced or removed other than by pushing: a row of one version never changes."""
    first: int
    """The oldest row that the buffer holds."""
    stop: int
    """The number of the next row to be pushed."""
    capacity: int
    row_bytes: int
    copy: Callable[[int, int], Any]
    """Copies of the rows from the first number up to the second: tensors and flat lists of objects by name."""


RowsInPieces = NumberedRows  # its name in earlier versions


class RowFiles:
    """The row files of a saved run. A file never changes after it is written; states name the files with their rows.

    Rows get a file when there are at least 4 MB of new ones. The others are in the state itself, and so are rows with objects
    other than strings and numbers, which may be changed in place.

    Args:
        folder: the folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[tuple[Any, ...], tuple[object, list[dict[str, Any]]]] = {}
        """The version and the files of rows, by their place in the state."""

    def save(self, state: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Write new rows to files.

        Returns:
            The state with None instead of each `NumberedRows`, and what `load` needs to restore these.

        Raises:
            TypeError: a row holds something other than plain data.
            WriteError: a file cannot be written.
        """
        found: dict[tuple[Any, ...], NumberedRows] = {}
        rest = _without_rows(state, (), found)
        return rest, [self._saved(path, rows) for path, rows in found.items()]

    def save_one(self, state: Mapping[str, Any]) -> int:
        """Write one file of new rows, if there are enough for several, so that `save` has less to write later.

        Returns:
            The number of bytes of new rows that are left for further files; 0 if `save` should write the rest.

        Raises:
            TypeError, WriteError: as `save`.
        """
        found: dict[tuple[Any, ...], NumberedRows] = {}
        _without_rows(state, (), found)
        left = {path: self._new_bytes(path, rows) for path, rows in found.items()}
        for path in sorted(left, key=left.__getitem__, reverse=True) if sum(left.values()) > _LARGEST else ():
            if self._has_written(path, found[path]):
                return sum({**left, path: self._new_bytes(path, found[path])}.values())
        return 0

    def _new_bytes(self, path: tuple[Any, ...], rows: NumberedRows) -> int:
        """The size of the rows that are in no file yet; 0 if they are too few for one."""
        size = (rows.stop - self._begin_of(path, rows)) * rows.row_bytes
        return size if size >= _SMALLEST else 0

    def _begin_of(self, path: tuple[Any, ...], rows: NumberedRows) -> int:
        """The first row that is in no file yet."""
        files = self._files_of(path, rows)
        return int(files[-1]["stop"]) if files else rows.first

    def _saved(self, path: tuple[Any, ...], rows: NumberedRows) -> dict[str, Any]:
        while self._has_written(path, rows):
            pass
        begin = self._begin_of(path, rows)
        rest = rows.copy(begin, rows.stop)
        return {
            "path": list(path),
            "first": rows.first,
            "stop": rows.stop,
            "capacity": rows.capacity,
            "files": self._files_of(path, rows),
            "rest": plain(rest, _place(path)),
            "types": list(types_of(rest)),
        }

    def _files_of(self, path: tuple[Any, ...], rows: NumberedRows) -> list[dict[str, Any]]:
        """The files with the oldest of these rows."""
        version, files = self._written.get(path, (None, []))
        held = [file for file in files if file["stop"] > rows.first] if version is rows.version else []
        return list(takewhile(self._is_there, held))

    def _has_written(self, path: tuple[Any, ...], rows: NumberedRows) -> bool:
        """Write the next file of these rows, if there are enough for one; whether it has."""
        begin = self._begin_of(path, rows)
        if not self._new_bytes(path, rows):
            return False
        end = min(rows.stop, begin + max(1, _LARGEST // rows.row_bytes))
        columns = rows.copy(begin, end)
        if not _is_immutable(columns):
            return False
        content = plain(columns, _place(path))
        self._written[path] = rows.version, [*self._files_of(path, rows), self._write(begin, end, content)]
        return True

    def _is_there(self, file: Mapping[str, Any]) -> bool:
        try:
            return bool(os.stat(self._folder / file["file"]).st_size == file["bytes"])
        except OSError:
            return False

    def _write(self, first: int, stop: int, columns: Any) -> dict[str, Any]:
        content = serialised({"first": first, "stop": stop, "columns": columns})
        digest = hashlib.sha256(content).hexdigest()
        # The checksum makes the name unique: rows of another version have the same numbers.
        path = self._folder / f"rows_{first}_{stop}_{digest[:16]}.pt"
        write_atomically(path, content)
        return {"file": path.name, "first": first, "stop": stop, "bytes": len(content), "sha256": digest}

    def load(self, state: dict[str, Any], saved: list[dict[str, Any]], source: Path) -> None:
        """Put the rows into the state that `save` returned.

        Args:
            state: the state with None instead of rows.
            saved: what `save` returned with it.
            source: the file of the state, for messages.

        Raises:
            CheckpointError: a file is missing or damaged, or the files do not fit together.
        """
        try:
            for one in saved:
                inner = state
                for name in one["path"][:-1]:
                    inner = inner[name]
                inner[one["path"][-1]] = self._joined(one)
        except CheckpointError as error:
            raise CheckpointError(f"{source} cannot be loaded with its rows: {error}") from None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise CheckpointError(f"{source} is damaged: its rows do not fit together ({error!r}).") from None

    def _joined(self, saved: Mapping[str, Any]) -> Any:
        """The columns of all rows, in the order of their positions."""
        first, stop, capacity = saved["first"], saved["stop"], saved["capacity"]
        if stop - first != capacity and (first or not 0 < stop < capacity):
            raise ValueError(f"rows {first} to {stop} of {capacity}")
        files = saved["files"]
        begin, whole = files[0]["first"] if files else first, None
        for file in files:
            if file["first"] != begin:
                raise ValueError(f"rows from {file['first']}, expected {begin}")
            whole = _placed(whole, self._read(file), range(begin, file["stop"]), range(first, stop), capacity)
            begin = file["stop"]
        rest = with_types(saved["rest"], saved.get("types", ()))  # older files do not have them
        return _placed(whole, rest, range(begin, stop), range(first, stop), capacity)

    def _read(self, file: Mapping[str, Any]) -> Any:
        if os.path.basename(file["file"]) != file["file"]:
            raise ValueError(f"{file['file']!r} names a file in another folder")
        found = read_verified(self._folder / file["file"], file["sha256"], "the state")
        if (found["first"], found["stop"]) != (file["first"], file["stop"]):
            raise ValueError(f"{file['file']} holds rows {found['first']} to {found['stop']}")
        return found["columns"]


def serialised(state: Mapping[str, Any]) -> bytes:
    """The content of a file for this plain state."""
    import torch

    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def read_verified(path: Path, digest: str | None, source: str) -> dict[str, Any]:
    """The state in this file.

    Args:
        path: the file.
        digest: the SHA-256 of its content; None if it is unknown.
        source: where the digest is from, for messages.

    Raises:
        CheckpointError: the file is missing, damaged, or holds something other than plain data.
    """
    if digest is not None and path.is_file():
        try:
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read())
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}. Check the disk.") from None
        if found.hexdigest() != digest:
            raise CheckpointError(f"{path} is damaged: its content does not match the checksum in {source}.")
    return load_checkpoint(path)


def _without_rows(state: Any, path: tuple[Any, ...], found: dict[tuple[Any, ...], NumberedRows]) -> Any:
    """The state with None instead of rows, which are added to `found` by their place."""
    if isinstance(state, NumberedRows):
        found[path] = state
        return None
    if not isinstance(state, Mapping) or len(path) == _DEEPEST:
        return state
    return {name: _without_rows(inner, (*path, name), found) for name, inner in state.items()}


def _place(path: tuple[Any, ...]) -> str:
    return "state" + "".join(f"[{name!r}]" for name in path)


def _is_immutable(columns: Any) -> bool:
    """Whether all objects in these columns are of a type that cannot be changed in place, and that a file keeps."""
    if isinstance(columns, dict):
        return all(map(_is_immutable, columns.values()))
    return not isinstance(columns, list) or _IMMUTABLE.issuperset(map(type, columns))


def _placed(whole: Any, part: Any, rows: range, held: range, capacity: int) -> Any:
    """The columns of the held rows, with these rows of `part` at their positions; new columns if `whole` is None."""
    import torch

    if not rows and whole is not None:
        return whole
    if isinstance(part, dict):
        if whole is not None and whole.keys() != part.keys():
            raise ValueError(f"columns {list(part)}, expected {list(whole)}")
        return {
            name: _placed(None if whole is None else whole[name], leaf, rows, held, capacity) for name, leaf in part.items()
        }
    width = len(part) // len(rows) if isinstance(part, list) else 1  # objects of a row
    if whole is None:
        size = len(held) * width
        whole = [None] * size if isinstance(part, list) else torch.empty((size, *part.shape[1:]), dtype=part.dtype)
    if type(part) is not type(whole) or len(part) != len(rows) * width or len(whole) != len(held) * width:
        raise ValueError(f"a column of {len(part)} for {len(rows)} rows")
    if not isinstance(part, list) and (part.shape[1:] != whole.shape[1:] or part.dtype != whole.dtype):
        raise ValueError(f"a column of {part.dtype} {tuple(part.shape)}, expected {whole.dtype} {tuple(whole.shape)}")
    first = max(rows.start, held.start)
    while first < rows.stop:
        place, start = first % capacity, first - rows.start
        count = min(rows.stop - first, capacity - place)
        whole[place * width : (place + count) * width] = part[start * width : (start + count) * width]
        first += count
    return whole
