"""Plans: the edges between the halves of a pipeline's middleware, derived from contracts before the run.

An edge leads from a half that provides something to a half that needs it, and initially holds one token per iteration of lag.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from ding_lite.pipeline.contexts import Context, kept_fields, settable_fields
from ding_lite.pipeline.contracts import LANES
from ding_lite.pipeline.generators import may_yield
from ding_lite.pipeline.guards import FIRST, LATE, SECOND, half_fields
from ding_lite.pipeline.pipeline_checks import Entry

PROCESS, LEARN = LANES.index("process"), LANES.index("learn")


class Leader(Protocol):
    """An object whose state followers copy, such as the learn_mode of a policy."""

    shares_state_with: Sequence[Any]
    """Objects that hold the same state, such as the policy itself: naming one of them in `uses` is naming this one."""

    def snapshot(self) -> Any:
        """An immutable copy of the current state; the same object as before if the state is the same."""


class Follower(Protocol):
    """An object in the `uses` of a contract that acts on the state of another, its leader."""

    leader: Any
    """The object that it follows, as named in the `uses` of the middleware that change it."""

    def load_snapshot(self, snapshot: Any) -> None:
        """Use this snapshot of the leader from now on; None follows the leader itself again."""


@dataclasses.dataclass(eq=False)
class MiddlewareStep:
    """One step of one middleware, in every iteration."""

    entry: Entry | None
    """The middleware; None for the end of an iteration."""
    is_second: bool
    lane: int
    position: int = 0
    """Position in a sequential iteration."""
    index: int = 0
    """In the order of its lane."""
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    uses: tuple[Any, ...] = ()
    is_opaque: bool = False
    is_late: bool = False
    """Whether it takes the pending work of the forward step."""
    inputs: list[Edge] = dataclasses.field(default_factory=list)
    outputs: list[Edge] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name in messages."""
        if self.entry is None:
            return "end of iteration"
        if self.is_late:
            return f"{self.entry.name} (taking)"
        return f"{self.entry.name} (backward step)" if self.is_second else self.entry.name

    def is_user_of(self, thing: object) -> bool:
        """Whether it uses this very object."""
        return any(other is thing for other in self.uses)


@dataclasses.dataclass(eq=False)
class Edge:
    """From the source in iteration k to the target in iteration k + distance: values, snapshots, or only a signal."""

    source: MiddlewareStep
    target: MiddlewareStep
    distance: int
    """Number of tokens before the run."""
    fields: list[str] = dataclasses.field(default_factory=list)
    """Fields of the context that it carries."""
    follows: list[tuple[Leader, Follower]] = dataclasses.field(default_factory=list)
    """(leader, follower) pairs whose state it carries."""
    reasons: list[str] = dataclasses.field(default_factory=list)

    @property
    def why(self) -> str:
        """Why the target waits, for messages."""
        return ", ".join(dict.fromkeys(self.reasons))


@dataclasses.dataclass
class Plan:
    """How a pipeline runs with this lag. Each edge leads forward in (iteration, position), so there is no deadlock."""

    max_lag: int
    halves: list[MiddlewareStep]
    """In sequential order."""
    lanes: tuple[list[MiddlewareStep], ...]
    """The halves of each lane, in order; the learn lane includes the end of the iteration."""
    edges: list[Edge]
    kept: tuple[str, ...]

    @property
    def opaque(self) -> list[Entry]:
        """The middleware without a contract, which do not overlap with anything."""
        found = (half.entry for half in self.halves if half.is_opaque and not half.is_second)
        return [entry for entry in found if entry is not None]

    @property
    def threads(self) -> list[tuple[int, ...]]:
        """The lanes of each thread; the last thread is the caller's.

        The process and learn lanes share a thread if all processing waits for learning: two threads would only take turns.
        """
        alone = [(lane,) for lane in range(PROCESS) if self.lanes[lane]]
        if any(not half.is_late and not self._waits_for_learning(half) for half in self.lanes[PROCESS]):
            return [*alone, (PROCESS,), (LEARN,)]
        return [*alone, (PROCESS, LEARN)]

    def _waits_for_learning(self, half: MiddlewareStep) -> bool:
        """Whether it must wait for a half of the learn lane in the previous iteration."""
        earlier = [other for other in self.lanes[PROCESS] if other.index <= half.index]
        return any(edge.source.lane == LEARN and edge.distance <= 1 for other in earlier for edge in other.inputs)


