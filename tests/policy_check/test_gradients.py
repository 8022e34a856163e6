"""A loss must reach weights that an optimizer changes, and the networks that it reaches must have an optimizer."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite import policy as algorithms
from ding_lite.envs import SpaceError
from ding_lite.policy_base import Policy, build_policy
from ding_lite.policy_check import HookError

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


class Mine(Policy):
    """Has a network beside its model, and perhaps an optimizer for it."""

    held = staticmethod(lambda network: {"beside": network})

    def before_loss_init(self):
        super().before_loss_init()
        self.network = nn.Linear(4, 1)
        vars(self).update(self.held(vars(self).pop("network")))

    def loss(self, batch):
        return self.model.values(batch.obs).mean() + self.used(batch)

    def used(self, batch):
        beside = self.beside
        while not isinstance(beside, nn.Module):
            beside = beside["a"] if isinstance(beside, dict) else beside[0]
        return beside(batch.obs).mean()


def made(**attributes):
    return type("Mine", (Mine,), attributes)({"seed": 0}, BOX, DISCRETE)


def adam(network):
    return torch.optim.Adam(network.parameters())


@pytest.mark.parametrize("holder", [lambda it: it, lambda it: [it], lambda it: {"a": (it,)}])
def test_a_network_that_no_optimizer_trains_is_a_warning_by_the_name_of_its_attribute(holder, recwarn):
    policy = made(held=staticmethod(lambda network: {"beside": holder(network)}))
    assert policy.attachments is not None  # a state that was saved before refers to the network too
    policy.dry_run()
    (message,) = [str(each.message) for each in recwarn]
    assert message.startswith("the loss of Mine depends on weights of self.beside, which no optimizer changes")
    assert "what make_model returns" in message


@pytest.mark.parametrize(
    "held",
    [
        lambda network: {"beside": network, "own": adam(network)},
        lambda network: {"beside": network, "own": [adam(network)]},
        lambda network: {"beside": network, "own": SimpleNamespace(own=adam(network))},
        lambda network: {"beside": network.requires_grad_(False)},
    ],
)
def test_a_network_with_an_optimizer_or_without_gradients_is_no_warning(held):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(held=staticmethod(held)).dry_run()


def test_a_network_that_the_loss_does_not_reach_is_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(used=lambda self, batch: 0).dry_run()


@pytest.mark.filterwarnings("ignore:the loss of Mine depends on weights of self.beside")
def test_a_loss_that_reaches_no_weight_of_an_optimizer_is_refused():
    with pytest.raises(HookError, match="loss of Mine does not depend on any parameter that the optimizer changes"):
        made(loss=Mine.used).dry_run()


def test_a_loss_whose_gradient_is_zero_is_accepted():
    made(loss=lambda self, batch: 0 * self.model.values(batch.obs).mean()).dry_run()


def test_gradients_of_an_earlier_step_do_not_count():
    policy = made(loss=Mine.used, held=staticmethod(lambda network: {"beside": network}))
    for param in policy.params:
        param.grad = torch.zeros_like(param)
    with pytest.raises(HookError, match="does not depend on any parameter"):
        policy.dry_run()


def test_a_hook_may_take_the_step_itself_and_delete_the_gradients():
    def compute_gradients(self, loss):
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {}

    made(used=lambda self, batch: 0, compute_gradients=compute_gradients).dry_run()


def test_gradients_that_a_function_returns_count():
    def gradients_fn(policy, optimizer, loss):
        return zip(torch.autograd.grad(loss, policy.params, allow_unused=True), policy.params, strict=True)

    def loss_fn(policy, model, dist_class, batch):
        return model.values(batch.obs).mean()

    build_policy("Given", loss_fn=loss_fn, gradients_fn=gradients_fn)({"seed": 0}, BOX, DISCRETE).dry_run()


ALGORITHMS = sorted(
    {it for it in vars(algorithms).values() if isinstance(it, type) and issubclass(it, Policy) and it.loss is not Policy.loss},
    key=lambda kind: kind.__name__,
)


@pytest.mark.few
@pytest.mark.parametrize("actions", [DISCRETE, BOX], ids=["discrete", "continuous"])
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_no_algorithm_gives_a_warning(kind, actions):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            policy = kind({"seed": 0}, BOX, actions)
        except SpaceError:
            return
        policy.dry_run()
    assert policy.columns
