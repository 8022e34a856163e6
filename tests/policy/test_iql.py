"""IQL against its equations row by row, for both kinds of actions, and the weight of good and bad actions."""

import math

import numpy as np
import pytest
import torch
from dataset_rows import (
    ACTIONS,
    BANDIT_BOX,
    BANDIT_DISCRETE,
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
    weight_of,
)
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.envs import SpaceError
from ding_lite.nn import GaussianActor
from ding_lite.nn.box_actor_critics import GAUSSIAN_LOG_STD_RANGE
from ding_lite.policy import DiscreteIQLPolicy, IQLPolicy

GAMMA, EXPECTILE, BETA, LIMIT = 0.8, 0.8, 2.0, 1.1
DISCRETE = spaces.Discrete(3, start=2)
SETTINGS = {"seed": 0, "model.encoder_hidden_size_list": [8], "discount_factor": GAMMA, "learn.beta": BETA}
SETTINGS |= {"learn.expectile": EXPECTILE, "learn.max_weight": LIMIT}
each = pytest.mark.parametrize("discrete", [False, True], ids=["box", "discrete"])


def made(discrete, double_precision=True, **settings):
    policy = (DiscreteIQLPolicy if discrete else IQLPolicy)({**SETTINGS, **settings}, OBS, DISCRETE if discrete else ACTIONS)
    if double_precision:
        in_double_precision(policy)
        if not discrete:
            policy.model.actor.log_std.data.copy_(torch.tensor([-0.7, 0.2]))
            policy.model.value.network.layers[-1].bias.data.sub_(1.0)  # so that some weights reach the limit
    return policy


def rows(discrete, kind="mixed", seed=0, **options):
    batch = box_rows(kind, seed, **options)
    if discrete:
        batch["action"] = torch.arange(len(batch["reward"])) % 3 + 2
    return batch


def row_by_definition(policy, discrete, batch, i):
    """Q and target Q of each critic, V(s), V(s') and log pi(a|s)."""
    obs, next_obs, model = batch["obs"][i], batch["next_obs"][i], policy.model
    if discrete:
        index, critic = batch["action"][i].item() - 2, model.q_critic
        online, target = ([q_values(net.critics, k, obs)[index] for k in (0, 1)] for net in (critic, policy.target_model))
        logit = outputs(model.actor, obs)
        log_prob = logit[index] - math.log(sum(math.exp(one) for one in logit))
        return online, target, outputs(model.critic, obs)[0], outputs(model.critic, next_obs)[0], log_prob
    unit = (batch["action"][i] - MIDDLE) / 2
    online, target = ([q_values(net.critics, k, obs, unit)[0] for k in (0, 1)] for net in (model.critic, policy.target_model))
    parts = zip(unit.tolist(), outputs(model.actor.network, obs), model.actor.log_std.tolist(), strict=True)
    log_prob = sum(normal_log_density(one, math.tanh(mean), math.exp(log_std)) for one, mean, log_std in parts)
    return online, target, outputs(model.value.network, obs)[0], outputs(model.value.network, next_obs)[0], log_prob


@pytest.mark.few
@each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_the_losses_match_their_equations_row_by_row(discrete, kind, seed):
    policy, batch = made(discrete), rows(discrete, kind, seed)
    losses = {"value_loss": [], "critic_loss": [], "actor_loss": []}
    weights, priority = [], []
    for i in range(len(batch["reward"])):
        online, target, value, next_value, log_prob = row_by_definition(policy, discrete, batch, i)
        advantage, weight = min(target) - value, weight_of(batch, i)
        weights.append(min(math.exp(BETA * advantage), LIMIT))
        losses["value_loss"].append(weight * (1 - EXPECTILE if advantage < 0 else EXPECTILE) * advantage**2)
        errors = [batch["reward"][i].item() + discount_of(batch, i, GAMMA) * next_value - one for one in online]
        losses["critic_loss"].append(weight * (errors[0] ** 2 + errors[1] ** 2) / 2)
        losses["actor_loss"].append(-weight * weights[-1] * log_prob)
        priority.append((abs(errors[0]) + abs(errors[1])) / 2)
    loss, stats = policy.loss(tree(batch))

    for name, wanted in losses.items():
        np.testing.assert_allclose(stats[name], np.mean(wanted), rtol=1e-10)
    np.testing.assert_allclose(stats["limited_share"], np.mean([it == LIMIT for it in weights]))
    np.testing.assert_allclose(loss.item(), sum(np.mean(wanted) for wanted in losses.values()), rtol=1e-10)
    np.testing.assert_allclose(stats.get("priority", priority), priority, rtol=1e-10)
    assert ("priority" in stats) == ("weight" in batch)
    assert not any(stat.requires_grad for stat in stats.values())


@each
def test_the_limit_of_weights_matters_in_the_test_above(discrete):
    free = made(discrete, **{"learn.max_weight": 1e9}).loss(tree(rows(discrete)))[1]

    assert free["actor_loss"].item() != made(discrete).loss(tree(rows(discrete)))[1]["actor_loss"].item()


