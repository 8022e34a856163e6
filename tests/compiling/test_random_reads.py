"""Losses that read random outer values, which change at random steps: compiled steps are those without compilation."""

import collections
import cProfile
import dataclasses
import enum
import functools
import itertools
import random
import types
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from interpreted_steps import assert_close, compiled, interpreting, learn, made, no_warning

from ding_lite.policy import DQNPolicy

STEPS = 7


class OwnList(list):
    """A list with attributes."""

    scale = 1.0

    @property
    def first(self):
        return self[0]


class OwnDict(dict):
    """A dict with attributes."""

    scale = 1.0


class OwnFloat(float):
    """A number with attributes."""

    scale = 1.0


class Slotted:
    """An object without a dict."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Getting:
    """An object that makes its attributes."""

    def __init__(self, value):
        self.held = {"value": value}

    def __getattr__(self, name):
        return self.__dict__["held"][name]


class Called:
    """An object that is called."""

    def __init__(self, value):
        self.inner = SimpleNamespace(value=value)

    def __call__(self, share=(0.5, 0.5)):
        return self.inner.value * sum(share)


class Descriptor:
    """An attribute of a class that makes a value."""

    def __init__(self, value):
        self.value = value

    def __get__(self, owner, kind=None):
        return self.value


class Meta(type):
    """A class of classes."""

    @property
    def scale(cls):
        return cls.hidden


@dataclasses.dataclass
class Settings:
    """A dataclass."""

    value: float

    @property
    def doubled(self):
        return 2 * self.value


Pair = collections.namedtuple("Pair", "value other")


def kinds(value):
    """Ways to hold a value where a loss reads it: by name, a function that makes a policy class and a change.

    A way is (attributes of the class, function that reads the value of a policy, function that sets it).
    """
    cell = value

    def set_cell(policy, new):
        nonlocal cell
        cell = new

    def helper(box=[value], *, by_name=value):  # noqa: B006
        return box[0] if helper.uses_box else by_name

    def annotated():
        return annotated.scale

    def constant():
        return 1.0

    def with_name(*, scale=value):
        return scale

    class Base:
        scale = value

        @classmethod
        def of_class(cls):
            return cls.scale

        @staticmethod
        def of_nothing(box={"value": value}):  # noqa: B006
            return box["value"]

        def of_base(self):
            return 1.0

    class Derived(Base):
        def of_type(self):
            return type(self).scale

        def of_super(self):
            return super().scale

    class OfMeta(metaclass=Meta):
        hidden = value

    class Choice(enum.Enum):
        ONE = [value]

    annotated.scale, helper.uses_box = value, True
    module = types.ModuleType("own_settings")
    module.value, module.fn = value, lambda: cell
    own_list, own_dict, own_float = OwnList([value]), OwnDict(value=value), OwnFloat(value)
    ordered = collections.OrderedDict(value=value)
    ordered.scale = own_list.more = own_dict.more = own_float.more = value
    array, table = np.full(3, value), {"value": value}
    partial = functools.partial(with_name, scale=value)
    described = type("Described", (), {"scale": Descriptor(value)})
    # Objects of which the policy has one are attributes of it; the others are variables of this function.
    return {
        "a variable of a function": (lambda p: cell, set_cell),
        "a mutable default": (lambda p: helper(), lambda p, new: helper.__defaults__[0].__setitem__(0, new)),
        "other defaults": (lambda p: helper(), lambda p, new: setattr(helper, "__defaults__", ([new],))),
        "a default by name": (lambda p: with_name(), lambda p, new: with_name.__kwdefaults__.update(scale=new)),
        "an attribute of a function": (lambda p: annotated(), lambda p, new: setattr(annotated, "scale", new)),
        "an attribute of a function that the policy has": (
            lambda p: p.annotated.scale,
            lambda p, new: (setattr(p, "annotated", annotated), setattr(annotated, "scale", new)),
        ),
        "the code of a function": (
            lambda p: constant(),
            lambda p, new: setattr(constant, "__code__", (lambda: 3.0).__code__ if new == 3.0 else (lambda: 1.0).__code__),
        ),
        "an attribute of a base class": (lambda p: Derived().of_type(), lambda p, new: setattr(Base, "scale", new)),
        "an attribute of a derived class": (lambda p: Derived().of_type(), lambda p, new: setattr(Derived, "scale", new)),
        "an attribute of super()": (lambda p: Derived().of_super(), lambda p, new: setattr(Base, "scale", new)),
        "an attribute of a class as an attribute": (
            lambda p: p.kind.scale,
            lambda p, new: (setattr(p, "kind", Derived), setattr(Derived, "scale", new)),
        ),
        "an attribute of a named class": (lambda p: Derived.scale, lambda p, new: setattr(Derived, "scale", new)),
        "a class method": (lambda p: Derived.of_class(), lambda p, new: setattr(Derived, "scale", new)),
        "another class method": (
            lambda p: Derived.of_class(),
            lambda p, new: setattr(Derived, "of_class", classmethod(lambda cls: new)),
        ),
        "a static method": (
            lambda p: Derived.of_nothing(),
            lambda p, new: Base.of_nothing.__defaults__[0].update(value=new),
        ),
        "another static method": (
            lambda p: Derived().of_nothing(),
            lambda p, new: setattr(Derived, "of_nothing", staticmethod(lambda: new)),
        ),
        "another method": (lambda p: Derived().of_base(), lambda p, new: setattr(Derived, "of_base", lambda self: new)),
        "a property of a class": (lambda p: OfMeta.scale, lambda p, new: setattr(OfMeta, "hidden", new)),
        "a descriptor": (lambda p: described.scale, lambda p, new: setattr(vars(described)["scale"], "value", new)),
        "another descriptor": (lambda p: described().scale, lambda p, new: setattr(described, "scale", Descriptor(new))),
        "a member of an enumeration": (lambda p: Choice.ONE.value[0], lambda p, new: Choice.ONE.value.__setitem__(0, new)),
        "a list": (lambda p: own_list[0], lambda p, new: own_list.__setitem__(0, new)),
        "a property of a list": (lambda p: own_list.first, lambda p, new: own_list.__setitem__(0, new)),
        "an attribute of a list": (lambda p: own_list.more, lambda p, new: setattr(own_list, "more", new)),
        "an attribute of a class of lists": (lambda p: own_list.scale, lambda p, new: setattr(OwnList, "scale", new)),
        "a dict": (lambda p: own_dict["value"], lambda p, new: own_dict.update(value=new)),
        "an attribute of a dict": (lambda p: own_dict.more, lambda p, new: setattr(own_dict, "more", new)),
        "an attribute of an ordered dict": (lambda p: ordered.scale, lambda p, new: setattr(ordered, "scale", new)),
        "an attribute of a number": (lambda p: own_float.more, lambda p, new: setattr(own_float, "more", new)),
        "an array": (lambda p: float(array[1]), lambda p, new: array.fill(new)),
        "a method of a dict": (
            lambda p: p.get("value"),
            lambda p, new: (table.update(value=new), setattr(p, "get", table.get)),
        ),
        "a module": (lambda p: module.value, lambda p, new: setattr(module, "value", new)),
        "a module that the policy has": (
            lambda p: p.module.value,
            lambda p, new: (setattr(p, "module", module), setattr(module, "value", new)),
        ),
        "a function of a module": (lambda p: module.fn(), lambda p, new: setattr(module, "fn", lambda: new)),
        "a function of numpy": (
            lambda p: float(np.sum([1.0])),
            lambda p, new: setattr(np, "sum", SUM if new == 1.0 else lambda x: 3.0),
        ),
        "arguments of a partial function": (lambda p: partial(), lambda p, new: partial.keywords.update(scale=new)),
        "an attribute": (lambda p: p.value, lambda p, new: setattr(p, "value", new)),
        "the sign of zero": (
            lambda p: 2.0 + float(np.copysign(1.0, p.value)),
            lambda p, new: setattr(p, "value", 0.0 if new == 1.0 else -0.0),
        ),
        "the sign of zero in a list": (
            lambda p: 2.0 + float(np.copysign(1.0, p.value[0])),
            lambda p, new: setattr(p, "value", [0.0 if new == 1.0 else -0.0]),
        ),
        "a type": (
            lambda p: 3.0 if isinstance(p.value[0], int) else 1.0,
            lambda p, new: setattr(p, "value", [1 if new == 3.0 else 1.0]),
        ),
        "the order of a dict": (
            lambda p: float(next(iter(p.value))),
            lambda p, new: setattr(p, "value", {new: 0, 4.0 - new: 0}),
        ),
        "a dataclass": (lambda p: p.value.doubled, lambda p, new: setattr(p, "value", Settings(new))),
        "a field of a dataclass": (lambda p: p.settings.doubled, lambda p, new: setattr(p.settings, "value", new)),
        "a named tuple": (lambda p: p.value.value, lambda p, new: setattr(p, "value", Pair(new, 0))),
        "a slot": (lambda p: p.slotted.value, lambda p, new: setattr(p.slotted, "value", new)),
        "an attribute that is made": (lambda p: p.getting.value, lambda p, new: p.getting.held.update(value=new)),
        "an object that is called": (lambda p: p.called(), lambda p, new: setattr(p.called.inner, "value", new)),
        "a setting": (lambda p: p.cfg.discount_factor, lambda p, new: setattr(p.cfg, "discount_factor", 0.3 * new)),
        "an activation of an object": (
            lambda p: p.slotted.value(torch.tensor(-1.0)) + 2,
            lambda p, new: setattr(p.slotted, "value", torch.nn.Tanh() if new == 3.0 else torch.nn.ReLU()),
        ),
    }


SUM = np.sum
NAMES = sorted(kinds(1.0))
OF_ATTRIBUTES = {
    name for name in NAMES if name.startswith(("the sign", "a type", "the order", "a dataclass", "a named", "an attribute"))
}
"""Those that set the same attribute of the policy."""


def reading(reads, depth):
    """A class of policies whose loss reads values, in functions within functions."""

    def nested(policy, left):
        if not left:
            return sum(read(policy) for read in reads)

        def inner():
            return nested(policy, left - 1)

        return inner()

    class Sum(DQNPolicy):
        def after_init(self):
            super().after_init()
            self.settings, self.slotted, self.getting, self.called = Settings(1.0), Slotted(1.0), Getting(1.0), Called(1.0)

        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss * nested(self, depth), stats

    return Sum


def stepped(names, mode, at, depth):
    """A policy after some steps, its losses, and the warnings. From step `at[name]` on, the value is another one."""
    ways = kinds(1.0)
    policy, losses = made(reading([ways[name][0] for name in names], depth), mode), []
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for name in names:
                ways[name][1](policy, 1.0)
            for step in range(STEPS):
                for name in names:
                    if step == at[name]:
                        ways[name][1](policy, 3.0)
                losses.append(learn(policy, 1, step)["loss"])
    finally:
        for name in names:
            ways[name][1](policy, 1.0)
    return policy, losses, [str(it.message) for it in found]


def assert_compiled_is_plain(names, at, depth):
    with interpreting():
        policy, losses, found = stepped(names, "on", at, depth)
    plain, plain_losses, _ = stepped(names, "off", at, depth)
    assert losses == pytest.approx(plain_losses, rel=1e-4)
    assert_close(policy, plain)
    return policy, found


@pytest.mark.few
@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_value_makes_another_form(name):
    chance = random.Random(name)
    policy, found = assert_compiled_is_plain([name], {name: chance.randrange(1, STEPS)}, chance.randrange(3))
    assert found == []
    assert compiled(policy) == STEPS


@pytest.mark.few
@pytest.mark.parametrize("seed", range(12))
def test_a_compiled_run_is_the_plain_one_at_each_step(seed):
    chance = random.Random(seed)
    names = chance.sample(sorted(set(NAMES) - OF_ATTRIBUTES), 4) + chance.sample(sorted(OF_ATTRIBUTES - {"a setting"}), 1)
    at = {name: chance.randrange(1, STEPS) for name in names}
    policy, found = assert_compiled_is_plain(names, at, chance.randrange(3))
    assert compiled(policy) == STEPS or any("Its gradient steps are not compiled" in it for it in found)


def hidden():
    return TABLE["scale"]


TABLE = {"scale": 1.0}


@pytest.mark.few
def test_what_a_function_reads_that_only_a_text_names(monkeypatch):
    """It is noticed when it is called."""
    found = []
    for mode in ("on", "off"):
        monkeypatch.setitem(TABLE, "scale", 1.0)
        with interpreting():
            policy = made(reading([lambda policy: globals()["hid" + "den"]()], 0), mode)
            learn(policy, 3)
            TABLE["scale"] = 3.0
            learn(policy, 3, 3)
        found.append(policy)
    assert compiled(found[0]) == 6
    assert_close(*found)


class Numbered:
    """An object with a number, which an iterator of the class gives."""

    numbers = itertools.count()

    def __init__(self):
        self.number, self.scale = next(Numbered.numbers), 1.0

    def next_number(self):
        return float(next(type(self).numbers))


class Reading(DQNPolicy):
    """Has an object and a class."""

    def after_init(self):
        super().after_init()
        self.numbered, self.kind = Numbered(), Numbered

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss * self.scale_of(), stats

    def scale_of(self):
        return self.numbered.scale


class Counting(Reading):
    """Reads a number more in each step."""

    def scale_of(self):
        return self.numbered.next_number()


@pytest.mark.few
def test_an_attribute_of_a_class_that_no_called_function_reads_is_no_reason():
    with interpreting(), no_warning():
        policy = made(Reading)
        learn(policy, 3)
    assert compiled(policy) == 3


def test_an_iterator_of_a_class_is_refused():
    policy = made(Counting)
    with interpreting(), pytest.warns(UserWarning, match="reads Numbered.numbers, a count, whose state"):
        learn(policy, 2)
    assert compiled(policy) == 0


@pytest.mark.few
def test_default_values_that_a_loss_changes_are_refused():
    def collecting(found=[]):  # noqa: B006
        found.append(1)
        return 1.0

    policy = made(reading([lambda policy: collecting()], 0))
    with interpreting(), pytest.warns(UserWarning, match="the loss changes the code or a default value of .*collecting, which"):
        learn(policy, 2)
    assert compiled(policy) == 0


@pytest.mark.few
def test_under_a_profiler_too():
    """Then it is not known which functions are called."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        policy, found = assert_compiled_is_plain(["a mutable default"], {"a mutable default": 3}, 0)
    finally:
        profile.disable()
    assert found == []
    assert compiled(policy) == STEPS
