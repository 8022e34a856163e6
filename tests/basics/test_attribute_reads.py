"""attributes_read(): which attributes of a variable code reads, and whether the variable itself goes elsewhere."""

import functools

import pytest

from ding_lite.basics.attribute_reads import Place, attributes_read, names_of, places_of

GLOBAL = "text"


def around():
    x = "text"

    def reads():
        return x.upper() + x.lower()

    def nested():
        return [x.upper() for _ in range(2)]

    def passes():
        return len(x), x.upper()

    def returns():
        return x

    def calls():
        return x()

    def sets():
        x.name = 3

    return reads, nested, passes, returns, calls, sets


READS, NESTED, PASSES, RETURNS, CALLS, SETS = around()


@pytest.mark.parametrize(("fn", "expected"), [(READS, {"upper", "lower"}), (NESTED, {"upper"})])
def test_attributes_that_are_read(fn, expected):
    assert attributes_read(fn.__code__, "x") == expected
    assert attributes_read(fn.__code__, "y") == set()


@pytest.mark.parametrize("fn", [PASSES, RETURNS, CALLS, SETS])
def test_anything_else_is_none(fn):
    assert attributes_read(fn.__code__, "x") is None


def test_arguments_and_global_variables():
    assert attributes_read((lambda x, y: x.shape + y.size).__code__, "x") == {"shape"}
    assert attributes_read((lambda: GLOBAL.upper()).__code__, "GLOBAL") == {"upper"}
    assert attributes_read((lambda x: (x, x.shape)).__code__, "x") is None


def helper(*args):
    return args


def test_places_are_chains_of_attributes_arguments_of_functions_or_unknown():
    def fn(x, y):
        x.cfg.seed = 3
        helper(y, x), helper(y.cfg, x, y.cfg.seed), x.cfg.seed
        return x.run(), [x], helper(x, key=1)

    chains = [Place(("cfg", "=")), Place((), "helper", 1), Place((), "helper", 1), Place(("cfg", "seed"))]
    assert [*places_of(fn.__code__, "x")] == [*chains, Place(("run",)), Place(), Place()]


def test_places_of_an_attribute():
    def fn(x, y):
        return x.policy.cfg.seed, helper(x.policy, y), y.policy

    chain, argument, unknown = places_of(fn.__code__, "policy", is_attribute=True)
    assert (chain, argument, unknown) == (Place(("cfg", "seed")), Place((), "helper", 0), Place())
    assert [*places_of(fn.__code__, "policy")] == []


def test_attributes_that_a_decorated_method_sets_are_those_of_the_class():
    def decorated(fn):
        @functools.wraps(fn)
        def around(self):
            self.outer = 1
            return fn(self)

        return around

    class Counter:
        kind = "plain"
        declared: int

        @decorated
        def __init__(self):
            self.inner = 2

    assert {"kind", "declared", "inner", "outer"} <= names_of([Counter])
