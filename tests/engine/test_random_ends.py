"""Random pipelines that fail, recover and finish anywhere: threads leave what one thread leaves, beyond the last iteration too.

What is compared: what every half saw, the errors and warnings, the last context, and the objects with their random generators.
"""

import dataclasses
import itertools
import random
import sys
import warnings
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import Copycat, cases, pacing

from ding_lite.engine import Context, PendingWork, Task, contract
from ding_lite.pipeline.contracts import STAGES

pytestmark = pytest.mark.timeout(600)

KEPT, DATA = ("count", "other"), ("batch", "rows")
FIELDS = (*KEPT, *DATA)
FIRST, SECOND, LATE = range(3)
CASES = cases(60)


@dataclasses.dataclass
class Mixed(Context):
    count: int = 1
    other: int = 2
    batch: int = 0
    rows: tuple = ()

    def __post_init__(self):
        self.keep(*KEPT)


class Failure(Exception):
    """What a half raises."""


@dataclasses.dataclass(frozen=True)
class Step:
    """What one middleware of a random pipeline does; iterations are those in which it does it."""

    index: int
    stage: str | None
    is_opaque: bool
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    uses: tuple[int, ...]
    follows: tuple[int, ...]
    yields: bool
    leaves: tuple[str, ...]
    """Fields that taking its pending work sets."""
    raises: frozenset[tuple[int, int]]
    """(half, iteration)."""
    handles: frozenset[int]
    replaces: frozenset[int]
    finishes: frozenset[tuple[int, int]]
    asks: bool
    delay: float


@st.composite
def pipelines(draw: Any) -> list[Step]:
    fields = st.lists(st.sampled_from(FIELDS), max_size=2, unique=True).map(tuple)
    moments = st.frozensets(st.tuples(st.sampled_from([FIRST, FIRST, SECOND, LATE]), st.integers(0, 6)), max_size=2)
    never = st.just(frozenset())
    steps = []
    for index in range(draw(st.integers(2, 7))):
        uses = draw(st.sets(st.integers(0, 2), max_size=2))
        yields = draw(st.booleans())
        steps.append(
            Step(
                index=index,
                stage=draw(st.sampled_from([*STAGES, None])),
                is_opaque=draw(st.integers(0, 11)) == 0,
                reads=draw(fields),
                writes=draw(fields),
                uses=tuple(sorted(uses)),
                follows=tuple(draw(st.sets(st.integers(0, 2), max_size=1)) - uses),
                yields=yields,
                leaves=() if yields else draw(st.one_of(st.just(()), st.just(()), fields)),
                raises=draw(st.one_of(never, never, moments)),
                handles=draw(st.frozensets(st.integers(0, 6), max_size=6)) if yields else frozenset(),
                replaces=draw(st.one_of(never, never, st.frozensets(st.integers(0, 6), max_size=2))),
                finishes=draw(st.one_of(never, never, never, moments)),
                asks=draw(st.integers(0, 3)) == 0,
                delay=draw(st.sampled_from([0.0, 0.0, 1e-4, 1e-3])),
            )
        )
    return steps


class Thing:
    """A shared object, such as environments: its state is a number, its random generator its own."""

    def __init__(self, seed: int) -> None:
        self.value, self.random, self.changes, self.user = 0, random.Random(seed), [], None

    def snapshot(self) -> int:
        return self.value


