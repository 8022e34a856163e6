"""attributes_read(): which attributes of a variable code reads, and whether the variable itself goes elsewhere."""

import pytest

from ding_lite.basics.attribute_reads import attributes_read

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
