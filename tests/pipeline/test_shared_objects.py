"""Objects that middleware of several lanes hold, and that a contract leaves out, are warned of."""

import collections
import contextlib
import functools
import itertools
import queue
import random
import re
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from contract_runs import OVERLAPPING, run, two_lanes, warned
from gymnasium import spaces

from ding_lite.engine import Task, contract, extend_contract
from ding_lite.envs import make_envs
from ding_lite.metrics import MetricsLogger
from ding_lite.nn import ParametrizedDistribution
from ding_lite.policy import DQNPolicy


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


class Writer:
    """Holds lists in dicts, and has a method for each lane."""

    def __init__(self):
        self.history = {"collected": [], "learned": []}

    def add(self, key):
        self.history[key].append(1)


class TestObjectsInsideNamedOnes:
    """Both contracts name what holds them, so the two take turns."""

    @OVERLAPPING
    def test_nothing_is_said_of_what_two_lanes_reach_through_an_object_that_both_name(self, mode, recwarn):
        history, writer = {"collected": [], "learned": []}, Writer()

        @contract(writes=("batch",), uses=(history, writer), stage="collect")
        def collects(ctx):
            ctx.batch = 1
            history["collected"].append(1)
            writer.add("collected")

        @contract(("batch",), uses=(history, writer), stage="learn")
        def learns(ctx):
            history["learned"].append(1)
            writer.add("learned")

        run(collects, learns, mode=mode)
        assert [str(it.message) for it in recwarn] == []
        assert len(history["learned"]) == len(writer.history["learned"]) == 3

    @OVERLAPPING
    def test_what_only_one_of_them_names_is_watched(self, mode):
        one, other, both = {"numbers": []}, {}, []
        one["numbers"] = other["numbers"] = both

        @contract(writes=("batch",), uses=(one,), stage="collect")
        def collects(ctx):
            ctx.batch = 1
            one["numbers"].append(1)

        @contract(("batch",), uses=(other,), stage="learn")
        def learns(ctx):
            other["numbers"].append(1)

        with pytest.warns(UserWarning, match=r"hold the same list, one\['numbers'\], which changes"):
            run(collects, learns, mode=mode)


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
        ("held", "named"),
        [("model", ()), ("learner", ()), ("follower", ()), ("model", ("follower",)), ("learner", ("follower",))],
    )
    def test_who_holds_what_another_lane_changes_is_warned(self, held, named, mode):
        (text,) = self.warnings_of(held, named, mode)
        what = "a Follower of the (Learner|Holder) that" if held == "follower" else "a (Learner|Holder) that"
        assert re.search(rf"collects .* holds thing, {what} learns uses, .* uses=\(thing,\)", text)

    @OVERLAPPING
    @pytest.mark.parametrize(
        ("held", "named"),
        [
            *[(held, (named,)) for held in ("model", "learner", "follower") for named in ("model", "learner")],
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


class WithDefaults:
    """An object whose attributes are those of its class until they are set."""

    count = 0
    rng = None

    def draw(self):
        if self.rng is None:
            self.rng = np.random.default_rng(0)
        return self.rng.normal()


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
            (lambda: WithDefaults(), lambda it: setattr(it, "count", it.count + 1)),
            (lambda: WithDefaults(), lambda it: it.draw()),
            (MetricsLogger, lambda it: it.log_value("loss", 1.0)),
            (lambda: spaces.Discrete(3), lambda it: it.sample()),
        ],
        ids=["list", "dict", "deque", "array", "object", "default of a class", "made on first use", "metrics", "space"],
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


ITERATORS = {
    "generator": lambda: (number for number in range(99)),
    "count": itertools.count,
    "cycle": lambda: itertools.cycle([1, 2]),
    "map": lambda: map(int, range(1, 99)),
    "zip": lambda: zip(range(99)),
    "enumerate": lambda: enumerate(range(99)),
    "list": lambda: iter([1] * 99),
}


class TestIterators:
    @OVERLAPPING
    @pytest.mark.parametrize("make", ITERATORS.values(), ids=ITERATORS)
    def test_one_on_two_lanes_is_warned_of(self, make, mode):
        source = make()
        (text,) = warned(*two_lanes(lambda: next(source), lambda: next(source)), mode=mode)

        assert re.search(
            r"two_lanes .* and two_lanes .* hold the same \w+, source \(through \w+\), an iterator, .*uses=\(source,\)", text
        )

    def test_it_is_not_if_both_name_it_or_each_has_its_own_or_the_run_is_plain(self, tmp_path):
        source, other = itertools.count(), itertools.count()
        assert warned(*two_lanes(lambda: next(source), lambda: next(source), uses=((source,), (source,)))) == []
        assert warned(*two_lanes(lambda: next(source), lambda: next(other))) == []
        assert warned(*two_lanes(lambda: next(source), lambda: next(source)), mode={}) == []
        assert warned(*two_lanes(lambda: next(source), lambda: next(source), stages=("learn", "learn"))) == []
        with (tmp_path / "log").open("w") as file:
            assert warned(*two_lanes(lambda: file.name, lambda: file.name)) == []

    def test_one_that_a_single_contract_names_is_warned_of(self):
        source = itertools.count()
        (text,) = warned(*two_lanes(lambda: next(source), lambda: next(source), uses=((source,), ())))

        assert re.search(r"two_lanes .* holds source \(through \w+\), a count that two_lanes uses", text)


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0

    def tick(self):
        self.count += 1
        return self.count


GENERATORS = {
    "numpy": lambda: np.random.default_rng(0),
    "bits of numpy": lambda: np.random.PCG64(0),
    "old numpy": lambda: np.random.RandomState(0),
    "torch": lambda: torch.Generator().manual_seed(0),
    "python": lambda: random.Random(0),
}
DRAWS = {
    "numpy": lambda it: it.random(),
    "bits of numpy": lambda it: it.random_raw(),
    "old numpy": lambda it: it.rand(),
    "torch": lambda it: torch.rand(1, generator=it),
    "python": lambda it: it.random(),
}


class TestRandomGenerators:
    @pytest.mark.parametrize("kind", GENERATORS)
    def test_one_on_two_lanes_is_warned_of_before_the_run(self, kind):
        source, draw = GENERATORS[kind](), DRAWS[kind]
        (text,) = warned(*two_lanes(lambda: draw(source), lambda: draw(source)))

        assert re.search(r"hold the same \w+, source \(through \w+\), a random generator, .*uses=\(source,\)", text)

    @pytest.mark.parametrize("kind", GENERATORS)
    def test_it_is_not_if_both_name_it_or_each_has_its_own(self, kind):
        source, other, draw = GENERATORS[kind](), GENERATORS[kind](), DRAWS[kind]
        assert warned(*two_lanes(lambda: draw(source), lambda: draw(source), uses=((source,), (source,)))) == []
        assert warned(*two_lanes(lambda: draw(source), lambda: draw(other))) == []
        assert warned(*two_lanes(lambda: draw(source), lambda: draw(source), stages=("learn", "learn"))) == []

    @pytest.mark.parametrize("kind", GENERATORS)
    def test_one_that_a_single_contract_names_is_warned_of(self, kind):
        source, draw = GENERATORS[kind](), DRAWS[kind]
        (text,) = warned(*two_lanes(lambda: draw(source), lambda: draw(source), uses=((source,), ())))

        assert re.search(r"holds source \(through \w+\), a \w+ that two_lanes uses", text)

    @pytest.mark.parametrize("draw", [random.Random(0).random, np.random.default_rng(0).random, itertools.count().__next__])
    def test_a_bound_method_leads_to_its_object(self, draw):
        (text,) = warned(*two_lanes(lambda: draw(), lambda: draw()))

        assert "draw.__self__" in text

    def test_a_name_of_an_attribute_that_is_also_one_of_a_variable_is_no_use_of_it(self):
        holder = types.SimpleNamespace(UNRELATED=3)
        assert warned(*two_lanes(lambda: next(UNRELATED), lambda: holder.UNRELATED)) == []


UNRELATED = itertools.count()


class TestSlots:
    @OVERLAPPING
    def test_an_object_with_slots_is_one_as_any_other(self, mode):
        thing, other = Slotted(), Slotted()
        (text,) = warned(*two_lanes(thing.tick, lambda: thing.count), mode=mode)
        assert "hold the same Slotted" in text
        assert "(at .count)" in text
        (text,) = warned(*two_lanes(thing.tick, lambda: thing.count, uses=((thing,), ())), mode=mode)
        assert "a Slotted that two_lanes uses" in text
        assert warned(*two_lanes(thing.tick, lambda: thing.count, uses=((thing,), (thing,))), mode=mode) == []
        assert warned(*two_lanes(lambda: thing.count, lambda: thing.count), mode=mode) == []
        assert warned(*two_lanes(thing.tick, lambda: other.count), mode=mode) == []

    @pytest.mark.parametrize("kind", [queue.Queue, queue.SimpleQueue, queue.PriorityQueue])
    def test_objects_made_to_be_shared_stay_without_a_warning(self, kind):
        line = kind()
        assert warned(*two_lanes(lambda: line.put(1), lambda: line.qsize())) == []

    def test_so_does_a_pool_of_threads(self):
        with ThreadPoolExecutor(1) as pool:
            assert warned(*two_lanes(lambda: pool.submit(int).result(), lambda: pool.submit(int).result())) == []


class TestViews:
    @pytest.mark.parametrize("view", [types.MappingProxyType, dict.keys, dict.values, dict.items])
    def test_one_of_a_dict_leads_to_the_dict(self, view):
        numbers = {}
        shown = view(numbers)
        (text,) = warned(*two_lanes(lambda: numbers.update({len(numbers): 1}), lambda: len(shown)))
        assert "hold the same dict, numbers, which changes" in text
        assert warned(*two_lanes(lambda: len(numbers), lambda: len(shown))) == []

    def test_one_of_memory_leads_to_what_has_it(self):
        memory = bytearray(2)
        view = memoryview(memory)

        def change():
            memory[0] += 1

        (text,) = warned(*two_lanes(change, lambda: view[0]))
        assert "hold the same bytearray, memory, which changes" in text


class Window:
    """Keeps its rows in a private list, and caches."""

    def __init__(self):
        self._rows, self._seen, self._sums = [], set(), {}

    def add(self, row):
        self._rows.append(row)

    def note(self, row):
        self._seen.add(len(self._seen))

    def size(self):
        return len(self._rows) + len(self._seen)

    def total(self, count):
        if count not in self._sums:
            self._sums[count] = sum(range(count))
        return self._sums[count]


class Level:
    """A descriptor that holds the data itself."""

    def __init__(self):
        self.value = 0

    def __get__(self, owner, kind=None):
        return self.value

    def __set__(self, owner, value):
        self.value = value


class Game:
    level = Level()


class WindowOfWindow:
    def __init__(self):
        self._window = Window()


class TestPrivateData:
    @OVERLAPPING
    @pytest.mark.parametrize(
        ("thing", "change", "place"),
        [
            (Window, lambda it: it.add(1), "._rows"),
            (Window, lambda it: it.note(1), "._seen"),
            (WindowOfWindow, lambda it: it._window.add(1), "._window._rows"),
            (Game, lambda it: setattr(it, "level", it.level + 1), ".level.value"),
        ],
        ids=["list", "set", "list of an object", "descriptor"],
    )
    def test_an_object_that_only_changes_inside_is_warned_of(self, thing, change, place, mode):
        held = thing()
        (text,) = warned(*two_lanes(lambda: change(held), lambda: vars(held)), mode=mode)
        assert f"held, which changes (at {place}), and neither" in text

    @OVERLAPPING
    def test_a_cache_that_both_fill_is_fine(self, mode):
        window = Window()
        assert warned(*two_lanes(lambda: window.total(3), lambda: window.total(4)), mode=mode) == []

    @OVERLAPPING
    def test_what_a_context_manager_changes_is_warned_of(self, mode):
        entered = [0]

        @contextlib.contextmanager
        def scope():
            entered[0] += 1
            yield

        def enters():
            with scope():
                pass

        (text,) = warned(*two_lanes(enters, lambda: entered[0]), mode=mode)
        assert "hold the same list, entered, which changes" in text


class Norm:
    """Holds what it reads in an attribute."""

    def __init__(self, policy):
        self._policy, self.calls = policy, 0

    @property
    def norm(self):
        return total(self._policy)


class Slots:
    """The same, without a dict."""

    __slots__ = ("policy",)

    def __init__(self, policy):
        self.policy = policy


class Probe:
    """A middleware of a class, which reaches the policy in an object of its own."""

    def __init__(self, policy):
        self.agent = Slots(policy)
        contract(reads=("count",), stage="process")(self)

    def __call__(self, ctx):
        return total(self.agent.policy) and None


class LongerProbe(Probe):
    """Derived from it."""


GLOBAL = {}
process = contract(reads=("count",), stage="process")


def total(policy):
    return next(iter(policy.model.parameters())).detach().abs().sum()


def gamma(policy):
    return policy.cfg.discount_factor


def twice(policy, factor):
    return factor * gamma(policy)


def through_lambda(policy):
    norm = lambda: total(policy)  # noqa: E731
    return process(lambda ctx: norm() and None)


def through_partial(policy):
    norm = functools.partial(total, policy)
    return process(lambda ctx: norm() and None)


def through_method(policy):
    weights = policy.get_weights
    return process(lambda ctx: len(weights()) and None)


def through_property(policy):
    norm = Norm(policy)
    return process(lambda ctx: norm.norm and None)


def through_namespace(policy):
    held = types.SimpleNamespace(agent=types.SimpleNamespace(policy=policy))
    return process(lambda ctx: total(held.agent.policy) and None)


def through_dict(policy):
    box = {"p": policy}
    return process(lambda ctx: total(box["p"]) and None)


def through_global(policy):
    GLOBAL["p"] = policy
    return process(lambda ctx: total(GLOBAL["p"]) and None)


def through_optimizer(policy):
    optimizer = policy.optimizer
    return process(lambda ctx: len(optimizer.state) and None)


def through_parameter(policy):
    weight = next(iter(policy.model.parameters()))
    return process(lambda ctx: weight.sum() and None)


def through_parameters(policy):
    weights = list(policy.model.parameters())
    return process(lambda ctx: weights[0].sum() and None)


def through_layer(policy):
    layer = next(iter(policy.model.children()))
    return process(lambda ctx: layer.training and None)


def through_default(policy):
    def probe(ctx, held=policy):
        return total(held) and None

    return process(probe)


def through_wrapper(policy):
    def probe(ctx):
        return total(policy) and None

    @functools.wraps(probe)
    def inner(ctx):
        return probe(ctx)

    return process(inner)


def through_cached(policy):
    @functools.lru_cache
    def norm():
        return float(total(policy))

    return process(lambda ctx: norm() and None)


REACHED = {
    through_lambda: "policy (through norm)",
    through_partial: "norm.args[0]",
    through_method: "weights.__self__",
    through_property: "norm._policy",
    through_namespace: "held.agent.policy",
    through_dict: "box['p']",
    through_global: "GLOBAL['p']",
    through_optimizer: "optimizer",
    through_parameter: "weight",
    through_parameters: "weights[0]",
    through_layer: "layer",
    through_default: "held",
    through_wrapper: "policy",
    through_cached: "policy (through norm)",
    Probe: "self.agent.policy",
    LongerProbe: "self.agent.policy",
}


@pytest.fixture(scope="module")
def policy():
    return DQNPolicy({"seed": 0}, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))


