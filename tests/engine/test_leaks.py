"""Tasks that are opened and closed many times over leave no thread, no file, no process and no memory behind.

`CYCLES=1000 make test ARGS="tests/engine/test_leaks.py"` does it 1000 times, instead of 200.
"""

import pytest
from leaks import CYCLES, held, require_nothing_left

from ding_lite.engine import Task, contract

pytestmark = pytest.mark.timeout(300)


def cycle(number, **mode):
    def halves(ctx):
        yield

    with Task().start(**mode) as loop:
        loop.on("tick", lambda step: None)
        for stage in ("evaluate", "collect", "learn"):
            loop.use(contract(stage=stage)(halves))
        loop.use(contract(stage="record")(lambda ctx: loop.emit("tick", ctx.total_step)))
        if number % 5 == 0:
            loop.use(contract(stage="collect")(loop.parallel(lambda ctx: None, lambda ctx: None)))
        if number % 5 == 1:
            loop.use(contract(stage="evaluate")(lambda ctx: loop.defer(pow, 2, 3) and None))
        if number % 5 == 2:
            loop.use(contract(stage="collect")(lambda ctx: 1 / 0))
            with pytest.raises(ZeroDivisionError):
                loop.run(3)
        elif number % 5 == 3:
            loop.use(contract(stage="evaluate")(lambda ctx: loop.stop()))
            loop.run(3)
        else:
            loop.run(3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cycles", "mode"), [(CYCLES, {}), (CYCLES // 5 + 10, {"async_mode": True, "max_lag": 2})], ids=["plain", "threads"]
)
def test_nothing_is_left_behind(cycles, mode):
    require_nothing_left(lambda number: cycle(number, **mode), cycles, warm_up=20)


def test_a_run_after_another_on_one_task_leaves_nothing_behind():
    with Task().start(async_mode=True) as loop:
        for stage in ("evaluate", "collect", "learn"):
            loop.use(contract(stage=stage)(lambda ctx: None))
        loop.run(2)
        before = held()
        for _ in range(50):
            loop.run(2)
        assert held() == before
        assert loop.ctx.total_step == 101
