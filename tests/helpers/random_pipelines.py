"""Random pipelines: what their middleware do, and what a run of them leaves."""

import copy
import dataclasses
import zlib
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from random_runs import Copycat

from ding_lite.engine import Context, PendingWork, Task, contract

STAGES = ["evaluate", "explore", "collect", "process", "learn", "record", None]
LANE = dict(zip(STAGES, [0, 1, 1, 2, 3, 3, 3]))
KEPT, DATA = ["count", "other", "history"], ["batch", "more", "rows"]
FIELDS = [*KEPT, *DATA]
OBJECTS = range(3)
FIRST, SECOND, LATE = range(3)  # halves of a middleware; the last one takes its pending work


@dataclasses.dataclass
class Mixed(Context):
    count: int = 1
    other: int = 2
    history: list = dataclasses.field(default_factory=list)
    batch: int = 0
    more: int = 0
    rows: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.keep(*KEPT)


@dataclasses.dataclass(frozen=True)
class Step:
    """What one middleware of a random pipeline does, and what its contract says of it."""

    index: int
    stage: str | None
    is_opaque: bool
    reads: tuple[str, ...]
    may_read: tuple[str, ...]
    writes: tuple[str, ...]
    uses: tuple[int, ...]
    follows: tuple[int, ...]
    """Objects whose state it acts on through a follower."""
    yields: bool
    reads_after: tuple[str, ...]
    writes_after: tuple[str, ...]
    writes_late: tuple[str, ...]
    """What taking its pending work sets, which it leaves in most iterations."""
    finishes: dict[int, bool]
    """What it sets `task.finish` to, by iteration."""
    asks: bool
    delay: float

    @property
    def has_late(self) -> bool:
        return bool(self.writes_late) and not self.yields and not self.is_opaque

    def seen_in(self, half: int) -> list[str]:
        if half == LATE:
            return sorted({*self.writes_late} & {*KEPT})  # a step that writes a kept field also reads it
        return sorted({*self.reads, *self.may_read, *(self.reads_after if half else ())})

    def written_in(self, half: int) -> list[str]:
        return sorted({*self.writes_late} if half == LATE else {*self.writes, *(self.writes_after if half else ())})

    def reads_of(self, half: int) -> set[str]:
        """The fields whose values it has to see exactly as its contract promises."""
        return set(FIELDS) if self.is_opaque else set(self.seen_in(half))

    def writes_of(self, half: int) -> set[str]:
        return set(FIELDS) if self.is_opaque else set(self.written_in(half))

    def uses_in(self, half: int) -> tuple[int, ...]:
        return () if half == LATE else self.uses

    def lane_of(self, half: int) -> int:
        return 3 if self.is_opaque else max(2, LANE[self.stage]) if half == LATE else LANE[self.stage]


