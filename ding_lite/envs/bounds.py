"""Bounds: a warning for observations outside the bounds of their Box. They are used unchanged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ding_lite.envs.spaces import space_spec, subspaces

_ROUNDING = 1e-5  # relative to a bound, or to 1 if that is larger: rounding of float32 does not count
_SMALL = 1 << 12

Where = Callable[[int], tuple[str, str]]
"""From a row to the environment's name in messages, and to a sentence with its place."""


class BoxBounds:
    """Warns of an observation outside the bounds of its Box, once for all environments checked here.

    Args:
        each: the observation space of each environment; their bounds may differ. Parts other than Box, and Boxes that
            allow every value of their dtype, are not checked.
    """

    def __init__(self, each: Sequence[gymnasium.Space[Any]]) -> None:
        columns = zip(*(_boxes(space) for space in each))
        leaves = [(column[0][0], [box for _, box in column]) for column in columns]
        self._leaves = [_Leaf(path, boxes) for path, boxes in leaves if not all(map(_holds_all, boxes))]

    def check(self, batch: Any, where: Where) -> None:
        """Warn if the observations [rows, ...], nested arrays, are outside their bounds.

        Args:
            where: called with the affected row.
        """
        for leaf in self._leaves:
            part = leaf.part_of(batch)
            if not leaf.holds(part) and (wrong := np.argwhere(part != leaf.clipped)).size:
                row, *place = wrong[0].tolist()
                self._warn(leaf, row, part[row], place, where)
                return

    def hold(self, batch: Any) -> bool:
        """Whether the observations [rows, ...], nested arrays, are inside their bounds."""
        return all(leaf.holds(leaf.part_of(batch)) for leaf in self._leaves)

    def check_row(self, row: int, element: Any, where: Where) -> None:
        """The same for one observation, nested arrays."""
        for leaf in self._leaves:
            part, clipped = leaf.part_of(element), leaf.clipped[row, ...]
            np.maximum(part, leaf.low[row], out=clipped)
            np.minimum(clipped, leaf.high[row], out=clipped)
            if not _same(part, clipped) and (wrong := np.argwhere(part != clipped)).size:
                self._warn(leaf, row, part, wrong[0].tolist(), where)
                return

    def _warn(self, leaf: _Leaf, row: int, found: Any, place: list[int], where: Where) -> None:
        self._leaves = []
        at, box, (who, when) = tuple(place), leaf.boxes[row], where(row)
        name = "obs" + "".join(f"[{part!r}]" for part in leaf.path)
        element = f"{name}[{', '.join(map(str, place))}]" if place else name
        text = (
            f"{who} returned {element} = {found[at]}, its Box allows {box.low[at]} to {box.high[at]} there: correct the bounds "
            "of its observation_space, or scale or clip observations in a wrapper. Observations are used unchanged, and this "
            "warning is given once. "
        )
        warnings.warn((text + when).rstrip(), stacklevel=3)


class _Leaf:
    """A Box of the space, and its bounds for each row."""

    def __init__(self, path: tuple[str, ...], boxes: Sequence[spaces.Box]) -> None:
        self.path, self.boxes = path, boxes
        dtype: Any = space_spec(boxes[0]).dtype  # type: ignore[union-attr]
        low, high = np.stack([box.low for box in boxes]), np.stack([box.high for box in boxes])
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                low = (low - _ROUNDING * np.maximum(1, np.abs(low.astype(np.float64)))).astype(dtype)
                high = (high + _ROUNDING * np.maximum(1, np.abs(high.astype(np.float64)))).astype(dtype)
        self.low, self.high, self.clipped = low, high, np.empty_like(low)

    def holds(self, part: Any) -> bool:
        """Whether the part [rows, ...] is inside the bounds; `clipped` is then the clipped part, until the next call."""
        np.maximum(part, self.low, out=self.clipped)
        np.minimum(self.clipped, self.high, out=self.clipped)
        return _same(part, self.clipped)

    def part_of(self, batch: Any) -> Any:
        for name in self.path:
            batch = batch[name]
        return batch


def _boxes(space: gymnasium.Space[Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], spaces.Box]]:
    if isinstance(space, spaces.Box):
        return [(path, space)]
    return [found for name, part in (subspaces(space) or {}).items() for found in _boxes(part, (*path, name))]


def _same(part: Any, clipped: Any) -> bool:
    """Whether clipping has changed nothing. 0.0 and -0.0 count as different."""
    # For few numbers, comparing bytes is fastest.
    return part.tobytes() == clipped.tobytes() if part.size < _SMALL else bool((part == clipped).all())


def _holds_all(box: spaces.Box) -> bool:
    """Whether every value of its dtype is within bounds."""
    dtype: Any = box.dtype
    if dtype.kind == "f":
        return bool(np.isneginf(box.low).all() and np.isposinf(box.high).all())
    least, greatest = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool((box.low == least).all() and (box.high == greatest).all())