class World:
    """What a run works on, and what it leaves behind."""

    def __init__(self, steps: list[Step], pace: Any) -> None:
        self.steps, self.pace, self.task = steps, pace, Task()
        self.things = [Thing(seed) for seed in range(3)]
        self.copycats: dict[tuple[int, int], Copycat] = {
            (step.index, number): Copycat(self.things[number]) for step in steps for number in step.follows
        }
        self.log: dict[tuple[int, int, int], Any] = {}
        halves = [(half, step.index) for step in steps for half in ((FIRST, LATE) if step.leaves else (FIRST,))]
        halves += [(SECOND, step.index) for step in reversed(steps) if step.yields]
        self.position = {half: place for place, half in enumerate(halves)}

    def run(self, iterations: int, slices: int = 1, **mode: Any) -> dict[str, Any]:
        """The outcome, as plain data."""
        error = None
        with warnings.catch_warnings(record=True) as caught, self.task.start(ctx=Mixed(), **mode) as loop:
            warnings.simplefilter("always")
            for step in self.steps:
                loop.use(self.middleware(step))
            try:
                for number in range(slices):
                    loop.run(iterations, final=number + 1 == slices)
                    if loop.end_reason.kind != "max_step":
                        break
            except Failure as raised:
                error = str(raised)
            ctx = {name: getattr(loop.ctx, name) for name in ("total_step", *FIELDS)}
        last = self.order(error) if error else None
        texts = [str(one.message) for one in caught if "the run had ended" in str(one.message)]
        return {
            "error": error,
            "warnings": [] if error else [text.partition(" (")[0] for text in texts],
            "ctx": {"total_step": ctx["total_step"]} if error else ctx,  # a lane may have been beyond the one that failed
            "log": {who: entry for who, entry in sorted(self.log.items()) if self.counts(who, last)},
            "changes": [[it for it in thing.changes if self.counts(it[0], last)] for thing in self.things],
            "random": None if error else [it.random.getstate() for it in (*self.things, *self.copycats.values())],
        }

    def order(self, error: str) -> tuple[int, int]:
        """(iteration, position) of the half that raised this."""
        iteration, half, index = map(int, error.split()[1:4])
        return iteration, self.position[half, index]

    def counts(self, who: tuple[int, int, int], last: tuple[int, int] | None) -> bool:
        """Whether it came before the error; after one, how far other lanes have come by then is no promise."""
        return last is None or (who[0], self.position[who[1:]]) <= last

    def middleware(self, step: Step) -> Any:
        def run(ctx):
            self.work(step, FIRST, ctx)
            if step.leaves and (ctx.total_step + step.index) % 3:
                return PendingWork(lambda ctx: self.work(step, LATE, ctx), lambda: None)

        def run_both(ctx):
            self.work(step, FIRST, ctx)
            iteration = ctx.total_step
            try:
                yield
            except Failure as error:
                self.log[iteration, SECOND, step.index] = str(error)
                if iteration in step.replaces:
                    raise Failure(f"failure {iteration} {SECOND} {step.index} replaces") from error
                self.touch(step, (iteration, SECOND, step.index), zlib.crc32(str(error).encode()))
                if iteration not in step.handles:
                    raise
            else:
                self.work(step, SECOND, ctx)

        fn = run_both if step.yields else run
        fn.__name__ = fn.__qualname__ = f"m{step.index}"
        if step.is_opaque:
            return fn
        uses = [self.things[number] for number in step.uses] + [self.copycats[step.index, it] for it in step.follows]
        late = {"writes_late": step.leaves} if step.leaves else {}
        return contract((*step.reads, *step.leaves), step.writes, uses, step.stage, **late)(fn)

    def work(self, step: Step, half: int, ctx: Any) -> None:
        who = (ctx.total_step, half, step.index)
        self.pace(step.delay)
        names = step.leaves if half == LATE else step.reads
        seen = [getattr(ctx, name) for name in names]
        followed = []
        for number in () if half == LATE else step.follows:
            copycat = self.copycats[step.index, number]
            followed.append((copycat.value, copycat.random.random()))
        is_last = self.task.finish if step.asks and half != LATE else None
        self.log[who] = seen, followed, is_last
        mix = zlib.crc32(repr((who, seen, followed, is_last)).encode())
        if half != LATE:
            mix = self.touch(step, who, mix)
        for place, name in enumerate(names if half == LATE else step.writes):
            setattr(ctx, name, mix + place)
        if (half, who[0]) in step.finishes:
            self.task.finish = True
        if (half, who[0]) in step.raises:
            raise Failure("failure {} {} {}".format(*who))

    def touch(self, step: Step, who: tuple[int, int, int], mix: int) -> int:
        """Change the objects that it uses, one user at a time."""
        for number in step.uses:
            thing = self.things[number]
            assert thing.user is None, f"{who} and {thing.user} use one object at the same time"
            thing.user = who
        for number in step.uses:
            thing = self.things[number]
            mix = zlib.crc32(repr((mix, thing.value, thing.random.random())).encode())
            thing.value = mix
            thing.changes.append((who, mix))
            thing.user = None
        return mix


def outcome(steps: list[Step], iterations: int, pace=lambda delay: None, slices: int = 1, **mode: Any) -> dict[str, Any]:
    return World(steps, pace).run(iterations, slices, **mode)


def assert_same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    for part in wanted:
        assert got[part] == wanted[part], part


@pytest.mark.slow
@CASES
@given(steps=pipelines(), lag=st.integers(0, 4), iterations=st.integers(1, 9), seed=st.integers(0, 1000))
def test_threads_leave_what_one_thread_leaves(steps, lag, iterations, seed):
    wanted = outcome(steps, iterations, async_mode=False, max_lag=lag)
    assert_same(outcome(steps, iterations, async_mode=True, max_lag=lag), wanted)
    assert_same(outcome(steps, iterations, pacing(seed), async_mode=True, max_lag=lag), wanted)


@settings(CASES, max_examples=max(30, CASES.max_examples // 2))
@given(steps=pipelines(), lag=st.integers(0, 3), length=st.integers(1, 4), overlap=st.booleans())
def test_a_run_in_slices_leaves_what_one_run_leaves(steps, lag, length, overlap):
    # Whether an iteration is the last one depends on who says so; and `max_step` ends what is begun beside it.
    within = frozenset(itertools.product((FIRST, SECOND, LATE), range(3 * length - lag)))
    steps = [dataclasses.replace(step, asks=False, finishes=step.finishes & within) for step in steps]
    wanted = outcome(steps, 3 * length, async_mode=overlap, max_lag=lag)
    assert_same(outcome(steps, length, slices=3, async_mode=overlap, max_lag=lag), wanted)


@pytest.mark.slow
@settings(CASES, max_examples=max(20, CASES.max_examples // 5))
@given(steps=pipelines(), iterations=st.integers(1, 9))
def test_without_lag_they_leave_what_a_plain_run_leaves(steps, iterations):
    wanted = outcome(steps, iterations)
    assert_same(outcome(steps, iterations, async_mode=True, max_lag=0), wanted)


@pytest.mark.slow
@settings(CASES, max_examples=max(20, CASES.max_examples // 5))
@given(steps=pipelines(), lag=st.integers(0, 3))
def test_it_holds_where_threads_switch_at_every_chance(steps, lag):
    wanted = outcome(steps, 8, async_mode=False, max_lag=lag)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        got = outcome(steps, 8, async_mode=True, max_lag=lag)
    finally:
        sys.setswitchinterval(before)
    assert_same(got, wanted)
