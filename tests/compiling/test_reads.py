"""Values that a loss reads outside of the batch and the weights: a compiled step is never taken with an outdated one."""

import argparse
import collections
import contextlib
import copy
import functools
import itertools
import logging
import multiprocessing
import pickle
import random
import sys
import threading
import types
import warnings
import weakref
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from interpreted_steps import assert_close, batch_of, compiled, interpreting, learn, made, no_warning, pair
from torch import nn

from ding_lite.compiling import compiled_steps
from ding_lite.compiling.functional_steps import trace_step
from ding_lite.policy import DQNPolicy

SCALE = 1.0
TABLE = {"scale": [1.0]}
SETTINGS = SimpleNamespace(inner=SimpleNamespace(scale=1.0))
LOG: list[int] = []


class Constants:
    """Attributes of a class."""

    scale = 1.0


class Scaled:
    """An object of a user's own, which may be called."""

    kind = 1.0

    def __init__(self, scale=1.0):
        self.scale, self.array, self.count, self.inner = scale, np.ones(2), 0, {"list": [0]}

    def __call__(self):
        return self.scale

    def __len__(self):
        return int(SCALE)

    @property
    def outside(self):
        found = SETTINGS
        return found.inner.scale

    @property
    def doubled(self):
        return 2 * self.scale


class Slotted:
    """An object without a dict."""

    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale


KEPT = Scaled()


class Nested:
    """An object with a way down."""

    def __init__(self, depth):
        self.below = Nested(depth - 1) if depth else Scaled()


def half():
    return 0.5 * SCALE


def third():
    return SCALE / 3


def extended(extra, **attributes):
    """DQN whose loss is multiplied by `extra(policy)`; the attributes are made with the policy."""

    class Extended(DQNPolicy):
        level = 1.0

        def after_init(self):
            super().after_init()
            for name, make in attributes.items():
                setattr(self, name, make())

        def loss(self, batch):
            loss, stats = super().loss(batch)
            return extra(self) * loss, stats

        @property
        def of_property(self):
            return self.scaled.doubled

    return Extended


def once(change):
    """Change something before the fourth of six steps."""

    def before_step(policy, step):
        if step == 0 and "level" in vars(type(policy)):  # the policy before, of the same class, has set it
            del type(policy).level
        if step == 0:
            KEPT.scale = 1.0
        if step == 3:
            change(policy)

    return before_step


def bottom_of(thing):
    return bottom_of(thing.below) if isinstance(thing, Nested) else thing


