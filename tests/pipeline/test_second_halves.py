"""may_yield(): whether a middleware may have a second half is known before it runs."""

import dataclasses
import functools

import pytest

from ding_lite.engine import Context, Task, contract
from ding_lite.pipeline.generators import may_yield

OVERLAPPING = pytest.mark.parametrize(
    "mode",
    [{"max_lag": 1}, {"async_mode": True}, {"async_mode": True, "max_lag": 0}],
    ids=["lag", "threads", "threads without lag"],
)


@dataclasses.dataclass
class Late(Context):
    b: int = 0


def function(ctx):
    return None


def generator(ctx):
    yield


def takes_more(settings, ctx):
    yield


class Plain:
    def __call__(self, ctx):
        return None

    def method(self, ctx):
        yield

    @staticmethod
    def alone(ctx):
        yield


class Yielding(Plain):
    def __call__(self, ctx):
        yield


class Inheriting(Yielding):
    """Its `__call__` is its parent's."""


def wrapped(fn):
    @functools.wraps(fn)
    def inner(ctx):
        return fn(ctx)

    return inner


class Method:
    def __init__(self, fn):
        self.fn = fn

    def call(self, ctx):
        yield from self.fn(ctx)


def bare(fn):
    return lambda ctx: fn(ctx)


def factory():
    def inner(ctx):
        yield

    return inner


def yielding(fn):
    @functools.wraps(fn)
    def inner(ctx):
        fn(ctx)
        yield

    return inner


YES = {
    "a generator function": generator,
    "what a factory made": factory(),
    "a method": Plain().method,
    "a static method": Plain.alone,
    "an object whose call yields": Yielding(),
    "an object whose parent's call yields": Inheriting(),
    "a partial": functools.partial(takes_more, 1),
    "a partial of a partial": functools.partial(functools.partial(takes_more), 1),
    "a partial of an object": functools.partial(Yielding()),
    "a decorated one": wrapped(generator),
    "one decorated twice": wrapped(wrapped(generator)),
    "a function below a decorator that yields": yielding(function),
    "the same below another": wrapped(yielding(function)),
    "one under contract": contract(stage="learn")(factory()),
    "a generator expression's function": lambda ctx: (yield),
}
NO = {
    "a function": function,
    "a lambda": lambda ctx: None,
    "an object": Plain(),
    "a partial of a function": functools.partial(lambda settings, ctx: None, 1),
    "a decorated function": wrapped(function),
    "a builtin": print,
    "a decorator that does not say what is in it": bare(generator),
}


@pytest.mark.parametrize("fn", YES.values(), ids=YES)
def test_it_may_have_a_backward_step(fn):
    assert may_yield(fn)


@pytest.mark.parametrize("fn", NO.values(), ids=NO)
def test_it_has_none(fn):
    assert not may_yield(fn)


@pytest.mark.parametrize("several", ["serial", "parallel"])
def test_several_as_one_may_have_one_as_soon_as_one_of_them_has(several):
    with Task().start() as loop:
        together = getattr(loop, several)
        assert not may_yield(together(function, Plain()))
        assert may_yield(together(function, generator))
        assert may_yield(together(function, loop.serial(function, Yielding())))
        assert may_yield(functools.partial(together(generator)))
        assert may_yield(wrapped(together(generator)))


@pytest.mark.parametrize("fn", YES.values(), ids=YES)
@pytest.mark.parametrize("max_lag", [0, 1])
@pytest.mark.filterwarnings("ignore:asynchronous mode knows")
def test_it_runs_in_an_asynchronous_task(fn, max_lag):
    with Task().start(async_mode=True, max_lag=max_lag) as loop:
        loop.use(contract(stage="collect")(lambda ctx: None)).use(fn)
        loop.run(3)
        assert loop.ctx.total_step == 2


class Returning:
    """Its call returns the generator of another middleware."""

    def __init__(self, fn):
        self.fn = fn

    def __call__(self, ctx):
        return self.fn(ctx)


@pytest.mark.parametrize("hide", [bare, Returning])
@pytest.mark.parametrize("declare", [None, contract(reads_after=("b",), stage="collect")], ids=["plain", "contract"])
@pytest.mark.parametrize("lock", [False, True])
@OVERLAPPING
@pytest.mark.filterwarnings("ignore:asynchronous mode knows")
def test_a_second_half_that_the_plan_does_not_know_is_refused_with_the_fix(mode, lock, declare, hide):
    hidden = hide(generator) if declare is None else declare(hide(generator))
    with Task().start(ctx=Late(), **mode) as loop:
        loop.use(contract(stage="collect")(lambda ctx: None)).use(hidden, lock=lock)
        loop.use(contract(writes=("b",), stage="learn")(lambda ctx: setattr(ctx, "b", 1)))
        with pytest.raises(TypeError, match=r"returned a generator, but is no generator function.*put functools.wraps"):
            loop.run(3)


@OVERLAPPING
@pytest.mark.parametrize("show", [lambda fn: fn, wrapped, functools.partial, lambda fn: functools.partial(Method(fn).call)])
def test_the_fixes_show_it_what_the_iteration_has_written(mode, show):
    seen = []

    def outer(ctx):
        yield
        seen.append(ctx.b)

    with Task().start(ctx=Late(), **mode) as loop:
        loop.use(contract(reads_after=("b",), stage="collect")(show(outer)))
        loop.use(contract(writes=("b",), stage="learn")(lambda ctx: setattr(ctx, "b", 10 + ctx.total_step)))
        loop.run(3)
    assert seen == [10, 11, 12]


@OVERLAPPING
def test_the_second_half_of_a_wrapper_runs_at_the_end_of_its_lanes_iteration(mode):
    order = []

    def timer(fn):
        def timed(ctx):
            order.append((ctx.total_step, 1))
            fn(ctx)
            yield
            order.append((ctx.total_step, 2))

        return timed

    collects = contract(stage="collect")(lambda ctx: order.append((ctx.total_step, "inside")))
    with Task().start(**mode) as loop:
        loop.use_wrapper(timer).use(collects)
        loop.run(2)
    assert order == [(k, part) for k in range(2) for part in (1, "inside", 2)]
