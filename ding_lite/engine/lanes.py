"""Lanes: the state of each lane, and access to the current one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from ding_lite.basics.blocks import block
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.generators import WaitingGenerator, backward_step, unwind


class Lane:
    """The state of a lane: its iteration, its context, and the generators that wait for their second half.

    Args:
        number: index in `LANES`.
        ctx: the lane's own context of the first iteration.
    """

    __slots__ = (
        "begun",
        "busy_ns",
        "ctx",
        "done",
        "error",
        "failed_at",
        "is_beside_learning",
        "is_over",
        "is_renewed",
        "iteration",
        "number",
        "position",
        "released_ns",
        "skips",
        "snapshots",
        "taken",
        "torch_threads",
        "waited_ns",
        "waiting",
    )

    def __init__(self, number: int, ctx: Any) -> None:
        self.number, self.ctx = number, ctx
        self.iteration = -1
        """Current iteration, from 0; -1 before the first."""
        self.position = -1
        """Position of the current or next step, in the sequential order of an iteration."""
        self.done = 0
        """Number of steps done since the first iteration."""
        self.taken = 0
        """Number of edges from which the end of the iteration, if it is next, has taken its token."""
        self.is_beside_learning = False
        """Whether it runs on another thread than the learn lane, if lanes have threads."""
        self.torch_threads: int | None = None
        """Torch threads per operation; None for torch's default."""
        self.is_renewed = True
        """Whether its context is already that of the next iteration."""
        self.is_over = False
        """Whether it has ended."""
        self.snapshots: list[tuple[Any, Any]] = []
        """(follower, snapshot) pairs to apply before the step runs."""
        self.waiting: list[WaitingGenerator] = []
        self.begun: dict[int, WaitingGenerator] = {}
        """Waiting generators, by id of their entry."""
        self.error: BaseException | None = None
        """Error of a step that will be thrown into waiting generators."""
        self.failed_at = -1
        """Position of the step in which the pending or raised error began; -1 if there is none, or if it was handled."""
        self.skips = False
        """Whether the remaining first halves of this iteration are skipped, after a failed or skipped step."""
        self.busy_ns = 0
        """Total time of its middleware, without waiting for other lanes."""
        self.waited_ns = 0
        """Time that the current step waited for other lanes because of its requests."""
        self.released_ns = 0
        """Total time that its middleware waited for other processes, as far as known."""

    def begin(self) -> None:
        """Start the next iteration."""
        self.iteration += 1
        if not self.is_renewed:
            self.ctx = self.ctx.renew()
        self.is_renewed = self.skips = False
        self.failed_at = -1
        self.begun.clear()

    def wait(self, entry: Entry, generator: WaitingGenerator) -> None:
        """Keep this generator until the second half of its middleware is due."""
        self.waiting.append(generator)
        self.begun[id(entry)] = generator

    def end(self, entry: Entry) -> None:
        """Run the second half of this middleware, after any second halves that it started and left open.

        A pending error is thrown in at the `yield`.
        """
        mine = self.begun.pop(id(entry), None)
        while mine is not None:
            if self._end_last(backward_step) is mine:
                self._raise_pending()
                return

    def end_rest(self) -> None:
        """Run the remaining second halves: those of wrappers, and those that `task.wrap` started."""
        while self.waiting:
            self._end_last(lambda generator, error: unwind([generator], error))
        self._raise_pending()

    def _end_last(self, resume: Callable[[WaitingGenerator, BaseException | None], None]) -> WaitingGenerator:
        """Run the second half of the generator that waits last. Its error is the pending one from then on."""
        generator = self.waiting.pop()
        error, self.error = self.error, None
        try:
            resume(generator, error)
            self.failed_at = -1  # it has handled the error, if there was one
        except BaseException as raised:  # noqa: BLE001  the other waiting generators see it
            self.error = raised
            if error is None:
                self.failed_at = self.position
        return generator

    def _raise_pending(self) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error


class LaneThread:
    """One thread of a run, and the lanes that it runs."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = tuple(lanes)
        self.has_ended = False
        """Whether it has ended in this run."""


@block
def waiting_for_process() -> Iterator[None]:
    """Record for the timeline that this block waits for another process, and that other threads can use the interpreter."""
    lane, begun = _lane.get(), time.perf_counter_ns()
    try:
        yield
    finally:
        if lane is not None:
            lane.released_ns += time.perf_counter_ns() - begun


interpreter_released = released = waiting_for_process  # its names in earlier versions


_lane: ContextVar[Lane | None] = ContextVar("lane", default=None)


def current_lane() -> Lane | None:
    """The lane of the calling middleware, also on threads that it started with its context variables; else None."""
    return _lane.get()


enter: Callable[[Lane | None], object] = _lane.set
"""`enter(lane)` sets the lane of this thread."""
