"""CQL against its equations row by row: the penalty, its weight, the targets, and imitation at the start."""

import itertools
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
    twin,
    weight_of,
)
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.policy import CQLPolicy, DiscreteCQLPolicy, DQNPolicy, SACPolicy
from ding_lite.policy_state import StateDictError

GAMMA, N, MIN_Q_WEIGHT, ALPHA = 0.8, 3, 0.7, 0.3
SMALL = {"seed": 0, "model.encoder_hidden_size_list": [8], "discount_factor": GAMMA}


def made(double_precision=True, **settings):
    own = {"learn.num_actions": N, "learn.min_q_weight": MIN_Q_WEIGHT, "learn.alpha": ALPHA}
    policy = CQLPolicy({**SMALL, **own, **settings}, OBS, ACTIONS)
    return in_double_precision(policy) if double_precision else policy


def drawn(policy, obs, noise):
    """The action of the actor for this noise, and its log-density by the change of variables."""
    numbers, action, log_prob = outputs(policy.model.actor.network, obs), [], 0.0
    for mean, log_std, one in zip(numbers[:2], numbers[2:], noise.tolist(), strict=True):
        raw = mean + math.exp(log_std) * one
        action.append(math.tanh(raw))
        log_prob += normal_log_density(raw, mean, math.exp(log_std)) - math.log(1 - math.tanh(raw) ** 2)
    return torch.tensor(action, dtype=torch.float64), log_prob


def value(critic, k, obs, unit):
    return q_values(critic.critics, k, obs, unit)[0]


def losses_by_definition(policy, batch, penalty_weight=1.0, threshold=0.0):
    """The loss of the critics, and the mean gap of each critic, weighted as the loss is."""
    g, n, learn = twin(policy.generator), len(batch["reward"]), policy.cfg.learn
    next_noise = torch.randn(n, 2, generator=g, dtype=torch.float64)
    uniform = 2 * torch.rand(N, n, 2, generator=g, dtype=torch.float64) - 1
    here, there = (torch.randn(N, n, 2, generator=g, dtype=torch.float64) for _ in range(2))
    errors, gaps = [], [0.0, 0.0]
    for i in range(n):
        obs, next_obs = batch["obs"][i], batch["next_obs"][i]
        action, log_prob = drawn(policy, next_obs, next_noise[i])
        future = min(value(policy.target_model, k, next_obs, action) for k in (0, 1))
        future -= 0.0 if learn.deterministic_backup else ALPHA * log_prob
        target = batch["reward"][i].item() + discount_of(batch, i, GAMMA) * future
        unit, weight = (batch["action"][i] - MIDDLE) / 2, weight_of(batch, i) / n
        for k in (0, 1):
            taken = value(policy.model.critic, k, obs, unit)
            total = 0.0
            for j in range(N):
                total += math.exp(value(policy.model.critic, k, obs, uniform[j, i])) / 0.25  # the density on [-1, 1]^2
                for at, noise in ((obs, here), (next_obs, there)):
                    candidate, log_density = drawn(policy, at, noise[j, i])
                    total += math.exp(value(policy.model.critic, k, obs, candidate)) / math.exp(log_density)
            errors.append(weight * (target - taken) ** 2)
            gaps[k] += weight * (math.log(total) - taken)
    penalty = sum(penalty_weight * (learn.min_q_weight * gap - threshold) for gap in gaps)
    return (sum(errors) + penalty) / 2, gaps


@pytest.mark.few
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seed", "deterministic"), [(0, True), (1, False)])
def test_the_loss_of_the_critics_matches_its_equation_row_by_row(kind, seed, deterministic):
    policy, batch = made(**{"learn.deterministic_backup": deterministic}), box_rows(kind, seed)
    expected, gaps = losses_by_definition(policy, batch)
    loss, stats = policy.critic_loss(tree(batch), policy.model.log_alpha.detach().exp())

    np.testing.assert_allclose(loss.item(), expected, rtol=1e-6)  # the temperature is a float32 number
    if "weight" not in batch:
        np.testing.assert_allclose(stats["conservative_gap"], np.mean(gaps), rtol=1e-10)
    assert not any(stat.requires_grad for stat in stats.values())


