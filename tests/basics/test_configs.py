"""Typed configuration: nested dataclasses that convert what fits, refuse what does not, and know the nearest name."""

import copy
import dataclasses
import datetime
import enum
import json
import math
import pathlib
import pickle
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, NamedTuple, NewType, TypedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ding_lite.basics import ranged_field
from ding_lite.engine import Config, ConfigError
from ding_lite.sinks import json_value


@dataclasses.dataclass
class Learn(Config):
    batch_size: int = ranged_field(64, low=1)
    learning_rate: float = ranged_field(1e-3, low=0, high=1)
    clip: float | None = ranged_field(None, low=0)
    optimizer: Literal["adam", "sgd"] = "adam"


@dataclasses.dataclass
class Main(Config):
    name: str = "run"
    seed: int | None = None
    debug: bool = False
    anything: Any = None
    widths: list[int] = dataclasses.field(default_factory=lambda: [128, 128])
    rates: list[float] = dataclasses.field(default_factory=list)
    layers: list[tuple[int, int, int]] | None = None
    span: tuple[float, float] = (0.0, 1.0)
    size: tuple[int, ...] = ()
    learn: Learn = dataclasses.field(default_factory=lambda: Learn(batch_size=128))


@dataclasses.dataclass
class Tuples(Config):
    bare: tuple = ()
    pair: tuple[int, str] | None = None


class TestConversions:
    @pytest.mark.parametrize(
        ("key", "given_", "expected"),
        [
            ("learn.learning_rate", 1, 1.0),
            ("learn.learning_rate", np.float32(0.5), 0.5),
            ("learn.learning_rate", torch.tensor(0.5), 0.5),
            ("learn.batch_size", np.int64(3), 3),
            ("learn.clip", None, None),
            ("learn.clip", 2, 2.0),
            ("learn.optimizer", "sgd", "sgd"),
            ("name", pathlib.Path("runs") / "a", os_path := str(pathlib.Path("runs") / "a")),
            ("name", os_path, os_path),
            ("seed", np.uint8(7), 7),
            ("debug", np.bool_(True), True),
            ("anything", {"a": [1]}, {"a": [1]}),
            ("widths", (1, np.int32(2)), [1, 2]),
            ("rates", [1, 0.5], [1.0, 0.5]),
            ("layers", [[32, 8, 4], (64, 4, 2)], [(32, 8, 4), (64, 4, 2)]),
            ("layers", None, None),
            ("span", [1, 2], (1.0, 2.0)),
            ("size", [1, 2, 3], (1, 2, 3)),
            ("size", [], ()),
        ],
    )
    def test_what_fits_is_converted_to_the_declared_type(self, key, given_, expected):
        if isinstance(given_, dict):
            config = Main(anything=given_)
        else:
            config = Main().override({key: given_})
        for name in key.split("."):
            config = getattr(config, name)

        assert repr(config) == repr(expected)

    def test_the_constructor_and_an_assignment_convert_just_the_same(self):
        config = Main(name=pathlib.Path("a"), widths=(1, 2), learn={"learning_rate": 1})
        config.span = [0, 5]

        assert (config.name, config.widths, config.span, config.learn.learning_rate) == ("a", [1, 2], (0.0, 5.0), 1.0)

    def test_two_configurations_share_nothing(self):
        first, second = Main(), Main()
        first.widths.append(1)
        first.learn.batch_size = 1

        assert (second.widths, second.learn.batch_size) == ([128, 128], 128)


