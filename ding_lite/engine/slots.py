"""Slots: values on their way from lane to lane.

Room: ding_lite.engine, floor 0. Imports the pipeline; otherwise the standard library.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ding_lite.engine.frames import Frame
from ding_lite.engine.plans import HalfStep, Plan
from ding_lite.pipeline.contexts import Context, is_scalar


class Slots:
    """Kept fields, data of one iteration, and snapshots of leaders, each iteration's in a place of its own.

    A value is written once, before whoever reads it is let through; a place is used again when nobody can want what was there.

    Args:
        plan: what goes from where to where.
        ctx: of the first iteration.
    """

    def __init__(self, plan: Plan, ctx: Context) -> None:
        self._plan = plan
        self._initial = [self._first(it, ctx) for it in plan.initial]
        self._values: list[list[Any]] = [[None] * plan.ring for _ in plan.initial]
        self._data = [slot for half in plan.halves for _, slot, is_kept in half.publishes if not is_kept]
        self._kept = {slot: half for half in plan.halves for _, slot, is_kept in half.publishes if is_kept}

    def load(self, half: HalfStep, frame: Frame) -> None:
        """Bring the lane's context up to what this half is to see."""
        for name, slot, distance in half.loads:
            value = self._value(slot, frame.iteration - distance)
            setattr(frame.ctx, name, _own(value) if name in self._plan.kept else value)

    def adopt(self, half: HalfStep, frame: Frame) -> None:
        """Bring the followers that this half uses up to the snapshots that they are to have."""
        for follower, slot, distance in half.adopts:
            follower.adopt(self._value(slot, frame.iteration - distance))

    def publish(self, half: HalfStep, frame: Frame) -> None:
        """Write down for others what this half has left."""
        place = frame.iteration % self._plan.ring
        for name, slot, is_kept in half.publishes:
            value = getattr(frame.ctx, name)
            self._values[slot][place] = _own(value) if is_kept else value
        for leader, slot in half.snapshots:
            self._values[slot][place] = leader.snapshot()

    def forget_data(self, iteration: int) -> None:
        """Nobody reads the data of this iteration any more, and they may be large."""
        for slot in self._data:
            self._values[slot][iteration % self._plan.ring] = None

    def gather(self, frame: Frame, is_done: Callable[[HalfStep], bool]) -> None:
        """Complete the context of an iteration that broke off by what the other lanes had kept by then.

        Args:
            is_done: whether a half of this iteration has run.
        """
        for name, slot, _ in self._plan.halves[-1].loads:
            if slot in self._kept:
                newest = frame.iteration if is_done(self._kept[slot]) else frame.iteration - 1
                setattr(frame.ctx, name, self._value(slot, newest))

    def _first(self, it: Any, ctx: Context) -> Any:
        """Of a field, or of a leader, before the first iteration."""
        if not isinstance(it, str):
            return it.snapshot()
        return _own(getattr(ctx, it)) if it in self._plan.kept else None  # data is never older than its iteration

    def _value(self, slot: int, iteration: int) -> Any:
        return self._values[slot][iteration % self._plan.ring] if iteration >= 0 else self._initial[slot]


def _own(value: Any) -> Any:
    """A value as it is now: what can be changed in place is copied, because another lane may do so meanwhile."""
    return value if is_scalar(value) else copy.deepcopy(value)
