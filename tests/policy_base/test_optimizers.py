"""The settings of optimizers, against torch's own with these settings; and those without effect."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.policy import DQNPolicy, SACPolicy
from ding_lite.policy_base import Policy, build_policy, clip_gradients

OBS, DISCRETE, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)


def loss_fn(policy, model, dist_class, batch):
    return (model.values(batch.obs) - batch.reward).square().mean()


def rows(seed):
    g = torch.Generator().manual_seed(seed)
    return {"obs": torch.randn(6, 3, generator=g), "reward": torch.randn(6, generator=g)}


@pytest.mark.parametrize(
    ("settings", "make"),
    [
        ({}, lambda params: torch.optim.Adam(params, lr=0.01)),
        ({"optimizer_eps": 0.1}, lambda params: torch.optim.Adam(params, lr=0.01, eps=0.1)),
        ({"optimizer": "rmsprop"}, lambda params: torch.optim.RMSprop(params, lr=0.01, alpha=0.99, eps=1e-5)),
        (
            {"optimizer": "rmsprop", "optimizer_eps": 0.01, "rmsprop_decay": 0.9, "rmsprop_momentum": 0.5},
            lambda params: torch.optim.RMSprop(params, lr=0.01, alpha=0.9, eps=0.01, momentum=0.5),
        ),
    ],
    ids=["adam", "adam, eps", "rmsprop", "rmsprop, all"],
)
def test_they_are_those_of_torch(settings, make):
    config = {f"learn.{name}": value for name, value in settings.items()}
    config |= {"seed": 0, "lr": 0.01, "learn.grad_clip_norm": None}
    policy = build_policy("Fitting", loss_fn=loss_fn)(config, OBS, DISCRETE)
    model = policy.get_weights()
    other = build_policy("Fitting", loss_fn=loss_fn)(config, OBS, DISCRETE)
    other.set_weights(model)
    optimizer = make(other.params)
    for seed in range(3):
        policy.learn_mode.forward(tree(rows(seed)))
        loss = (other.model.values(rows(seed)["obs"]) - rows(seed)["reward"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for one, two in zip(policy.params, other.params, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_parts_with_rates_of_their_own_have_them_too():
    settings = {"optimizer": "rmsprop", "optimizer_eps": 0.01, "rmsprop_momentum": 0.5, "learning_rate_actor": 0.1}
    policy = SACPolicy({f"learn.{name}": value for name, value in settings.items()}, OBS, BOX)

    assert isinstance(policy.optimizer, torch.optim.RMSprop)
    assert [(group["lr"], group["eps"], group["momentum"]) for group in policy.optimizer.param_groups] == [
        (1e-3, 0.01, 0.5),
        (0.1, 0.01, 0.5),
    ]


def test_settings_of_the_other_optimizer_are_a_warning(recwarn):
    DQNPolicy({"learn.optimizer": "rmsprop", "learn.rmsprop_decay": 0.9}, OBS, DISCRETE)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"learn.rmsprop_decay = 0.9 has no effect: the optimizer is adam. .*set learn.optim"):
        DQNPolicy({"learn.rmsprop_decay": 0.9}, OBS, DISCRETE)


def test_settings_that_an_optimizer_of_ones_own_does_not_read_are_a_warning(recwarn):
    class Own(DQNPolicy):
        def make_optimizer(self, params):
            return torch.optim.SGD(params, lr=self.cfg.learn.learning_rate)

    class Reading(Own):
        def make_optimizer(self, params):
            return torch.optim.Adam(params, eps=self.cfg.learn.optimizer_eps)

    class Extending(DQNPolicy):
        def make_optimizer(self, params):
            return super().make_optimizer(params)

    def optimizer_fn(policy, config):
        return torch.optim.SGD(policy.params, lr=0.1)

    for kind in (Reading, Extending):
        kind({"learn.optimizer_eps": 1e-4}, OBS, DISCRETE)
    assert not recwarn.list
    for kind in (Own, DQNPolicy.with_updates("Own", optimizer_fn=optimizer_fn)):
        with pytest.warns(UserWarning, match=r"learn.optimizer = 'rmsprop' has no effect: Own makes its own optimizer"):
            kind({"learn.optimizer": "rmsprop"}, OBS, DISCRETE)
    assert issubclass(Own, Policy)


def with_gradients(scale, dtypes=(torch.float32, torch.float32)):
    g = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.zeros(size, dtype=dtype)) for size, dtype in zip((3, 4), dtypes)]
    for param in params:
        param.grad = scale * torch.randn(param.shape, generator=g, dtype=param.dtype)
    return [*params, torch.nn.Parameter(torch.zeros(2))]  # the last one has no gradient


NORM = float(torch.nn.utils.clip_grad_norm_(with_gradients(1.0), 1.0))


@pytest.mark.parametrize(
    "limit", [1e-3, 1.0, *(NORM * (1 + change) for change in (-1e-6, -1e-7, 0, 1e-7, 5e-7, 1e-6, 5e-4, 1e-2))]
)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30, float("inf"), float("nan")])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.float64, torch.float32)], ids=["one", "two"])
def test_gradients_are_clipped_as_by_torch(scale, limit, dtypes):
    ours, theirs = with_gradients(scale, dtypes), with_gradients(scale, dtypes)
    norm, expected = clip_gradients(iter(ours), limit), torch.nn.utils.clip_grad_norm_(theirs, limit)

    assert norm.numpy().tobytes() == expected.numpy().tobytes()
    assert [it.grad.numpy().tobytes() for it in ours[:2]] == [it.grad.numpy().tobytes() for it in theirs[:2]]
    assert clip_gradients(ours[2:], limit) == 0