class TestRefusals:
    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            ("learn.batch_size", "64", "Learn.batch_size = '64' is a str, it is declared int"),
            ("learn.batch_size", 3.0, "Learn.batch_size = 3.0 is a float, it is declared int"),
            ("learn.batch_size", True, "Learn.batch_size = True is a bool, it is declared int"),
            ("learn.batch_size", np.bool_(True), "Learn.batch_size = True is a bool, it is declared int"),
            ("learn.batch_size", None, "Learn.batch_size = None is a NoneType, it is declared int"),
            ("learn.batch_size", 0, "Learn.batch_size = 0 is out of range: it is at least 1."),
            ("learn.learning_rate", "fast", "Learn.learning_rate = 'fast' is a str, it is declared float"),
            ("learn.learning_rate", False, "Learn.learning_rate = False is a bool, it is declared float"),
            ("learn.learning_rate", 1.5, "Learn.learning_rate = 1.5 is out of range: it is at least 0 and at most 1."),
            ("learn.learning_rate", math.inf, "Learn.learning_rate = inf is out of range"),
            ("learn.learning_rate", math.nan, "Learn.learning_rate = nan is not a number"),
            ("learn.learning_rate", np.float32("nan"), "Learn.learning_rate = nan is not a number"),
            ("learn.clip", math.nan, "Learn.clip = nan is not a number"),
            ("learn.clip", -1, "Learn.clip = -1.0 is out of range: it is at least 0."),
            ("learn.clip", math.inf, "Learn.clip = inf is out of range: it is at least 0 and finite."),
            ("learn.batch_size", 2**63, "Learn.batch_size = 9223372036854775808 is out of range: it is at most 9,223,372,036"),
            ("learn.clip", "no", "Learn.clip = 'no' is a str, it is declared float | None"),
            ("learn.optimizer", "adm", "Learn.optimizer = 'adm' is a str, it is declared Literal['adam', 'sgd']"),
            ("learn", 3, "Main.learn = 3 is an int, it is declared Learn"),
            ("name", 3, "Main.name = 3 is an int, it is declared str"),
            ("seed", True, "Main.seed = True is a bool, it is declared int | None"),
            ("seed", 1.5, "Main.seed = 1.5 is a float, it is declared int | None"),
            ("debug", 1, "Main.debug = 1 is an int, it is declared bool"),
            ("widths", 128, "Main.widths = 128 is an int, it is declared list[int]"),
            ("widths", "128", "Main.widths = '128' is a str, it is declared list[int]"),
            ("widths", [128, "a"], "Main.widths[1] = 'a' is a str, it is declared int"),
            ("rates", [1.0, math.nan], "Main.rates"),
            ("layers", [(32, 8)], "Main.layers"),
            ("layers", [(32, 8, "a")], "Main.layers"),
            ("layers", [32], "Main.layers"),
            ("span", [1.0], "Main.span"),
            ("span", [1.0, 2.0, 3.0], "Main.span"),
        ],
    )
    def test_what_does_not_fit_is_refused_with_the_value_and_what_is_declared(self, key, value, words):
        config = Main()
        *sections, name = key.split(".")
        owner = config
        for section in sections:
            owner = getattr(owner, section)
        for refused in (lambda: setattr(owner, name, value), lambda: type(owner)(**{name: value})):
            with pytest.raises(ConfigError) as caught:
                refused()
            assert words in str(caught.value)
        assert config == Main()

    @pytest.mark.parametrize("error", [ValueError, TypeError, AttributeError])
    def test_it_is_caught_as_any_of_the_usual_errors(self, error):
        with pytest.raises(error, match="out of range"):
            Learn(batch_size=0)

    @pytest.mark.parametrize(
        "refused",
        [
            lambda: setattr(Learn(), "batchsize", 1),
            lambda: Learn(batchsize=1),
            lambda: Learn.from_dict({"batchsize": 1}),
            lambda: Learn().override({"batchsize": 1}),
            lambda: Main(learn={"batchsize": 1}),
            lambda: Main.from_dict({"learn": {"batchsize": 1}}),
            lambda: Main().override({"learn.batchsize": 1}),
            lambda: Main().override({"learn": {"batchsize": 1}}),
        ],
        ids=["assignment", "constructor", "from_dict", "override", "mapping", "nested from_dict", "dotted", "nested"],
    )
    def test_an_unknown_key_is_refused_with_the_nearest_valid_name(self, refused):
        with pytest.raises(ConfigError, match=r"Learn has no 'batchsize': did you mean 'batch_size'\?"):
            refused()


