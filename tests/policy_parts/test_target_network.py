"""Target networks: what follows the online network, and how."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.data import tree
from ding_lite.nn import RunningNorm
from ding_lite.policy import DQNPolicy, DQNPolicyConfig, IQLPolicy, Policy, PPOPolicy, TargetNetworkMixin, TD3Policy

BOX, DISCRETE = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2)


class Normalising(DQNPolicy):
    def make_model(self):
        return nn.Sequential(RunningNorm((3,)), nn.Linear(3, 2))

    def loss(self, batch):
        self.model[0].update(batch.obs)
        return super().loss(batch)


@pytest.mark.parametrize(("theta", "freq"), [(1.0, 2), (0.1, 1)])
def test_running_statistics_are_copied_whenever_the_target_moves(theta, freq):
    settings = {"learn.target_update_theta": theta, "learn.target_update_freq": freq}
    policy, same = Normalising(settings, BOX, DISCRETE), []
    for _ in range(4):
        batch = {"obs": 5 + torch.randn(8, 3), "next_obs": torch.randn(8, 3), "action": torch.zeros(8, dtype=torch.int64)}
        policy.learn_mode.forward(tree({**batch, "reward": torch.ones(8), "terminated": torch.zeros(8, dtype=torch.bool)}))
        same.append(torch.equal(policy.target_model[0].mean, policy.model[0].mean))

    assert same == [(step + 1) % freq == 0 for step in range(4)]
    assert policy.target_model[0].mean.abs().min() > 1


@pytest.mark.parametrize("base", [Policy, PPOPolicy])
def test_a_configuration_without_the_settings_of_target_networks_is_refused_when_the_policy_is_made(base):
    with_target = type("WithTarget", (TargetNetworkMixin, base), {})
    with pytest.raises(
        TypeError, match=r"WithTarget has a target network, .*PolicyConfig, has no learn.target_update_freq: set"
    ):
        with_target(None, BOX, DISCRETE)
    with_target.config_type = DQNPolicyConfig
    if base is Policy:
        assert with_target(None, BOX, DISCRETE).target_model is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: DQNPolicy({"seed": 0}, BOX, DISCRETE),
        lambda: TD3Policy({"seed": 0, "model": {"normalize_obs": True}}, BOX, spaces.Box(-1, 1, (2,))),
        lambda: IQLPolicy({"seed": 0}, BOX, spaces.Box(-1, 1, (2,))),
    ],
)
def test_weights_that_are_set_are_those_of_the_target_network_too(make):
    policy, other = make(), make()
    with torch.no_grad():
        for weight in other.model.parameters():
            weight.normal_(generator=torch.Generator().manual_seed(7))
    policy.collect_mode.forward(np.zeros((1, 3), np.float32))
    policy.set_weights(other.get_weights())
    source, target = policy.target_source().state_dict(), policy.target_model.state_dict()
    assert all(torch.equal(target[name], source[name]) for name in target)

    before = {name: tensor.clone() for name, tensor in target.items()}
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(1)
    policy.bump_version()
    policy.collect_mode.forward(np.zeros((1, 3), np.float32))  # copies that act leave the target network alone
    policy.collect_mode.actor.set_weights(policy.get_weights())
    policy.load_state_dict({**policy.state_dict(), "target_model": before})
    assert all(torch.equal(policy.target_model.state_dict()[name], before[name]) for name in before)
