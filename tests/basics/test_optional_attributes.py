"""attribute_of() and has_attribute(): a strange `__getattr__` counts as "not there", other errors do not."""

import pytest

from ding_lite.basics.optional_attributes import attribute_of, has_attribute


class ByKey:
    """Looks in a dict, as many classes for settings do."""

    def __getattr__(self, name):
        return {"rate": 0.1}[name]


class Refusing:
    def __getattribute__(self, name):
        raise RuntimeError(name)


class Failing:
    @property
    def rate(self):
        raise RuntimeError("a bug")


@pytest.mark.parametrize("make", [ByKey, Refusing, object])
def test_what_is_not_there_is_the_default(make):
    thing = make()
    assert attribute_of(thing, "release") is None
    assert attribute_of(thing, "release", 3) == 3
    assert not has_attribute(thing, "release")


def test_what_is_there_is_found():
    assert attribute_of(ByKey(), "rate") == 0.1
    assert has_attribute(ByKey(), "rate")


def test_the_error_of_a_property_is_not_hidden():
    with pytest.raises(RuntimeError, match="a bug"):
        attribute_of(Failing(), "rate")