class TestOverride:
    def test_dotted_names_and_nested_mappings_set_the_same(self):
        dotted = Main().override({"learn.batch_size": 32, "learn.optimizer": "sgd", "name": "a"})
        nested = Main().override({"learn": {"batch_size": 32, "optimizer": "sgd"}, "name": "a"})

        assert dotted == nested
        assert (dotted.learn.batch_size, dotted.learn.optimizer, dotted.learn.learning_rate) == (32, "sgd", 1e-3)

    def test_it_changes_the_configuration_itself_and_returns_it(self):
        config = Main()
        section = config.learn

        assert config.override({"learn.batch_size": 32}) is config
        assert config.learn is section

    def test_every_problem_is_told_and_nothing_is_set(self):
        config = Main(name="before")
        with pytest.raises(ConfigError) as caught:
            config.override(
                {"name": "after", "learn.batch_size": 0, "lern.batch_size": 3, "learn.optimizer": "sgd", "seed": "x"}
            )

        assert sorted(str(caught.value).split("\n")) == [
            "learn.batch_size: Learn.batch_size = 0 is out of range: it is at least 1.",
            "lern.batch_size: Main has no 'lern': did you mean 'learn'?",
            "seed: Main.seed = 'x' is a str, it is declared int | None.",
        ]
        assert config == Main(name="before")

    @given(order=st.permutations(["learn", "learn.batch_size", "name"]))
    def test_a_section_and_a_field_of_it_set_the_same_in_any_order(self, order):
        values = {"learn": Learn(optimizer="sgd"), "learn.batch_size": 32, "name": "a"}
        config = Main().override({key: values[key] for key in order})

        assert (config.learn.optimizer, config.learn.batch_size, config.name) == ("sgd", 32, "a")

    def test_a_refused_section_is_not_changed_by_the_values_behind_it(self):
        given_section = Learn()
        with pytest.raises(ConfigError, match="Main has no 'bad'"):
            Main().override({"learn": given_section, "learn.batch_size": 3, "bad": 1})
        assert given_section == Learn()

    def test_a_section_that_is_given_is_copied_and_stays_as_it_is(self):
        first, second = Main(), Main()
        second.override({"learn": first.learn, "learn.batch_size": 3})

        assert (second.learn.batch_size, first.learn.batch_size) == (3, 128)
        second.learn.learning_rate = 0.5
        assert first == Main()

    def test_a_key_that_goes_on_below_a_value_is_refused_for_that_reason(self):
        with pytest.raises(ConfigError, match=r"^learn\.batch_size\.x: ") as caught:
            Main().override({"learn.batch_size.x": 1})

        assert "has no 'batch_size'" not in str(caught.value)

    @pytest.mark.parametrize("values", [{3: 1}, {"learn": {3: 1}}])
    def test_a_name_that_is_no_string_is_named(self, values):
        with pytest.raises(
            ConfigError, match=r"^(learn\.)?3 names no setting of (Main|Learn): a name is a string, not of type int"
        ):
            Main().override(values)


@dataclasses.dataclass
class Ordered(Config):
    early: int = 1
    late: int = 1

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "early":
            super().__setattr__("late", value)


@dataclasses.dataclass
class OrderedMain(Config):
    part: Ordered = dataclasses.field(default_factory=Ordered)


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(),
        "seed": st.none() | st.integers(),
        "debug": st.booleans(),
        "widths": st.lists(st.integers()),
        "rates": st.lists(st.floats(allow_nan=False)),
        "layers": st.none() | st.lists(st.tuples(st.integers(), st.integers(), st.integers())),
        "span": st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)),
        "size": st.lists(st.integers()).map(tuple),
        "learn.batch_size": st.integers(1, 2**63 - 1),
        "learn.learning_rate": st.floats(0, 1),
        "learn.clip": st.none() | st.floats(0, allow_infinity=False),
        "learn.optimizer": st.sampled_from(["adam", "sgd"]),
    },
)


class TestDicts:
    @given(values=VALUES)
    def test_any_configuration_comes_back_from_its_dict_also_by_way_of_json(self, values):
        config = Main().override(values)

        assert Main.from_dict(config.to_dict()) == config
        assert Main.from_dict(json.loads(json.dumps(config.to_dict()))) == config

    def test_a_dict_is_plain_and_nested(self):
        assert Learn(batch_size=3).to_dict() == {"batch_size": 3, "learning_rate": 1e-3, "clip": None, "optimizer": "adam"}
        assert Main(layers=[(1, 2, 3)]).to_dict()["layers"] == [[1, 2, 3]]
        assert Main().to_dict()["learn"] == Learn(batch_size=128).to_dict()

    def test_changing_the_dict_does_not_change_the_configuration(self):
        config = Main()
        config.to_dict()["widths"].append(1)
        config.to_dict()["learn"]["batch_size"] = 1

        assert config == Main()

    def test_what_a_dict_leaves_out_has_the_default_of_its_place(self):
        config = Main.from_dict({"seed": 3, "learn": {"optimizer": "sgd"}})

        assert (config.seed, config.name, config.learn.optimizer) == (3, "run", "sgd")
        assert config.learn.batch_size == 128

    def test_fields_are_set_in_the_order_in_which_they_are_declared(self):
        """As override() does, because setting a field may change the default of a later one."""
        values = {"late": 3, "early": 2}

        assert Ordered.from_dict(values).late == 3
        assert OrderedMain(part=values).part.late == 3
        assert OrderedMain.from_dict({"part": values}).part.late == 3

    def test_an_infinite_number_may_be_the_text_that_a_json_file_has(self):
        config = Limited.from_dict({"patience": "Infinity", "plain": "-Infinity"})

        assert (config.patience, config.plain) == (math.inf, -math.inf)
        with pytest.raises(ConfigError, match="is out of range"):
            Limited.from_dict({"offset": "Infinity"})

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))], ids=["deepcopy", "pickle"])
    def test_a_copy_is_equal_and_shares_nothing(self, copied):
        config = Main(learn=Learn(batch_size=3))
        twin = copied(config)
        assert twin == config

        twin.learn.batch_size = 4
        assert config.learn.batch_size == 3
        with pytest.raises(ConfigError):
            twin.learn.batch_size = 0


