"""Blocks: what a generator does around a `with` statement, and that errors pass through as they are."""

import contextlib
import dataclasses
import traceback

import pytest

from ding_lite.basics.blocks import block


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


@pytest.fixture
def done():
    return []


@pytest.fixture
def around(done):
    @block
    def around(handles=None, raises=None):
        try:
            yield "value"
        except BaseException as error:
            done.append(type(error))
            if raises is not None:
                raise raises from error
            if not isinstance(error, handles or ()):
                raise
        finally:
            done.append("end")

    return around


def test_it_gives_the_yielded_value_and_ends(around, done):
    with around() as value:
        done.append(value)
    assert done == ["value", "end"]


@pytest.mark.parametrize("error", [Frozen(3), KeyError(1), StopIteration(2), KeyboardInterrupt()], ids=repr)
def test_an_error_passes_as_it_is_with_its_own_traceback(around, done, error):
    with pytest.raises(type(error)) as caught, around(), around():
        raise error
    assert caught.value is error
    assert [frame.name for frame in traceback.extract_tb(caught.tb)].count("around") == 0
    assert done[-2:] == [type(error), "end"]


def test_an_error_may_be_handled_or_replaced(around):
    with around(handles=Frozen):
        raise Frozen(3)
    with pytest.raises(ValueError, match="other") as caught, around(raises=ValueError("other")):
        raise Frozen(3)
    assert caught.value.__cause__ == Frozen(3)


@pytest.mark.parametrize("divisor", [0, 1])
def test_a_second_yield_is_an_error(divisor):
    @block
    def twice():
        with contextlib.suppress(ZeroDivisionError):
            yield
        yield

    with pytest.raises(RuntimeError, match="a block yielded twice"), twice():
        divmod(1, divisor)


def test_a_block_that_does_not_yield_is_an_error():
    @block
    def never(yields=False):
        if yields:
            yield

    with pytest.raises(RuntimeError, match="a block did not yield"), never():
        pass
    with never(yields=True):
        pass