@pytest.mark.parametrize("kind", ["mixed", "by priority"])
def test_with_a_threshold_the_loss_matches_its_equation_and_the_weight_has_a_loss_of_its_own(kind):
    policy, batch = made(**{"learn.lagrange_thresh": 2.5}), box_rows(kind)
    policy.model.log_penalty_weight.data.fill_(0.4)
    weight = math.exp(0.4)
    expected, gaps = losses_by_definition(policy, batch, weight, 2.5)
    excess = np.mean([MIN_Q_WEIGHT * gap - 2.5 for gap in gaps])
    loss, stats = policy.critic_loss(tree(batch), torch.tensor(ALPHA))
    loss.backward()

    np.testing.assert_allclose(loss.item(), expected - weight * excess, rtol=1e-10)
    np.testing.assert_allclose(policy.model.log_penalty_weight.grad, -weight * excess, rtol=1e-10)
    np.testing.assert_allclose(stats["penalty_weight"], weight, rtol=1e-12)
    assert all(param.grad is None for param in policy.model.actor.parameters())
    assert all(param.grad is not None for param in policy.model.critic.parameters())


@pytest.mark.parametrize(("threshold", "rises"), [(-50.0, True), (50.0, False)])
def test_the_weight_of_the_penalty_rises_where_the_gap_is_above_its_threshold(threshold, rises):
    policy = made(double_precision=False, **{"learn.lagrange_thresh": threshold})
    policy.learn_mode.forward(tree(box_rows(dtype=torch.float32)))

    assert (policy.model.log_penalty_weight.item() > 0) == rises


def test_without_a_threshold_there_is_no_weight_to_learn():
    policy = made()

    assert not hasattr(policy.model, "log_penalty_weight")
    assert set(policy.param_groups()) == {"critic", "actor", "alpha"}


