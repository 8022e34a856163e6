"""Lanes: what each is doing at this moment, and what the middleware that runs there asks about it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ding_lite.pipeline.generators import Half, backward_step, unwind
from ding_lite.pipeline.pipeline_checks import Entry


class Lane:
    """One lane at work: its iteration, its context, and the generators that wait there for their backward step.

    Args:
        number: in the order of `LANES`.
        ctx: its own context of the first iteration.
    """

    __slots__ = (
        "adoptions",
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
        "taken",
        "torch_threads",
        "waited_ns",
        "waiting",
    )

    def __init__(self, number: int, ctx: Any) -> None:
        self.number, self.ctx = number, ctx
        self.iteration = -1
        """The one that it works on, from 0; -1 before the first."""
        self.position = -1
        """Of the step that runs, or is next, in the sequential order of an iteration."""
        self.done = 0
        """Halves done since the first iteration."""
        self.taken = 0
        """Along how many edges the end of the iteration, where it is next, has taken what they hold."""
        self.is_beside_learning = False
        """Whether it has another thread than the learn lane, where each lane has one."""
        self.torch_threads: int | None = None
        """How many an operation of torch takes there; None for torch's own."""
        self.is_renewed = True
        """Whether its context is already that of the next iteration."""
        self.is_over = False
        """Whether it has nothing more to do: what it needs will not come."""
        self.adoptions: list[tuple[Any, Any]] = []
        """(follower, snapshot): to be adopted before the step runs."""
        self.waiting: list[Half] = []
        self.begun: dict[int, Half] = {}
        """What waits, by id of its entry."""
        self.error: BaseException | None = None
        """What a step raised, on its way to the generators that wait here."""
        self.failed_at = -1
        """The position of that step; -1 where none has failed in this iteration."""
        self.skips = False
        """Whether the forward steps that are left of this iteration are skipped: one failed, or needs what was skipped."""
        self.busy_ns = 0
        """Time in all that its middleware ran, without waiting for other lanes."""
        self.waited_ns = 0
        """Time that the step that runs spent waiting for other lanes, because of what it asked."""
        self.released_ns = 0
        """Time in all that its middleware are known to have waited for other processes."""

    def begin(self) -> None:
        """Go on to the next iteration."""
        self.iteration += 1
        if not self.is_renewed:
            self.ctx = self.ctx.renew()
        self.is_renewed = self.skips = False
        self.failed_at = -1
        self.begun.clear()

    def wait(self, entry: Entry, half: Half) -> None:
        """Keep this generator until the backward step of its middleware is due."""
        self.waiting.append(half)
        self.begun[id(entry)] = half

    def end(self, entry: Entry) -> None:
        """Run the backward step of this middleware, and before it what it began and left to the end of the iteration.

        An error that is on its way is thrown in at the `yield`.
        """
        mine = self.begun.pop(id(entry), None)
        while mine is not None:
            half = self.waiting.pop()
            error, self.error = self.error, None
            try:
                backward_step(half, error)
            except BaseException as raised:  # noqa: BLE001  those that still wait see it
                self.error = raised
            if half is mine:
                break
        if self.error is not None and mine is not None:
            error, self.error = self.error, None
            raise error

    def end_rest(self) -> None:
        """Run the backward steps that no middleware of the pipeline is left to run: of wrappers, and what `task.wrap` began."""
        error, self.error = self.error, None
        unwind(self.waiting, error)


class LaneThread:
    """One thread of a run, and the lanes that it carries out."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = tuple(lanes)
        self.has_ended = False
        """Whether it has nothing more to do in this run."""


@contextmanager
def interpreter_released() -> Iterator[None]:
    """Tell the timeline that what runs here waits for another process, and leaves the interpreter to other threads."""
    lane, begun = _lane.get(), time.perf_counter_ns()
    try:
        yield
    finally:
        if lane is not None:
            lane.released_ns += time.perf_counter_ns() - begun


released = interpreter_released  # its name in earlier versions


_lane: ContextVar[Lane | None] = ContextVar("lane", default=None)


def current_lane() -> Lane | None:
    """The lane of the middleware that calls this, also through threads that it started with its context; None outside."""
    return _lane.get()


def enter(lane: Lane | None) -> None:
    """From here on this thread works for that lane."""
    _lane.set(lane)
