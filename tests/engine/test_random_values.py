"""Random pipelines over values of every kind: threads see what one thread sees, and what a contract forbids names who does it.

Start values are arrays, tensors, nested lists, dicts and objects, kept or not. Middleware change them in place where their
contract says so, read them through properties, write new ones; or break one rule, and are named for it.
"""

import dataclasses
import os
import random
import time
import zlib
from typing import Any

import pytest
from start_values import KINDS, bump, content, made

from ding_lite.engine import Context, ContractError, Task, contract

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Values keeps", "ignore:asynchronous mode knows", "ignore:where iterations"),
]

CASES = int(os.environ.get("RANDOM_CASES", "60"))
STAGES = ["evaluate", "explore", "collect", "process", "learn", "record"]
KEPT, DATA = ["a", "b"], ["x", "y"]
FIELDS = [*KEPT, *DATA]
PROPERTIES = {"sum_of_kept": ("a", "b"), "twice_x": ("x",)}
BREACHES = ["reads", "writes", "reused", "changes what it reads", "property"]


def total(thing: Any) -> int:
    return zlib.crc32(repr(content(thing)).encode()) % 1000


@dataclasses.dataclass
class Values(Context):
    a: Any = None
    b: Any = None
    x: Any = None
    y: Any = None

    @property
    def sum_of_kept(self) -> int:
        return total(self.a) + self._other()

    def _other(self) -> int:
        return total(self.b)

    @property
    def twice_x(self) -> int:
        return 2 * total(self.x)

    def __post_init__(self) -> None:
        self.keep("a", "b")


@dataclasses.dataclass
class Step:
    index: int
    stage: str
    reads: tuple[str, ...]
    changes: tuple[str, ...]
    """Kept fields that it changes in place."""
    writes: tuple[str, ...]
    """Fields that it writes anew."""
    properties: tuple[str, ...]
    yields: bool


def case(seed: int) -> tuple[dict[str, str], list[Step]]:
    draw = random.Random(seed)
    steps = []
    for index in range(draw.randint(2, 6)):
        some = draw.sample(FIELDS, draw.randint(0, 2))
        changes = tuple(draw.sample(KEPT, draw.choice([0, 0, 1, 1, 2])))
        writes = tuple(name for name in draw.sample(FIELDS, draw.randint(0, 2)) if name not in changes)
        properties = tuple(draw.sample(list(PROPERTIES), draw.choice([0, 0, 1])))
        stage, yields = draw.choice(STAGES), draw.random() < 0.3
        steps.append(Step(index, stage, tuple(some), changes, writes, properties, yields))
    return {name: draw.choice(KINDS) for name in FIELDS}, steps


def work(step: Step, half: int, ctx: Any, kinds: dict[str, str], log: dict[Any, Any]) -> None:
    who = (ctx.total_step, half, step.index)
    seen = {name: content(getattr(ctx, name)) for name in (*step.reads, *step.changes)}
    seen.update({name: getattr(ctx, name) for name in step.properties})
    log[who] = seen
    mix = zlib.crc32(repr((who, seen)).encode()) % 1000
    for name in step.changes:
        bump(getattr(ctx, name), mix)
    for name in step.writes:
        fresh = made(kinds[name])
        bump(fresh, mix + 1)
        setattr(ctx, name, fresh)


def middleware(step: Step, kinds: dict[str, str], log: dict[Any, Any], pace: Any, breach: Any = None) -> Any:
    def run(ctx):
        pace()
        work(step, 0, ctx, kinds, log)
        if breach is not None:
            breach(ctx)

    def run_both(ctx):
        run(ctx)
        yield
        pace()
        work(step, 1, ctx, kinds, log)

    fn = run_both if step.yields else run
    fn.__name__ = fn.__qualname__ = f"m{step.index}"
    may_read = dict.fromkeys((*step.reads, *step.changes, *step.properties))
    return contract((), (*step.changes, *step.writes), (), step.stage, may_read=may_read)(fn)


def outcome(
    seed: int, pace: Any = lambda: None, breach: Any = None, who: int = -1, iterations: int = 7, **mode: Any
) -> tuple[Any, Any]:
    kinds, steps = case(seed)
    given = random.Random(seed)
    values = {name: made(kinds[name]) for name in FIELDS if name in KEPT or given.random() < 0.5}
    log: dict[Any, Any] = {}
    with Task().start(ctx=Values(**values), **mode) as loop:
        for step in steps:
            loop.use(middleware(step, kinds, log, pace, breach if step.index == who else None))
        loop.run(iterations)
        last = loop.ctx
        return (
            {it: seen for it, seen in log.items() if it[0] <= last.total_step},
            {name: content(getattr(last, name)) for name in FIELDS},
        )


@pytest.mark.few
@pytest.mark.parametrize("chunk", range(10))
def test_threads_see_what_one_thread_sees_whatever_the_values_are(chunk):
    for seed in range(chunk * CASES // 10, (chunk + 1) * CASES // 10):
        draw = random.Random(seed)
        lag = draw.randint(0, 3)
        wanted = outcome(seed, max_lag=lag)
        assert outcome(seed, async_mode=True, max_lag=lag) == wanted, f"seed {seed}, lag {lag}"
        slow = draw.choice([0.0, 2e-4, 1e-3])
        got = outcome(seed, lambda slow=slow, draw=draw: time.sleep(slow * draw.random()), async_mode=True, max_lag=lag)
        assert got == wanted, f"seed {seed}, lag {lag}, paced"
        if not lag:
            assert outcome(seed) == wanted, f"seed {seed}, plain"


def breach_of(kind: str, step: Step, kinds: dict[str, str]) -> tuple[Any, str] | None:
    """Something that breaks the contract of this step, and the field that is named then; None where nothing can."""
    named = {*step.reads, *step.changes, *step.writes, *(it for name in step.properties for it in PROPERTIES[name])}
    if kind == "reads":
        free = [name for name in FIELDS if name not in named]
        return (lambda ctx: getattr(ctx, free[0]), free[0]) if free else None
    if kind == "writes":
        free = [name for name in FIELDS if name not in (*step.changes, *step.writes)]
        return (lambda ctx: setattr(ctx, free[0], None), free[0]) if free else None
    if kind == "property":
        free = [name for name, behind in PROPERTIES.items() if not named.intersection(behind)]
        return (lambda ctx: getattr(ctx, free[0]), PROPERTIES[free[0]][0]) if free else None
    if kind == "changes what it reads":
        read = [name for name in step.reads if name not in (*step.changes, *step.writes) and name in KEPT]
        return (lambda ctx: bump(getattr(ctx, read[0]), 1), read[0]) if read else None
    data = [name for name in step.writes if name in DATA]
    own = made(kinds[data[0]]) if data else None

    def reuse(ctx: Any) -> None:
        bump(own, 1)
        setattr(ctx, data[0], own)

    return (reuse, data[0]) if data else None


@pytest.mark.few
@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag", "threads"])
@pytest.mark.parametrize("kind", BREACHES)
def test_who_breaks_the_rules_is_named(kind, mode):
    tried = 0
    for seed in range(CASES):
        kinds, steps = case(seed)
        step = random.Random(seed).choice(steps)
        breach = breach_of(kind, step, kinds)
        if breach is None:
            continue
        tried += 1
        with pytest.raises(ContractError) as caught:
            outcome(seed, breach=breach[0], who=step.index, **mode)
        message = str(caught.value)
        assert f"m{step.index} (" in message, f"seed {seed}: {message}"
        assert f"ctx.{breach[1]}" in message, f"seed {seed}: {message}"
    assert tried > CASES // 10
