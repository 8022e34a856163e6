"""Generator middleware: two steps, errors thrown in, at most one yield; and both steps run under any wrapper or lock.

The oracle is Python itself: middleware that wait are `with` blocks inside each other.
"""

import contextlib
import dataclasses
import functools
import inspect
import threading
import warnings

import pytest
import torch
from contract_runs import MODES, run
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.data import tree
from ding_lite.engine import Context, Task, contract, run_inside


class Trouble(Exception):
    pass


KINDS = ["plain", "plain and fails", "tidies", "handles", "replaces", "fails before", "fails after"]


def middleware(kind, number, trace):
    def plain(ctx):
        trace.append(("ran", number))
        if kind == "plain and fails":
            raise Trouble(f"in {number}")

    def halves(ctx):
        trace.append(("began", number))
        if kind == "fails before":
            raise Trouble(f"before {number}")
        try:
            yield
        except Trouble as error:
            trace.append(("saw", number, str(error)))
            if kind == "replaces":
                raise Trouble(f"instead in {number}") from error
            if kind != "handles":
                raise
        else:
            trace.append(("ended", number))
        finally:
            trace.append(("tidied", number))
        if kind == "fails after":
            raise Trouble(f"after {number}")

    return plain if kind.startswith("plain") else halves


class Counter:
    def __call__(self, ctx):
        pass


class Anything:
    def __call__(self, *args):
        pass


def as_with_blocks(fns):
    if fns:
        first, *rest = fns
        if not inspect.isgeneratorfunction(first):
            first(None)
            as_with_blocks(rest)
        else:
            with contextlib.contextmanager(first)(None):
                as_with_blocks(rest)


def passes_through(fn):
    return lambda ctx: fn(ctx)


def drops(fn):
    def run(ctx):
        fn(ctx)

    return run


def drives(fn):
    """Drives the generator by itself, as a timer of both steps does."""

    def run(ctx):
        generator = fn(ctx)
        if generator is None:
            return
        next(generator)
        yield
        with contextlib.suppress(StopIteration):
            next(generator)

    return run


def used(loop, fns):
    for fn in fns:
        loop.use(fn)


def used_with_lock(loop, fns):
    for fn in fns:
        loop.use(fn, lock=True)


def used_under(*wrappers, before=False):
    def use(loop, fns):
        steps = [lambda: used(loop, fns), *(lambda w=w: loop.use_wrapper(w) for w in wrappers)]
        for step in steps[1:] + steps[:1] if before else steps:
            step()

    return use


def in_series(loop, fns):
    loop.use(loop.serial(*fns))


def inside_another(loop, fns):
    def mother(ctx):
        for fn in fns:
            loop.wrap(fn)(ctx)

    loop.use(mother)


WAYS = {
    "used": used,
    "used with a lock": used_with_lock,
    "wrapped": lambda loop, fns: used(loop, [loop.wrap(fn) for fn in fns]),
    "in series": in_series,
    "in series with one": lambda loop, fns: used(loop, [loop.serial(fn) for fn in fns]),
    "side by side with none": lambda loop, fns: used(loop, [loop.parallel(fn) for fn in fns]),
    "inside another": inside_another,
    "under a wrapper that passes through": used_under(passes_through),
    "under a wrapper that drops the generator": used_under(drops),
    "under a wrapper that drives the generator": used_under(drives),
    "under several wrappers": used_under(passes_through, drops, drives),
    "under wrappers that came first": used_under(drops, passes_through, before=True),
}


@pytest.mark.few
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=50)  # for each way, of which most are the same code
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
def test_a_pipeline_does_what_with_blocks_inside_each_other_do(way, kinds):
    expected, seen, outcomes = [], [], []
    for trace, start in ((expected, as_with_blocks), (seen, lambda fns: run_once(WAYS[way], fns))):
        try:
            start([middleware(kind, number, trace) for number, kind in enumerate(kinds)])
            outcomes.append("")
        except Trouble as error:
            outcomes.append(str(error))

    assert seen == expected
    assert outcomes[0] == outcomes[1]


def run_once(way, fns):
    with Task().start() as loop:
        way(loop, fns)
        loop.run(max_step=1)


