"""Timelines: records of running and waiting times."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ding_lite.engine.lanes import Lane
from ding_lite.engine.middleware_steps import Edge, MiddlewareStep
from ding_lite.pipeline.contracts import LANES

_REMEMBERED = 10_000  # events per lane, some 3 MB; the oldest are dropped


Ran: TypeAlias = "tuple[MiddlewareStep, int, int, int]"
"""(step, iteration, begin, end) of a step that ran; times in nanoseconds of `time.perf_counter_ns`."""


class Waited(NamedTuple):
    """One wait of a lane for another."""

    iteration: int
    begun: int
    ended: int
    edge: Edge | None
    """The edge that it waited for; None if a middleware asked whether this iteration is the last."""


class Timeline:
    """The record of the last run with overlapping iterations: times of all iterations, events of the last ones."""

    def __init__(self) -> None:
        self.ran: list[deque[Ran]] = [deque(maxlen=_REMEMBERED) for _ in LANES]
        self.waited_for: list[deque[Waited]] = [deque(maxlen=_REMEMBERED) for _ in LANES]
        self.busy_ns = [0] * len(LANES)
        self.waiting_ns: list[dict[tuple[str, str], int]] = [{} for _ in LANES]
        """Waiting time by lane and (awaited step, reason)."""
        self.cpu_ns = [0] * len(LANES)
        """CPU time of the lane's own thread."""
        self.released_ns = [0] * len(LANES)
        """Time in which the lane's middleware waited for other processes."""
        self.elsewhere_ns = [0] * len(LANES)
        """Time of work that the lane's middleware delegated."""
        self.iterations = 0
        self.begun = self.ended = 0
        self.first = 0
        """Number of the first iteration; above 0 if an earlier run is continued."""

    def begin(self, iteration: int) -> None:
        """Start recording a run with this iteration, and clear the record of the last one."""
        for lane in range(len(LANES)):
            self.ran[lane].clear()
            self.waited_for[lane].clear()
            self.waiting_ns[lane].clear()
        for times in (self.busy_ns, self.cpu_ns, self.released_ns, self.elsewhere_ns):
            times[:] = [0] * len(LANES)
        self.first, self.iterations = iteration, 0
        self.begun = time.perf_counter_ns()

    def begin_lane(self, lane: int) -> None:
        """The lane begins, on the thread that calls."""
        self.cpu_ns[lane] -= time.thread_time_ns()

    def end_lane(self, lane: int) -> None:
        """The lane ends, on the same thread."""
        self.cpu_ns[lane] += time.thread_time_ns()

    def sum_up(self, lanes: Sequence[Lane]) -> None:
        """The run has ended, with its lanes at this point."""
        self.ended = time.perf_counter_ns()
        for lane in lanes:
            self.busy_ns[lane.number] = lane.busy_ns + self.elsewhere_ns[lane.number]
            self.released_ns[lane.number] = lane.released_ns + self.elsewhere_ns[lane.number]
            self.iterations = max(self.iterations, lane.iteration + 1 - self.first if self.ran[lane.number] else 0)
            lane.busy_ns = lane.released_ns = 0

    def took(self, asked: MiddlewareStep, iteration: int, lane: int, waited: int, span: tuple[int, int] | None) -> None:
        """A lane took the pending work of this step after waiting; the work itself was done elsewhere, during `span`."""
        spent, key = self.waiting_ns[lane], (asked.name, "its workers")
        spent[key] = spent.get(key, 0) + waited
        if span is not None:
            self.ran[asked.lane].append((asked, iteration, *span))
            self.elsewhere_ns[asked.lane] += span[1] - span[0]

    def waited(self, lane: int, iteration: int, begun: int, ended: int, edge: Edge | None) -> None:
        """A lane waited."""
        self.waited_for[lane].append(Waited(iteration, begun, ended, edge))
        key = (
            (edge.source.name, edge.why) if edge else ("earlier steps", "it asked for task.finish, task.is_certain or a result")
        )
        spent = self.waiting_ns[lane]
        spent[key] = spent.get(key, 0) + ended - begun