class Colour(enum.Enum):
    RED = 1
    BLUE = (2, 3)


class Side(str, enum.Enum):
    LEFT = "left"
    RIGHT = "right"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Mode(enum.Enum):
    BYTES = b"b"


class Pair(NamedTuple):
    left: int = 0


class Named(TypedDict):
    a: int


@dataclasses.dataclass
class Wider(Learn):
    width: int = 1


@dataclasses.dataclass
class Some(Config):
    rates: Sequence[float] = (0.9, 0.99)
    sizes: Sequence[int] | None = (1, 2)


def one_field(annotation, value):
    """A configuration with one field, x."""
    field = dataclasses.field(default_factory=lambda: value)
    return dataclasses.make_dataclass("Made", [("x", annotation, field)], bases=(Config,))(value)


def through_json(config):
    return type(config).from_dict(json.loads(json.dumps(json_value(config.to_dict()))))


TYPES = {
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False),
    str: st.text() | st.sampled_from(["Infinity", "NaN", "1", "true"]),
    Colour: st.sampled_from(Colour),
    Side: st.sampled_from(Side),
    Level: st.sampled_from(Level),
    Access: st.sampled_from([*Access, Access.READ | Access.WRITE]),
    pathlib.Path: st.sampled_from(["a", "b/c", "/"]).map(pathlib.Path),
    Literal["a", 1, True, None]: st.sampled_from(["a", 1, True, None]),
}
"""Types of fields, each with values."""

KEYS = [bool, int, float, str, Side, Level, Access, pathlib.Path]
"""Those that may be keys of a dict."""


def nested_types(kinds):
    """A strategy of pairs of an annotation and a strategy of its values."""
    plain = st.sampled_from([*TYPES.items()])
    if not kinds:
        return plain
    inner = st.deferred(lambda: nested_types(kinds - 1))
    return st.one_of(
        plain,
        inner.map(lambda it: (list[it[0]], st.lists(it[1], max_size=3))),
        inner.map(lambda it: (tuple[it[0], ...], st.lists(it[1], max_size=3).map(tuple))),
        plain.map(lambda it: (set[it[0]], st.sets(it[1], max_size=3))),
        plain.map(lambda it: (frozenset[tuple[it[0], ...]], st.frozensets(st.tuples(it[1]), max_size=3))),
        inner.map(lambda it: (it[0] | None, st.none() | it[1])),
        st.tuples(st.sampled_from(KEYS), inner).map(
            lambda two: (dict[two[0], two[1][0]], st.dictionaries(TYPES[two[0]], two[1][1], max_size=3))
        ),
    )


