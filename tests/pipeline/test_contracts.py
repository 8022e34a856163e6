"""Contracts: what a middleware reads, writes and holds, said beside its code."""

import functools

import pytest
from contract_runs import MODES, Data, run

from ding_lite.engine import ContractError, contract, contract_of, extend_contract


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


class Pushes:
    """A middleware of a library: its contract is put on the object."""

    def __init__(self, rows):
        self.rows = rows
        contract(reads=("count",), writes=("batch",), fills=(rows,), stage="learn", hints={"draws": "Pushes(rows)"})(self)

    def __call__(self, ctx):
        self.rows.append(ctx.count)
        if ctx.count > 1:
            ctx.batch = len(self.rows)


class Decorated:
    """Another one, with the contract above its method."""

    @contract(reads=("count",), writes=("batch",), stage="learn")
    def __call__(self, ctx):
        ctx.batch = ctx.count


class Derived(Pushes):
    """Looks at one more field, and at an object of its own."""

    def __init__(self, rows, **terms):
        super().__init__(rows)
        self.seen = []
        extend_contract(self, **terms)

    def __call__(self, ctx):
        super().__call__(ctx)
        self.seen.append((ctx.batch, ctx.more))


class TestExtendedContracts:
    def test_it_keeps_all_that_is_inherited_and_adds(self):
        rows, other = [], []
        terms = contract_of(Derived(rows, reads=("more",), writes=("more",), uses=(other,), needs=("more.eps",)))

        assert (terms.reads, terms.writes, terms.needs) == (("count", "more"), ("batch", "more"), ("more.eps",))
        assert (terms.stage, terms.hints) == ("learn", {"draws": "Pushes(rows)"})
        assert [id(it) for it in terms.uses] == [id(rows), id(other)]
        assert [id(it) for it in terms.fills] == [id(rows)]
        assert contract_of(Pushes(rows)).reads == ("count",)

    def test_a_field_that_the_contract_writes_needs_no_earlier_writer(self):
        terms = contract_of(Derived([], reads=("batch", "more")))

        assert (terms.reads, terms.may_read) == (("count", "more"), ("batch",))

    def test_a_contract_above_the_method_of_a_parent_is_extended_too(self):
        class Longer(Decorated):
            def __init__(self):
                extend_contract(self, may_read=("more",))

            def __call__(self, ctx):
                super().__call__(ctx)

        terms = contract_of(Longer())
        assert (terms.reads, terms.writes, terms.may_read, terms.stage) == (("count",), ("batch",), ("more",), "learn")
        assert contract_of(Decorated()).may_read == ()

    def test_functions_are_extended_in_place(self):
        @contract(reads=("count",))
        def fn(ctx):
            pass

        assert extend_contract(fn, ["more"]) is fn
        assert contract_of(fn).reads == ("count", "more")

    @MODES
    def test_the_error_names_the_line_to_paste_and_with_it_the_run_goes_on(self, mode):
        with pytest.raises(ContractError) as caught:
            run(Derived([]), mode=mode, ctx=Data(count=1))
        line = 'Add it: extend_contract(self, reads=("batch",)) as the last line of Derived.__init__.'
        assert line in str(caught.value)
        derived = Derived([], reads=("batch",), may_read=("more",))
        run(derived, mode=mode, ctx=Data(count=1))
        assert derived.seen == [(None, None)] * 3

    def test_so_does_the_error_for_a_write_and_for_a_change_in_place(self):
        class Writes(Pushes):
            def __call__(self, ctx):
                ctx.more = 1

        class Changes(Pushes):
            def __init__(self, rows):
                super().__init__(rows)
                extend_contract(self, reads=("rows",))

            def __call__(self, ctx):
                ctx.rows.append(1)

        fill = contract(writes=("rows",), stage="collect")(lambda ctx: setattr(ctx, "rows", [0]))
        with pytest.raises(
            ContractError, match=r'extend_contract\(self, writes=\("more",\)\) as the last line of Writes.__init__'
        ):
            run(Writes([]), mode={})
        with pytest.raises(
            ContractError, match=r'extend_contract\(self, writes=\("rows",\)\) as the last line of Changes.__init__'
        ):
            run(fill, Changes([]), mode={})

    def test_before_there_is_a_contract_it_is_refused(self):
        class Early(Pushes):
            def __init__(self):
                extend_contract(self, reads=("more",))
                super().__init__([])

        with pytest.raises(
            ValueError, match=r"Early\): it has no contract yet.*behind super\(\).__init__\(...\), as the last line"
        ):
            Early()
        with pytest.raises(TypeError, match=r"wants a middleware, a callable, got 3 of type int"):
            extend_contract(3)

    @pytest.mark.parametrize(
        ("terms", "error", "match"),
        [
            ({"reads": "more"}, TypeError, r"extend_contract\(reads='more'\) wants several names"),
            ({"uses": 3}, TypeError, r"extend_contract\(uses=...\) wants several objects, got one int: write uses=\(it,\)"),
            ({"needs": ("more.eps",)}, ValueError, r"refers to ctx.more: add 'more' to reads"),
            ({"writes": ("total_step",)}, ValueError, "the task counts iterations there"),
        ],
    )
    def test_wrong_terms_are_refused_as_those_of_a_contract(self, terms, error, match):
        with pytest.raises(error, match=match):
            Derived([], **terms)


class TestReplacedContracts:
    """contract(...)(self) in a class whose parent has put a contract on the object."""

    @pytest.mark.parametrize(
        ("terms", "lost"),
        [
            ({"reads": ("count", "more")}, "uses=list, stage='learn'"),
            ({"reads": ("count", "more"), "stage": "learn"}, "uses=list"),
        ],
    )
    def test_losing_an_object_or_the_stage_is_refused_with_the_line_to_write(self, terms, lost):
        line = r'last line of Pushes.__init__: extend_contract\(self, reads=\("more",\)\)'
        with pytest.raises(ValueError, match=rf"contract\(...\)\(Pushes\) replaces .* loses {lost}, .*{line}"):
            contract(**terms)(Pushes([]))
        with pytest.raises(ValueError, match=r"extend_contract\(self, uses=\(...\)\)"):
            contract(uses=([],))(Pushes([]))

    def test_a_contract_that_names_them_again_may_replace_it(self):
        rows = []

        assert contract_of(contract(uses=(rows,), stage="record")(Pushes(rows))).stage == "record"