def make_plan(ctx: Context, entries: Sequence[Entry], max_lag: int) -> Plan:
    """Make the plan of a checked pipeline.

    Within an iteration, conflicting halves keep the sequential order. Between iterations, a half sees the exact value of a kept
    field if it writes the field, or is on the lane of its last writer or a later one. A half that only reads the field on an
    earlier lane sees the value of `max_lag` iterations before. Users of one object take turns. A follower sees its leader's
    state as if it were a kept field that the leader's users write.

    Without lag, a pipeline with generators has a single lane: if a generator handles the error of a later half, the halves
        after
    the failed one must not have run.

    Args:
        ctx: context of the first iteration; defines the kept fields.
        entries: the pipeline.
        max_lag: iterations, at least 0.
    """
    is_one_lane = max_lag == 0 and any(may_yield(entry.fn) for entry in entries)
    halves = _halves(entries, type(ctx), frozenset(settable_fields(ctx)), is_one_lane)
    lanes: tuple[list[MiddlewareStep], ...] = tuple([] for _ in LANES)
    for position, half in enumerate(halves):
        half.position, half.index = position, len(lanes[half.lane])
        lanes[half.lane].append(half)
    wiring = _Wiring(halves, lanes, frozenset(kept_fields(ctx)), max_lag)
    wiring.connect()
    for edge in wiring.edges:
        edge.source.outputs.append(edge)
        edge.target.inputs.append(edge)
    return Plan(max_lag, halves, lanes, wiring.edges, kept_fields(ctx))


def _halves(entries: Sequence[Entry], cls: type[Context], fields: frozenset[str], is_one_lane: bool) -> list[MiddlewareStep]:
    halves = [half for entry in entries for half in _forward_steps(entry, cls, fields)]
    halves += [_half(entry, SECOND, cls, fields) for entry in reversed(entries) if may_yield(entry.fn)]
    for half in halves:
        half.lane = LEARN if is_one_lane else half.lane
    _join_shared_state(halves)
    elsewhere = frozenset[str]().union(*(half.writes for half in halves if half.lane != LEARN))
    return [*halves, MiddlewareStep(None, False, LEARN, reads=elsewhere)]  # at the end, the whole context is collected


def _join_shared_state(halves: Sequence[MiddlewareStep]) -> None:
    """Put one object for all that share its state into the steps' `uses`, so that their users take turns."""
    things = [thing for half in halves for thing in half.uses]
    owners = [*things, *(thing.leader for thing in things if getattr(thing, "leader", None) is not None)]
    owner_of = {id(part): owner for owner in owners for part in getattr(owner, "shares_state_with", ())}
    if owner_of:
        for half in halves:
            half.uses = tuple({id(it): it for it in (owner_of.get(id(thing), thing) for thing in half.uses)}.values())


def _forward_steps(entry: Entry, cls: type[Context], fields: frozenset[str]) -> list[MiddlewareStep]:
    """The forward step, and the half on the process lane that takes its pending work, if it may return one."""
    half, terms = _half(entry, FIRST, cls, fields), entry.contract
    if terms is None or not terms.writes_late or entry.call is not entry.fn:  # a wrapper takes the pending work at once
        return [half]
    reads, writes = half_fields(cls, terms, LATE)
    return [
        half,
        MiddlewareStep(entry, False, max(PROCESS, half.lane), writes=fields & writes, reads=fields & reads, is_late=True),
    ]


def _half(entry: Entry, which: int, cls: type[Context], fields: frozenset[str]) -> MiddlewareStep:
    terms, is_second = entry.contract, which == SECOND
    if terms is None:
        return MiddlewareStep(entry, is_second, LEARN, reads=fields, writes=fields, is_opaque=True)
    reads, writes = half_fields(cls, terms, which, takes_at_once=entry.call is not entry.fn)
    # A half with a lock may wait for other halves, so users of one lock take turns, as for any object.
    uses = terms.uses if entry.lock is None else (*terms.uses, entry.lock)
    return MiddlewareStep(entry, is_second, LANES.index(terms.lane), reads=fields & reads, writes=fields & writes, uses=uses)