@each
@pytest.mark.parametrize("part", ["value", "critic", "actor"])
def test_each_loss_has_gradients_for_its_own_part_alone(discrete, part):
    """The gradients of the sum, with the parameters of the other parts replaced by constants, are the same."""
    policy, batch = made(discrete), tree(rows(discrete))
    groups = {name: list(params) for name, (params, _) in policy.param_groups().items()}
    policy.loss(batch)[0].backward()
    wanted = [param.grad.clone() for param in groups[part]]
    for name, params in groups.items():
        for param in params:
            param.grad = None
            param.requires_grad_(name == part)
    policy.loss(batch)[0].backward()

    assert {id(param) for params in groups.values() for param in params} == {id(param) for param in policy.params}
    for param, gradient in zip(groups[part], wanted, strict=True):
        assert torch.equal(param.grad, gradient)
    assert all(param.grad is None for name, params in groups.items() for param in params if name != part)
    assert all(param.grad is None for param in policy.target_model.parameters())


def test_expectiles_go_from_the_mean_to_the_maximum_of_the_data():
    values = {}
    for expectile in (0.5, 0.95):
        policy = IQLPolicy(
            {"seed": 0, "model.encoder_hidden_size_list": [16], "learn.expectile": expectile, "learn.learning_rate": 0.02},
            BANDIT_OBS,
            BANDIT_BOX,
        )
        policy.cfg.learn.target_update_theta = 0.2
        for step in range(75):
            policy.learn_mode.forward(tree(bandit(False, seed=step)))
        values[expectile] = policy.model.value(torch.from_numpy(STATES)).mean().item()

    assert 0.2 < values[0.5] < 0.4 < 0.75 < values[0.95] < 1.05  # the better action has reward 1, and a share of 0.3


@each
def test_it_prefers_the_better_action_of_the_data_although_it_is_rarer(discrete):
    settings = {"seed": 0, "model.encoder_hidden_size_list": [32], "learn.learning_rate": 0.02, "learn.beta": 5.0}
    settings["learn.target_update_theta"] = 0.2
    kind, space = (DiscreteIQLPolicy, BANDIT_DISCRETE) if discrete else (IQLPolicy, BANDIT_BOX)
    policy, imitation = (kind({**settings, "learn.beta": beta}, BANDIT_OBS, space) for beta in (5.0, 0.0))
    for step in range(75):
        for one in (policy, imitation):
            one.learn_mode.forward(tree(bandit(discrete, seed=step)))
    found, imitated = (one.eval_mode.forward(STATES)[0] for one in (policy, imitation))

    if discrete:
        assert (found.tolist(), imitated.tolist()) == ([0, 1], [1, 0])
    else:
        assert (found * STATES > 0.3).all()
        assert (imitated * STATES < 0).all()


def test_the_standard_deviation_stays_in_its_range_and_comes_back():
    policy = made(False, double_precision=False, **{"learn.learning_rate": 0.5})
    low, high = GAUSSIAN_LOG_STD_RANGE
    batch, log_std = rows(False, dtype=torch.float32), policy.model.actor.log_std
    log_std.data.fill_(low)
    exact = policy.model.bounds(policy.model.actor(batch["obs"])[0].detach())
    policy.learn_mode.forward(tree({**batch, "action": exact}))  # a narrower Gaussian would be more likely
    assert torch.equal(log_std, torch.full_like(log_std, low))

    policy.learn_mode.forward(tree(batch))
    assert (log_std > low).all()
    log_std.data.fill_(9.0)
    policy.model.actor.limit_log_std_()
    assert torch.equal(log_std, torch.full_like(log_std, high))


def test_evaluating_takes_the_mean_and_exploring_draws_around_it():
    policy = made(False, double_precision=False)
    policy.model.actor.log_std.data.fill_(-1.5)
    policy.bump_version()
    obs = np.tile(np.array([[0.3, -0.2, 0.1]], np.float32), (4000, 1))
    mean = policy.model.actor(torch.from_numpy(obs[:1]))[0].detach().numpy()
    unit = (policy.collect_mode.forward(obs)[0] - MIDDLE.numpy()) / 2

    np.testing.assert_allclose(policy.eval_mode.forward(obs[:1])[0], 2 * mean + MIDDLE.numpy(), rtol=1e-5)
    np.testing.assert_allclose(unit.mean(0), mean[0], atol=0.02)
    np.testing.assert_allclose(unit.std(0), math.exp(-1.5), rtol=0.05)
    assert isinstance(policy.model.actor, GaussianActor)


@pytest.mark.parametrize("space", [ACTIONS, spaces.MultiDiscrete([2, 3])])
def test_other_actions_are_refused_with_what_takes_them(space):
    with pytest.raises(SpaceError, match="DiscreteIQLPolicy wants Discrete actions, got .*: use BCPolicy .*IQLPolicy"):
        DiscreteIQLPolicy(None, OBS, space)


def test_an_action_that_a_mask_does_not_allow_has_no_probability():
    space = spaces.Dict(x=OBS, action_mask=spaces.MultiBinary(3))
    policy = DiscreteIQLPolicy(SETTINGS, space, DISCRETE)
    mask = np.tile(np.array([[0, 1, 1], [1, 0, 1]], np.int8), (50, 1))
    action = policy.collect_mode.forward({"x": np.zeros((100, 3), np.float32), "action_mask": mask})[0]

    assert set(action[::2].tolist()) == {3, 4}
    assert set(action[1::2].tolist()) == {2, 4}