OWN = {"scaled": Scaled}
CASES = {
    "an attribute that was missing": (lambda p: getattr(p, "more", 1.0), {}, lambda p: setattr(p, "more", 3.0)),
    "an attribute of a network that was missing": (
        lambda p: 3.0 if hasattr(p.model, "more") else 1.0,
        {},
        lambda p: setattr(p.model, "more", 1),
    ),
    "a buffer that was None": (
        lambda p: 1.0 if p.target_model.mask is None else p.target_model.mask,
        {},
        lambda p: setattr(p.target_model, "mask", torch.tensor(3.0)),
    ),
    "an object that is called": (lambda p: p.scaled(), OWN, lambda p: setattr(p.scaled, "scale", 3.0)),
    "a property of an object": (lambda p: p.of_property, OWN, lambda p: setattr(p.scaled, "scale", 3.0)),
    "an object in a list": (lambda p: p.all[0](), {"all": lambda: [Scaled()]}, lambda p: setattr(p.all[0], "scale", 3.0)),
    "a class attribute of an object": (lambda p: p.scaled.kind, OWN, lambda p: setattr(p.scaled, "kind", 3.0)),
    "a class attribute of the policy": (lambda p: type(p).level, {}, lambda p: setattr(type(p), "level", 3.0)),
    "an array in an object": (lambda p: float(p.scaled.array[0]), OWN, lambda p: p.scaled.array.fill(3.0)),
    "an array in a dict": (
        lambda p: float(p.of["x"][0]),
        {"of": lambda: {"x": np.ones(2)}},
        lambda p: p.of["x"].fill(3.0),
    ),
    "an object far down": (
        lambda p: bottom_of(p.top).scale,
        {"top": lambda: Nested(6)},
        lambda p: setattr(bottom_of(p.top), "scale", 3.0),
    ),
    "a function": (lambda p: p.fn(), {"fn": lambda: half}, lambda p: setattr(p, "fn", third)),
    "a partial function": (
        lambda p: p.fn(),
        {"fn": lambda: functools.partial(float, 1.0)},
        lambda p: setattr(p, "fn", functools.partial(float, 3.0)),
    ),
    "a bound method": (
        lambda p: p.fn(),
        {"fn": lambda: Scaled(1.0).__call__},
        lambda p: setattr(p.fn.__self__, "scale", 3.0),
    ),
    "the activation of a network": (
        lambda p: p.model.act(torch.tensor(-1.0)) + 2,
        {},
        lambda p: setattr(p.model, "act", torch.sigmoid),
    ),
    "a method of the class of an object": (
        lambda p: p.other.of_class(),
        {"other": lambda: type("Other", (Scaled,), {"of_class": lambda self: 1.0})()},
        lambda p: setattr(type(p.other), "of_class", lambda self: 3.0),
    ),
    "a tensor that becomes None": (
        lambda p: 1.0 if p.baseline is None else 3.0,
        {"baseline": lambda: torch.ones(3)},
        lambda p: setattr(p, "baseline", None),
    ),
    "the length of a tensor": (
        lambda p: float(len(p.baseline)),
        {"baseline": lambda: torch.ones(3)},
        lambda p: setattr(p, "baseline", torch.ones(2)),
    ),
    "a list deep inside": (
        lambda p: p.deep[0][0][0][0][0].scale,
        {"deep": lambda: [[[[[Scaled()]]]]]},
        lambda p: setattr(p.deep[0][0][0][0][0], "scale", 3.0),
    ),
    "argparse": (
        lambda p: p.args.scale,
        {"args": lambda: argparse.Namespace(scale=1.0)},
        lambda p: setattr(p.args, "scale", 3.0),
    ),
    "a value in shared memory": (
        lambda p: p.shared.value,
        {"shared": lambda: multiprocessing.get_context("spawn").Value("d", 1.0)},
        lambda p: setattr(p.shared, "value", 3.0),
    ),
    "UserDict": (
        lambda p: p.found["scale"],
        {"found": lambda: collections.UserDict(scale=1.0)},
        lambda p: p.found.update(scale=3.0),
    ),
    "bounds of a space": (
        lambda p: float(p.box.high[0]),
        {"box": lambda: spaces.Box(0.0, 1.0, (2,))},
        lambda p: p.box.high.fill(3.0),
    ),
    "an environment": (
        lambda p: p.env.unwrapped.gravity,
        {"env": lambda: gymnasium.make("CartPole-v1")},
        lambda p: setattr(p.env.unwrapped, "gravity", 3.0),
    ),
    "another policy": (
        lambda p: getattr(p.other, "more", 1.0),
        {"other": lambda: made(compiles="off")},
        lambda p: setattr(p.other, "more", 3.0),
    ),
    "a method in place of that of the class": (
        lambda p: 1.0,
        {},
        lambda p: setattr(p, "loss", types.MethodType(lambda self, batch: DQNPolicy.loss(self, batch), p)),
    ),
    "forward of a module": (
        lambda p: 1.0,
        {},
        lambda p: setattr(p.model.layers[0], "forward", lambda x, layer=p.model.layers[0]: F.linear(x, layer.weight)),
    ),
    "a hook of a module": (lambda p: 1.0, {}, lambda p: p.model.layers[0].register_forward_hook(lambda m, i, out: 2 * out)),
    "a hook of a parameter": (lambda p: 1.0, {}, lambda p: p.params[0].register_hook(lambda grad: 2 * grad)),
    "a module more in a list": (
        lambda p: float(len(p.model.extra)),
        {},
        lambda p: p.model.extra.append(nn.Identity()),
    ),
    "a copy of an object": (lambda p: copy.copy(p.scaled).scale, OWN, lambda p: setattr(p.scaled, "scale", 3.0)),
    "a deep copy of an object": (
        lambda p: bottom_of(copy.deepcopy(p.top)).scale,
        {"top": lambda: Nested(2)},
        lambda p: setattr(bottom_of(p.top), "scale", 3.0),
    ),
    "a pickled object": (
        lambda p: pickle.loads(pickle.dumps(p.scaled)).scale,
        OWN,
        lambda p: setattr(p.scaled, "scale", 3.0),
    ),
    "names in dir": (
        lambda p: 3.0 if "more" in dir(p.scaled) else 1.0,
        OWN,
        lambda p: setattr(p.scaled, "more", 1),
    ),
    "names in vars": (
        lambda p: 3.0 if "more" in vars(p.scaled) else 1.0,
        OWN,
        lambda p: setattr(p.scaled, "more", 1),
    ),
    "a weak reference": (
        lambda p: p.weak().scale,
        {**OWN, "weak": lambda: weakref.ref(KEPT)},
        lambda p: setattr(KEPT, "scale", 3.0),
    ),
    "the order of an OrderedDict": (
        lambda p: next(iter(p.ordered.values())),
        {"ordered": lambda: collections.OrderedDict(first=1.0, second=3.0)},
        lambda p: p.ordered.move_to_end("first"),
    ),
    "an object that is a key": (
        lambda p: next(iter(p.by_object)).scale,
        {"by_object": lambda: {Scaled(): 1}},
        lambda p: setattr(next(iter(p.by_object)), "scale", 3.0),
    ),
    "a value that the loss sets and restores": (lambda p: set_and_restored(p), {}, lambda p: p.model.eval()),
}


