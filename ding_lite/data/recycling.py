"""Recycling: reuse of large arrays that are no longer referenced."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

import numpy as np

_LARGE = 1 << 16  # bytes; below that, a new array is cheaper than a search
# Maximum number of arrays of one shape and dtype: obs and next_obs of the batch that the learner uses, of the next one, and of
# those that contexts still hold. In asynchronous runs 6 were too few. If more are in use, new ones are allocated.
_KEPT = 12
_HELD_HERE = 3  # references to an unused array: the list, the loop variable, and the argument of getrefcount


class ArrayPool:
    """Allocates uninitialised arrays, and reuses one when no array or tensor refers to it any more.

    The operating system fills the pages of a new large array one by one, which takes three times as long as copying into
    existing memory. Several threads may call `like`: a thread that checks an array refers to it, so no other thread gets it.
    """

    def __init__(self) -> None:
        self._arrays: dict[Hashable, list[np.ndarray[Any, Any]]] = {}

    def like(self, column: np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any] | None:
        """An unused array for `rows` rows of a column, or None if numpy should allocate it."""
        if rows * column.strides[0] < _LARGE:
            return None
        shape = (rows, *column.shape[1:])
        kept = self._arrays.setdefault((shape, column.dtype), [])
        for array in kept:
            if sys.getrefcount(array) == _HELD_HERE:
                return array
        array = np.empty(shape, column.dtype)
        if len(kept) < _KEPT:
            kept.append(array)
        return array