def test_without_a_penalty_it_is_sac():
    zero = {"learn.min_q_weight": 0.0, "learn.deterministic_backup": False}
    policy, batch = made(**zero), tree(box_rows())
    sac = SACPolicy({**SMALL, "learn.alpha": ALPHA}, OBS, ACTIONS)
    in_double_precision(sac)
    alpha = torch.tensor(ALPHA, dtype=torch.float64)

    torch.testing.assert_close(policy.critic_loss(batch, alpha)[0], sac.critic_loss(batch, alpha)[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize(("seed", "kind"), [(0, KINDS[0]), (1, "mixed"), (0, "by priority")])
def test_in_its_first_steps_the_actor_imitates_actions_clipped_inside_of_the_bounds(seed, kind):
    policy, batch = made(**{"learn.bc_steps": 1}), box_rows(kind, seed=seed)
    noise = torch.randn(6, 2, generator=twin(policy.generator), dtype=torch.float64)
    losses = []
    for i in range(6):
        numbers = outputs(policy.model.actor.network, batch["obs"][i])
        likelihood = 0.0
        for mean, log_std, one in zip(numbers[:2], numbers[2:], ((batch["action"][i] - MIDDLE) / 2).tolist(), strict=True):
            inside = min(max(one, -1 + 1e-6), 1 - 1e-6)
            likelihood += normal_log_density(math.atanh(inside), mean, math.exp(log_std)) - math.log(1 - inside**2)
        losses.append(weight_of(batch, i) * (ALPHA * drawn(policy, batch["obs"][i], noise[i])[1] - likelihood))
    loss, _ = policy.actor_loss(tree(batch), torch.tensor(ALPHA, dtype=torch.float64))
    loss.backward()

    np.testing.assert_allclose(loss.item(), np.mean(losses), rtol=1e-8)
    assert all(param.grad.isfinite().all() for param in policy.model.actor.parameters())
    assert all(param.grad is None for param in policy.model.critic.parameters())


def test_imitation_ends_after_its_steps():
    policy, batch = made(double_precision=False, **{"learn.bc_steps": 2}), tree(box_rows(dtype=torch.float32))
    sac = SACPolicy({**SMALL, "learn.alpha": ALPHA}, OBS, ACTIONS)
    is_sac = []
    for _ in range(3):
        sac.model.load_state_dict(policy.model.state_dict())
        sac.generator.set_state(policy.generator.get_state())
        state, alpha = policy.generator.get_state(), torch.tensor(ALPHA)
        is_sac.append(torch.equal(policy.actor_loss(batch, alpha)[0], sac.actor_loss(batch, alpha)[0]))
        policy.generator.set_state(state)
        policy.learn_mode.forward(batch)

    assert is_sac == [False, False, True]


def test_the_weight_of_the_penalty_is_saved_and_learned_on_bit_for_bit(same):
    policy, other = (made(double_precision=False, seed=seed, **{"learn.lagrange_thresh": 1.0}) for seed in (0, 5))
    for seed in range(3):
        policy.learn_mode.forward(tree(box_rows(seed=seed, dtype=torch.float32)))
    other.load_state_dict(policy.state_dict())
    batch = tree(box_rows(seed=9, dtype=torch.float32))

    assert same(policy.learn_mode.forward(batch), other.learn_mode.forward(batch))
    assert same(policy.state_dict()["model"], other.state_dict()["model"])


# Discrete actions.


FIVE, THREE = spaces.Box(-1, 1, (5,)), spaces.Discrete(3, start=2)


def made_discrete(moved_apart, observation_space=FIVE, **settings):
    own = {"learn.min_q_weight": MIN_Q_WEIGHT}
    policy = moved_apart(DiscreteCQLPolicy({**SMALL, **own, **settings}, observation_space, THREE))
    policy.model.double(), policy.target_model.double()
    return policy


def row_of(obs, i):
    return {name: part[i : i + 1] for name, part in obs.items()} if isinstance(obs, dict) else obs[i : i + 1]


def discrete_loss_by_definition(policy, batch, allowed=None):
    """The loss, with the actions that each row and its next state allow; None for all."""
    losses = []
    for i in range(len(batch["reward"])):
        obs, next_obs = row_of(batch["obs"], i), row_of(batch["next_obs"], i)
        here, there = ((0, 1, 2), (0, 1, 2)) if allowed is None else (allowed[0][i], allowed[1][i])
        values, next_values = policy.model(obs)[0].tolist(), policy.model(next_obs)[0].tolist()
        best = max(there, key=lambda action: next_values[action])
        future = policy.target_model(next_obs)[0].tolist()[best]
        taken = values[batch["action"][i].item() - 2]
        error = abs(batch["reward"][i].item() + discount_of(batch, i, GAMMA) * future - taken)
        gap = math.log(sum(math.exp(values[action]) for action in here)) - taken
        losses.append(weight_of(batch, i) * ((error**2 / 2 if error < 1 else error - 0.5) + MIN_Q_WEIGHT * gap))
    return np.mean(losses)


@pytest.mark.parametrize("seed", range(2))
def test_the_discrete_loss_matches_its_equation_row_by_row(varied, seed, moved_apart):
    policy, batch = made_discrete(moved_apart), varied(start=2, seed=seed)
    loss, stats = policy.loss(tree(batch))

    np.testing.assert_allclose(loss.item(), discrete_loss_by_definition(policy, batch), rtol=1e-12)
    np.testing.assert_allclose(stats["loss"], loss.item(), rtol=1e-12)
    assert ("priority" in stats) == ("weight" in batch)
    assert not any(stat.requires_grad for stat in stats.values())


def test_the_penalty_leaves_out_actions_that_a_mask_does_not_allow(transitions, moved_apart):
    policy = made_discrete(moved_apart, spaces.Dict(x=FIVE, action_mask=spaces.MultiBinary(3)))
    batch, subsets = transitions(start=2), [rows for size in (1, 2, 3) for rows in itertools.combinations(range(3), size)]
    allowed = [[subsets[(i + shift) % 7] for i in range(12)] for shift in (0, 3)]
    batch["action"] = torch.tensor([rows[-1] + 2 for rows in allowed[0]])
    for name, rows in zip(("obs", "next_obs"), allowed, strict=True):
        mask = torch.tensor([[int(action in one) for action in range(3)] for one in rows], dtype=torch.int8)
        batch[name] = {"x": batch[name], "action_mask": mask}
    expected = discrete_loss_by_definition(policy, batch, allowed)

    np.testing.assert_allclose(policy.loss(tree(batch))[0].item(), expected, rtol=1e-12)


# Learning.


def test_it_prefers_the_better_action_of_the_data_and_gives_others_a_lower_value_than_dqn():
    found = {}
    for kind in (DiscreteCQLPolicy, DQNPolicy):
        own = {"learn.min_q_weight": 0.3} if kind is DiscreteCQLPolicy else {}
        settings = {"seed": 0, "model.encoder_hidden_size_list": [16], "learn.learning_rate": 0.01, **own}
        policy = kind(settings, BANDIT_OBS, BANDIT_DISCRETE)
        for step in range(120):
            policy.learn_mode.forward(tree(bandit(True, seed=step)))
        found[kind] = policy.model(torch.from_numpy(STATES)).detach().numpy()
        if kind is DiscreteCQLPolicy:
            np.testing.assert_array_equal(policy.eval_mode.forward(STATES)[0], [0, 1])

    assert (found[DiscreteCQLPolicy][:, 2] < found[DQNPolicy][:, 2] - 0.5).all()
    assert (found[DiscreteCQLPolicy][:, 2] < found[DiscreteCQLPolicy][:, :2].min(1)).all()


@pytest.mark.slow
def test_it_prefers_the_better_number_of_the_data_and_gives_others_a_lower_value_than_sac():
    found = {}
    for kind in (CQLPolicy, SACPolicy):
        settings = {"learn.num_actions": 4, "learn.min_q_weight": 1.0} if kind is CQLPolicy else {}
        rates = {"learn.learning_rate": 0.02, "learn.learning_rate_actor": 0.02, "learn.alpha": 0.05, "learn.auto_alpha": False}
        policy = kind({"seed": 0, "model.encoder_hidden_size_list": [32], **rates, **settings}, BANDIT_OBS, BANDIT_BOX)
        for step in range(100):
            policy.learn_mode.forward(tree(bandit(False, seed=step)))
        outside = torch.tensor([[-1.0], [1.0]])
        found[kind] = [policy.model.critic(torch.from_numpy(STATES), unit).detach().numpy() for unit in (outside, -outside)]
        if kind is CQLPolicy:
            assert (policy.eval_mode.forward(STATES)[0] * STATES > 0.2).all()

    for careful, careless in zip(found[CQLPolicy], found[SACPolicy], strict=True):
        assert (careful < careless).all()


@pytest.mark.parametrize(("saved", "own", "where"), [(1.0, None, "the state"), (None, 1.0, "this policy")])
def test_a_state_with_a_threshold_does_not_fit_a_policy_without_one_and_both_values_are_named(saved, own, where):
    state, policy = (made(**{"learn.lagrange_thresh": value}) for value in (saved, own))
    state = state.state_dict()
    values = rf"These settings differ: cfg.policy.learn.lagrange_thresh is {saved} in the state and {own} in this policy\."
    with pytest.raises(StateDictError, match=rf"Only {where} has the weights \['log_penalty_weight'\]\. {values}$"):
        policy.load_state_dict(state)
    with pytest.raises(StateDictError, match=values):
        policy.load_state_dict({name: state[name] for name in ("model", "made_with")})