class TestWrappers:
    @pytest.mark.parametrize("wrapper", [drops, passes_through, drives])
    @pytest.mark.parametrize("before", [True, False])
    def test_both_halves_run_once_an_iteration_whatever_the_wrapper_does(self, wrapper, before):
        trace = []
        with Task().start() as loop:
            used_under(wrapper, before=before)(loop, [middleware("tidies", 0, trace)])
            loop.run(max_step=2)

        assert trace == [("began", 0), ("ended", 0), ("tidied", 0)] * 2

    def test_the_last_wrapper_is_the_outermost_for_middleware_from_before_and_after(self):
        calls = []

        def named(name):
            def wrapper(fn):
                def run(ctx):
                    calls.append(name)
                    fn(ctx)

                return run

            return wrapper

        with Task().start() as loop:
            loop.use(lambda ctx: calls.append("before"))
            loop.use_wrapper(named("inner")).use_wrapper(named("outer"))
            loop.use(lambda ctx: calls.append("after"))
            loop.run(max_step=1)

        assert calls == ["outer", "inner", "before", "outer", "inner", "after"]

    def test_a_wrapper_sees_the_forward_step_between_its_own_lines(self):
        trace = []

        def around(fn):
            def run(ctx):
                trace.append("enter")
                fn(ctx)
                trace.append("leave")

            return run

        run_once(used_under(around), [middleware("tidies", 0, trace)])

        assert trace == ["enter", ("began", 0), "leave", ("ended", 0), ("tidied", 0)]

    def test_a_wrapper_that_drives_the_generator_stands_around_both_halves(self):
        trace = []

        def timer(fn):
            def run(ctx):
                trace.append("start")
                generator = fn(ctx)
                next(generator)
                trace.append("pause")
                yield
                trace.append("resume")
                next(generator, None)
                trace.append("stop")

            return run

        run_once(used_under(timer), [middleware("tidies", 0, trace)])

        assert trace == ["start", ("began", 0), "pause", "resume", ("ended", 0), ("tidied", 0), "stop"]

    def test_a_wrapper_may_skip_a_middleware(self):
        trace = []
        run_once(used_under(lambda fn: lambda ctx: None), [middleware("tidies", 0, trace), middleware("plain", 1, trace)])

        assert trace == []

    def test_a_wrapper_may_try_again(self):
        trace = []

        def again(fn):
            def run(ctx):
                try:
                    fn(ctx)
                except Trouble:
                    fn(ctx)

            return run

        def fails_at_first(ctx):
            trace.append("began")
            if len(trace) == 1:
                raise Trouble
            yield
            trace.append("ended")

        run_once(used_under(again), [fails_at_first])

        assert trace == ["began", "began", "ended"]

    def test_a_wrapper_that_calls_it_in_its_own_second_half_runs_both_halves_there(self):
        trace = []

        def late(fn):
            def run(ctx):
                yield
                fn(ctx)

            return run

        run_once(used_under(late), [middleware("tidies", 0, trace)])

        assert trace == [("began", 0), ("ended", 0), ("tidied", 0)]

    def test_an_error_of_a_wrapper_after_the_forward_step_is_thrown_into_its_middleware(self):
        trace = []

        def breaks(fn):
            def run(ctx):
                fn(ctx)
                raise Trouble("in the wrapper")

            return run

        with pytest.raises(Trouble, match="in the wrapper"):
            run_once(used_under(breaks), [middleware("tidies", 0, trace)])

        assert trace == [("began", 0), ("saw", 0, "in the wrapper"), ("tidied", 0)]

    @pytest.mark.parametrize("before", [True, False])
    def test_a_wrapper_that_returns_no_function_is_refused_by_name(self, before):
        def forgets_to_return(fn):
            pass

        with pytest.raises(TypeError, match=r"the wrapper forgets_to_return \(.*\) returned None instead of a function of ctx"):
            run_once(used_under(forgets_to_return, before=before), [lambda ctx: None])


class TestSecondYield:
    def test_a_second_yield_is_an_error_that_names_function_file_and_line(self):
        def twice(ctx):
            yield
            yield  # here

        line = twice.__code__.co_firstlineno + 2
        with pytest.raises(RuntimeError, match=rf"twice yielded a second time, at .*test_generators\.py:{line}: .* one yield"):
            run_once(used, [twice])

    @pytest.mark.parametrize("way", [way for way in WAYS if "drives" not in way and "several" not in way])
    def test_a_second_yield_is_an_error_in_every_way_of_use(self, way):
        def twice(ctx):
            yield
            yield

        with pytest.raises(RuntimeError, match="twice yielded a second time"):
            run_once(WAYS[way], [twice])

    def test_a_yield_in_answer_to_an_error_is_an_error_too_and_hides_nothing(self):
        def answers(ctx):
            try:
                yield
            except Trouble:
                yield

        with pytest.raises(RuntimeError, match="answers yielded a second time") as caught:
            run_once(used, [answers, middleware("plain and fails", 1, [])])

        assert isinstance(caught.value.__context__, Trouble)

    def test_the_generator_is_closed_and_the_others_still_end(self):
        trace = []

        def twice(ctx):
            try:
                yield
                yield
            finally:
                trace.append("closed")

        with pytest.raises(RuntimeError, match="a second time"):
            run_once(used, [middleware("tidies", 0, trace), twice])

        assert trace == [("began", 0), "closed", ("tidied", 0)]


