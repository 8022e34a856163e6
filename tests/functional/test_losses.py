"""Losses and targets against their equations written out row by row."""

import math

import numpy as np
import pytest
import torch

from ding_lite.functional import explained_variance, ppo_policy_loss, ppo_value_loss, q_target


def columns(count: int, n: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_q_target_matches_its_equation(gamma):
    reward, next_value, sign = columns(3)
    rows = zip(reward.tolist(), next_value.tolist(), (sign > 0).tolist(), strict=True)
    expected = [r if end else r + gamma * v for r, v, end in rows]

    np.testing.assert_allclose(q_target(reward, next_value, sign > 0, gamma=gamma), expected, rtol=1e-12)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf])
def test_q_target_does_not_read_the_value_after_a_termination(junk):
    reward, terminated = torch.tensor([1.0, 2.0]), torch.tensor([True, False])

    assert q_target(reward, torch.tensor([junk, 10.0]), terminated, gamma=0.5).tolist() == [1.0, 7.0]


def test_q_target_leaves_its_inputs_untouched():
    reward, next_value, sign = data = columns(3)
    before = data.clone()
    q_target(reward, next_value, sign > 0, gamma=0.9).fill_(5)

    assert torch.equal(data, before)


def ppo_policy_loss_by_definition(log_prob, old_log_prob, advantage, clip_ratio):
    terms = []
    for new, old, a in zip(log_prob.tolist(), old_log_prob.tolist(), advantage.tolist(), strict=True):
        ratio = math.exp(new - old)
        terms.append(min(ratio * a, min(max(ratio, 1 - clip_ratio), 1 + clip_ratio) * a))
    return -math.fsum(terms) / len(terms)


@pytest.mark.parametrize("clip_ratio", [0.01, 0.2, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_ppo_policy_loss_matches_its_equation(seed, clip_ratio):
    log_prob, old_log_prob, advantage = columns(3, seed=seed)
    loss, log_ratio = ppo_policy_loss(log_prob, old_log_prob, advantage, clip_ratio=clip_ratio)
    expected = ppo_policy_loss_by_definition(log_prob, old_log_prob, advantage, clip_ratio)

    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    torch.testing.assert_close(log_ratio, log_prob - old_log_prob, rtol=1e-12, atol=0)


def test_a_ratio_beyond_the_clip_has_a_gradient_only_where_it_made_things_worse():
    old_log_prob = torch.zeros(6, dtype=torch.float64)
    advantage = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    log_prob = torch.tensor([-1.0, 0.0, 1.0] * 2, dtype=torch.float64, requires_grad=True)
    ppo_policy_loss(log_prob, old_log_prob, advantage, clip_ratio=0.2)[0].backward()
    ratio = log_prob.detach().exp()

    counts = torch.tensor([1, 1, 0, 0, 1, 1])
    torch.testing.assert_close(log_prob.grad, -ratio * advantage * counts / 6, rtol=1e-12, atol=0)


def ppo_value_loss_by_definition(value, old_value, return_, value_clip):
    terms = []
    for new, old, target in zip(value.tolist(), old_value.tolist(), return_.tolist(), strict=True):
        terms.append((new - target) ** 2)
        if value_clip is not None:
            clipped = old + min(max(new - old, -value_clip), value_clip)
            terms[-1] = max(terms[-1], (clipped - target) ** 2)
    return math.fsum(terms) / len(terms) / 2


@pytest.mark.parametrize("value_clip", [None, 0.0, 0.2, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_ppo_value_loss_matches_its_equation(seed, value_clip):
    value, old_value, return_ = columns(3, seed=seed)
    expected = ppo_value_loss_by_definition(value, old_value, return_, value_clip)

    np.testing.assert_allclose(ppo_value_loss(value, old_value, return_, value_clip=value_clip), expected, rtol=1e-12)


def test_explained_variance_matches_its_equation():
    value, return_ = columns(2)
    expected = 1 - np.var((return_ - value).numpy()) / np.var(return_.numpy())

    np.testing.assert_allclose(explained_variance(value, return_), expected, rtol=1e-12)
    np.testing.assert_allclose(explained_variance(value.reshape(5, 10), return_.reshape(5, 10)), expected, rtol=1e-12)


def test_explained_variance_is_one_for_a_perfect_critic_and_none_for_a_constant_one():
    return_ = columns(1)[0]

    assert explained_variance(return_ + 3, return_).item() == pytest.approx(1, abs=1e-12)
    assert explained_variance(torch.full_like(return_, 7), return_).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("value", [torch.ones(8), torch.arange(8.0)])
def test_explained_variance_is_nan_where_all_returns_are_alike(value):
    assert explained_variance(value, torch.ones(8)).isnan()
