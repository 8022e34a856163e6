"""A mixin that gives a policy a critic: values of every row, and models that it refuses."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.data import tree
from ding_lite.policy_base import Policy, build_policy
from ding_lite.policy_parts import ValueNetworkMixin

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


def test_a_critic_judges_every_row_also_of_a_policy_that_was_built():
    kind = build_policy("Critic", loss_fn=lambda p, model, d, batch: model.values(batch.obs).mean(), mixins=[ValueNetworkMixin])
    policy = kind({"seed": 0}, BOX, DISCRETE)
    g = torch.Generator().manual_seed(0)
    obs, next_obs = torch.randn(2, 5, 3, 4, generator=g)
    terminated, truncated = torch.rand(2, 5, 3, generator=g) < 0.3
    for t in range(4):
        for b in range(3):
            if not (terminated[t, b] or truncated[t, b]):
                next_obs[t, b] = obs[t + 1, b]
    signals = {"reward": torch.zeros(5, 3), "terminated": terminated, "truncated": truncated}
    batch = policy.collect_mode.with_values(tree({"obs": obs, "next_obs": next_obs, **signals}))

    for t, b in np.ndindex(5, 3):
        torch.testing.assert_close(batch.value[t, b], policy.model.values(obs[t, b]).detach())
        if not terminated[t, b]:
            torch.testing.assert_close(batch.next_value[t, b], policy.model.values(next_obs[t, b]).detach())


def test_a_model_without_values_is_refused():
    def make_model(policy, observation_space, action_space, config):
        return nn.Linear(4, 3)

    kind = build_policy(
        "None_", loss_fn=lambda p, model, d, batch: model(batch.obs).mean(), make_model=make_model, mixins=[ValueNetworkMixin]
    )
    with pytest.raises(
        TypeError, match=r"None_ .*wants a model with values\(obs\), and make_model returns a Linear.*ActorCritic"
    ):
        kind(None, BOX, DISCRETE)


def test_a_policy_without_a_critic_says_which_would_have_one():
    with pytest.raises(TypeError, match="Policy has no critic.*ValueNetworkMixin"):
        Policy(None, BOX, DISCRETE).collect_mode.with_values(tree({"obs": torch.zeros(6, 4)}))