def advice(probe, learner, mode=None):
    """The warnings for a middleware beside another one that names `learner`."""
    learns = contract(reads=("batch",), writes=("batch",), uses=(learner,), stage="learn")(lambda ctx: None)
    collects = contract(writes=("batch",), stage="collect")(lambda ctx: setattr(ctx, "batch", 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(collects, probe, learns, mode=mode or {"max_lag": 1}, steps=2)
    return [str(one.message) for one in caught if "where iterations overlap" in str(one.message)]


class TestObjectsThatAreReached:
    @pytest.mark.parametrize("make", REACHED, ids=lambda it: it.__name__)
    def test_each_way_to_the_newest_weights_is_warned_of_once_with_its_path(self, make, policy):
        (text,) = advice(make(policy), policy.learn_mode)

        assert re.search(rf"holds {re.escape(REACHED[make])}, an? ", text)
        code = REACHED[make].partition(" ")[0]
        added = "extend_contract(self, " if make is LongerProbe else "@contract(..., "
        assert f"add it: {added}uses=({code},))" in text

    def test_a_view_of_a_parameter_shares_memory_with_its_policy(self, policy):
        view = next(iter(policy.model.parameters())).detach().numpy()
        (text,) = advice(process(lambda ctx: view.sum() and None), policy.learn_mode)

        assert "holds view, a ndarray that shares memory with a Parameter that" in text

    def test_to_name_any_part_of_the_policy_is_enough(self, policy):
        weight, layer = next(iter(policy.model.parameters())), next(iter(policy.model.children()))
        for named in (policy, policy.model, policy.target_model, policy.optimizer, weight, layer, policy.learn_mode):
            probe = contract(reads=("count",), uses=(named,), stage="process")(lambda ctx: weight.sum() and None)
            assert advice(probe, policy.learn_mode) == []

    def test_the_pasted_line_ends_the_warning(self, policy):
        class Fixed(LongerProbe):
            def __init__(self, policy):
                super().__init__(policy)
                extend_contract(self, uses=(self.agent.policy,))

        assert advice(Fixed(policy), policy.learn_mode) == []

    def test_an_attribute_that_no_code_reads_is_not_reached(self, policy):
        norm = Norm(policy)

        assert advice(process(lambda ctx: norm.calls and None), policy.learn_mode) == []

    def test_neither_are_objects_inside_those_of_libraries_or_behind_a_circle(self, policy):
        held = types.SimpleNamespace(inside=ParametrizedDistribution(policy.model, torch.zeros(1, 2)))
        held.itself = [held]

        assert advice(process(lambda ctx: held.inside and held.itself and None), policy.learn_mode) == []

    def test_a_mode_that_acts_is_named_because_its_weights_are_those_of_an_iteration(self, policy):
        mode = policy.eval_mode
        (text,) = advice(process(lambda ctx: mode.forward and None), policy.learn_mode)

        assert "holds mode, an EvalMode of the LearnMode that" in text
        assert advice(process(lambda ctx: mode.cfg and None), policy.learn_mode) == []
        named = contract(reads=("count",), uses=(mode,), stage="process")(lambda ctx: mode.forward and None)
        assert advice(named, policy.learn_mode) == []

    @OVERLAPPING
    def test_an_object_inside_one_that_changes_is_told_once(self, mode):
        outer = types.SimpleNamespace(rows=[])

        @contract(writes=("batch",), stage="collect")
        def collects(ctx):
            outer.rows.append(1)
            ctx.batch = 1

        @contract(reads=("batch",), stage="learn")
        def learns(ctx):
            return len(outer.rows) and None

        with pytest.warns(UserWarning, match=r"hold the same SimpleNamespace, outer, which changes \(at .rows") as caught:
            run(collects, learns, mode=mode, steps=7)
        assert len([one for one in caught if "hold the same" in str(one.message)]) == 1


class Reads:
    """A middleware that only looks at settings."""

    def __init__(self, policy):
        self.policy = policy
        contract(reads=("count",), stage="process")(self)

    def __call__(self, ctx):
        return self.policy.cfg.discount_factor and None


class TestSettings:
    @pytest.mark.parametrize(
        "make",
        [
            lambda it: process(lambda ctx: it.cfg.discount_factor and it.action_space.n and it.device and None),
            lambda it: process(lambda ctx: gamma(it) and None),
            lambda it: process(lambda ctx: twice(it, ctx.count) and None),
            Reads,
        ],
        ids=["attributes", "helper", "helpers", "object"],
    )
    def test_code_that_reads_settings_alone_is_not_warned_of(self, make, policy):
        assert advice(make(policy), policy.learn_mode) == []

    def test_nor_is_code_that_reads_those_of_environments(self):
        envs = make_envs("CartPole-v1", 2, seed=0)
        probe = process(lambda ctx: envs.num_envs and envs.single_observation_space.shape and None)

        assert advice(probe, envs) == []
        assert len(advice(process(lambda ctx: envs.get_attr("gravity") and None), envs)) == 1

    @pytest.mark.parametrize(
        "use",
        [
            lambda ctx, it: it.cfg.discount_factor and it.train_iter and None,
            lambda ctx, it: it.action_space.sample() and None,
            lambda ctx, it: twice(it, total(it)) and None,
        ],
        ids=["another attribute", "sample", "helper"],
    )
    def test_code_that_does_more_is(self, use, policy):
        def probe(ctx):
            return use(ctx, policy)

        assert len(advice(process(probe), policy.learn_mode)) == 1

    def test_a_setting_that_is_set_is_more_than_read(self, policy):
        def probe(ctx):
            policy.cfg.discount_factor = policy.cfg.discount_factor

        assert len(advice(process(probe), policy.learn_mode)) == 1

    def test_where_it_is_unknown_the_message_says_how_to_read_them_and_that_ends_the_warning(self, policy):
        probe = process(lambda ctx: getattr(policy, "cfg").discount_factor and None)  # noqa: B009
        (text,) = advice(probe, policy.learn_mode)
        assert "If it only reads settings, take them outside of the function, `settings = policy.cfg`" in text

        settings = policy.cfg
        assert advice(process(lambda ctx: settings.discount_factor and None), policy.learn_mode) == []


class TestContainers:
    """A list or dict that several middleware hold, of which each takes some objects."""

    @pytest.mark.parametrize("wrap", [list, tuple, lambda it: dict(enumerate(it))], ids=["list", "tuple", "dict"])
    def test_a_middleware_that_names_some_of_it_takes_only_these(self, wrap):
        things = wrap([Counted(), Counted(), Counted()])
        takes = [lambda ctx: things[0].count and None, lambda ctx: things[ctx.total_step % 1].count and None]

        for take in takes:
            assert advice(contract(reads=("count",), uses=(things[0],), stage="process")(take), things[1]) == []
            (text,) = advice(process(take), things[1])
            assert "holds things[1], a Counted" in text

    @OVERLAPPING
    def test_changes_of_objects_that_contracts_name_are_no_changes_of_it(self, mode, recwarn):
        things = [Counted(), Counted()]

        def step(number, stage, **terms):
            @contract(uses=(things[number],), stage=stage, **terms)
            def counts(ctx):
                things[number].count += 1
                if "writes" in terms:
                    ctx.batch = 1

            return counts

        run(step(0, "collect", writes=("batch",)), step(1, "learn", reads=("batch",)), mode=mode, steps=7)
        assert [str(one.message) for one in recwarn.list if "where iterations overlap" in str(one.message)] == []


class Counted:
    def __init__(self):
        self.count = 0
