"""Recycling: large arrays used again once nobody holds them."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

import numpy as np

_LARGE = 1 << 16  # bytes; below that, a new array costs less than looking for an old one
# Arrays of one kind, such as obs and next_obs of a batch that is learned from, of one in the making, and of those that contexts
# still hold: in asynchronous runs 6 were too few. More in use at a time are simply made new.
_KEPT = 12
_HELD_HERE = 3  # references to an array that only this file holds: the list, the loop's name, and getrefcount's argument


class Recycler:
    """Hands out uninitialised arrays, and hands one out again when neither an array nor a tensor refers to it any more.

    A fresh large array comes as untouched pages, which the system fills one by one: three times the cost of copying into
    memory that is already there. Several threads may ask: one that looks at an array holds it, so no other gets it.
    """

    def __init__(self) -> None:
        self._arrays: dict[Hashable, list[np.ndarray[Any, Any]]] = {}

    def like(self, column: np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any] | None:
        """An array for `rows` rows of a column that nobody else can see, or None where numpy may as well make it."""
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