class Thing:
    """A shared object: its state is a number, and it knows who changed it."""

    def __init__(self) -> None:
        self.value, self.changes, self.user = 0, [], None

    def snapshot(self) -> int:
        return self.value

    def snapshot_state(self, snapshot: int) -> int:
        return snapshot

    def snapshot_from(self, state: int) -> int:
        return state

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "changes": list(self.changes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.changes = state["value"], [tuple(change) for change in state["changes"]]

    def change(self, who: tuple[int, int, int], value: int) -> None:
        self.value = value
        self.changes.append((*who, value))


def work(
    step: Step, half: int, ctx: Any, things: list[Thing], followed: list[int], task: Any, log: dict[Any, Any], pace
) -> None:
    """One half of a middleware: a hash of all that it may see goes into all that it may write, or into some of it."""
    who = (ctx.total_step, half, step.index)
    for number in step.uses_in(half):
        assert things[number].user is None, f"{who} and {things[number].user} use one object at the same time"
        things[number].user = who
    pace(step.delay)
    seen = {name: copy.copy(getattr(ctx, name)) for name in step.seen_in(half)}
    held = [things[number].value for number in step.uses_in(half)]
    last = task.finish if step.asks and half != LATE else None
    log[who] = seen, held, followed, last
    mix = zlib.crc32(repr((who, seen, held, followed, last)).encode())
    for place, name in enumerate(step.written_in(half)):
        if (mix >> place) % 4 == 0:
            continue
        if name not in ("history", "rows"):
            setattr(ctx, name, mix + place)
        elif name in seen and name in (step.writes_late if half == LATE else step.writes) and mix % 2:
            getattr(ctx, name).append(mix)
            del getattr(ctx, name)[:-3]
        else:
            setattr(ctx, name, [mix])
    for number in step.uses_in(half):
        if mix % 5:
            things[number].change(who, mix)
        things[number].user = None
    if half == FIRST and ctx.total_step in step.finishes:
        task.finish = step.finishes[ctx.total_step]


@st.composite
def pipelines(draw: Any) -> list[Step]:
    fields = st.lists(st.sampled_from(FIELDS), max_size=3, unique=True).map(tuple)
    few = st.lists(st.sampled_from(FIELDS), max_size=1).map(tuple)
    steps = []
    for index in range(draw(st.integers(2, 5))):
        is_opaque = draw(st.integers(0, 9)) == 0
        yields = draw(st.booleans())
        uses = draw(st.sets(st.sampled_from(OBJECTS), max_size=2))
        follows = draw(st.sets(st.sampled_from(OBJECTS), max_size=1)) - uses
        steps.append(
            Step(
                index=index,
                stage=draw(st.sampled_from(STAGES)),
                is_opaque=is_opaque,
                reads=draw(fields),
                may_read=draw(few),
                writes=draw(fields),
                uses=tuple(sorted(uses)),
                follows=() if is_opaque else tuple(follows),
                yields=yields,
                reads_after=draw(few) if yields else (),
                writes_after=draw(few) if yields else (),
                writes_late=draw(fields) if draw(st.integers(0, 3)) == 0 else (),
                finishes=draw(st.dictionaries(st.integers(2, 6), st.sampled_from([True, True, False]), max_size=1))
                if draw(st.integers(0, 5)) == 0
                else {},
                asks=draw(st.integers(0, 3)) == 0,
                delay=draw(st.sampled_from([0.0, 0.0, 1e-4, 1e-3])),
            )
        )
    return steps


class Outcome(SimpleNamespace):
    """What a run left: the log by (iteration, half, middleware), the changes of the objects, and the last context."""

    def __init__(self, log: dict[Any, Any], things: list[Thing], ctx: Any) -> None:
        last = ctx.total_step
        self.log = {who: entry for who, entry in log.items() if who[0] <= last}
        self.changes = [[change for change in thing.changes if change[0] <= last] for thing in things]
        self.ctx = {name: copy.copy(getattr(ctx, name)) for name in ("total_step", *FIELDS)}


def middleware(step: Step, loop: Task, things: list[Thing], copycats: list[Copycat], log: dict[Any, Any], pace) -> Any:
    def half_of(half: int, ctx: Mixed) -> None:
        followed = [] if half == LATE else [copycats[number].value for number in step.follows]
        work(step, half, ctx, things, followed, loop, log, pace)

    def run(ctx):
        half_of(FIRST, ctx)
        if step.has_late and leaves_pending_work(ctx.total_step, step):
            return PendingWork(lambda ctx: half_of(LATE, ctx), lambda: None)

    def run_both(ctx):
        half_of(FIRST, ctx)
        yield
        half_of(SECOND, ctx)

    fn = run_both if step.yields else run
    fn.__name__ = fn.__qualname__ = f"m{step.index}"
    if step.is_opaque:
        return fn
    uses = [things[number] for number in step.uses] + [copycats[number] for number in step.follows]
    more = {"may_read": step.may_read, "reads_after": step.reads_after, "writes_after": step.writes_after}
    # As good as `writes`, or as `writes_late`, where the context has the field.
    writes = step.writes
    if step.has_late:
        more["writes_late"], more["may_write"] = step.writes_late[:1], ("no_such_field", *step.writes_late[1:])
    else:
        writes, more["may_write"] = step.writes[:1], ("no_such_field", *step.writes[1:])
    reads = dict.fromkeys((*step.reads, *(step.seen_in(LATE) if step.has_late else ())))
    return contract(reads, writes, uses, step.stage, **more)(fn)


def leaves_pending_work(iteration: int, step: Step) -> bool:
    return (iteration + step.index) % 4 != 0


def engine(steps: list[Step], iterations: int, pace=lambda delay: None, **mode: Any) -> Outcome:
    things = [Thing() for _ in OBJECTS]
    copycats, log = [Copycat(thing) for thing in things], {}
    with Task().start(ctx=Mixed(), **mode) as loop:
        for step in steps:
            loop.use(middleware(step, loop, things, copycats, log, pace))
        loop.run(iterations)
        return Outcome(log, things, loop.ctx)


def assert_same(got: Outcome, wanted: Outcome) -> None:
    assert got.ctx == wanted.ctx
    for who in sorted(wanted.log.keys() | got.log.keys()):
        assert got.log.get(who) == wanted.log.get(who), f"(iteration, half, middleware) = {who}"
    assert got.changes == wanted.changes
