"""The pipeline of a task: what `use` takes and refuses, wrappers, what is left out, and how each middleware is called."""

import asyncio
import functools
import re

import pytest

from ding_lite.engine import Task, contract


def factory(cfg=None):
    def inner(ctx):
        return None

    return inner


def lambda_factory():
    return lambda ctx: None


def generator_factory():
    def inner(ctx):
        yield

    return inner


class Collector:
    def __call__(self, ctx):
        return None

    def step(self, ctx):
        return None

    def make(self):
        def inner(ctx):
            return None

        return inner


def plain(ctx):
    return None


def with_option(factor, ctx):
    return None


def named_in_the_table(fn):
    """What the table of the pipeline calls it."""
    with Task().start() as loop:
        row = loop.use(fn).describe().split("\n")[2]
    return row.split()[1]


class TestNames:
    @pytest.mark.parametrize(
        ("fn", "name"),
        [
            (plain, "plain"),
            (factory(), "factory"),
            (lambda_factory(), "lambda_factory"),
            (generator_factory(), "generator_factory"),
            (Collector(), "Collector"),
            (Collector().step, "step"),
            (Collector().make(), "make"),
            (functools.partial(with_option, 2), "with_option"),
            (functools.partial(plain), "plain"),
        ],
    )
    def test_a_middleware_is_called_what_the_script_calls_it(self, fn, name):
        assert named_in_the_table(fn) == name

    def test_a_local_function_of_the_script_goes_by_its_own_name(self):
        def my_step(ctx):
            return None

        assert named_in_the_table(my_step) == "my_step"

    def test_a_class_inside_a_function_goes_by_its_own_name(self):
        class Local:
            def __call__(self, ctx):
                return None

        assert named_in_the_table(Local()) == "Local"

    def test_a_factory_inside_the_script_gives_its_name_to_what_it_made(self):
        def my_factory():
            def inner(ctx):
                return None

            return inner

        assert named_in_the_table(my_factory()) == "my_factory"


class TestUse:
    def test_it_returns_the_task_and_keeps_the_order(self):
        ran = []
        with Task().start() as loop:
            assert loop.use(lambda ctx: ran.append(0)).use(lambda ctx: ran.append(1)) is loop
            loop.run(max_step=2)

        assert ran == [0, 1, 0, 1]

    @pytest.mark.parametrize(
        "fn", [plain, Collector(), Collector().step, functools.partial(with_option, 2), print, lambda ctx, other=None: None]
    )
    def test_whatever_takes_one_argument_is_a_middleware(self, fn):
        with Task().start() as loop:
            loop.use(fn)
            loop.run(max_step=1)

    def test_the_same_middleware_may_stand_in_a_pipeline_twice(self):
        trace = []

        def halves(ctx):
            trace.append("first")
            yield
            trace.append("second")

        with Task().start() as loop:
            loop.use(halves).use(halves)
            loop.run(max_step=1)

        assert trace == ["first", "first", "second", "second"]

    def test_a_list_of_middleware_is_refused_with_the_loop_to_write(self):
        match = r"got \[.*\] of type list\. .* `for fn in it: task\.use\(fn\)`"
        with Task().start() as loop, pytest.raises(TypeError, match=match):
            loop.use([plain, plain])

    @pytest.mark.parametrize("fn", [None, 3, "collect", [3]])
    def test_what_cannot_be_called_is_refused_with_the_likely_cause(self, fn):
        match = rf"task\.use\(\) wants a function of the context, got .* of type {type(fn).__name__}\. .* with `return`"
        with Task().start() as loop, pytest.raises(TypeError, match=match):
            loop.use(fn)

    def test_a_class_is_refused_with_the_call_to_write(self):
        with (
            Task().start() as loop,
            pytest.raises(TypeError, match=r"use\(Collector\) got the class itself: .* task\.use\(Collector\("),
        ):
            loop.use(Collector)

    @pytest.mark.parametrize("fn", [lambda: None, lambda ctx, more: None, lambda *, ctx: None, with_option])
    def test_a_function_that_does_not_take_just_ctx_is_refused_at_once_with_its_place(self, fn):
        match = r"wants a function of one argument, ctx, but .* \(.*test_pipelines\.py:\d+\) takes \(.*\)\. .* call it first"
        with Task().start() as loop, pytest.raises(TypeError, match=match):
            loop.use(fn)

    def test_below_a_decorator_the_function_that_is_called_counts(self):
        seen = []

        def step(ctx, *, rng):
            seen.append(rng)

        @functools.wraps(step)
        def adds_one(ctx):
            return step(ctx, rng=3)

        @functools.wraps(step)
        def passes_on(*args, **kwargs):
            return step(*args, rng=4, **kwargs)

        @functools.wraps(step)
        def wants_more(ctx, other):
            return step(ctx, rng=5)

        with Task().start() as loop:
            loop.use(adds_one).use(passes_on).use(functools.partial(adds_one)).run(1)
            with pytest.raises(TypeError, match=r"wants a function of one argument, ctx, but step \(.*\) takes \(ctx, other\)"):
                loop.use(wants_more)
        assert seen == [3, 4, 3]

    def test_a_factory_that_was_not_called_is_refused_by_name(self):
        def pusher(cfg, buffer_):
            return lambda ctx: None

        with Task().start() as loop, pytest.raises(TypeError, match=r"pusher \(.*\) takes \(cfg, buffer_\)"):
            loop.use(pusher)

    def test_asynchronous_functions_are_refused(self):
        async def coroutine(ctx):
            pass

        async def generator(ctx):
            yield

        class Object:
            async def __call__(self, ctx):
                pass

        with Task().start() as loop:
            for fn in (coroutine, generator, Object(), functools.partial(coroutine)):
                with pytest.raises(TypeError, match="got an async function, which would not be awaited"):
                    loop.use(fn)
        assert asyncio.iscoroutinefunction(coroutine)

    def test_what_was_refused_is_no_part_of_the_pipeline(self):
        with Task().start() as loop:
            with pytest.raises(TypeError):
                loop.use(None)
            loop.run(max_step=1)

    def test_void_is_left_out(self):
        with Task().start() as loop:
            assert loop.use(loop.void()) is loop
            assert len(loop.describe().split("\n")) == 2
            loop.use(plain)
            loop.run(max_step=1)

    def test_void_may_stand_inside_others(self):
        ran = []
        with Task().start() as loop:
            loop.use(loop.serial(loop.void(), lambda ctx: ran.append(1)))
            loop.run(max_step=1)

        assert ran == [1]


