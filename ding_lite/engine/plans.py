"""Plans: the edges between the steps of a pipeline's middleware, derived from contracts before the run.

An edge leads from a step that provides something to a step that needs it, and initially holds one token per iteration of lag.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ding_lite.engine.lags import source_of
from ding_lite.engine.middleware_steps import LEARN, PROCESS, Edge, MiddlewareStep, make_steps
from ding_lite.pipeline.contexts import Context, kept_fields, settable_fields
from ding_lite.pipeline.contracts import LANES, leader_of
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.generators import may_yield


@dataclasses.dataclass
class Plan:
    """How a pipeline runs with this lag. Each edge leads forward in (iteration, position), so there is no deadlock."""

    max_lag: int
    steps: list[MiddlewareStep]
    """In sequential order."""
    lanes: tuple[list[MiddlewareStep], ...]
    """The steps of each lane, in order; the learn lane includes the end of the iteration."""
    edges: list[Edge]
    kept: tuple[str, ...]

    @property
    def opaque(self) -> list[Entry]:
        """The middleware without a contract, which do not overlap with anything."""
        found = (step.entry for step in self.steps if step.is_opaque and not step.is_second)
        return [entry for entry in found if entry is not None]

    @property
    def threads(self) -> list[tuple[int, ...]]:
        """The lanes of each thread; the last thread is the caller's.

        The process and learn lanes share a thread if all processing waits for learning: two threads would only take turns.
        """
        alone = [(lane,) for lane in range(PROCESS) if self.lanes[lane]]
        if any(not step.is_late and not self._waits_for_learning(step) for step in self.lanes[PROCESS]):
            return [*alone, (PROCESS,), (LEARN,)]
        return [*alone, (PROCESS, LEARN)]

    def _waits_for_learning(self, step: MiddlewareStep) -> bool:
        """Whether it must wait for a step of the learn lane in the previous iteration."""
        earlier = [other for other in self.lanes[PROCESS] if other.index <= step.index]
        return any(edge.source.lane == LEARN and edge.distance <= 1 for other in earlier for edge in other.inputs)


def make_plan(ctx: Context, entries: Sequence[Entry], max_lag: int) -> Plan:
    """Make the plan of a checked pipeline.

    Within an iteration, conflicting steps keep the sequential order. Between iterations, `source_of` says how late each value
    is. Users of one object take turns. A follower sees its leader's state as if it were a kept field that the leader's users
    write.

    Without lag, a pipeline with generators has a single lane: if a generator handles the error of a later step, the steps
    after the failed one must not have run.

    Args:
        ctx: context of the first iteration; defines the kept fields.
        entries: the pipeline.
        max_lag: iterations, at least 0.
    """
    is_one_lane = max_lag == 0 and any(may_yield(entry.fn) for entry in entries)
    steps = make_steps(entries, type(ctx), frozenset(settable_fields(ctx)), is_one_lane)
    lanes: tuple[list[MiddlewareStep], ...] = tuple([] for _ in LANES)
    for position, step in enumerate(steps):
        step.position, step.index = position, len(lanes[step.lane])
        lanes[step.lane].append(step)
    wiring = _Wiring(steps, lanes, frozenset(kept_fields(ctx)), max_lag)
    wiring.connect()
    for edge in wiring.edges:
        edge.source.outputs.append(edge)
        edge.target.inputs.append(edge)
    return Plan(max_lag, steps, lanes, wiring.edges, kept_fields(ctx))


class _Wiring:
    """The edges of a plan. Two with the same ends and distance are one."""

    def __init__(
        self, steps: Sequence[MiddlewareStep], lanes: Sequence[Sequence[MiddlewareStep]], kept: frozenset[str], max_lag: int
    ) -> None:
        self._steps, self._lanes, self._kept, self._max_lag = steps, lanes, kept, max_lag
        self._edges: dict[tuple[MiddlewareStep, MiddlewareStep, int], Edge] = {}

    @property
    def edges(self) -> list[Edge]:
        """All of them."""
        return list(self._edges.values())

    def connect(self) -> None:
        """Make every edge."""
        writers: dict[str, list[MiddlewareStep]] = {}
        for step in self._steps:
            for name in sorted(step.writes):
                writers.setdefault(name, []).append(step)
        self._connect_values(writers)
        self._connect_readers(writers)
        self._connect_pending_work()
        self._connect_followers()
        self._connect_users()
        self._connect_opaque()
        self._connect_ends()

    def _edge(self, source: MiddlewareStep, target: MiddlewareStep, distance: int, why: str) -> Edge:
        edge = self._edges.setdefault((source, target, distance), Edge(source, target, distance))
        edge.reasons.append(why)
        return edge

    def _connect_values(self, writers: dict[str, list[MiddlewareStep]]) -> None:
        held: dict[tuple[int, str], tuple[MiddlewareStep, int]] = {}  # source of the value that the lane's context holds
        for step in self._steps:
            for name in sorted(step.reads | step.writes):
                source = source_of(step, writers.get(name, ()), name in step.writes, self._max_lag)
                if source is None or (source[1] and name not in self._kept) or held.get((step.lane, name)) == source:
                    continue
                held[step.lane, name] = source
                if source[0].lane != step.lane:
                    self._edge(source[0], step, source[1], f"ctx.{name}").fields.append(name)
            for name in step.writes:
                held[step.lane, name] = step, 0

    def _connect_readers(self, writers: dict[str, list[MiddlewareStep]]) -> None:
        """A later writer may change a handed-over value in place, so its readers come first."""
        for step in self._steps:
            for name in sorted(step.writes - self._kept):
                first = writers[name][0].position
                for reader in self._steps[: step.position]:
                    if name in reader.reads and reader.lane != step.lane and first < reader.position:
                        self._edge(reader, step, 0, f"ctx.{name}")

    def _connect_pending_work(self) -> None:
        for first, late in zip(self._steps, self._steps[1:]):
            if late.is_late and first.lane != late.lane:
                self._edge(first, late, 0, "it takes the pending work")

    def _connect_followers(self) -> None:
        for step in self._steps:
            for follower in step.uses:
                leader = leader_of(follower)
                if leader is None:
                    continue
                source = source_of(
                    step, [it for it in self._steps if it.is_opaque or it.is_user_of(leader)], False, self._max_lag
                )
                if source is not None:
                    edge = self._edge(source[0], step, source[1], f"the state of {_described(leader)}")
                    edge.follows.append((leader, follower))

    def _connect_users(self) -> None:
        """Users of one object take turns, in sequential order, within an iteration and from one to the next."""
        for thing in {id(thing): thing for step in self._steps for thing in step.uses}.values():
            users = [step for step in self._steps if step.is_user_of(thing)]
            for before, step in zip([users[-1], *users], users):
                if before.lane != step.lane:
                    self._edge(before, step, int(before.position > step.position), _described(thing))

    def _connect_opaque(self) -> None:
        """A step without a contract conflicts with everything: on each lane, with the steps before and after it."""
        for step in self._steps:
            for lane in self._lanes[:LEARN] if step.is_opaque else ():
                before = [other for other in lane if other.position < step.position]
                after = [other for other in lane if other.position > step.position]
                if before:
                    self._edge(before[-1], step, 0, "has no contract")
                if lane:
                    self._edge(step, (after or lane)[0], 0 if after else 1, f"{step.name} has no contract")

    def _connect_ends(self) -> None:
        """An iteration ends when all its steps are done; at most `1 + max_lag` iterations are in progress."""
        end = self._steps[-1]
        for lane in self._lanes[:LEARN]:
            if lane:
                self._edge(lane[-1], end, 0, "the iteration is complete when all lanes are")
                self._edge(end, lane[0], 1 + self._max_lag, f"max_lag={self._max_lag}")


def _described(thing: Any) -> str:
    return f"the {type(thing).__name__}"
