"""Learning rate schedulers of torch add settings to parameter groups; a state with them, or without, can be continued."""

import inspect
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from ding_lite.data import tree
from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.policy import DQNPolicy
from ding_lite.policy_state import StateDictError

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


def parts(optimizer):
    return [lr_scheduler.ConstantLR(optimizer, 0.1, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)]


SCHEDULERS = {
    "LambdaLR": lambda it: lr_scheduler.LambdaLR(it, lambda step: 0.9**step),
    "MultiplicativeLR": lambda it: lr_scheduler.MultiplicativeLR(it, lambda step: 0.9),
    "StepLR": lambda it: lr_scheduler.StepLR(it, 2),
    "MultiStepLR": lambda it: lr_scheduler.MultiStepLR(it, [2, 4]),
    "ConstantLR": lambda it: lr_scheduler.ConstantLR(it, total_iters=4),
    "LinearLR": lambda it: lr_scheduler.LinearLR(it),
    "ExponentialLR": lambda it: lr_scheduler.ExponentialLR(it, 0.9),
    "PolynomialLR": lambda it: lr_scheduler.PolynomialLR(it, 8),
    "CosineAnnealingLR": lambda it: lr_scheduler.CosineAnnealingLR(it, 4),
    "CosineAnnealingWarmRestarts": lambda it: lr_scheduler.CosineAnnealingWarmRestarts(it, 2),
    "CyclicLR": lambda it: lr_scheduler.CyclicLR(it, 1e-4, 1e-2, 2),
    "OneCycleLR": lambda it: lr_scheduler.OneCycleLR(it, 1e-2, 20),
    "ReduceLROnPlateau": lambda it: lr_scheduler.ReduceLROnPlateau(it, patience=1),
    "SequentialLR": lambda it: lr_scheduler.SequentialLR(it, parts(it), [2]),
    "ChainedScheduler": lambda it: lr_scheduler.ChainedScheduler(parts(it), it),
    "SWALR": lambda it: SWALR(it, swa_lr=0.05, anneal_epochs=4),
}


class Scheduled(DQNPolicy):
    """With a scheduler of torch for the optimizer, and one for an optimizer of its own."""

    make = staticmethod(SCHEDULERS["OneCycleLR"])

    def after_init(self):
        super().after_init()
        self.net = nn.Linear(4, 1)
        self.optimizers = [self.optimizer, torch.optim.Adam(self.net.parameters())]
        self.schedulers = [self.make(it) for it in self.optimizers]
        self.keep()

    def keep(self):
        for number, scheduler in enumerate(self.schedulers):
            self.attach(f"scheduler/{number}", scheduler)

    def after_step(self):
        super().after_step()
        self.optimizers[1].zero_grad()
        self.net(torch.ones(1, 4)).square().sum().backward()
        self.optimizers[1].step()
        for it in self.schedulers:
            it.step(*([1.0] if isinstance(it, lr_scheduler.ReduceLROnPlateau) else []))


class InOwnState(Scheduled):
    def keep(self):
        """They are in the state of the policy instead."""

    def state_dict(self):
        return {**super().state_dict(), "schedulers": [it.state_dict() for it in self.schedulers]}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        for scheduler, it in zip(self.schedulers, state["schedulers"]):
            scheduler.load_state_dict(it)


class InMakeOptimizer(Scheduled):
    def make_optimizer(self, params):
        optimizer = super().make_optimizer(params)
        self.first = self.make(optimizer)
        return optimizer

    def keep(self):
        self.schedulers[0] = self.first
        super().keep()


class Unscheduled(Scheduled):
    def after_init(self):
        self.make = lambda optimizer: None
        super().after_init()

    def keep(self):
        self.schedulers = []


class OnFirstUse(Unscheduled):
    """Makes its schedulers after a state is loaded."""

    def after_step(self):
        if not self.schedulers:
            self.schedulers = [lr_scheduler.OneCycleLR(it, 1e-2, 20) for it in self.optimizers]
            Scheduled.keep(self)
        super().after_step()


def rows(n=6):
    zeros = torch.zeros(n)
    columns = {"obs": torch.ones(n, 4), "next_obs": torch.ones(n, 4), "action": torch.arange(n) % 3, "reward": zeros + 1}
    return tree({**columns, "terminated": zeros.bool(), "truncated": zeros.bool()})


def made(kind, seed=0):
    return kind({"seed": seed, "lr": 1e-3}, BOX, DISCRETE)


def learn(policy, steps):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        for _ in range(steps):
            policy.learn_mode.forward(rows())
    return policy


def settings(policy):
    return [{name: it for name, it in one.param_groups[0].items() if name != "params"} for one in policy.optimizers]


def test_every_scheduler_of_torch_is_tested():
    kinds = {
        it.__name__ for it in vars(lr_scheduler).values() if inspect.isclass(it) and issubclass(it, lr_scheduler.LRScheduler)
    }
    assert kinds - {"LRScheduler", "_LRScheduler"} <= SCHEDULERS.keys()


@pytest.mark.few
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, Scheduled) for name in SCHEDULERS]
    + [(name, kind) for name in ("CyclicLR", "OneCycleLR") for kind in (InOwnState, InMakeOptimizer)],
)
def test_a_policy_with_a_scheduler_goes_on_as_if_it_had_not_stopped(name, kind, tmp_path):
    kind = type(kind.__name__, (kind,), {"make": staticmethod(SCHEDULERS[name])})
    policy = learn(made(kind), 3)
    save_checkpoint(policy.state_dict(), tmp_path / "policy.pt")
    again = made(kind, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no setting differs
        again.load_state_dict(load_checkpoint(tmp_path / "policy.pt"))

    assert settings(again) == settings(policy)
    for one in (policy, again):
        learn(one, 3)
    assert settings(again) == settings(policy)
    assert all(torch.equal(*pair) for pair in zip(policy.params, again.params))
    assert torch.equal(policy.net.weight, again.net.weight)


@pytest.mark.few
@pytest.mark.parametrize(("saved", "loads"), [(OnFirstUse, OnFirstUse), (Scheduled, Unscheduled), (Unscheduled, Scheduled)])
def test_what_a_scheduler_adds_may_be_missing_on_either_side(saved, loads):
    state, again = learn(made(saved), 3).state_dict(), made(loads, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_state_dict({**state, "made_with": again.made_with})

    given = state["optimizer"]["param_groups"][0]
    assert again.optimizer.param_groups[0]["lr"] == given["lr"]
    learn(again, 3)


def test_a_setting_of_another_optimizer_is_still_refused():
    state, again = learn(made(Scheduled), 1).state_dict(), made(Scheduled)
    state["optimizer"]["param_groups"][0]["nesterov"] = False
    with pytest.raises(StateDictError, match="has 'nesterov', which Adam does not have: it was saved by another optimizer"):
        again.load_state_dict(state)
