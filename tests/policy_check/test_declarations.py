"""Misspelt hooks are named when a policy is made, and so are values of class attributes that do not exist."""

import warnings

import numpy as np
import pytest
from gymnasium import spaces

from ding_lite.policy import DQNPolicy, PPOPolicy
from ding_lite.policy_base import Policy

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


def made(*bases, **attributes):
    return type("Mine", bases or (PPOPolicy,), attributes)({"seed": 0}, BOX, DISCRETE)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("post_process", "postprocess"),
        ("stat", "stats"),
        ("gradient", "gradients"),
        ("afterstep", "after_step"),
        ("computeActions", "compute_actions"),
        ("learn_on_batches", "learn_on_batch"),
    ],
)
def test_a_misspelt_hook_is_a_warning_once_per_class(name, meant, recwarn):
    kind = type("Mine", (PPOPolicy,), {name: lambda self, *_: None})
    for _ in range(2):
        kind({"seed": 0}, BOX, DISCRETE)
    type("Derived", (kind,), {})({"seed": 0}, BOX, DISCRETE)
    assert [str(it.message) for it in recwarn] == [f"Mine defines {name!r}, which nothing calls: did you mean {meant!r}?"]


def test_so_is_a_misspelt_class_attribute():
    with pytest.warns(UserWarning, match="Mine defines 'learn_from', which nothing reads: did you mean 'learns_from'"):
        made(learn_from="transitions")


def test_helpers_with_other_names_or_callers_are_no_warning():
    class WithHelpers(DQNPolicy):
        scale, losses = 2, ()

        def stat(self):
            return {"mine": 1.0}

        def stats(self, batch):
            return {**super().stats(batch), **self.stat()}

        def _gradient(self):
            return None

    class Overriding(WithHelpers):
        def stat(self):
            return {"mine": 2.0}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Overriding({"seed": 0}, BOX, DISCRETE)


@pytest.mark.parametrize("name", ["learns_from", "loss_takes"])
@pytest.mark.parametrize("value", ["rollout", None])
def test_a_value_that_does_not_exist_is_refused(name, value):
    with pytest.raises(ValueError, match=rf'Mine.{name} is {value!r}: set it to "rollouts" or "transitions"'):
        made(Policy, **{name: value})
