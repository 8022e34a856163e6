"""Plans: the edges between the halves of a pipeline's middleware, worked out from contracts before anything runs.

An edge leads from the half that has something to the half that needs it, and holds a token for each iteration that it is late.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from ding_lite.pipeline.checks import Entry
from ding_lite.pipeline.contexts import Context, kept_fields, settable_fields
from ding_lite.pipeline.contracts import LANES
from ding_lite.pipeline.generators import may_yield
from ding_lite.pipeline.guards import FIRST, LATE, SECOND, half_fields

PROCESS, LEARN = LANES.index("process"), LANES.index("learn")


class Leader(Protocol):
    """An object whose state others take over, such as the learning mode of a policy."""

    def snapshot(self) -> Any:
        """Its state now, which nothing changes any more; the same object as before where the state is the same."""


class Follower(Protocol):
    """An object in the `uses` of a contract that acts on the state of another, its leader."""

    leader: Any
    """The object that it follows, as it stands in the `uses` of the middleware that change it."""

    def load_snapshot(self, snapshot: Any) -> None:
        """Act on this snapshot of the leader from now on; None follows the leader itself again."""


@dataclasses.dataclass(eq=False)
class HalfStep:
    """One half of one middleware, in every iteration."""

    entry: Entry | None
    """None for what ends an iteration."""
    is_second: bool
    lane: int
    position: int = 0
    """In the order in which a sequential iteration runs all halves."""
    index: int = 0
    """In the order of its lane."""
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    uses: tuple[Any, ...] = ()
    is_opaque: bool = False
    is_late: bool = False
    """Whether it takes the remainder that the first half left."""
    inputs: list[Edge] = dataclasses.field(default_factory=list)
    outputs: list[Edge] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """What people call it."""
        if self.entry is None:
            return "end of iteration"
        if self.is_late:
            return f"{self.entry.name} (taking)"
        return f"{self.entry.name} (second half)" if self.is_second else self.entry.name

    def is_user_of(self, thing: object) -> bool:
        """Whether it uses this very object."""
        return any(other is thing for other in self.uses)


@dataclasses.dataclass(eq=False)
class Edge:
    """From the source in iteration k to the target in iteration k + distance: values, snapshots, or only the turn to run."""

    source: HalfStep
    target: HalfStep
    distance: int
    """How many tokens it holds before the run."""
    fields: list[str] = dataclasses.field(default_factory=list)
    """What it carries of the context."""
    follows: list[tuple[Leader, Follower]] = dataclasses.field(default_factory=list)
    """Whose state it carries, and for whom."""
    reasons: list[str] = dataclasses.field(default_factory=list)

    @property
    def why(self) -> str:
        """What the target waits for, in words."""
        return ", ".join(dict.fromkeys(self.reasons))


@dataclasses.dataclass
class Plan:
    """How a pipeline runs with this lag. Each edge leads forward in (iteration, position), so nothing can wait in a circle."""

    max_lag: int
    halves: list[HalfStep]
    """In sequential order."""
    lanes: tuple[list[HalfStep], ...]
    """By lane, each in its order; the learn lane ends with the end of the iteration."""
    edges: list[Edge]
    kept: tuple[str, ...]

    @property
    def opaque(self) -> list[Entry]:
        """The plain functions, which nothing overlaps with."""
        found = (half.entry for half in self.halves if half.is_opaque and not half.is_second)
        return [entry for entry in found if entry is not None]

    @property
    def threads(self) -> list[tuple[int, ...]]:
        """The lanes that run on one thread together, for each thread; the last one is the caller's.

        Process and learn share it where all that processing waits for learning: two threads would only take turns.
        """
        alone = [(lane,) for lane in range(PROCESS) if self.lanes[lane]]
        if any(not half.is_late and not self._waits_for_learning(half) for half in self.lanes[PROCESS]):
            return [*alone, (PROCESS,), (LEARN,)]
        return [*alone, (PROCESS, LEARN)]

    def _waits_for_learning(self, half: HalfStep) -> bool:
        """Whether it cannot run before the learn lane has come to the half that it waits for, in the iteration before."""
        earlier = [other for other in self.lanes[PROCESS] if other.index <= half.index]
        return any(edge.source.lane == LEARN and edge.distance <= 1 for other in earlier for edge in other.inputs)


def make_plan(ctx: Context, entries: Sequence[Entry], max_lag: int) -> Plan:
    """Work out the plan of a checked pipeline.

    Within an iteration, halves that conflict keep the sequential order. From one iteration to the next: a half that writes a
    kept field, or stands on the same lane as its last writer or on a later one, sees the exact value; one that only reads it
    on an earlier lane sees that of `max_lag` iterations before. Users of one object alternate. A follower sees its leader's
    state as if it were a kept field that the leader's users write.

    Without lag, a pipeline with generators is one lane: what stands behind a generator may fail, the generator may handle
    that, and then nothing behind what failed may have run.

    Args:
        ctx: of the first iteration; says which fields are kept.
        entries: the pipeline.
        max_lag: iterations, at least 0.
    """
    is_one_lane = max_lag == 0 and any(may_yield(entry.fn) for entry in entries)
    halves = _halves(entries, type(ctx), frozenset(settable_fields(ctx)), is_one_lane)
    lanes: tuple[list[HalfStep], ...] = tuple([] for _ in LANES)
    for position, half in enumerate(halves):
        half.position, half.index = position, len(lanes[half.lane])
        lanes[half.lane].append(half)
    wiring = _Wiring(halves, lanes, frozenset(kept_fields(ctx)), max_lag)
    wiring.connect()
    for edge in wiring.edges:
        edge.source.outputs.append(edge)
        edge.target.inputs.append(edge)
    return Plan(max_lag, halves, lanes, wiring.edges, kept_fields(ctx))


def _halves(entries: Sequence[Entry], cls: type[Context], fields: frozenset[str], is_one_lane: bool) -> list[HalfStep]:
    halves = [half for entry in entries for half in _first_halves(entry, cls, fields)]
    halves += [_half(entry, SECOND, cls, fields) for entry in reversed(entries) if may_yield(entry.fn)]
    for half in halves:
        half.lane = LEARN if is_one_lane else half.lane
    elsewhere = frozenset[str]().union(*(half.writes for half in halves if half.lane != LEARN))
    return [*halves, HalfStep(None, False, LEARN, reads=elsewhere)]  # the whole context comes together at the end


def _first_halves(entry: Entry, cls: type[Context], fields: frozenset[str]) -> list[HalfStep]:
    """The first half, and behind it on the process lane the one that takes its remainder, where it may leave one."""
    half, terms = _half(entry, FIRST, cls, fields), entry.contract
    if terms is None or not terms.writes_late or entry.call is not entry.fn:  # what is wrapped around it waits for it
        return [half]
    reads, writes = half_fields(cls, terms, LATE)
    return [half, HalfStep(entry, False, max(PROCESS, half.lane), writes=fields & writes, reads=fields & reads, is_late=True)]


def _half(entry: Entry, which: int, cls: type[Context], fields: frozenset[str]) -> HalfStep:
    terms, is_second = entry.contract, which == SECOND
    if terms is None:
        return HalfStep(entry, is_second, LEARN, reads=fields, writes=fields, is_opaque=True)
    reads, writes = half_fields(cls, terms, which, takes_at_once=entry.call is not entry.fn)
    # Who holds a lock may ask for something that waits for others, so that users of one lock take turns as of any object.
    uses = terms.uses if entry.lock is None else (*terms.uses, entry.lock)
    return HalfStep(entry, is_second, LANES.index(terms.lane), reads=fields & reads, writes=fields & writes, uses=uses)


class _Wiring:
    """The edges of a plan. Two with the same ends and distance are one."""

    def __init__(
        self, halves: Sequence[HalfStep], lanes: Sequence[Sequence[HalfStep]], kept: frozenset[str], max_lag: int
    ) -> None:
        self._halves, self._lanes, self._kept, self._max_lag = halves, lanes, kept, max_lag
        self._edges: dict[tuple[HalfStep, HalfStep, int], Edge] = {}

    @property
    def edges(self) -> list[Edge]:
        """All of them."""
        return list(self._edges.values())

    def connect(self) -> None:
        """Make every edge."""
        writers: dict[str, list[HalfStep]] = {}
        for half in self._halves:
            for name in sorted(half.writes):
                writers.setdefault(name, []).append(half)
        self._connect_values(writers)
        self._connect_readers(writers)
        self._connect_remainders()
        self._connect_followers()
        self._connect_users()
        self._connect_opaque()
        self._connect_ends()

    def _edge(self, source: HalfStep, target: HalfStep, distance: int, why: str) -> Edge:
        edge = self._edges.setdefault((source, target, distance), Edge(source, target, distance))
        edge.reasons.append(why)
        return edge

    def _source(self, half: HalfStep, writers: Sequence[HalfStep], is_writer: bool) -> tuple[HalfStep, int] | None:
        """Whose value it sees, and of how many iterations ago: the last writer before it, else what iterations end with."""
        before = [writer for writer in writers if writer.position < half.position]
        if before or not writers:
            return (before[-1], 0) if before else None
        is_exact = is_writer or half.lane >= writers[-1].lane
        return writers[-1], 1 if is_exact else 1 + self._max_lag

    def _connect_values(self, writers: dict[str, list[HalfStep]]) -> None:
        held: dict[tuple[int, str], tuple[HalfStep, int]] = {}  # the value that the lane's context holds by then
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

    def _connect_readers(self, writers: dict[str, list[HalfStep]]) -> None:
        """A value that is handed over as it is may be changed in place by a later writer: who reads it comes first."""
        for half in self._halves:
            for name in sorted(half.writes - self._kept):
                first = writers[name][0].position
                for reader in self._halves[: half.position]:
                    if name in reader.reads and reader.lane != half.lane and first < reader.position:
                        self._edge(reader, half, 0, f"ctx.{name}")

    def _connect_remainders(self) -> None:
        for first, late in zip(self._halves, self._halves[1:]):
            if late.is_late and first.lane != late.lane:
                self._edge(first, late, 0, "it takes what that asked for")

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
        """What has no contract conflicts with everything: on each lane, with what stands before it and what comes after."""
        for half in self._halves:
            for lane in self._lanes[:LEARN] if half.is_opaque else ():
                before = [other for other in lane if other.position < half.position]
                after = [other for other in lane if other.position > half.position]
                if before:
                    self._edge(before[-1], half, 0, "has no contract")
                if lane:
                    self._edge(half, (after or lane)[0], 0 if after else 1, f"{half.name} has no contract")

    def _connect_ends(self) -> None:
        """An iteration ends when all its halves are done, and at most `1 + max_lag` of them are under way."""
        end = self._halves[-1]
        for lane in self._lanes[:LEARN]:
            if lane:
                self._edge(lane[-1], end, 0, "the iteration is complete when all lanes are")
                self._edge(end, lane[0], 1 + self._max_lag, f"max_lag={self._max_lag}")


def _described(thing: Any) -> str:
    return f"the {type(thing).__name__}"
