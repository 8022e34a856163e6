"""Frames: what one lane is doing at this moment, and what middleware ask about it.

Room: ding_lite.engine, floor 0. Imports the pipeline; otherwise the standard library.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ding_lite.pipeline.checks import Entry
from ding_lite.pipeline.generators import Half, second_half


class Frame:
    """One lane at work: its iteration, its context, and the generators that wait there for their second half."""

    __slots__ = ("begun", "busy_ns", "ctx", "dropped", "iteration", "lane", "position", "released_ns", "waited_ns", "waiting")

    def __init__(self, lane: int, ctx: Any) -> None:
        self.lane, self.ctx = lane, ctx
        self.iteration = 0
        """Of this run, from 0."""
        self.position = -1
        """Of the half that runs, or ran last, in the sequential order of an iteration."""
        self.waiting: list[Half] = []
        self.begun: dict[int, Half] = {}
        """What waits, by id of its entry."""
        self.dropped = False
        """Whether a generator handled an error, and the lane skips what is left of its iteration."""
        self.busy_ns = 0
        """Time in all that its middleware ran, without such waits."""
        self.waited_ns = 0
        """Time that the half that runs spent waiting for other lanes, because of what it asked."""
        self.released_ns = 0
        """Time in all that its middleware are known to have waited for other processes."""

    def begin(self, iteration: int) -> None:
        """Go on to this iteration."""
        if iteration:
            self.ctx = self.ctx.renew()
        self.iteration, self.position, self.dropped = iteration, -1, False
        self.begun.clear()

    def wait(self, entry: Entry, half: Half) -> None:
        """Keep this generator until the second half of its middleware is due."""
        self.waiting.append(half)
        self.begun[id(entry)] = half

    def end(self, entry: Entry) -> None:
        """Run the second half of this middleware, and before it what it began and left to the end of the iteration."""
        mine = self.begun.pop(id(entry), None)
        while mine is not None:
            half = self.waiting.pop()
            second_half(half)
            if half is mine:
                return


@contextmanager
def released() -> Iterator[None]:
    """Tell the timeline that what runs here waits for another process, and leaves the interpreter to other threads."""
    frame, begun = _frame.get(), time.perf_counter_ns()
    try:
        yield
    finally:
        if frame is not None:
            frame.released_ns += time.perf_counter_ns() - begun


_frame: ContextVar[Frame | None] = ContextVar("frame", default=None)


def current_frame() -> Frame | None:
    """The frame of the middleware that calls this, also through threads that it started with its context; None outside."""
    return _frame.get()


def enter(frame: Frame | None) -> None:
    """From here on this thread works for that frame."""
    _frame.set(frame)