def set_and_restored(policy):
    was = policy.model.training
    policy.model.eval()
    policy.model.train(was)
    return 1.0 if was else 3.0


class Prepared(DQNPolicy):
    """With the attributes of networks that the cases read."""

    def after_init(self):
        super().after_init()
        self.target_model.register_buffer("mask", None)
        self.model.act = torch.relu
        self.model.extra = nn.ModuleList([nn.Identity()])


def prepared(extra, attributes):
    return type("Prepared", (extended(extra, **attributes), Prepared), {})


@pytest.mark.few
@pytest.mark.parametrize("name", CASES)
def test_a_value_that_changes_makes_another_form(name):
    extra, attributes, change = CASES[name]
    policy, plain = pair(once(change), prepared(extra, attributes))
    assert compiled(policy) + (name == "a method in place of that of the class") >= 6
    assert_close(policy, plain)


def set_global(policy, value):
    global SCALE
    SCALE = value


PACKAGE, MODULE = types.ModuleType("own_package"), types.ModuleType("own_package.settings")
PACKAGE.settings, MODULE.scale, MODULE.inner = MODULE, 1.0, SimpleNamespace(scale=1.0)


@pytest.fixture(autouse=True)
def package(monkeypatch):
    """A package that is imported within functions."""
    monkeypatch.setitem(sys.modules, "own_package", PACKAGE)
    monkeypatch.setitem(sys.modules, "own_package.settings", MODULE)
    MODULE.scale = MODULE.inner.scale = 1.0


def from_module(policy):
    from own_package.settings import inner, scale

    return scale * inner.scale


def module_of_package(policy):
    from own_package import settings

    def within():
        return settings.scale

    return within()


def whole_module(policy):
    import own_package.settings

    return own_package.settings.scale


def renamed_module(policy):
    import own_package.settings as renamed

    return renamed.inner.scale


OUTSIDE = {
    "a name from a module": (from_module, lambda value: setattr(MODULE, "scale", value)),
    "an attribute of a name from a module": (from_module, lambda value: setattr(MODULE.inner, "scale", value)),
    "a module of a package": (module_of_package, lambda value: setattr(MODULE, "scale", value)),
    "a module within its package": (whole_module, lambda value: setattr(MODULE, "scale", value)),
    "a module by another name": (renamed_module, lambda value: setattr(MODULE.inner, "scale", value)),
    "a global": (lambda p: SCALE, lambda value: set_global(None, value)),
    "a global that a function reads": (lambda p: half(), lambda value: set_global(None, value)),
    "a global that a property of an object reads": (
        lambda p: p.scaled.outside,
        lambda value: setattr(SETTINGS.inner, "scale", value),
    ),
    "a global that __len__ of an object reads": (lambda p: float(len(p.scaled)), lambda value: set_global(None, value)),
    "a dict": (lambda p: TABLE["scale"][0], lambda value: TABLE["scale"].__setitem__(0, value)),
    "an attribute of an attribute": (
        lambda p: SETTINGS.inner.scale,
        lambda value: setattr(SETTINGS.inner, "scale", value),
    ),
    "an attribute of a class": (lambda p: Constants.scale, lambda value: setattr(Constants, "scale", value)),
}


