"""AWAC against its equations row by row, and the weight of good and bad actions."""

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
    discount_of,
    in_double_precision,
    normal_log_density,
    outputs,
    q_values,
    twin,
    weight_of,
)

from ding_lite.data import tree
from ding_lite.policy import AWACPolicy

GAMMA, LAMBDA, LIMIT = 0.8, 0.4, 1.05
SETTINGS = {"seed": 0, "model.encoder_hidden_size_list": [8], "discount_factor": GAMMA}
SETTINGS |= {"learn.awac_lambda": LAMBDA, "learn.max_weight": LIMIT}


def made(**settings):
    policy = in_double_precision(AWACPolicy({**SETTINGS, **settings}, OBS, ACTIONS))
    policy.model.actor.log_std.data.copy_(torch.tensor([-0.7, 0.2]))
    return policy


def drawn(policy, obs, noise):
    """The action of the actor for this noise."""
    parts = zip(outputs(policy.model.actor.network, obs), policy.model.actor.log_std.tolist(), noise.tolist(), strict=True)
    found = [min(max(math.tanh(mean) + math.exp(log_std) * one, -1.0), 1.0) for mean, log_std, one in parts]
    return torch.tensor(found, dtype=torch.float64)


def lowest(critic, obs, unit):
    return min(q_values(critic.critics, k, obs, unit)[0] for k in (0, 1))


@pytest.mark.few
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_losses_match_their_equations_row_by_row(kind, seed):
    policy, batch = made(), box_rows(kind, seed)
    g, n = twin(policy.generator), len(batch["reward"])
    next_noise, noise = (torch.randn(n, 2, generator=g, dtype=torch.float64) for _ in range(2))
    critic, actor, advantages = [], [], []
    for i in range(n):
        obs, next_obs, unit = batch["obs"][i], batch["next_obs"][i], (batch["action"][i] - MIDDLE) / 2
        future = lowest(policy.target_model, next_obs, drawn(policy, next_obs, next_noise[i]))
        target = batch["reward"][i].item() + discount_of(batch, i, GAMMA) * future
        errors = [target - q_values(policy.model.critic.critics, k, obs, unit)[0] for k in (0, 1)]
        critic.append(weight_of(batch, i) * (errors[0] ** 2 + errors[1] ** 2) / 2)
        own = drawn(policy, obs, noise[i])
        advantages.append(lowest(policy.model.critic, obs, unit) - lowest(policy.model.critic, obs, own))
        parts = zip(unit.tolist(), outputs(policy.model.actor.network, obs), policy.model.actor.log_std.tolist(), strict=True)
        log_prob = sum(normal_log_density(one, math.tanh(mean), math.exp(log_std)) for one, mean, log_std in parts)
        actor.append(-weight_of(batch, i) * min(math.exp(advantages[-1] / LAMBDA), LIMIT) * log_prob)
    loss, stats = policy.loss(tree(batch))

    limited = np.mean([math.exp(advantage / LAMBDA) >= LIMIT for advantage in advantages])
    np.testing.assert_allclose(stats["limited_share"], limited)
    found = [stats["critic_loss"], stats["actor_loss"], loss.item(), stats["advantage"]]
    wanted = [np.mean(critic), np.mean(actor), np.mean(critic) + np.mean(actor), np.mean(advantages)]
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    assert ("priority" in stats) == ("weight" in batch)
    assert not any(stat.requires_grad for stat in stats.values())


def test_the_limit_of_weights_matters_in_the_test_above():
    free, batch = made(**{"learn.max_weight": 1e9}), tree(box_rows())

    assert free.loss(batch)[1]["actor_loss"].item() != made().loss(batch)[1]["actor_loss"].item()


def test_each_loss_has_gradients_for_its_own_part_alone():
    policy, batch = made(), tree(box_rows())
    q_value = policy.model.critic(batch.obs, policy.model.bounds.to_unit(batch.action))
    losses = {
        "critic": policy.critic_loss(q_value, batch)[0],
        "actor": policy.actor_loss(q_value.detach().amin(0), batch)[0],
    }
    for learning, loss in losses.items():
        loss.backward()
        for name in losses:
            has_gradient = [param.grad is not None for param in getattr(policy.model, name).parameters()]
            assert all(has_gradient) if name == learning else not any(has_gradient)
        for param in policy.params:
            param.grad = None
    policy.loss(batch)[0].backward()
    assert all(param.grad is not None for param in policy.params)


def test_it_prefers_the_better_action_of_the_data_although_it_is_rarer():
    settings = {"seed": 0, "model.encoder_hidden_size_list": [32], "learn.learning_rate": 0.02}
    policy, imitation = (AWACPolicy({**settings, "learn.awac_lambda": it}, BANDIT_OBS, BANDIT_BOX) for it in (0.2, 1e6))
    for step in range(75):
        for one in (policy, imitation):
            one.learn_mode.forward(tree(bandit(False, seed=step)))

    assert (policy.eval_mode.forward(STATES)[0] * STATES > 0.3).all()
    assert (imitation.eval_mode.forward(STATES)[0] * STATES < 0).all()
