"""Pending work: a middleware asks for its work, its lane goes on, and what comes of it is the same."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from ding_lite import Context, Task, contract
from ding_lite.engine import PendingWork

pytestmark = pytest.mark.timeout(60)


@dataclasses.dataclass
class Loop(Context):
    asked: int = 0
    learned: int = 0
    total: int = 0
    data: object = None

    def __post_init__(self):
        self.keep("asked", "learned", "total")


class Asks:
    """Work of a thread of its own; `log` tells what was asked, taken and dropped."""

    def __init__(self):
        self.pool, self.log = ThreadPoolExecutor(1), []
        contract(reads=("asked", "learned", "total"), writes=("asked",), writes_late=("data", "total"), stage="collect")(self)

    def __call__(self, ctx):
        ctx.asked += 1
        number = ctx.asked
        self.log.append(("asked", number))
        learned = ctx.learned
        future = self.pool.submit(lambda: (number, learned))

        def take(ctx):
            ctx.data = future.result(30)
            ctx.total += ctx.data[0]
            self.log.append(("taken", number))

        return PendingWork(take, lambda: self.log.append(("dropped", number)))


def run(async_mode, max_lag, iterations=20, wrap=False, stop_at=None):
    asks, seen = Asks(), []

    @contract(reads=("data", "total", "learned"), writes=("learned",), stage="learn")
    def learn(ctx):
        seen.append((ctx.total_step, ctx.data, ctx.total))
        ctx.learned += 1
        if ctx.total_step == stop_at:
            loop.finish = True

    loop = Task()
    with asks.pool, loop.start(async_mode=async_mode, max_lag=max_lag, ctx=Loop()):
        if wrap:
            loop.use_wrapper(lambda fn: lambda ctx: fn(ctx))
        loop.use(asks).use(learn).run(max_step=iterations)
    return seen, (loop.ctx.total_step, loop.ctx.asked, loop.ctx.total, loop.ctx.data), asks.log


@pytest.mark.parametrize("wrap", [False, True], ids=["bare", "wrapped"])
@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_what_is_taken_late_is_what_one_thread_takes(max_lag, wrap):
    seen, end, log = run(True, max_lag, wrap=wrap)
    expected, expected_end, _ = run(False, max_lag)

    assert (seen, end) == (expected, expected_end)
    assert [data for _, data, _ in seen] == [(k + 1, max(0, k - max_lag)) for k in range(20)]
    assert [number for verb, number in log if verb == "taken"] == list(range(1, 21))


def test_a_plain_run_takes_at_once():
    _, _, log = run(False, None, iterations=3)

    assert log == [(verb, number) for number in (1, 2, 3) for verb in ("asked", "taken")]


@pytest.mark.parametrize("max_lag", [1, 2])
def test_no_more_is_under_way_than_the_lag_allows(max_lag):
    _, _, log = run(True, max_lag)
    under_way, most = 0, 0
    for verb, _ in log:
        under_way += {"asked": 1, "taken": -1}[verb]
        most = max(most, under_way)

    assert most <= 1 + max_lag


@pytest.mark.parametrize("async_mode", [True, False], ids=["threads", "one thread"])
def test_what_was_asked_beside_the_last_iteration_is_taken_as_well(async_mode):
    _, end, log = run(async_mode, 3, iterations=10**6, stop_at=5)
    asked, taken = ([number for verb, number in log if verb == what] for what in ("asked", "taken"))

    assert end[0] == 5
    assert asked == taken == list(range(1, 6 + 1 + 3))


def test_what_was_asked_before_an_error_is_taken_or_dropped_once():
    asks = Asks()

    @contract(reads=("data",), stage="process")
    def fails(ctx):
        if ctx.total_step == 5:
            raise ValueError("as asked")

    loop = Task()
    with asks.pool, loop.start(async_mode=True, max_lag=3, ctx=Loop()), pytest.raises(ValueError, match="as asked"):
        loop.use(asks).use(fails).run()
    asked, taken, dropped = ([number for verb, number in asks.log if verb == what] for what in ("asked", "taken", "dropped"))
    assert taken == list(range(1, 7))
    assert dropped == asked[6:]
