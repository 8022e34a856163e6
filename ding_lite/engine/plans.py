"""Plans: what of which iteration waits for what, and which values it sees, worked out from contracts before anything runs.

Room: ding_lite.engine, floor 0. Imports the pipeline; otherwise the standard library.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ding_lite.pipeline.checks import Entry
from ding_lite.pipeline.contexts import Context, kept_fields, settable_fields
from ding_lite.pipeline.generators import may_yield
from ding_lite.pipeline.guards import FIRST, LATE, SECOND, half_fields

LANES = ("evaluate", "collect", "learn")
LEARN = LANES.index("learn")


class Leader(Protocol):
    """An object whose state others take over, such as the learning face of a policy."""

    def snapshot(self) -> Any:
        """Its state now, which nothing changes any more; the same object as before where the state is the same."""


class Follower(Protocol):
    """An object in the `uses` of a contract that acts on the state of another, its leader."""

    leader: Any
    """The object that it follows, as it stands in the `uses` of whoever changes it."""

    def adopt(self, snapshot: Any) -> None:
        """Act on this snapshot of the leader from now on; None follows the leader itself again."""


class Source(NamedTuple):
    """Where a value comes from: after this half ran, so many iterations ago."""

    half: HalfStep
    distance: int


class Wait(NamedTuple):
    """Not before that half of that many iterations ago is done."""

    half: HalfStep
    distance: int
    why: str


@dataclasses.dataclass(eq=False)
class HalfStep:
    """One half of one middleware, in every iteration."""

    entry: Entry | None
    """None for what ends an iteration."""
    is_second: bool
    lane: int
    position: int
    """In the order in which a sequential iteration runs all halves."""
    index: int = 0
    """In the order of its lane."""
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    uses: tuple[Any, ...] = ()
    is_opaque: bool = False
    is_late: bool = False
    """Whether it takes what the first half left to others."""

    waits: list[Wait] = dataclasses.field(default_factory=list)
    needs: frozenset[HalfStep] = frozenset()
    """Halves of the same iteration that it builds on."""
    loads: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    """(field, slot, distance): to be set on the lane's context before it runs."""
    adopts: list[tuple[Follower, int, int]] = dataclasses.field(default_factory=list)
    """(follower, slot, distance)."""
    publishes: list[tuple[str, int, bool]] = dataclasses.field(default_factory=list)
    """(field, slot, whether it is kept): what others need of it once it ran."""
    snapshots: list[tuple[Leader, int]] = dataclasses.field(default_factory=list)
    """(leader, slot)."""

    @property
    def name(self) -> str:
        """What people call it."""
        if self.entry is None:
            return "end of iteration"
        if self.is_late:
            return f"{self.entry.name} (taking)"
        return f"{self.entry.name} (second half)" if self.is_second else self.entry.name


@dataclasses.dataclass
class Plan:
    """How a pipeline runs with this lag: every half in sequential order, and by lane."""

    max_lag: int
    halves: list[HalfStep]
    lanes: tuple[list[HalfStep], ...]
    """By lane, each in its order; the learn lane ends with the end of the iteration."""
    initial: list[Any]
    """By slot: a field's name, or the leader whose state before the first iteration stands there."""
    opaque: list[Entry]
    """The plain functions, which nothing overlaps with."""
    kept: tuple[str, ...]

    @property
    def ring(self) -> int:
        """How many iterations a value has to stay readable."""
        return 2 * self.max_lag + 3


def make_plan(ctx: Context, entries: Sequence[Entry], max_lag: int) -> Plan:
    """Work out the plan of a checked pipeline.

    Within an iteration, halves that conflict keep the sequential order. From one iteration to the next: a half that writes a
    kept field, or stands on the same lane as its last writer or on a later one, sees the exact value; one that only reads it
    on an earlier lane sees that of `max_lag` iterations before. Users of one object alternate. Whoever follows a leader sees
    its state as if it were a kept field that the leader's users write.

    Args:
        ctx: of the first iteration; says which fields are kept.
        entries: the pipeline.
        max_lag: iterations, at least 0.
    """
    halves = _halves(entries, type(ctx), frozenset(settable_fields(ctx)))
    kept = kept_fields(ctx)
    plan = Plan(max_lag, halves, tuple([] for _ in LANES), [], [e for e in entries if e.contract is None], kept)
    for half in halves:
        half.index = len(plan.lanes[half.lane])
        plan.lanes[half.lane].append(half)
    _Flows(plan, frozenset(kept)).connect()
    _order_users(halves)
    _order_opaque(plan)
    _bound_flight(plan)
    for half in halves:
        half.needs |= {wait.half for wait in half.waits if wait.distance == 0}
    for lane in plan.lanes:
        _prune(lane, plan.lanes)
    return plan


