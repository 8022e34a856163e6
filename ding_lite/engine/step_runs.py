"""Running one step on its lane: its middleware, the generator or the pending work that this returns, and its error."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from ding_lite.basics.messages import add_note
from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.engine.lanes import Lane
from ding_lite.engine.middleware_steps import MiddlewareStep
from ding_lite.engine.timelines import Ran, Timeline
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.generators import forward_step
from ding_lite.pipeline.pending_work import PendingWork


@dataclasses.dataclass(slots=True)
class RunnableStep:
    """One step, as a network runs it."""

    step: MiddlewareStep
    lane: Lane
    position: int
    takes: tuple[Callable[[Lane], None], ...]
    call: Callable[[Any], Any] | None
    """The middleware, with its contract enforced; None for the step that ends an iteration."""
    give: Callable[[Lane], None] | None
    is_first: bool
    """Whether it is the first step of its lane in an iteration."""
    is_closing: bool
    """Whether second halves left by wrappers and `task.wrap` run after it, because it is the lane's last step."""
    ran: Callable[[Ran], None]
    """Records its time."""


class StepRunner:
    """Runs the middleware of a plan's steps.

    Args:
        steps: the steps of the plan.
        timeline: records pending work that was done elsewhere.
        first_step: number of the first iteration, for messages.
    """

    def __init__(self, steps: Sequence[MiddlewareStep], timeline: Timeline, first_step: int) -> None:
        self._steps, self._timeline, self._first_step = steps, timeline, first_step
        self._has_late = frozenset(id(step.entry) for step in steps if step.is_late)
        self._pending: dict[tuple[int, int], tuple[MiddlewareStep, PendingWork]] = {}
        """By id of the entry, and iteration: the first half, and the work that its late step takes."""

    def drop_pending(self) -> None:
        """Drop the pending work of iterations that are dropped."""
        for _, pending in self._pending.values():
            pending.drop()
        self._pending.clear()

    def run(self, work: RunnableStep, call: Callable[[Any], Any], lane: Lane) -> None:
        """Run `call`, the middleware of a step, on the context of its lane.

        Raises:
            BaseException: its error, with a note, unless a generator that waits on this lane may handle it.
        """
        step, thrown, lane.waited_ns = work.step, lane.error, 0
        entry = step.entry
        assert entry is not None
        begun = time.perf_counter_ns()
        try:
            if step.is_second:  # even if others are skipped, because it cleans up
                lane.end(entry)
            elif lane.skips:
                self._skip(step, lane)
            elif step.is_late:
                self._take(step, lane)
            else:
                result = call(lane.ctx)
                if result is not None:
                    self._keep(step, entry, lane, result)
            if work.is_closing and lane.waiting:
                lane.end_rest()
        except BaseException as error:
            if lane.failed_at < 0:
                lane.failed_at = work.position
            if error is not thrown:
                where = f"iteration {self._first_step + lane.iteration} of the task"
                add_note(error, f"in middleware {step.name} ({entry.location}), {where}")
            if not lane.waiting or not isinstance(error, Exception):
                raise
            # Waiting generators may handle it in their second halves.
            lane.error, lane.skips = error, True
        if work.is_closing and lane.error is not None:  # the remaining second halves belong to no middleware
            lane.end_rest()
        ended = time.perf_counter_ns()
        lane.busy_ns += ended - begun - lane.waited_ns
        if step.is_late:  # this waiting is recorded on the lane that did the work
            begun += lane.waited_ns
        work.ran((step, lane.iteration, begun, ended))

    def _keep(self, step: MiddlewareStep, entry: Entry, lane: Lane, result: object) -> None:
        if isinstance(result, PendingWork) and id(entry) in self._has_late:
            self._pending[id(entry), lane.iteration] = step, result
            return
        generator = forward_step(entry.fn, result, lane.ctx)
        if generator is None:
            return
        is_its_own = step.is_opaque or entry.fn in (entry.call, attribute_of(entry.call, "__wrapped__"))  # not a wrapper's
        if is_its_own and not any(other.entry is entry and other.is_second for other in self._steps):
            generator.close()
            raise TypeError(
                f"{entry.name} ({entry.location}) returned a generator, but is no generator function, so that the plan has "
                "no place for its second half: give task.use() the generator function itself, or put functools.wraps(...) on "
                "the decorator around it."
            )
        lane.wait(entry, generator)

    def _skip(self, step: MiddlewareStep, lane: Lane) -> None:
        if step.is_late and (left := self._pending.pop((id(step.entry), lane.iteration), None)):
            left[1].drop()

    def _take(self, step: MiddlewareStep, lane: Lane) -> None:
        """Take the pending work that the first half of this middleware returned."""
        asked, pending = self._pending.pop((id(step.entry), lane.iteration), (None, None))
        if asked is None or pending is None:  # its first half did all the work
            return
        before = lane.released_ns
        pending.take(lane.ctx)
        waited, lane.released_ns = lane.released_ns - before, before
        lane.waited_ns += waited
        self._timeline.took(asked, lane.iteration, lane.number, waited, pending.span)
