"""State_dicts of a script that forget something: what they forget is named when the run is saved."""

import copy
import dataclasses
import functools

import numpy as np
import pytest
import torch
from memory_runs import Saved, remembered

from ding_lite import contract


class Keeping:
    """A middleware with a state_dict, and something that changes; derived classes say what the state has."""

    not_saved = ("seconds",)

    def __init__(self):
        self.count, self.rng, self.sums, self.limit, self.seconds = 0, np.random.default_rng(0), np.zeros(2), 3, 0.0
        self._seen = []

    @functools.cached_property
    def double(self):
        return 2 * self.count

    def __call__(self, ctx):
        self.count += self.double >= 0
        self.sums += self.rng.random()
        self._seen.append(ctx.total_step)
        self.seconds += 0.5

    def load_state_dict(self, state):
        """Nothing; classes that load it would name the same attributes."""


def forgets_one():
    class Forgetting(Keeping):
        def state_dict(self):
            return {"count": self.count, "rng": self.rng.bit_generator.state, "seen": list(self._seen)}

    return Forgetting(), "sums"


def forgets_all():
    class Forgetting(Keeping):
        def state_dict(self):
            return {"limit": self.limit}

    return Forgetting(), "count, rng, sums, _seen"


def forgets_what_is_in_a_slot():
    class Forgetting:
        __slots__ = ("__weakref__", "count", "turns")

        def __init__(self):
            self.count = self.turns = 0

        def __call__(self, ctx):
            self.count, self.turns = self.count + 1, self.turns + 1

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    return Forgetting(), "turns"


def forgets_an_attribute_of_the_class():
    class Forgetting(Saved):
        turns = 0
        log = []

        def __call__(self, ctx):
            self.turns += 1
            self.log.append(1)

        def state_dict(self):
            return {"rows": list(self.rows), "count": self.box.count}

    return Forgetting(), "log, turns"


def forgets_and_calls_the_base_class():
    class Forgetting(Saved):
        turns = 0

        def __call__(self, ctx):
            self.turns += 1

        def state_dict(self):
            return {**super(Forgetting, self).state_dict(), **Saved.state_dict(self), **super().state_dict()}  # noqa: UP008

    return Forgetting(), "turns"


@pytest.mark.parametrize(
    "form",
    [
        forgets_one,
        forgets_all,
        forgets_what_is_in_a_slot,
        forgets_an_attribute_of_the_class,
        forgets_and_calls_the_base_class,
    ],
)
def test_what_its_own_state_dict_forgets_is_named(form, tmp_path):
    step, places = form()
    (found,) = remembered(tmp_path, step)
    assert (
        f"Forgetting remembers something from iteration to iteration ({places}), and its state_dict does not have it" in found
    )
    assert "restore it in load_state_dict(state). If it does not matter, as in a cache, ignore this, or list" in found
    assert "not_saved" in found


class TakesVars(Keeping):
    def state_dict(self):
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


class TakesDict(Keeping):
    def state_dict(self):
        return pickle_of(self.__dict__)


class TakesNames(Keeping):
    names = "count", "sums", "limit"

    def state_dict(self):
        return {name: getattr(self, name) for name in self.names}


class TakesCopy(Keeping):
    def state_dict(self):
        return pickle_of(copy.deepcopy(self))


class TakesByHelpers(Keeping):
    """With strings in a tuple, a helper method, and a property."""

    names = ("sums", "_seen")

    def state_dict(self):
        return {"n": self.counts(), "rng": self.state_of_rng, "seen": getattr(self, "_seen"), **self.more}  # noqa: B009

    def counts(self):
        return self.count

    @property
    def state_of_rng(self):
        return self.rng.bit_generator.state

    @property
    def more(self):
        return dict.fromkeys(("sums",), 0)


class Computing(Keeping):
    """Computes again what it does not save, when it is loaded."""

    def state_dict(self):
        return {"count": self.count, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        self.count = state["count"]
        self.rng.bit_generator.state = state["rng"]
        self.compute()

    def compute(self):
        self.sums, self._seen = np.full(2, self.count), [*range(self.count)]


class Leaving(Keeping):
    not_saved = ("sums", "rng", "_seen")

    def state_dict(self):
        return {"count": self.count}


@dataclasses.dataclass
class TakesFields:
    count: int = 0

    def __call__(self, ctx):
        self.count += 1

    def state_dict(self):
        return dataclasses.asdict(self)

    def load_state_dict(self, state):
        self.__init__(**state)


def pickle_of(thing):
    return {}


@pytest.mark.parametrize(
    "kind", [TakesVars, TakesDict, TakesNames, TakesCopy, TakesByHelpers, TakesFields, Computing, Leaving, Saved]
)
def test_what_a_state_dict_may_have_causes_no_warning(kind, tmp_path):
    step = kind()
    assert remembered(tmp_path, getattr(step, "step", step)) == []


def test_a_state_dict_of_one_object_alone_may_have_everything(tmp_path):
    step = Keeping()
    step.state_dict = dict
    assert remembered(tmp_path, step) == []


def test_a_class_below_the_one_with_the_state_dict_is_told_to_override_it(tmp_path):
    class Below(TakesByHelpers):
        turns = 0

        def __call__(self, ctx):
            super().__call__(ctx)
            self.turns += 1

    class Above(TakesByHelpers):
        turns = 0

        def state_dict(self):
            return {**super().state_dict(), "turns": self.turns}

    class Beneath(Above):
        def __call__(self, ctx):
            super().__call__(ctx)
            self.turns += 1

    (found,) = remembered(tmp_path / "a", Below())
    assert (
        "Below remembers something from iteration to iteration (turns), which its inherited state_dict does not have" in found
    )
    assert remembered(tmp_path / "b", Beneath()) == []


@pytest.mark.parametrize("how", ["uses", "closure"])
@pytest.mark.parametrize(
    "make",
    [
        lambda it: torch.optim.lr_scheduler.StepLR(it, 1),
        lambda it: torch.optim.lr_scheduler.LambdaLR(it, lambda epoch: 0.9**epoch),
        lambda it: torch.optim.lr_scheduler.SequentialLR(
            it, [torch.optim.lr_scheduler.ConstantLR(it), torch.optim.lr_scheduler.ExponentialLR(it, 0.9)], [2]
        ),
    ],
)
def test_a_schedule_of_learning_rates_is_saved_if_a_contract_names_it(make, how, tmp_path):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = make(optimizer)

    @contract(uses=(model, optimizer, *((schedule,) if how == "uses" else ())))
    def step(ctx):
        optimizer.step()
        schedule.step()

    found = remembered(tmp_path, step)
    assert len(found) == (how == "closure")
    assert all("remembers something from iteration to iteration (schedule[" in it for it in found)


def test_an_optimizer_saves_no_parameters(tmp_path):
    """Only its own state, so parameters that nothing else saves are named; its groups and their numbers are not."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    groups = optimizer.param_groups

    @contract(uses=(optimizer,))
    def step(ctx):
        groups[0]["lr"] *= 0.9
        model(torch.ones(1)).sum().backward()
        optimizer.step()

    (found,) = remembered(tmp_path / "a", step)
    assert "(model.bias, model.weight)" in found
    assert remembered(tmp_path / "b", contract(uses=(optimizer, model))(lambda ctx: step(ctx))) == []