class TestOddResults:
    def test_a_generator_that_ends_before_its_yield_is_a_plain_function(self):
        def returns(ctx):
            trace.append("ran")
            if trace:
                return
            yield

        trace = []
        run_once(used, [returns])

        assert trace == ["ran"]

    def test_a_factory_that_was_not_called_is_found_out_when_it_returns_a_function(self):
        def factory(cfg=None):
            return lambda ctx: None

        with pytest.raises(TypeError, match=r"factory \(.*:\d+\) returned the function .* call it first: task\.use\(factory"):
            run_once(used, [factory])

    @pytest.mark.parametrize("made", [Counter(), functools.partial(print, "step"), contract(stage="learn")(Anything())])
    @pytest.mark.parametrize("way", ["used", "wrapped", "in series", "inside another", "under a wrapper that passes through"])
    def test_a_factory_that_was_not_called_is_found_out_when_it_returns_an_object(self, way, made):
        def factory(cfg=None):
            return made

        kind = type(made).__name__
        with pytest.raises(TypeError, match=rf"factory \(.*:\d+\) returned .* of type {kind} instead of .* task\.use\(factory"):
            run_once(WAYS[way], [factory])

    @pytest.mark.parametrize("result", [torch.nn.Linear(1, 1), torch.ones(1), tree({"a": torch.ones(1)}), Anything(), print, 3])
    def test_other_results_have_no_effect(self, result):
        run_once(used, [lambda ctx: result])

    def test_a_context_manager_that_may_have_done_its_work_has_no_effect(self, tmp_path):
        with open(tmp_path / "log", "w") as file:
            run_once(used, [lambda ctx: file])
        run_once(used, [lambda ctx: torch.autograd.set_grad_enabled(True)])

    @pytest.mark.parametrize("decorator", [contextlib.contextmanager, contextlib.asynccontextmanager])
    @pytest.mark.parametrize("mode", [{}, {"async_mode": True}])
    def test_a_context_manager_is_refused_because_its_body_never_runs(self, decorator, mode):
        def timed(ctx):
            yield

        async def timed_async(ctx):
            yield

        fn = timed if decorator is contextlib.contextmanager else timed_async
        with Task().start(**mode) as loop:
            loop.use(contract(stage="collect")(decorator(fn)))
            match = rf"{fn.__name__} \(.*test_generators.py:\d+\) returned a context manager, .* without @contextmanager"
            with pytest.raises(TypeError, match=match):
                loop.run(max_step=1)

    def test_a_plain_function_that_hands_back_a_coroutine_is_refused(self, recwarn):
        async def collect(ctx):
            pass

        def hidden(ctx):
            return collect(ctx)

        with pytest.raises(TypeError, match=r"hidden \(.*\) is an async function, which is not awaited here"):
            run_once(used, [hidden])
        assert len(recwarn) == 0

    @pytest.mark.parametrize("error", [StopIteration, KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_an_error_of_any_kind_goes_through_waiting_generators_as_itself(self, error):
        seen = []

        def waits(ctx):
            try:
                yield
            except BaseException as thrown:
                seen.append(thrown)
                raise

        def fails(ctx):
            raise raised

        raised = error("the reason")
        with pytest.raises(error) as caught:
            run_once(used, [waits, fails])

        assert caught.value is raised
        assert seen == [raised]


class TestLocks:
    def test_each_half_holds_the_given_lock_and_lets_it_go_in_between(self):
        lock, seen = threading.Lock(), []

        def halves(ctx):
            seen.append(lock.locked())
            yield
            seen.append(lock.locked())

        with Task().start() as loop:
            loop.use(halves, lock=lock)
            loop.use(lambda ctx: seen.append(lock.locked()))
            loop.run(max_step=1)

        assert seen == [True, False, True]
        assert not lock.locked()

    def test_a_middleware_that_fails_lets_the_lock_go(self):
        lock = threading.Lock()
        for kind in ("fails before", "fails after"):
            with Task().start() as loop:
                loop.use(middleware(kind, 0, []), lock=lock)
                with pytest.raises(Trouble):
                    loop.run(max_step=1)
            assert not lock.locked()

    def test_the_tasks_lock_may_be_taken_again_inside(self):
        trace = []
        with Task().start() as loop:
            inner = loop.wrap(middleware("tidies", 1, trace), lock=True)

            def outer(ctx):
                back = inner(ctx)
                trace.append("outer")
                back()

            loop.use(outer, lock=True)
            loop.run(max_step=1)

        assert trace == [("began", 1), "outer", ("ended", 1), ("tidied", 1)]


class TestEngaged:
    def test_it_runs_the_halves_around_its_block(self):
        trace = []
        with run_inside(middleware("tidies", 0, trace), Context()):
            trace.append("block")

        assert trace == [("began", 0), "block", ("ended", 0), ("tidied", 0)]

    def test_a_plain_function_runs_at_the_entry(self):
        trace = []
        with run_inside(middleware("plain", 0, trace), Context()):
            trace.append("block")

        assert trace == [("ran", 0), "block"]

    def test_an_error_of_the_block_is_thrown_in_and_may_be_handled(self):
        trace = []
        with run_inside(middleware("handles", 0, trace), Context()):
            raise Trouble("in the block")

        assert trace == [("began", 0), ("saw", 0, "in the block"), ("tidied", 0)]

    def test_an_error_that_nobody_handles_leaves_as_itself(self):
        error = Trouble("in the block")
        with pytest.raises(Trouble) as caught, run_inside(middleware("tidies", 0, []), Context()):
            raise error

        assert caught.value is error


def returns_another(ctx):
    return dataclasses.replace(ctx, count=1)


def yields_another(ctx):
    yield dataclasses.replace(ctx, count=1)


def ends_with_another(ctx):
    if ctx is None:
        yield
    return dataclasses.replace(ctx, count=1)


class TestContextsThatComeBack:
    @MODES
    @pytest.mark.parametrize("fn", [returns_another, yields_another, ends_with_another])
    @pytest.mark.parametrize("kind", ["plain", "contract", "serial", "wrapped"])
    @pytest.mark.filterwarnings("ignore:asynchronous mode knows")
    def test_another_context_is_refused_by_name(self, mode, fn, kind):
        uses = functools.partial(fn)
        if kind == "contract":
            contract(may_read=("count", "batch", "more", "rows"), stage="learn")(uses)
        if kind == "serial":
            uses = functools.partial(lambda part, loop: loop.serial(part), uses)
            uses.wants_loop = True
        wrapper = (lambda fn: lambda ctx: fn(ctx)) if kind == "wrapped" else None
        with pytest.raises(TypeError, match=rf"{fn.__name__} \(.* gave back another context .* set fields of the one"):
            run(uses, mode=mode, wrapper=wrapper)

    @MODES
    @pytest.mark.parametrize("result", [0, 3, [], "text", object(), torch.ones(2), torch.nn.Linear(1, 1)], ids=type)
    @pytest.mark.filterwarnings("ignore:asynchronous mode knows")
    def test_any_other_value_and_the_context_itself_mean_nothing(self, mode, result):
        rows = []
        own = contract(stage="collect")(lambda ctx: rows.append(1) or result)
        run(own, lambda ctx: rows.append(1) or result, lambda ctx: ctx, contract(stage="learn")(lambda ctx: ctx), mode=mode)
        assert len(rows) >= 6


class Stops:
    def __call__(self, ctx):
        return False


def stops(ctx):
    return False


def stops_as_asked(ctx, asked=0):
    return False


def counts(ctx):
    return ctx.total_step > 5


@pytest.mark.parametrize(
    ("fn", "is_named"),
    [
        (stops, True),
        (Stops(), True),
        (functools.partial(stops_as_asked, asked=1), True),
        (counts, False),
        (lambda ctx: False, False),
    ],
)
def test_returning_false_has_no_effect_which_is_said_once(fn, is_named):
    task, said = Task(), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with task.start(ctx=Context()):
            task.use(fn).run(max_step=3)
            assert task.ctx.total_step == 2
        said += [str(one.message) for one in caught if "returned False" in str(one.message)]

    assert len(said) == is_named
    assert all("tops" in text and "task.finish = True" in text for text in said)
