"""Suggested contracts: the code to paste for a function without one."""

import functools
from typing import Any

import pytest
from contract_runs import MODES, Data, run

from ding_lite.engine import Task, contract


def suggested(*middleware: Any) -> list[str]:
    with Task().start(ctx=Data()) as loop:
        for one in middleware:
            loop.use(one)
        loop.run(2)
        return loop.suggest_contracts().splitlines()


class TestSuggestions:
    @MODES
    @pytest.mark.filterwarnings("ignore:asynchronous mode knows")
    def test_the_decorator_to_paste_names_what_was_touched_and_what_is_held(self, mode, capsys):
        memory = []

        def shapes(ctx):
            memory.append(ctx.batch)
            ctx.more = ctx.batch
            yield
            ctx.rows = [ctx.count]

        with Task().start(ctx=Data(), **mode) as loop:
            loop.use(contract(writes=("batch",), stage="collect")(lambda ctx: setattr(ctx, "batch", 1)))
            loop.use(shapes)
            loop.run(3)
            text = loop.suggest_contracts()
        assert text in capsys.readouterr().out
        assert f"shapes ({__file__}:" in text
        line = text.splitlines()[1].strip()
        assert line == (
            '@contract(reads=("batch",), reads_after=("count",), writes=("more",), writes_after=("rows",), '
            "uses=(memory,), stage='process')"
        )
        decorated = eval(line[1:], {"contract": contract, "memory": memory})(shapes)  # it is code that runs
        with Task().start(ctx=Data(), **mode) as loop:
            loop.use(contract(writes=("batch",), stage="collect")(lambda ctx: setattr(ctx, "batch", 1)))
            loop.use(decorated)
            loop.run(3)
            assert loop.suggest_contracts() == ""

    def test_the_warning_about_such_a_function_says_how(self):
        with pytest.warns(UserWarning, match=r"task.suggest_contracts\(\) prints this line"):
            run(lambda ctx: None, mode={"async_mode": True})

    def test_a_suggestion_writes_what_was_changed_in_place(self):
        with Task().start(ctx=Data()) as loop:
            loop.use(lambda ctx: ctx.rows.append(ctx.count))
            loop.run(2)
            line = loop.suggest_contracts().splitlines()[1]
        assert 'reads=("rows", "count")' in line
        assert 'writes=("rows",)' in line

    def test_methods_of_one_class_are_suggested_once_with_what_a_decorator_cannot_name(self):
        class Many:
            def __init__(self):
                self.rows_seen = []

            def step(self, ctx):
                self.rows_seen.append(ctx.count)

        many = Many()
        lines = suggested(many.step, many.step, Many().step)
        assert len(lines) == 2
        assert lines[1].startswith(
            "    @contract(reads=(\"count\",), stage='record')  # a decorator cannot name self.rows_seen"
        )

    def test_a_partial_is_suggested_the_decorator_of_its_function(self):
        def pushes(memory, ctx):
            memory.append(ctx.batch)

        line = suggested(functools.partial(pushes, []))[1]
        assert line.startswith("    @contract(reads=(\"batch\",), stage='record')  # a decorator cannot name memory")

    def test_an_object_is_suggested_the_call_in_its_constructor(self):
        class Records:
            def __init__(self):
                self.seen = []

            def __call__(self, ctx):
                self.seen.append(ctx.batch)

        class Remembers(Records):
            def __call__(self, ctx):
                self.rows = [ctx.batch]  # made when it runs: its constructor cannot name it

        assert "uses=(self.seen,)" in suggested(Remembers())[1]
        lines = suggested(Records(), Records())
        assert lines[1:] == ["    contract(reads=(\"batch\",), uses=(self.seen,), stage='record')(self)  # last in __init__"]

    @pytest.mark.parametrize("wrap", [lambda loop, it: it, lambda loop, it: loop.serial(it)], ids=["itself", "in another"])
    def test_what_is_touched_when_the_run_has_ended_is_suggested_too(self, wrap):
        class Ends:
            def __call__(self, ctx):
                return ctx.batch

            def end_run(self, ctx):
                ctx.rows = [ctx.count]

        with Task().start(ctx=Data()) as loop:
            loop.use(wrap(loop, Ends()))
            loop.run(2)
            suggested_lines = loop.suggest_contracts().splitlines()
        line = suggested_lines[-1].strip()
        assert line == (
            'contract(reads=("batch",), reads_after=("count",), writes_after=("rows",), '
            "stage='record')(self)  # last in __init__"
        )
        ends = Ends()
        eval(line.partition("(self)")[0], {"contract": contract})(ends)
        with Task().start(ctx=Data(batch=1)) as loop:
            loop.use(wrap(loop, ends))
            loop.run(2)
            assert loop.ctx.rows == [0]

    def test_a_function_that_carries_an_end_is_suggested_with_it(self):
        def step(ctx):
            return ctx.batch

        step.end_run = lambda ctx: ctx.count
        assert suggested(step)[1:] == ['    @contract(reads=("batch",), reads_after=("count",), stage=\'record\')']

    def test_a_decorated_function_is_seen_through_its_decorators(self):
        def counted(fn):
            calls = []

            @functools.wraps(fn)
            def wrapped(ctx):
                calls.append(1)
                return fn(ctx)

            return wrapped

        memory = []

        @counted
        def pushes(ctx):
            memory.append(ctx.batch)

        line = suggested(pushes)[1].strip()
        assert line == "@contract(reads=(\"batch\",), uses=(memory,), stage='record')  # above its other decorators"

    def test_a_lambda_is_suggested_a_call_around_it(self):
        memory = []
        line = suggested(lambda ctx: memory.append(ctx.batch))[1].strip()
        assert line == "contract(reads=(\"batch\",), uses=(memory,), stage='record')(lambda ...)  # around the lambda"

    def test_of_several_as_one_the_parts_are_suggested(self):
        with Task().start(ctx=Data()) as loop:
            loop.use(loop.parallel(lambda ctx: setattr(ctx, "count", 1), lambda ctx: setattr(ctx, "more", 1)))
            loop.use(loop.serial(lambda ctx: ctx.batch))
            loop.run(2)
            lines = loop.suggest_contracts().splitlines()
        assert [line.partition(", stage")[0].strip() for line in lines[1::2]] == [
            'contract(writes=("count",)',
            'contract(writes=("more",)',
            'contract(reads=("batch",)',
        ]
        assert all(line.startswith("<lambda> (") for line in lines[::2])

    def test_closures_of_one_factory_are_suggested_once_with_what_any_of_them_touched(self):
        def reads(name):
            def look(ctx):
                return getattr(ctx, name) and None

            return look

        lines = suggested(reads("batch"), reads("count"))
        assert len(lines) == 2
        assert 'reads=("batch", "count")' in lines[1]

    def test_before_a_run_there_is_nothing_to_suggest_and_after_the_stop_it_is_an_error(self, capsys):
        with Task().start(ctx=Data()) as loop:
            loop.use(lambda ctx: None)
            assert loop.suggest_contracts() == ""
            assert "has not run yet: call task.run() first." in capsys.readouterr().out
        with pytest.raises(RuntimeError, match="before task.start"):
            loop.suggest_contracts()
