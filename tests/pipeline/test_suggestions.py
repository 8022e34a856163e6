"""Suggested contracts: the code to paste for a function without one; and what a contract leaves out is warned of."""

import collections
import functools
import re
import warnings
from typing import Any

import numpy as np
import pytest
from contract_runs import MODES, OVERLAPPING, Data, run

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


class TestObjectsThatAreNotNamed:
    @OVERLAPPING
    def test_an_object_that_another_lane_uses_is_warned_of_where_it_is_held_and_not_named(self, mode):
        shared = []

        @contract(writes=("batch",), uses=(shared,), stage="collect")
        def collects(ctx):
            ctx.batch = len(shared)

        @contract(("batch",), stage="learn")
        def peeks(ctx):
            return len(shared)

        with pytest.warns(UserWarning, match=r"peeks .* holds shared, a list that collects uses.*uses=\(shared,\)"):
            run(collects, peeks, mode=mode)


class Learner:
    """Changes a model."""

    def __init__(self, model):
        self._model = model
        self.follower = Follower(self)

    @property
    def shares_state_with(self):
        return (self._model,)

    def snapshot(self):
        return self._model.inner


class Follower:
    """Acts with a copy of the leader's model."""

    def __init__(self, leader):
        self.leader = leader

    def load_snapshot(self, snapshot):
        pass


class TestObjectsThatShareState:
    """Here `learns` names the learner, which changes the model."""

    @staticmethod
    def warnings_of(held, named, mode):
        learner = Learner(Holder(0))
        things = {"model": learner._model, "learner": learner, "follower": learner.follower}
        thing, uses = things[held], [things[name] for name in named]

        @contract(writes=("batch",), uses=uses, stage="collect")
        def collects(ctx):
            ctx.batch = thing and 1

        @contract(("batch",), uses=(learner,), stage="learn")
        def learns(ctx):
            return None

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(collects, learns, mode=mode)
        return [str(one.message) for one in caught]

    @OVERLAPPING
    def test_who_only_reads_what_its_contract_names_is_not(self, mode):
        learner = Learner(Holder(0))

        @contract(writes=("batch",), uses=(learner.follower,), stage="collect")
        def collects(ctx):
            ctx.batch = learner.follower and 1

        @contract(("batch",), uses=(learner,), stage="learn")
        def learns(ctx):
            return None

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(collects, learns, mode=mode)

    @OVERLAPPING
    @pytest.mark.parametrize(
        ("held", "named"), [("model", ()), ("learner", ()), ("model", ("follower",)), ("learner", ("follower",))]
    )
    def test_who_holds_what_another_lane_changes_is_warned(self, held, named, mode):
        (text,) = self.warnings_of(held, named, mode)
        assert re.search(r"collects .* holds thing, a (Learner|Holder) that learns uses, .* uses=\(thing,\)", text)

    @OVERLAPPING
    @pytest.mark.parametrize(
        ("held", "named"),
        [
            *[(held, (named,)) for held in ("model", "learner", "follower") for named in ("model", "learner")],
            ("follower", ()),
            ("follower", ("follower",)),
        ],
    )
    def test_to_name_one_of_them_is_enough_and_a_follower_is_ordered_by_itself(self, held, named, mode):
        assert self.warnings_of(held, named, mode) == []


class Counts:
    """Two middleware of one object."""

    def __init__(self):
        self.made = self.learned = 0

    @contract(writes=("batch",), stage="collect")
    def make(self, ctx):
        self.made += 1
        ctx.batch = self.learned

    @contract(("batch",), stage="learn")
    def learn(self, ctx):
        self.learned += 1


def two_closures(thing, change, uses=()):
    """Middleware of two lanes that hold the same object."""

    @contract(writes=("batch",), uses=uses, stage="collect")
    def collects(ctx):
        change(thing)
        ctx.batch = 1

    @contract(("batch",), uses=uses, stage="learn")
    def learns(ctx):
        return thing and None

    return collects, learns


class Mode:
    """One way to look at an object."""

    def __init__(self, whole):
        self.whole = whole


class TestObjectsThatNoContractNames:
    @OVERLAPPING
    def test_methods_of_one_object_that_changes_are_warned_of(self, mode):
        counts = Counts()
        with pytest.warns(
            UserWarning, match=r"make .* and .*learn .* hold the same Counts, self, which changes .*neither"
        ) as got:
            run(counts.make, counts.learn, mode=mode, steps=7)
        assert len(got) == 1

    @OVERLAPPING
    @pytest.mark.parametrize(
        ("make", "change"),
        [
            (list, lambda it: it.append(1)),
            (dict, lambda it: it.setdefault(len(it), 1)),
            (collections.deque, lambda it: it.append(1)),
            (lambda: np.zeros(1), lambda it: it.__iadd__(1)),
            (lambda: Counts(), lambda it: setattr(it, "made", it.made + 1)),
        ],
        ids=["list", "dict", "deque", "array", "object"],
    )
    def test_so_are_closures_over_one(self, mode, make, change):
        with pytest.warns(
            UserWarning, match=r"hold the same \w+, thing, which changes.* neither contract names it.*uses=\(thing,\)"
        ):
            run(*two_closures(make(), change), mode=mode, steps=7)

    @OVERLAPPING
    @pytest.mark.filterwarnings("error")
    def test_what_does_not_change_or_is_named_gives_no_warning(self, mode):
        rows, counts = [0], Counts()
        run(*two_closures(rows, len), mode=mode, steps=7)
        run(*two_closures(rows, lambda it: it.append(1), uses=(rows,)), mode=mode, steps=7)
        run(*two_closures(counts, lambda it: setattr(it, "made", it.made + 1), uses=(Mode(counts),)), mode=mode, steps=7)

    @pytest.mark.filterwarnings("error")
    def test_in_a_plain_loop_there_is_nothing_to_warn_of(self):
        counts = Counts()
        run(counts.make, counts.learn, mode={}, steps=7)


class Holder:
    def __init__(self, inner):
        self.inner = inner


@pytest.mark.parametrize("wrap", [lambda it: [it], lambda it: Holder([{"a": Holder(it)}])])
def test_data_inside_an_object_that_is_used_is_named_where_another_lane_changes_it(wrap):
    level = {"n": 0}
    env = wrap(level)
    with Task().start(async_mode=True) as loop:
        loop.use(contract(uses=(env,), stage="collect")(lambda ctx: None))
        loop.use(contract(uses=(level,), stage="learn")(lambda ctx: level.update(n=1)))
        with pytest.warns(UserWarning, match=r"uses a \w+ that holds a dict, which .* uses.*name it in both contracts"):
            loop.run(2)


def test_data_that_both_name_or_that_is_not_inside_is_fine(recwarn):
    level, other = {"n": 0}, {"n": 0}
    env = Holder(level)
    with Task().start(async_mode=True) as loop:
        loop.use(contract(uses=(env, level), stage="collect")(lambda ctx: None))
        loop.use(contract(uses=(level, other), stage="learn")(lambda ctx: level.update(n=1)))
        loop.run(2)
    assert not [one for one in recwarn if "that holds a" in str(one.message)]
