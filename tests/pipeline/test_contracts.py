"""Contracts: what a middleware reads, writes and holds, said beside its code."""

import functools

import pytest

from ding_lite.engine import contract, contract_of


def test_a_function_carries_its_contract_and_stays_itself():
    def push(ctx):
        return "pushed"

    decorated = contract(reads=("trajectories",), writes=["train_data"], stage="process")(push)
    terms = contract_of(decorated)

    assert decorated is push
    assert (terms.reads, terms.writes, terms.stage) == (("trajectories",), ("train_data",), "process")
    assert decorated(None) == "pushed"


def test_a_generator_function_carries_the_terms_of_each_half():
    @contract(reads=("a",), writes=("b",), may_read=("c",), reads_after=("d",), writes_after=("e",))
    def both(ctx):
        yield

    terms = contract_of(both)

    assert (terms.reads, terms.writes, terms.may_read) == (("a",), ("b",), ("c",))
    assert (terms.reads_after, terms.writes_after) == (("d",), ("e",))


def test_an_object_can_put_a_contract_on_itself_and_leaves_its_class_alone():
    class Collector:
        def __init__(self, field):
            contract(writes=(field,), stage="collect")(self)

        def __call__(self, ctx):
            return None

    assert contract_of(Collector("episodes")).writes == ("episodes",)
    assert contract_of(Collector("trajectories")).writes == ("trajectories",)
    assert contract_of(Collector) is None


def test_a_decorated_method_carries_its_contract_when_bound():
    class Steps:
        @contract(reads=("obs",))
        def step(self, ctx):
            return None

    assert contract_of(Steps().step).reads == ("obs",)


@pytest.mark.parametrize("plain", [lambda ctx: None, print, object()])
def test_what_has_no_contract_has_none(plain):
    assert contract_of(plain) is None


def test_objects_are_held_by_identity_so_that_any_may_be_named():
    first, second = [], []  # equal, and not hashable
    terms = contract_of(contract(uses=(first, second))(lambda ctx: None))

    assert [id(thing) for thing in terms.uses] == [id(first), id(second)]


def test_a_contract_cannot_be_changed_afterwards():
    terms = contract_of(contract(reads=("obs",))(lambda ctx: None))

    with pytest.raises(AttributeError):
        terms.reads = ()


@pytest.mark.parametrize(
    ("stage", "lane"),
    [
        ("evaluate", "evaluate"),
        ("explore", "collect"),
        ("collect", "collect"),
        ("process", "process"),
        ("learn", "learn"),
        ("record", "learn"),
        (None, "learn"),
    ],
)
def test_the_lane_follows_from_the_stage(stage, lane):
    assert contract_of(contract(stage=stage)(lambda ctx: None)).lane == lane


def test_a_stage_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(ValueError, match=r"stage='collct'\): there is no such stage, use one of evaluate, explore, collect,"):
        contract(stage="collct")


@pytest.mark.parametrize("term", ["reads", "writes", "may_read", "reads_after", "writes_after"])
def test_one_string_where_names_are_wanted_is_refused_and_written_right(term):
    with pytest.raises(TypeError, match=rf"contract\({term}='obs'\) wants several names, got one string: write \('obs',\)"):
        contract(**{term: "obs"})


@pytest.mark.parametrize("term", ["reads", "writes", "may_read", "reads_after", "writes_after"])
def test_a_name_that_is_no_string_is_refused(term):
    with pytest.raises(TypeError, match=rf"contract\({term}=\.\.\.\) wants names of context fields, got 3 of type int"):
        contract(**{term: ("obs", 3)})


@pytest.mark.parametrize("term", ["uses", "fills", "draws", "exclusive", "creates"])
@pytest.mark.parametrize("things", [1, "text", {"name": 1}])
def test_one_object_where_several_are_wanted_is_refused_and_written_right(term, things):
    with pytest.raises(TypeError, match=rf"contract\({term}=\.\.\.\) wants several objects, got one \w+: write {term}=\(it,\)"):
        contract(**{term: things})


def test_only_nested_contexts_are_created():
    with pytest.raises(TypeError, match=r"creates=.* wants objects of NestedContext, got 1 of type int: write creates="):
        contract(creates=(1,))


@pytest.mark.parametrize("hints", [1, ["draws"], "draws"])
def test_hints_are_a_dict(hints):
    with pytest.raises(TypeError, match=r"contract\(hints=\.\.\.\) wants a dict of texts, got "):
        contract(hints=hints)


@pytest.mark.parametrize(("earlier", "now"), [("alone", "exclusive"), ("makes", "creates")])
def test_a_term_under_its_earlier_name_is_refused_with_the_name_of_today(earlier, now):
    with pytest.raises(TypeError, match=rf"contract\(\) has no argument '{earlier}': it is called `{now}` now"):
        contract(**{earlier: ()})
    with pytest.raises(TypeError, match=r"takes from 0 to 4 positional arguments but 5 were given"):
        contract((), (), (), None, ())


def test_a_contract_may_stand_on_the_call_of_a_class_and_is_seen_through_a_partial():
    class Counter:
        @contract(reads=("batch",))
        def __call__(self, ctx):
            pass

    class Other(Counter):
        pass

    def step(ctx, size):
        pass

    contract(writes=("batch",))(step)

    assert contract_of(Counter()).reads == contract_of(Other()).reads == ("batch",)
    assert contract_of(functools.partial(step, size=3)).writes == ("batch",)


def test_the_outermost_contract_counts():
    rows = []

    @contract(reads=("x",), stage="learn")
    def store(rows, ctx):
        pass

    @contract(reads=("x",), stage="learn")
    class Store:
        def __call__(self, ctx):
            pass

    class Own(Store):
        @contract(reads=("x",), uses=(rows,), stage="learn")
        def __call__(self, ctx):
            pass

    @functools.wraps(store)
    def wrapped(ctx):
        store(rows, ctx)

    outer = contract(reads=("x",), uses=(rows,), stage="learn")
    partial = outer(functools.partial(store, rows))
    of_methods = outer(functools.partial(Own().__call__))
    for one in (partial, functools.partial(partial), outer(Store()), outer(wrapped), Own(), of_methods, outer(Own())):
        assert contract_of(one).uses == (rows,)
    for one in (store, functools.partial(store, rows), Store()):
        assert contract_of(one).uses == ()


class Slots:
    """Has no place for a contract."""

    __slots__ = ()

    def __call__(self, ctx):
        """Nothing."""


@pytest.mark.parametrize(
    "fn", [[].append, Slots().__call__, Slots(), print, dict], ids=["builtin", "method", "slots", "print", "dict"]
)
def test_what_can_hold_no_contract_is_refused_with_the_fix_which_works(fn):
    with pytest.raises(TypeError, match=r"holds no contract. .*task.use\(contract\(...\)\(functools.partial\(it\)\)\)"):
        contract(reads=("x",))(fn)
    assert contract_of(contract(reads=("x",))(functools.partial(fn))).reads == ("x",)


def test_none_is_no_term_and_a_contract_decorates_what_can_be_called():
    with pytest.raises(
        TypeError, match=r"contract\(reads=None\) wants names of context fields, got a NoneType: write reads=\(\)"
    ):
        contract(reads=None)
    with pytest.raises(TypeError, match=r"contract\(...\) decorates a middleware, a callable, got 3 of type int"):
        contract()(3)