class TestValuesInFiles:
    @given(data=st.data())
    def test_any_value_of_a_declared_type_comes_back_from_a_file(self, data):
        annotation, values = data.draw(nested_types(2))
        config = one_field(annotation, data.draw(values))

        assert repr(through_json(config)) == repr(config) or through_json(config) == config

    @pytest.mark.parametrize(
        ("annotation", "value", "written"),
        [
            (Colour, Colour.BLUE, [2, 3]),
            (Side, Side.LEFT, "left"),
            (pathlib.Path, pathlib.Path("b") / "c", str(pathlib.Path("b") / "c")),
            (set[int], {10, 9, -1}, [-1, 9, 10]),
            (frozenset[str], frozenset("ba"), ["a", "b"]),
            (set[int | str], {1, "a"}, ["a", 1]),
            (AbstractSet[Side], frozenset({Side.LEFT}), ["left"]),
            (Sequence[Level], [Level.LOW], [1]),
            (dict[Colour, pathlib.Path], {Colour.RED: pathlib.Path("a")}, {"1": "a"}),
            (dict[float, set[int]], {0.5: {1}, math.inf: set()}, {"0.5": [1], "Infinity": []}),
            (dict[bool, Level], {True: Level.HIGH}, {"true": 2}),
            (dict[int | None, int], {None: 1, 2: 3}, {"null": 1, "2": 3}),
        ],
    )
    def test_it_is_written_as_a_person_would(self, annotation, value, written):
        config = one_field(annotation, value)

        assert json.loads(json.dumps(json_value(config.to_dict())))["x"] == written
        assert through_json(config).x == value
        assert type(through_json(config).x) is type(value)

    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (complex, 1j),
            (bytes, b"a"),
            (bytes | None, b"a"),
            (Literal[b"a"], b"a"),
            (Literal["a"], np.ones(2)),
            (datetime.date, datetime.date(2020, 1, 1)),
            (Callable, print),
            (Callable[[int], int] | None, abs),
            (type[int], int),
            (object, object()),
            (Any, Colour.RED),
            (Any, {"a": [pathlib.Path("a")]}),
            (Any, {"a": math.inf}),
            (list, [math.nan]),
            (dict, {"a": {1}}),
            (deque, deque([1])),
            (np.ndarray, np.ones(2)),
            (Pair, Pair()),
            (Mode, Mode.BYTES),
            (list[Any], [1, 2j]),
        ],
    )
    def test_what_no_file_can_hold_is_refused_by_name(self, annotation, value):
        with pytest.raises(ConfigError, match=r"^Made\.x.* = .* is an? .*"):
            one_field(annotation, value)

    def test_the_refusal_says_what_may_be_used(self):
        with pytest.raises(
            ConfigError, match=r"Made\.x\['a'\] = 1j is a complex, which config.json cannot hold: use finite num"
        ):
            one_field(Any, {"a": 1j})
        with pytest.raises(ConfigError, match=r"Made\.x = inf is a float that is not finite, which config.json cannot hold"):
            one_field(Any, math.inf)
        with pytest.raises(ConfigError, match=r"An Enum, a path, a set, .* need a field that is declared with their type"):
            one_field(Any, Colour.RED)

    @pytest.mark.parametrize(
        ("annotation", "value"),
        [(Colour, "RED"), (Colour, True), (Level, 3), (Access, 64), (Side, "up"), (pathlib.Path, 3), (set[int], {"a"})],
    )
    def test_what_is_no_member_path_or_set_is_refused(self, annotation, value):
        with pytest.raises(ConfigError, match=r"Made\.x.* it is declared"):
            one_field(annotation, value)

    @pytest.mark.parametrize(
        ("annotation", "value", "held"),
        [
            (Any, (1, (2, 3)), [1, [2, 3]]),
            (object, {"a": (1,)}, {"a": [1]}),
            (tuple, ((1, 2), 3), ([1, 2], 3)),
            (list, [(1, 2)], [[1, 2]]),
            (dict[str, Any], {"a": (np.float64(0.5), np.str_("b"))}, {"a": [0.5, "b"]}),
            (str, Side.LEFT, "left"),
            (float | str, "Infinity", "Infinity"),
            (float | Literal["auto"], math.inf, math.inf),
            (pathlib.Path | str, "a", "a"),
            (str | pathlib.Path, pathlib.Path("a"), "a"),
            (Colour | str, "RED", "RED"),
            (Level | int, 1, 1),
            (list[int] | tuple[int, ...], (1,), [1]),
            (set[int] | list[int], [1], {1}),
            (list[float] | list[str], [math.inf], [math.inf]),
            (NewType("Count", int), 2, 2),
            (Learn | None, Learn(batch_size=3), Learn(batch_size=3)),
        ],
    )
    def test_it_is_held_as_it_comes_back(self, annotation, value, held):
        config = one_field(annotation, value)

        assert repr(config.x) == repr(held)
        assert repr(through_json(config)) == repr(config)

    @pytest.mark.parametrize(
        ("annotation", "value", "other"),
        [
            (float | str, math.inf, "str"),
            (list[float | str], [0.5, -math.inf], "str"),
            (pathlib.Path | str, pathlib.Path("a"), "str"),
            (Side | str, Side.LEFT, "str"),
            (Colour | str | int, Colour.RED, "int"),
            (Level | int, Level.LOW, "int"),
            (Wider | Learn, Learn(), "Wider"),
            (Learn | dict, Learn(), "dict"),
            (Learn | dict[str, Any] | None, Wider(), "dict"),
        ],
    )
    def test_of_several_types_the_value_has_the_one_that_it_has_in_a_file(self, annotation, value, other):
        with pytest.raises(
            ConfigError, match=rf"Made\.x.* comes back from config.json as .*: declare it without {other}, or set it to an? "
        ):
            one_field(annotation, value)

    @pytest.mark.parametrize("annotation", [Sequence[float], Sequence[float] | None, list | tuple, dict[str, Sequence] | None])
    def test_a_sequence_may_be_a_tuple_also_if_it_is_optional(self, annotation):
        value = {"a": (0.9, 0.99)} if "dict" in str(annotation) else (0.9, 0.99)
        config = one_field(annotation, value)

        assert config.x == value or config.x == [0.9, 0.99]
        assert through_json(config).to_dict() == config.to_dict()

    def test_an_optional_section_may_have_one_of_a_derived_class(self):
        @dataclasses.dataclass
        class Bigger(Learn):
            more: int = 1

        @dataclasses.dataclass
        class Main(Config):
            learn: Learn = dataclasses.field(default_factory=Learn)

        given = Main(learn=Bigger())
        assert one_field(Main | None, given).x is one_field(Main | Learn | None, given).x is given
        with pytest.raises(ConfigError, match=r"Made\.x = \[.* could not be read from config.json: .*Learn has no 'more'"):
            one_field(list[Learn] | None, [Bigger()])

    @pytest.mark.parametrize(
        ("annotation", "make"),
        [
            (list[Some] | None, lambda some: [some]),
            (Sequence[Some] | None, lambda some: (some,)),
            (dict[str, Some] | int, lambda some: {"a": some}),
            (Learn | Some, lambda some: some),
            (OrderedDict[str, Sequence[float]] | None, lambda some: OrderedDict(a=some.rates)),
            (Sequence[set[int]] | None, lambda some: ({8, 0}, set(range(9)))),
        ],
    )
    def test_what_a_field_of_one_type_may_have_an_optional_one_may_have_too(self, annotation, make):
        value = make(Some())
        config = one_field(annotation, value)

        assert config.x == value
        assert through_json(config).to_dict() == config.to_dict()

    @pytest.mark.parametrize("annotation", [Literal[Colour.RED, "low", 2], Literal[Colour.RED, "low", 2] | None])
    def test_a_literal_may_be_a_member_of_an_enum(self, annotation):
        for value in (Colour.RED, "low", 2):
            config = one_field(annotation, value)
            assert (config.x, through_json(config).x) == (value, value)

    @pytest.mark.parametrize("value", [Level.LOW, Learn(), [Learn()], {"a": Side.LEFT}], ids=repr)
    def test_a_value_whose_type_a_file_does_not_have_needs_a_declared_type(self, value):
        with pytest.raises(ConfigError, match="need a field that is declared with their type"):
            one_field(Any, value)

    @pytest.mark.parametrize(("annotation", "value"), [(Pair, Pair()), (Named, {"a": 1})])
    def test_classes_that_are_no_types_of_settings_are_named(self, annotation, value):
        with pytest.raises(
            ConfigError, match="NamedTuple and TypedDict are no types of settings: use a Config section or dict"
        ):
            one_field(annotation, value)

    def test_the_values_of_a_derived_section_are_refused_with_the_way_to_read_them(self):
        config = Main(learn=Wider(width=3, batch_size=7))
        with pytest.raises(ConfigError, match=r"Learn has no 'width'.* write Main\(learn=DERIVED_CLASS\(\)\)\.override\("):
            Main.from_dict(config.to_dict())

        assert Main(learn=Wider()).override(config.to_dict()) == config

    def test_numbers_in_sets_and_dicts_are_checked_too(self):
        @dataclasses.dataclass
        class Ranged(Config):
            some: set[int] = ranged_field(default_factory=set, low=1)
            named: dict[str, float] = ranged_field(default_factory=dict, high=1)

        for wrong in ({"some": {0}}, {"named": {"a": 2.0}}, {"named": {"a": math.nan}}, {"named": {"a": math.inf}}):
            with pytest.raises(ConfigError, match=r"Ranged\.(some\[0\]|named\['a'\]) = .* is "):
                Ranged(**wrong)

    def test_an_enum_that_is_local_to_a_function_keeps_its_type(self):
        class Local(enum.Enum):
            ONE = 1

        @dataclasses.dataclass
        class Chosen(Config):
            which: "Local" = Local.ONE

        assert through_json(Chosen()).which is Local.ONE