@pytest.mark.few
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_value_outside_of_the_policy_makes_another_form(name):
    extra, change = OUTSIDE[name]

    def before_step(policy, step):
        change(1.0 + step // 3)

    try:
        with no_warning():
            policy, plain = pair(before_step, extended(extra, **OWN))
    finally:
        change(1.0)
    assert compiled(policy) == 6
    assert_close(policy, plain)


def test_a_variable_of_an_enclosing_function_makes_another_form():
    scale = 1.0
    kind = extended(lambda policy: scale)

    def before_step(policy, step):
        nonlocal scale
        scale = 1.0 + step // 3

    policy, plain = pair(before_step, kind)
    assert compiled(policy) == 6
    assert_close(policy, plain)


def counts(policy):
    policy.scaled.count += 1
    return 1.0


def appends(policy):
    policy.scaled.inner["list"].append(1)
    return 1.0


def fills(policy):
    policy.scaled.array[0] += 1
    return 1.0


def appends_outside(policy):
    LOG.append(1)
    return 1.0


def logs(policy):
    logging.getLogger("tests").warning("once")
    return 1.0


def is_read_from_vars(policy):
    return vars(policy)["learns"]


REFUSED = {
    "a counter of an object": (counts, OWN, "sets Scaled.count"),
    "a list in an object": (appends, OWN, "whose contents the loss changes"),
    "an array in an object": (fills, OWN, "whose contents the loss changes"),
    "a list outside": (appends_outside, {}, "changes the global LOG"),
    "logging": (logs, {}, "logs"),
    "a generator of Python": (lambda p: p.own.random(), {"own": lambda: random.Random(0)}, "Random, whose random numbers"),
    "a generator of numpy": (
        lambda p: float(p.own.random()),
        {"own": lambda: np.random.default_rng(0)},
        "Generator, whose random numbers",
    ),
    "an iterator": (lambda p: float(next(p.own)), {"own": itertools.count}, "a count, whose state"),
    "the optimizer": (lambda p: p.optimizer.param_groups[0]["lr"], {}, "reads optimizer"),
    "object.__getattribute__": (lambda p: object.__getattribute__(p.scaled, "scale"), OWN, "calls __getattribute__"),
    "the descriptor of a slot": (
        lambda p: Slotted.scale.__get__(p.slotted),
        {"slotted": lambda: Slotted(1.0)},
        "calls __get__",
    ),
    "a copy with slots": (lambda p: copy.copy(p.slotted).scale, {"slotted": lambda: Slotted(1.0)}, "sets Slotted.scale"),
    "the number of threads": (lambda p: float(torch.get_num_threads() > 0), {}, "calls get_num_threads"),
    "a weak proxy": (lambda p: p.weak.scale, {"weak": lambda: weakref.proxy(KEPT)}, "a weak proxy, whose object"),
    "vars": (lambda p: len(vars(p)["params"]), {}, "reads vars"),
    "an array of objects": (lambda p: p.objects[0], {"objects": lambda: np.array([1.0, None])}, "an array of objects, which"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name):
    extra, attributes, reason = REFUSED[name]
    policy = made(extended(extra, **attributes))
    with interpreting(), pytest.warns(UserWarning, match=reason):
        learn(policy, 2)
    assert compiled(policy) == 0


def window(policy, step):
    policy.window = policy.table[: 2 + step]


def transposed(policy, step):
    policy.window = policy.table[:4] if step < 3 else policy.table[::2][:4]


def becomes_separate(policy, step):
    if step == 0:
        policy.previous = policy.current = torch.ones(3)
    if step >= 3:
        policy.current = torch.full((3,), 3.0)


class Tensors(DQNPolicy):
    """A loss that reads tensors of the policy."""

    def after_init(self):
        super().after_init()
        self.table = torch.arange(12.0)
        self.window = self.table[:4]
        self.previous = self.current = torch.ones(3)

    def loss(self, batch):
        loss, stats = super().loss(batch)
        weight = self.model.layers[0].weight.mean()
        return loss * (1 + self.window.sum()) + self.current.sum() - self.previous.sum() * weight, stats


@pytest.mark.few
@pytest.mark.parametrize("change", [window, transposed, becomes_separate])
@pytest.mark.filterwarnings("ignore:.*Its gradient steps are not compiled")
def test_tensors_are_not_taken_for_others(change):
    policy, plain = pair(change, Tensors)
    assert compiled(policy) >= 1
    assert_close(policy, plain)


def test_columns_that_were_one_tensor():
    class Target(DQNPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss + batch.bonus.mean() * self.model.layers[0].weight.mean(), stats

    found = []
    with interpreting():
        for mode in ("on", "off"):
            policy = made(Target, mode)
            for step in range(6):
                batch = batch_of(step)
                batch["bonus"] = batch.reward if step < 3 else 3 * batch.reward
                policy.num_steps = {}
                policy.gradient_step(batch)
            found.append(policy)
    assert compiled(found[0]) == 6
    assert_close(*found)


def add_group(policy):
    policy.extra = nn.Parameter(torch.ones(()))
    policy.optimizer.add_param_group({"params": [policy.extra]})


def replace_step(policy):
    step = policy.optimizer.step
    policy.optimizer.step = lambda: (step(), step())[0]


def step_hook(policy):
    policy.optimizer.register_step_post_hook(lambda optimizer, args, kwargs: policy.params[0].data.mul_(0.9))


@pytest.mark.parametrize("change", [add_group, replace_step, step_hook])
@pytest.mark.filterwarnings("ignore:.*Its gradient steps are not compiled", "ignore:.*learn.compile")
def test_an_optimizer_that_changes(change):
    class Extra(DQNPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss * getattr(self, "extra", 1.0), stats

    policy, plain = pair(once(change), Extra)
    assert compiled(policy) >= 3
    assert_close(policy, plain)


def test_a_learning_rate_that_is_a_tensor():
    def before_step(policy, step):
        if step == 0:
            policy.optimizer = torch.optim.Adam(policy.params, lr=torch.tensor(1e-3))
        policy.optimizer.param_groups[0]["lr"].fill_(1e-3 * (step + 1))

    policy, plain = pair(before_step)
    assert compiled(policy) == 6
    assert_close(policy, plain)


def test_autocast_around_later_steps():
    found = []
    with interpreting():
        for mode in ("on", "off"):
            policy = made(compiles=mode)
            learn(policy, 3)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                learn(policy, 3, 3)
            found.append(policy)
    assert_close(*found)


class Unseen(DQNPolicy):
    """A loss with a value that is only named in a text."""

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return globals()["HID" + "DEN"] * loss, stats


HIDDEN = 1.0


def test_steps_are_compared_again_from_time_to_time():
    """So a value that cannot be seen does not go unnoticed."""
    global HIDDEN
    try:
        with interpreting():
            policy = made(Unseen)
            learn(policy, 6)
            HIDDEN = 3.0
            with pytest.warns(UserWarning, match="depends on a value that is not checked"):
                learn(policy, 10)
    finally:
        HIDDEN = 1.0
    assert "is not checked" in policy.compiled_steps.refused
    assert compiled(policy) == 11


def test_comparing_again_changes_no_bit(monkeypatch):
    def weights():
        with interpreting(), no_warning():
            policy = made()
            learn(policy, 25)
        return policy.state_dict()

    one = weights()
    monkeypatch.setattr("ding_lite.compiling.forms._EARLY", ())
    other = weights()
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
    assert torch.equal(one["learn"]["generator"], other["learn"]["generator"])


@functools.lru_cache
def cached(value):
    return 2.0 * value


class Answering:
    """An object with a `__getattribute__` of its own."""

    def __init__(self):
        self.scale = 1.0

    def __getattribute__(self, name):
        return super().__getattribute__(name)


class Guarded:
    """An object with parts of the standard library."""

    def __init__(self):
        self.lock = threading.Lock()

    def value(self):
        with self.lock:
            return 1.0


ORDINARY = {
    "a function with a cache": (lambda p: cached(1.0), {}),
    "a lock": (lambda p: p.guarded.value(), {"guarded": Guarded}),
    "a module that the loss makes": (lambda p: nn.MSELoss()(torch.zeros(2), torch.ones(2)), {}),
    "an object that the loss makes": (lambda p: Scaled(p.scaled.scale)(), OWN),
    "a __getattribute__": (lambda p: p.answering.scale, {"answering": Answering}),
    "a copy that the loss makes of its own object": (lambda p: copy.copy(Scaled(p.scaled.scale)).scale, OWN),
    "a copy of a list": (lambda p: copy.deepcopy(p.rates)[0], {"rates": lambda: [1.0]}),
    "a number of numpy": (lambda p: 2.0 if p.flag else 1.0, {"flag": lambda: np.bool_(True)}),
}


@pytest.mark.few
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_losses_are_compiled(name):
    extra, attributes = ORDINARY[name]
    with no_warning():
        policy, plain = pair(lambda policy, step: None, extended(extra, **attributes))
    assert compiled(policy) == 6
    assert_close(policy, plain)


def adds(batch):
    batch["reward"].add_(1.0)


def assigns(batch):
    batch["reward"] = 2 * batch["reward"] + 1


@pytest.mark.parametrize("change", [adds, assigns])
def test_what_a_loss_does_to_the_batch_is_done_once(change):
    class Changing(DQNPolicy):
        def loss(self, batch):
            change(batch)
            return super().loss(batch)

    found = []
    for mode in ("on", "off"):
        policy, batch = made(Changing, mode), batch_of()
        with interpreting(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stats = policy.gradient_step(batch)
        found.append((batch.reward.tolist(), stats["loss"].item()))
    assert found[0] == found[1]


def test_an_error_that_a_loss_handles_is_no_way_around_a_refusal():
    def handles(policy):
        with contextlib.suppress(Exception):
            return 2.0 if policy.model.layers[0].weight.sum() > 0 else 1.0
        return 3.0

    policy = made(extended(handles))
    with interpreting(), pytest.warns(UserWarning, match="makes a condition of a tensor"):
        learn(policy, 2)
    assert compiled(policy) == 0


@pytest.mark.filterwarnings("ignore:.*learn.compile")
def test_a_step_of_another_policy_inside_the_loss_does_not_hang():
    def learns(policy):
        policy.teacher.num_steps = {}
        policy.teacher.gradient_step(batch_of())
        return 1.0

    with interpreting():
        policy = made(extended(learns, teacher=made))
        learn(policy, 2)
    assert compiled(policy) == 0


def test_new_objects_in_each_step_end_compilation(monkeypatch):
    monkeypatch.setattr("ding_lite.compiling.compiled_steps._MOST_TRACES", 5)

    def before_step(policy, step):
        policy.fn = lambda: 1.0

    with pytest.warns(UserWarning, match="traced 5 times, because what its loss reads changes: Extended.fn is a function"):
        policy, plain = pair(before_step, extended(lambda policy: policy.fn()), steps=8)
    assert compiled(policy) == 5
    assert_close(policy, plain)


def test_classes_are_as_before():
    before = dict(vars(Scaled)), dict(vars(nn.Module))
    with interpreting():
        learn(made(extended(lambda policy: policy.scaled(), **OWN)), 1)
    assert (dict(vars(Scaled)), dict(vars(nn.Module))) == before


@pytest.mark.few
def test_a_dict_of_networks_is_traced_once_as_long_as_it_has_the_same_networks(monkeypatch):
    class Heads(DQNPolicy):
        def after_init(self):
            super().after_init()
            self.heads = {"main": self.model}

    traced = []
    monkeypatch.setattr(compiled_steps, "trace_step", lambda *given: (traced.append(given), trace_step(*given))[1])
    policy = made(Heads)
    with interpreting(), no_warning():
        learn(policy, 8)
    assert (compiled(policy), len(traced)) == (8, 1)
