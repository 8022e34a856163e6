"""Sum trees: sampling in proportion to numbers."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Places: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_SHIFT = 4
_WIDTH = 1 << _SHIFT  # children of a node: at 8 there are more levels, at 32 the products below cost as much as a level
_TOP = 4096  # numbers that are summed for every draw; up to this size, cheaper than another level
_LATER: Floats = np.tril(np.ones((_WIDTH, _WIDTH)), -1)  # block @ _LATER: of each child, the sum of those that come after it


class SumTree:
    """Numbers >= 0 by position, and their sums. Changing and drawing take O(log n) each.

    Level 0 holds the numbers; each higher level holds sums of sixteen entries below. A sum is always recomputed from its
    children in the same order, so it does not drift, and does not depend on the history of changes.

    Args:
        capacity: number of positions; all are 0 at first.

    Example:
        >>> tree = SumTree(1000)
        >>> tree.put(np.array([3, 700]), np.array([1.0, 3.0]))
        >>> tree.draw(np.array([0.0, 0.2, 0.3, 0.99])).tolist()
        [3, 3, 700, 700]
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        sizes = _sizes(capacity)
        self._levels = [np.zeros((upper, _WIDTH)) for _, upper in pairwise(sizes)]
        self._flat = [*(level.reshape(-1) for level in self._levels), np.zeros(sizes[-1])]
        self._before = np.zeros(sizes[-1] + 1)
        """For each number of the top level, the sum of the numbers before it; at the end, the sum of all."""
        self._top, self._sums = torch.from_numpy(self._flat[-1]), torch.from_numpy(self._before[1:])

    def __reduce__(self) -> Any:
        return _tree_of, (self.values,)  # pickling the attributes would copy views of the same memory one by one

    @staticmethod
    def bytes_for(capacity: int) -> int:
        """Bytes of a tree."""
        return 8 * (sum(upper * _WIDTH for _, upper in pairwise(_sizes(capacity))) + 2 * _sizes(capacity)[-1] + 1)

    @property
    def values(self) -> Floats:
        """The numbers, [capacity], for reading."""
        return self._flat[0][: self.capacity]

    def put(self, index: Places, value: Floats) -> None:
        """Set the numbers at these positions; for repeated positions, the last value counts.

        Args:
            index: [B] int64, each in [0, capacity).
            value: [B] float, each finite and >= 0. Neither is checked.
        """
        self._flat[0][index] = value
        for lower, upper in zip(self._levels, self._flat[1:]):
            index = index >> _SHIFT
            upper[index] = _sums(lower.take(index, 0))

    def fill(self, start: int, stop: int, value: float | Floats) -> None:
        """Set the numbers from `start` to `stop` (exclusive), to one number or to an array [stop - start]."""
        self._flat[0][start:stop] = value
        for lower, upper in zip(self._levels, self._flat[1:]):
            start, stop = start >> _SHIFT, (stop + _WIDTH - 1) >> _SHIFT
            upper[start:stop] = _sums(lower[start:stop])

    def draw(self, where: Floats) -> Places:
        """The positions at these fractions of the cumulative sum; never a position with the number 0.

        Args:
            where: [B] float in [0, 1]. Uniform random fractions sample positions in proportion to their numbers.

        Returns:
            [B] int64.

        Raises:
            ValueError: every number is 0.
        """
        return self.draw_with_values(where)[0]

    def draw_with_values(self, where: Floats) -> tuple[Places, Floats]:
        """The same positions, and the numbers there."""
        torch.cumsum(self._top, 0, out=self._sums)  # three times as fast as numpy
        total = float(self._before[-1])
        if not total > 0:
            raise ValueError("every number of this sum tree is 0: set a number above 0 before draw().")
        rest = where * total
        np.minimum(rest, math.nextafter(total, 0.0), out=rest)  # rounding may lead to the total itself, which is no position
        place = self._descend(rest)
        value = self._flat[0].take(place)
        if np.count_nonzero(value) < len(value):  # by rounding
            place = self._descend(rest, above_0=True)
            value = self._flat[0].take(place)
        return place, value

    def _descend(self, rest: Floats, *, above_0: bool = False) -> Places:
        """The positions at these points of the cumulative sum, each below the total.

        Args:
            rest: [B] float.
            above_0: whether to check in each node that the chosen child is above 0, which takes longer. If a position that was
                found without the check has a number above 0, it is the same with the check.
        """
        place = self._before[1:].searchsorted(rest, "right")
        rest = rest - self._before.take(place)
        first = multiples(len(place), _WIDTH)
        for level in reversed(self._levels):
            block = level.take(place, 0)
            # A matrix product, because a cumulative sum takes five times as long. `later` is the sum of the children that are
            # stored after each child and counted before it. Chosen is the first child with later <= rest.
            later = block @ _LATER
            chosen = later <= rest[:, None]
            if above_0:
                chosen &= block > 0
            child = chosen.argmax(1)
            place <<= _SHIFT
            place += child
            if level is not self._levels[0]:
                child += first
                rest -= later.take(child)
        return place


@lru_cache(maxsize=4)
def multiples(count: int, step: int) -> Places:
    """The first multiples of `step`, from 0, [count] int64; for reading, because later calls return the same array."""
    found = np.arange(0, count * step, step, dtype=np.int64)
    found.flags.writeable = False
    return found


def _tree_of(values: Floats) -> SumTree:
    tree = SumTree(len(values))
    tree.fill(0, len(values), values)
    return tree


def _sizes(capacity: int) -> list[int]:
    """Number of entries of each level, without padding of the last node; the lowest level first."""
    sizes = [capacity]
    while sizes[-1] > _TOP:
        sizes.append(-(-sizes[-1] // _WIDTH))
    return sizes


def _sums(blocks: Floats) -> Floats:
    # einsum, not a product with ones, because it sums each row in the same order, independent of the other rows.
    sums: Floats = np.einsum("ij->i", blocks)
    return sums
