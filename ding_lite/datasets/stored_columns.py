"""The columns of a dataset in a folder, read when they are first used; and checksums of columns in memory."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.data.column_names import LENGTHS
from ding_lite.datasets.chunks import (
    Arrays,
    Chunk,
    DatasetError,
    MissingFileError,
    damaged,
    is_obs,
    lengths_digest,
    read_chunk,
)
from ding_lite.datasets.indexes import Index, read_index

_TRIES = 10  # to open a dataset whose last file a writer replaces again and again
_IN_MEMORY = 64 << 20  # bytes of a column that are read into memory; longer ones are unpacked to disk and mapped


class StoredColumns(Mapping[str, Any]):
    """The columns of a dataset in a folder, read when they are first used."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder, self._index = folder, index
        self._read: Arrays = {}
        self._verified: set[str] = set()
        """The files whose checksum was compared."""

    def __len__(self) -> int:
        return len(self._index.columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.columns)

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        if name not in self._read:
            self._read[name] = self._column(name)
        return self._read[name]

    def lengths(self) -> np.ndarray[Any, Any]:
        """[E] int64, steps of each episode.

        Raises:
            MissingFileError: a file is missing.
            DatasetError: a file is damaged, or does not fit the index.
        """
        found = [np.zeros(0, np.int64)]
        for chunk in self._index.chunks:
            has_own = bool(chunk.lengths_sha256)  # without it, the checksum of the whole file is compared
            part = self._array(chunk, LENGTHS, is_verified=has_own)
            if has_own and lengths_digest(part) != chunk.lengths_sha256:
                raise damaged(self._folder / chunk.file, "its lengths of episodes do not match their checksum in the index")
            if part.sum() != chunk.steps or (part < 1).any():
                raise DatasetError(
                    f"{self._folder / chunk.file} does not fit the index: its episodes have {part.sum():,} steps."
                )
            found.append(part)
        return np.concatenate(found)

    def _array(self, chunk: Chunk, name: str, is_verified: bool = False) -> np.ndarray[Any, Any]:
        """The array of this name in a file, whose checksum is compared at its first use."""
        is_verified = is_verified or chunk.file in self._verified
        found = read_chunk(self._folder, chunk, self._index.columns, [name], is_verified)[name]
        if not is_verified:
            self._verified.add(chunk.file)
        return found

    def _parts(self, name: str) -> Iterator[np.ndarray[Any, Any]]:
        try:
            for chunk in self._index.chunks:
                yield self._array(chunk, name)
        except MissingFileError as error:
            if read_index(self._folder).chunks != self._index.chunks:
                raise DatasetError(
                    f"a writer has changed the dataset {self._folder} since it was opened, and has replaced the file of its "
                    "last episodes: open it again."
                ) from error
            raise

    def _column(self, name: str) -> np.ndarray[Any, Any]:
        index, spec = self._index, self._index.columns[name]
        rows = index.steps + (index.episodes if is_obs(name) else 0)
        parts = self._parts(name)
        size = rows * math.prod(spec.shape) * spec.dtype.itemsize
        if size <= _IN_MEMORY:
            return np.concatenate([np.empty((0, *spec.shape), spec.dtype), *parts])
        with _unnamed_file(self._folder) as file:
            for part in parts:
                file.write(np.ascontiguousarray(part).data)
            file.flush()
            return np.asarray(np.memmap(file, spec.dtype, "r", shape=(rows, *spec.shape)))


def opened(folder: Path) -> tuple[Index, StoredColumns, np.ndarray[Any, Any]]:
    """The index of a dataset, its columns, and the lengths of its episodes.

    Raises:
        DatasetError: there is no dataset, or it is damaged.
    """
    for _ in range(_TRIES - 1):
        index = read_index(folder)
        columns = StoredColumns(folder, index)
        try:
            return index, columns, columns.lengths()
        except MissingFileError:
            if read_index(folder).chunks == index.chunks:
                raise
    index = read_index(folder)
    columns = StoredColumns(folder, index)
    return index, columns, columns.lengths()


def _unnamed_file(folder: Path) -> Any:
    """A file that is gone when nothing uses it any more, in this folder, or in that for temporary files."""
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return tempfile.TemporaryFile()


class Checksum:
    """A checksum of arrays in memory, computed when it is first used, and shared by all datasets of the same arrays.

    Args:
        columns: the arrays by name.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns

    @cached_property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self._columns):
            array = self._columns[name]
            digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()