def _halves(entries: Sequence[Entry], cls: type[Context], fields: frozenset[str]) -> list[HalfStep]:
    first = [half for entry in entries for half in _first_halves(entry, cls, fields)]
    second = [_half(entry, SECOND, cls, fields) for entry in reversed(entries) if may_yield(entry.fn)]
    elsewhere = frozenset[str]().union(*(half.writes for half in (*first, *second) if half.lane != LEARN))
    halves = [*first, *second, HalfStep(None, False, LEARN, 0, reads=elsewhere)]  # the whole context comes together at the end
    for position, half in enumerate(halves):
        half.position = position
    return halves


def _first_halves(entry: Entry, cls: type[Context], fields: frozenset[str]) -> list[HalfStep]:
    """The first half, and behind it on the learn lane what takes its remainder, where it may leave one."""
    half, terms = _half(entry, FIRST, cls, fields), entry.contract
    if terms is None or not terms.writes_late or entry.call is not entry.fn:  # what is wrapped around it waits for it
        return [half]
    _, writes = half_fields(cls, terms, LATE)
    late = HalfStep(entry, False, LEARN, 0, writes=fields & writes, is_late=True)
    late.waits.append(Wait(half, 0, why="it takes what that asked for"))
    return [half, late]


def _half(entry: Entry, which: int, cls: type[Context], fields: frozenset[str]) -> HalfStep:
    terms = entry.contract
    if terms is None:
        return HalfStep(entry, which == SECOND, LEARN, 0, reads=fields, writes=fields, is_opaque=True)
    reads, writes = half_fields(cls, terms, which, takes_at_once=entry.call is not entry.fn)
    lane = LANES.index(terms.lane)
    return HalfStep(entry, which == SECOND, lane, 0, reads=fields & reads, writes=fields & writes, uses=terms.uses)


class _Flows:
    """Which half gets a field, or the state of a leader, from which."""

    def __init__(self, plan: Plan, kept: frozenset[str]) -> None:
        self.plan, self.kept = plan, kept
        self._slots: dict[tuple[Any, int], int] = {}  # by what it holds (a field's name, or id of a leader) and position

    def connect(self) -> None:
        """Add the loads, adoptions, publications and waits that values need."""
        halves = self.plan.halves
        writers: dict[str, list[HalfStep]] = {}
        for half in halves:
            for name in half.writes:
                writers.setdefault(name, []).append(half)
        # What each lane's context holds of a field. It carries kept fields over by itself, so that what an iteration ends with
        # is what the next begins with, one iteration older: the second pass knows that.
        held: dict[tuple[int, str], Source | None] = {}
        for is_final in (False, True):
            for half in halves:
                for name in sorted(half.reads | half.writes):
                    source = self._source(half, writers.get(name, ()), name in half.writes, name in self.kept)
                    if source is not None and held.get((half.lane, name)) != source:
                        if half.entry is not None:  # the end of an iteration loads only where it is the last one
                            held[half.lane, name] = source
                        if is_final:
                            self._load(half, name, source)
                    if source is not None and source.distance == 0 and name in half.reads:
                        half.needs |= {source.half}
                    if name in half.writes:
                        held[half.lane, name] = Source(half, 0)
            held = {
                key: Source(source.half, source.distance + 1)
                for key, source in held.items()
                if source is not None and key[1] in self.kept
            }
        for half in halves:
            for name in half.writes - self.kept:
                self._spare_readers(half, name, writers[name])
            self._follow(half)

    def _source(self, half: HalfStep, writers: Sequence[HalfStep], is_writer: bool, is_kept: bool) -> Source | None:
        before = [writer for writer in writers if writer.position < half.position]
        if before:
            return Source(before[-1], 0)
        if not writers or not is_kept:
            return None
        last = writers[-1]
        exact = is_writer or half.lane >= last.lane
        return Source(last, 1 if exact else 1 + self.plan.max_lag)

    def _load(self, half: HalfStep, name: str, source: Source) -> None:
        half.loads.append((name, self._slot(name, source.half, name), source.distance))
        if source.half.lane != half.lane:
            half.waits.append(Wait(*source, why=f"ctx.{name}"))

    def _slot(self, key: Any, half: HalfStep, initial: Any) -> int:
        slot = self._slots.get((key, half.position))
        if slot is None:
            slot = self._slots[key, half.position] = len(self.plan.initial)
            self.plan.initial.append(initial)
            if isinstance(initial, str):
                half.publishes.append((initial, slot, initial in self.kept))
            else:
                half.snapshots.append((initial, slot))
        return slot

    def _spare_readers(self, half: HalfStep, name: str, writers: Sequence[HalfStep]) -> None:
        """A value may be changed in place: whoever reads the one from before in this iteration comes first."""
        for reader in self.plan.halves[: half.position]:
            has_value = any(writer.position < reader.position for writer in writers)
            if has_value and name in reader.reads and reader.lane != half.lane:
                half.waits.append(Wait(reader, 0, why=f"ctx.{name}"))

    def _follow(self, half: HalfStep) -> None:
        for follower in half.uses:
            leader = getattr(follower, "leader", None)
            if leader is None:
                continue
            users = [other for other in self.plan.halves if other.is_opaque or _uses(other, leader)]
            source = self._source(half, users, False, True)
            if source is None:
                continue
            half.adopts.append((follower, self._slot(id(leader), source.half, leader), source.distance))
            if source.half.lane != half.lane:
                half.waits.append(Wait(*source, why=f"the state of {_told(leader)}"))


