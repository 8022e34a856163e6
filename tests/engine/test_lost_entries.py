"""Lost entries: what a class of the script saves, and does not restore when a run is resumed, is named."""

import copy
import time
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite import Task, contract
from ding_lite.data import ReplayBuffer
from ding_lite.policy import DQNPolicy


class Counting:
    """A middleware with two counts."""

    def __init__(self):
        self.first, self.second = 0, [0]

    def __call__(self, ctx):
        self.first += 1
        self.second[0] += 2

    def state_dict(self):
        return {"first": self.first, "second": list(self.second)}

    def load_state_dict(self, state):
        self.first, self.second = state["first"], state["second"]


class Forgetting(Counting):
    def load_state_dict(self, state):
        self.first = state["first"]


class Timed(Counting):
    """Its state has a time, which differs in each call."""

    def __init__(self):
        super().__init__()
        self.since = time.perf_counter()

    def state_dict(self):
        return {**super().state_dict(), "elapsed_s": time.perf_counter() - self.since}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.since = time.perf_counter() - state["elapsed_s"]


class Arrays(Counting):
    """Converts what it loads, and its state has a NaN."""

    def state_dict(self):
        return {"mean": self.second, "tensor": torch.tensor([self.first, float("nan")]), "pair": (1, 2)}

    def load_state_dict(self, state):
        self.second, self.first = np.asarray(state["mean"]), int(state["tensor"][0])


class Failing(Counting):
    """Cannot give its state right after loading."""

    is_loaded = False

    def load_state_dict(self, state):
        self.is_loaded = True

    def state_dict(self):
        if self.is_loaded:
            raise RuntimeError("not yet")
        return super().state_dict()


class Buffer(ReplayBuffer):
    restores = True

    def __init__(self):
        super().__init__(10)
        self.calls = 0

    def state_dict(self):
        return {**super().state_dict(), "calls": self.calls}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if self.restores:
            self.calls = state["calls"]


class ForgettingBuffer(Buffer):
    restores = False


class CountingPolicy(DQNPolicy):
    restores = True

    def after_init(self):
        super().after_init()
        self.calls = 0
        self.attach("attached", Counting() if self.restores else Forgetting())

    def state_dict(self):
        return {**super().state_dict(), "calls": self.calls}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if self.restores:
            self.calls = state["calls"]


class ForgettingPolicy(CountingPolicy):
    restores = False


def policy_of(kind):
    policy = kind({"seed": 0}, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))
    policy.calls = 0
    return policy


def told(make, use, change):
    """The warnings when a state is loaded that was saved after `change(thing)`."""
    thing = make()
    with Task().start() as loop:
        loop.use(use(thing)).run(1, final=False)
        change(thing)
        state = copy.deepcopy(loop.state_dict())
    with Task().start() as loop, warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        loop.use(use(make())).load_state_dict(state)
    return [str(it.message) for it in shown]


def itself(thing):
    return thing


def user_of(thing):
    return contract(uses=(thing,), stage="learn")(lambda ctx: None)


def learner_of(policy):
    return contract(uses=(policy.learn_mode,), stage="learn")(lambda ctx: None)


def counts(thing):
    thing.calls = 3


def nothing(thing):
    pass


def test_an_entry_that_load_state_dict_forgets_is_named():
    (words,) = told(Forgetting, itself, nothing)
    assert "Forgetting.state_dict() gives second[0] = 0 after loading, and the saved state has 2" in words
    assert "its load_state_dict does not restore it" in words


def test_so_is_one_that_is_added_to_a_class_of_the_library():
    (words,) = told(ForgettingBuffer, user_of, counts)
    assert "ForgettingBuffer.state_dict() gives calls = 0 after loading, and the saved state has 3" in words


def test_so_are_those_of_a_policy_and_of_an_object_that_is_attached_to_it():
    def change(policy):
        policy.calls, policy.attachments["attached"].second = 3, [4]

    found = told(lambda: policy_of(ForgettingPolicy), learner_of, change)
    assert [it.split(",")[0] for it in found] == [
        "ForgettingPolicy.state_dict() gives calls = 0 after loading",
        "Forgetting.state_dict() gives second[0] = 0 after loading",
    ]


@pytest.mark.parametrize(
    ("make", "use", "change"),
    [
        (Counting, itself, nothing),
        (Timed, itself, nothing),
        (Arrays, itself, nothing),
        (Failing, itself, nothing),
        (Buffer, user_of, counts),
        (lambda: policy_of(CountingPolicy), learner_of, counts),
        (lambda: policy_of(DQNPolicy), learner_of, nothing),
        (lambda: torch.nn.BatchNorm1d(2), user_of, nothing),
    ],
)
def test_what_is_restored_is_not_named(make, use, change):
    assert told(make, use, change) == []
