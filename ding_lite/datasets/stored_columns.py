"""The columns of a dataset in a folder, read when they are first used; and checksums of columns in memory."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.datasets.chunks import Arrays, is_obs, read_chunk
from ding_lite.datasets.indexes import Index

_IN_MEMORY = 64 << 20  # bytes of a column that are read into memory; longer ones are unpacked to disk and mapped


class StoredColumns(Mapping[str, Any]):
    """The columns of a dataset in a folder, read when they are first used."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder, self._index = folder, index
        self._read: Arrays = {}
        self._are_verified = False

    def __len__(self) -> int:
        return len(self._index.columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.columns)

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        if name not in self._read:
            self._read[name] = self._column(name)
        return self._read[name]

    def _column(self, name: str) -> np.ndarray[Any, Any]:
        index, spec = self._index, self._index.columns[name]
        rows = index.steps + (index.episodes if is_obs(name) else 0)
        are_verified, self._are_verified = self._are_verified, True
        parts = (read_chunk(self._folder, chunk, index.columns, [name], are_verified)[name] for chunk in index.chunks)
        size = rows * int(np.prod(spec.shape)) * spec.dtype.itemsize
        if size <= _IN_MEMORY:
            return np.concatenate([np.empty((0, *spec.shape), spec.dtype), *parts])
        with _unnamed_file(self._folder) as file:
            for part in parts:
                file.write(np.ascontiguousarray(part).data)
            file.flush()
            return np.asarray(np.memmap(file, spec.dtype, "r", shape=(rows, *spec.shape)))


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