class TestKeys:
    @pytest.mark.parametrize(
        ("annotation", "given_", "expected"),
        [
            (dict[int, float], {"3": 4}, {3: 4.0}),
            (dict[int, float], {3: 4}, {3: 4.0}),
            (dict[int, float], {np.int64(3): 4}, {3: 4.0}),
            (dict[float, int], {".5": 1, "2": 2, 3: 3}, {0.5: 1, 2.0: 2, 3.0: 3}),
            (dict[bool, int], {"true": 1, "False": 2}, {True: 1, False: 2}),
            (dict[str, int], {"3": 1}, {"3": 1}),
            (dict[Literal[1, 2], int], {"2": 1}, {2: 1}),
            (Mapping[int, dict[int, int]], {"1": {"2": 3}}, {1: {2: 3}}),
            (OrderedDict[int, int], OrderedDict({"2": 1, "1": 2}), OrderedDict({2: 1, 1: 2})),
        ],
    )
    def test_text_becomes_the_declared_type(self, annotation, given_, expected):
        assert repr(one_field(annotation, given_).x) == repr(expected)

    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (dict[int, float], {"a": 1}),
            (dict[int, float], {"1.5": 1}),
            (dict[int, float], {1.5: 1}),
            (dict[int, float], {True: 1}),
            (dict[bool, int], {"1": 1}),
            (dict[str, int], {1: 1}),
            (dict[float, int], {math.nan: 1}),
            (dict[tuple[int, int], int], {(1, 2): 1}),
            (dict[int | str, int], {1: 1}),
            (dict, {1: 1}),
            (dict[str, Any], {"a": {1: 1}}),
            (Any, {1: 1}),
        ],
    )
    def test_other_keys_are_refused(self, annotation, value):
        with pytest.raises(
            ConfigError, match=r"Made\.x.* has the key .*, (its keys are declared|which comes back from config)"
        ):
            one_field(annotation, value)

    def test_a_key_given_twice_is_refused(self):
        with pytest.raises(ConfigError, match=r"Made\.x = .* has a key twice"):
            one_field(dict[int, int], {1: 1, "1": 2})

    @pytest.mark.parametrize("annotation", [dict[int, float], dict[int, float] | None, Mapping[int, float]])
    def test_a_dict_is_copied_also_if_it_has_the_declared_types(self, annotation):
        given_ = {1: 2.0}
        first, second = one_field(annotation, given_), one_field(annotation, {}).override({"x": given_})
        assert first.x == second.x == given_

        first.x[2] = 3.0
        assert given_ == second.x == {1: 2.0}

    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (OrderedDict[str, int], OrderedDict(b=1, a=2)),
            (OrderedDict[str, int], {"b": 1, "a": 2}),
            (Counter[str], Counter("aab")),
            (Counter, Counter("aab")),
            (dict[str, int], OrderedDict(b=1)),
            (Mapping[str, int], types.MappingProxyType({"a": 1})),
        ],
    )
    def test_a_mapping_has_the_declared_class_also_from_a_file(self, annotation, value):
        config = one_field(annotation, value)

        assert config.x == value
        assert repr(through_json(config)) == repr(config)

    def test_a_mapping_that_cannot_be_made_of_a_dict_is_refused(self):
        with pytest.raises(ConfigError, match=r"Made\.x is declared .*defaultdict\[str, int\], which .*: declare it dict, or"):
            one_field(defaultdict[str, int], defaultdict(int, a=1))


