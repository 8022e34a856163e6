"""Long runs of middleware that take random times: each sees each iteration once and in order, as on one thread.

`ITERATIONS=2000 make test ARGS="tests/engine/test_long_runs.py"` runs 2000 iterations instead of 100.
"""

import dataclasses
import os
import random
import time

import pytest

from ding_lite.engine import Context, Task, contract

pytestmark = pytest.mark.timeout(120)

ITERATIONS = int(os.environ.get("ITERATIONS", "100"))
STAGES = ["evaluate", "explore", "collect", "process", "learn", "record"]


@dataclasses.dataclass
class Counts(Context):
    evaluate: int = 0
    explore: int = 0
    collect: int = 0
    process: int = 0
    learn: int = 0
    record: int = 0

    def __post_init__(self):
        self.keep(*STAGES)


def counts_of(seed, max_pause_s, **mode):
    """What a run leaves: the iterations that each middleware has seen, forwards and backwards, and the sums in the context."""
    draws = {stage: random.Random(f"{seed} {stage}") for stage in STAGES}
    seen = {stage: ([], []) for stage in STAGES}
    source = {stage: before for before, stage in zip(STAGES, STAGES[1:])}

    def step(stage):
        begun, ended = seen[stage]

        def pause():
            if draws[stage].random() < 0.1:
                time.sleep(max_pause_s * draws[stage].random())

        @contract(reads=(stage, *([source[stage]] if stage in source else [])), writes=(stage,), stage=stage)
        def count(ctx):
            begun.append(ctx.total_step)
            pause()
            total = getattr(ctx, stage) + getattr(ctx, source.get(stage, stage)) + 1
            setattr(ctx, stage, total % 1_000_003)
            yield
            pause()
            ended.append(ctx.total_step)

        return count

    with Task().start(ctx=Counts(), **mode) as loop:
        for stage in STAGES:
            loop.use(step(stage))
        loop.run(ITERATIONS)
        return seen, {stage: getattr(loop.ctx, stage) for stage in STAGES}


@pytest.mark.few
@pytest.mark.parametrize("seed", range(10))
def test_every_iteration_is_seen_once_and_in_order_by_each_middleware(seed):
    mode = {"max_lag": seed % 4}
    expected = counts_of(seed, 0.0, **mode)
    found = counts_of(seed, 2e-3, async_mode=True, **mode)
    everything = list(range(ITERATIONS))

    assert found[0] == dict.fromkeys(STAGES, (everything, everything))
    assert found == expected