class TestUseWrapper:
    def test_it_returns_the_task(self):
        with Task().start() as loop:
            assert loop.use_wrapper(lambda fn: fn) is loop

    @pytest.mark.parametrize("wrapper", [None, 3])
    def test_what_is_no_decorator_is_refused_at_once(self, wrapper):
        with Task().start() as loop, pytest.raises(TypeError, match="wrapper"):
            loop.use_wrapper(wrapper)

    def test_a_wrapper_that_was_refused_wraps_nothing_later(self):
        ran = []
        with Task().start() as loop:
            loop.use(lambda ctx: ran.append(0))
            with pytest.raises(TypeError, match="returned None"):
                loop.use_wrapper(lambda fn: None)
            loop.use(lambda ctx: ran.append(1))
            loop.run(max_step=1)

        assert ran == [0, 1]

    def test_a_wrapper_sees_name_and_doc_of_what_it_wraps(self):
        seen = []

        def documented(ctx):
            """What it does."""

        with Task().start() as loop:
            loop.use_wrapper(lambda fn: (seen.append((fn.__name__, fn.__doc__)), fn)[1])
            loop.use(documented)

        assert seen == [("documented", "What it does.")]

    def test_contracts_stay_known_under_wrappers_and_locks(self):
        with Task().start() as loop:
            loop.use_wrapper(lambda fn: lambda ctx: fn(ctx))
            loop.use(contract(reads=("total_step",), stage="learn")(plain_with_contract), lock=True)
            assert "total_step" in loop.describe()


def plain_with_contract(ctx):
    return None


class TestDescribe:
    def test_the_table_tells_stage_name_reads_writes_and_lane(self, capsys):
        @contract(
            reads=("total_step",), writes=("a",), may_read=("c",), reads_after=("d",), writes_after=("b",), stage="collect"
        )
        def collector(ctx):
            return None

        with Task().start() as loop:
            loop.use(collector).use(contract(stage="record")(Collector())).use(plain)
            table = loop.describe()

        assert capsys.readouterr().out == table + "\n"
        header, rule, *rows = table.split("\n")
        assert header.split() == ["stage", "middleware", "reads", "writes", "lane"]
        assert set(rule) == {"-", " "}
        assert re.split("  +", rows[0]) == ["collect", "collector", "total_step, d, c?", "a, b", "collect"]
        assert rows[1].split() == ["record", "Collector", "-", "-", "learn"]
        assert rows[2].split() == ["-", "plain", "(no", "contract)", "(no", "contract)", "all"]

    def test_columns_stand_below_each_other(self):
        with Task().start() as loop:
            loop.use(factory()).use(Collector()).use(plain)
            header, _, *rows = loop.describe().split("\n")

        assert {row.index("(no contract)") for row in rows} == {header.index("reads")}
        assert {row.rindex("(no contract)") for row in rows} == {header.index("writes")}
        assert {row.rindex("all") for row in rows} == {header.index("lane")}

    def test_many_fields_fill_several_lines_and_none_is_lost(self):
        names = [f"field_{number}_of_many" for number in range(20)]
        with Task().start() as loop:
            table = loop.use(contract(reads=names, writes=names[::-1])(plain_with_contract)).describe()

        assert re.findall(r"field_\d+_of_many", table[: table.index("\n")]) == []
        for name in names:
            assert table.count(name) == 2
        assert max(map(len, table.split("\n"))) <= 160
