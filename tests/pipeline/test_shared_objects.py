"""Objects that middleware of several lanes hold, and that a contract leaves out, are warned of."""

import collections
import re
import warnings

import numpy as np
import pytest
from contract_runs import OVERLAPPING, run

from ding_lite.engine import Task, contract


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