class TestTuples:
    @pytest.mark.parametrize("values", [{"bare": (1, "a")}, {"pair": (2, "b")}], ids=repr)
    def test_a_tuple_of_any_kind_comes_back_from_a_dict(self, values):
        config = Tuples(**values)

        assert Tuples.from_dict(json.loads(json.dumps(config.to_dict()))) == config

    @pytest.mark.parametrize("wrong", [("b", 2), (2,), (2, "b", 3)], ids=repr)
    def test_each_place_has_its_own_type_and_there_are_as_many_as_declared(self, wrong):
        with pytest.raises(ConfigError, match=r"Tuples\.pair"):
            Tuples(pair=wrong)


def test_a_field_that_holds_a_dict_is_checked_like_any_other():
    @dataclasses.dataclass
    class WithDict(Config):
        kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)

    config = WithDict(kwargs={"a": 1})
    assert config.override({"kwargs": {"b": 2}}).kwargs["b"] == 2
    with pytest.raises(ConfigError, match=r"WithDict\.kwargs = 3"):
        config.kwargs = 3


@pytest.mark.parametrize("annotation", [dict[str, float], dict[str, float] | None, Mapping[str, float]], ids=str)
def test_the_values_of_a_dict_are_of_the_declared_type(annotation):
    WithDict = dataclasses.make_dataclass("WithDict", [("amounts", annotation, None)], bases=(Config,))

    assert repr(WithDict({"a": 1}).amounts) == "{'a': 1.0}"
    with pytest.raises(ConfigError, match=r"WithDict\.amounts.* = .*'x'"):
        WithDict({"a": "x"})