def _uses(half: HalfStep, thing: Any) -> bool:
    return any(other is thing for other in half.uses)


def _order_users(halves: Sequence[HalfStep]) -> None:
    """Users of one object take turns, in sequential order, within an iteration and from one to the next."""
    things = {id(thing): thing for half in halves for thing in half.uses}
    for thing in things.values():
        users = [half for half in halves if _uses(half, thing)]
        for before, half in zip([users[-1], *users], users):
            if before.lane != half.lane:
                half.waits.append(Wait(before, int(before.position > half.position), why=_told(thing)))


def _order_opaque(plan: Plan) -> None:
    """What has no contract conflicts with everything: on each lane, with what stands before it and what comes after."""
    for half in plan.halves:
        if not half.is_opaque:
            continue
        for lane in plan.lanes[:LEARN]:
            if not lane:
                continue
            before = [other for other in lane if other.position < half.position]
            half.waits.append(Wait((before or lane)[-1], 0 if before else 1, why="has no contract"))
            after = [other for other in lane if other.position > half.position]
            (after or lane)[0].waits.append(Wait(half, 0 if after else 1, why=f"{half.name} has no contract"))


def _bound_flight(plan: Plan) -> None:
    """An iteration ends when all its halves are done, and at most `1 + max_lag` of them are under way."""
    end = plan.halves[-1]
    for lane in plan.lanes[:LEARN]:
        if lane:
            end.waits.append(Wait(lane[-1], 0, why="the iteration is complete when all lanes are"))
            lane[0].waits.append(Wait(end, 1 + plan.max_lag, why=f"max_lag={plan.max_lag}"))


def _prune(lane: Sequence[HalfStep], lanes: Sequence[Sequence[HalfStep]]) -> None:
    """Leave out each wait that an earlier one on the lane, in this iteration or the last, already covers."""
    covered: dict[int, int] = {}
    for is_final in (False, True):
        for half in lane:
            left = []
            for wait in sorted(half.waits, key=lambda wait: -_rank(wait, lanes)):
                rank = _rank(wait, lanes)
                if rank > covered.get(wait.half.lane, -(10**9)):
                    covered[wait.half.lane] = rank
                    left.append(wait)
            if is_final:
                half.waits = left
        covered = {other: rank - len(lanes[other]) for other, rank in covered.items()}


def _rank(wait: Wait, lanes: Sequence[Sequence[HalfStep]]) -> int:
    """How far its lane has to be, in halves relative to the beginning of this iteration."""
    return wait.half.index + 1 - wait.distance * len(lanes[wait.half.lane])


def _told(thing: Any) -> str:
    return f"the {type(thing).__name__}"
