"""TD3+BC against its equation row by row; its critics are those of TD3."""

import math

import numpy as np
import pytest
import torch
from dataset_rows import (
    ACTIONS,
    BANDIT_BOX,
    BANDIT_OBS,
    KINDS,
    MIDDLE,
    OBS,
    STATES,
    bandit,
    box_rows,
    in_double_precision,
    outputs,
    q_values,
    weight_of,
)

from ding_lite.data import tree
from ding_lite.policy import TD3BCPolicy, TD3Policy

SETTINGS = {"seed": 0, "model.encoder_hidden_size_list": [8], "model.normalize_obs": False}


def made(**settings):
    return in_double_precision(TD3BCPolicy({**SETTINGS, **settings}, OBS, ACTIONS))


@pytest.mark.few
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seed", "alpha"), [(0, 2.5), (1, 0.4), (2, 0.0)])
def test_the_loss_of_the_actor_matches_its_equation_row_by_row(kind, seed, alpha):
    policy, batch = made(**{"learn.bc_alpha": alpha}), box_rows(kind, seed)
    values, errors, weights = [], [], []
    for i in range(len(batch["reward"])):
        unit = [math.tanh(one) for one in outputs(policy.model.actor.network, batch["obs"][i])]
        inputs = batch["obs"][i], torch.tensor(unit, dtype=torch.float64)
        values.append(q_values(policy.model.critic.critics, 0, *inputs)[0])
        weights.append(weight_of(batch, i))
        errors += [
            weights[-1] * (one - other) ** 2
            for one, other in zip(unit, ((batch["action"][i] - MIDDLE) / 2).tolist(), strict=True)
        ]
    wanted = -alpha / np.mean(np.abs(values)) * np.mean(np.multiply(weights, values)) + np.mean(errors)

    np.testing.assert_allclose(policy.actor_loss(tree(batch)).item(), wanted, rtol=1e-11)


def test_the_scale_of_the_value_takes_no_gradient():
    policy, batch = made(), tree(box_rows(n=1))
    policy.actor_loss(batch).backward()
    found = [param.grad.clone() for param in policy.model.actor.parameters()]
    unit = policy.model.actor(batch.obs)
    value = policy.model.critic(batch.obs, unit, frozen=True)[0]
    imitation = (unit - policy.model.bounds.to_unit(batch.action)).square().mean()
    wanted = torch.autograd.grad(imitation - 2.5 / abs(value.item()) * value.mean(), list(policy.model.actor.parameters()))

    torch.testing.assert_close(found, list(wanted))


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_the_critics_is_that_of_td3(kind):
    policy, td3, batch = made(), in_double_precision(TD3Policy(SETTINGS, OBS, ACTIONS)), tree(box_rows(kind))

    assert torch.equal(policy.critic_loss(batch)[0], td3.critic_loss(batch)[0])


def test_observations_are_normalised_unless_it_is_turned_off():
    assert TD3BCPolicy({"seed": 0}, OBS, ACTIONS).model.normalizer is not None
    assert made().model.normalizer is None


def test_the_value_moves_the_actor_away_from_imitation_towards_the_better_action():
    settings = {"seed": 0, "model.encoder_hidden_size_list": [32], "learn.learning_rate": 0.02}
    policy, imitation = (TD3BCPolicy({**settings, "learn.bc_alpha": it}, BANDIT_OBS, BANDIT_BOX) for it in (10.0, 0.0))
    for step in range(75):
        for one in (policy, imitation):
            one.learn_mode.forward(tree(bandit(False, seed=step)))

    assert (policy.eval_mode.forward(STATES)[0] * STATES > 0.3).all()
    np.testing.assert_allclose(imitation.eval_mode.forward(STATES)[0] * STATES, -0.2, atol=0.1)  # the mean of the data