def test_a_section_that_is_local_to_a_function_leaves_the_other_fields_checked():
    """With `from __future__ import annotations`, its name is a text that only this function could resolve."""

    @dataclasses.dataclass
    class Inner(Config):
        rate: float = 0.1

    @dataclasses.dataclass
    class Outer(Config):
        number: "int" = 64
        inner: "Inner" = dataclasses.field(default_factory=Inner)

    for wrong in ({"number": "sixty"}, {"inner": {"rate": "x"}}, {"inner": 3}):
        with pytest.raises(ConfigError, match="it is declared"):
            Outer(**wrong)


def test_a_default_out_of_its_own_range_is_found_when_it_is_used():
    @dataclasses.dataclass
    class Wrong(Config):
        share: float = ranged_field(2.0, low=0, high=1)

    with pytest.raises(ConfigError, match=r"Wrong\.share = 2\.0 is out of range"):
        Wrong()


@dataclasses.dataclass
class Limited(Config):
    widths: list[int] = ranged_field(default_factory=lambda: [1, 2], low=1, high=1_000)
    points: list[tuple[float, float]] | None = ranged_field(None, low=0)
    offset: float = ranged_field(0.0)
    patience: float = ranged_field(1.0, low=0, finite=False)
    plain: float = 0.0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"widths": [4, 0]}, "Limited.widths[1] = 0 is out of range: it is at least 1."),
        ({"widths": [10**9]}, "Limited.widths[0] = 1000000000 is out of range: it is at most 1,000."),
        ({"points": [(0, 1), (1, math.inf)]}, "Limited.points[1][1] = inf is out of range: it is at least 0 and finite."),
        ({"points": [(-1, 1)]}, "Limited.points[0][0] = -1.0 is out of range: it is at least 0."),
        ({"points": [(1, math.nan)]}, "Limited.points[0][1] = nan is not a number."),
        ({"offset": -math.inf}, "Limited.offset = -inf is out of range: it is finite."),
        ({"offset": 10**400}, "Limited.offset = 1000"),
        ({"patience": math.nan}, "Limited.patience = nan is not a number."),
        ({"patience": -1}, "Limited.patience = -1.0 is out of range: it is at least 0."),
    ],
)
def test_limits_hold_for_the_numbers_in_lists_and_endless_ones_are_refused_unless_wanted(values, words):
    with pytest.raises(ConfigError) as caught:
        Limited(**values)
    assert words in str(caught.value)


def test_what_is_within_the_limits_is_taken():
    taken = Limited(widths=[1, 1000], points=[(0, 1e-3), (5, 0)], offset=-3, patience=math.inf, plain=math.inf)
    assert (taken.widths, taken.points, taken.patience) == ([1, 1000], [(0.0, 1e-3), (5.0, 0.0)], math.inf)
    assert Limited() == Limited(widths=[1, 2])
    assert Limited().widths is not Limited().widths


@dataclasses.dataclass
class Choice(Config):
    mode: Literal[True, "auto", 0] = True


def test_a_literal_may_have_bools_which_are_no_numbers():
    assert [Choice().mode, Choice(mode="auto").mode, Choice(mode=0).mode] == [True, "auto", 0]
    for wrong in (1, False, "on"):
        with pytest.raises(ConfigError, match="it is declared"):
            Choice(mode=wrong)