class _Wiring:
    """The edges of a plan. Two with the same ends and distance are one."""

    def __init__(
        self, halves: Sequence[MiddlewareStep], lanes: Sequence[Sequence[MiddlewareStep]], kept: frozenset[str], max_lag: int
    ) -> None:
        self._halves, self._lanes, self._kept, self._max_lag = halves, lanes, kept, max_lag
        self._edges: dict[tuple[MiddlewareStep, MiddlewareStep, int], Edge] = {}

    @property
    def edges(self) -> list[Edge]:
        """All of them."""
        return list(self._edges.values())

    def connect(self) -> None:
        """Make every edge."""
        writers: dict[str, list[MiddlewareStep]] = {}
        for half in self._halves:
            for name in sorted(half.writes):
                writers.setdefault(name, []).append(half)
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

    def _source(
        self, half: MiddlewareStep, writers: Sequence[MiddlewareStep], is_writer: bool
    ) -> tuple[MiddlewareStep, int] | None:
        """The source of its value, and the distance in iterations: the last writer before it, else the end of an iteration."""
        before = [writer for writer in writers if writer.position < half.position]
        if before or not writers:
            return (before[-1], 0) if before else None
        is_exact = is_writer or half.lane >= writers[-1].lane
        return writers[-1], 1 if is_exact else 1 + self._max_lag

    def _connect_values(self, writers: dict[str, list[MiddlewareStep]]) -> None:
        held: dict[tuple[int, str], tuple[MiddlewareStep, int]] = {}  # source of the value that the lane's context holds
        for half in self._halves:
            for name in sorted(half.reads | half.writes):
                source = self._source(half, writers.get(name, ()), name in half.writes)
                if source is None or (source[1] and name not in self._kept) or held.get((half.lane, name)) == source:
                    continue
                held[half.lane, name] = source
                if source[0].lane != half.lane:
                    self._edge(source[0], half, source[1], f"ctx.{name}").fields.append(name)
            for name in half.writes:
                held[half.lane, name] = half, 0

    def _connect_readers(self, writers: dict[str, list[MiddlewareStep]]) -> None:
        """A later writer may change a handed-over value in place, so its readers come first."""
        for half in self._halves:
            for name in sorted(half.writes - self._kept):
                first = writers[name][0].position
                for reader in self._halves[: half.position]:
                    if name in reader.reads and reader.lane != half.lane and first < reader.position:
                        self._edge(reader, half, 0, f"ctx.{name}")

    def _connect_pending_work(self) -> None:
        for first, late in zip(self._halves, self._halves[1:]):
            if late.is_late and first.lane != late.lane:
                self._edge(first, late, 0, "it takes the pending work")

    def _connect_followers(self) -> None:
        for half in self._halves:
            for follower in half.uses:
                leader = getattr(follower, "leader", None)
                if leader is None:
                    continue
                source = self._source(half, [it for it in self._halves if it.is_opaque or it.is_user_of(leader)], False)
                if source is not None:
                    edge = self._edge(source[0], half, source[1], f"the state of {_described(leader)}")
                    edge.follows.append((leader, follower))

    def _connect_users(self) -> None:
        """Users of one object take turns, in sequential order, within an iteration and from one to the next."""
        for thing in {id(thing): thing for half in self._halves for thing in half.uses}.values():
            users = [half for half in self._halves if half.is_user_of(thing)]
            for before, half in zip([users[-1], *users], users):
                if before.lane != half.lane:
                    self._edge(before, half, int(before.position > half.position), _described(thing))

    def _connect_opaque(self) -> None:
        """A half without a contract conflicts with everything: on each lane, with the halves before and after it."""
        for half in self._halves:
            for lane in self._lanes[:LEARN] if half.is_opaque else ():
                before = [other for other in lane if other.position < half.position]
                after = [other for other in lane if other.position > half.position]
                if before:
                    self._edge(before[-1], half, 0, "has no contract")
                if lane:
                    self._edge(half, (after or lane)[0], 0 if after else 1, f"{half.name} has no contract")

    def _connect_ends(self) -> None:
        """An iteration ends when all its halves are done; at most `1 + max_lag` iterations are in progress."""
        end = self._halves[-1]
        for lane in self._lanes[:LEARN]:
            if lane:
                self._edge(lane[-1], end, 0, "the iteration is complete when all lanes are")
                self._edge(end, lane[0], 1 + self._max_lag, f"max_lag={self._max_lag}")


def _described(thing: Any) -> str:
    return f"the {type(thing).__name__}"
