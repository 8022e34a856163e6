"""The dueling head against its equation, and ensembles of Q-networks against their members."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.nn import DuelingHead, make_q_ensemble, seeded


@pytest.mark.parametrize("lead", [(6,), (4, 3), ()])
@pytest.mark.parametrize("num_actions", [1, 2, 5])
def test_the_dueling_head_matches_its_equation(num_actions, lead):
    with seeded(0):
        head, features = DuelingHead(7, num_actions).double(), torch.randn(*lead, 7, dtype=torch.float64)
    value_weight, value_bias, weight, bias = (param.detach().numpy() for param in head.parameters())
    value = features.numpy() @ value_weight.T + value_bias
    advantage = features.numpy() @ weight.T + bias
    expected = value + advantage - advantage.sum(-1, keepdims=True) / num_actions

    np.testing.assert_allclose(head(features).detach(), expected, rtol=1e-12, atol=1e-13)


def test_the_mean_over_actions_is_the_value_of_the_state():
    with seeded(0):
        head, features = DuelingHead(7, 5).double(), torch.randn(6, 7, dtype=torch.float64)

    torch.testing.assert_close(head(features).mean(-1, keepdim=True), head.value(features), rtol=1e-12, atol=1e-13)


def test_an_ensemble_of_q_networks_gives_the_values_of_each_member():
    with seeded(0):
        ensemble, obs = make_q_ensemble(spaces.Box(-1, 1, (4,)), 3, [8], count=2), torch.randn(6, 4)
    found = ensemble(obs)
    for k in range(2):
        (first, last), (first_bias, last_bias) = ensemble.critics.weights, ensemble.critics.biases
        hidden = (obs @ first[k].T + first_bias[k]).clamp(min=0)
        torch.testing.assert_close(found[k], hidden @ last[k].T + last_bias[k])
