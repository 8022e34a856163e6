"""Losses and targets against their equations written out row by row."""

import math

import numpy as np
import pytest
import torch

from ding_lite.functional import (
    advantage_weight,
    expectile_loss,
    explained_variance,
    huber,
    masked_mean,
    policy_gradient_loss,
    ppo_policy_loss,
    ppo_value_loss,
    q_target,
    temperature_loss,
    weighted_mean,
)


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


@pytest.mark.parametrize("shape", [(50,), (10, 5), (0,)])
def test_q_target_discounts_each_row_by_its_own_gamma(shape):
    reward, next_value, sign, gamma = columns(4, math.prod(shape)).reshape(4, *shape)
    gamma = gamma.sigmoid()
    result = q_target(reward, next_value, sign > 0, gamma=gamma)
    rows = [x.flatten().tolist() for x in (reward, next_value, sign > 0, gamma)]
    expected = [r if end else r + g * v for r, v, end, g in zip(*rows, strict=True)]

    np.testing.assert_allclose(result.flatten(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_q_target_is_the_same_whether_all_rows_have_one_gamma_or_each_has_it(dtype):
    reward, next_value, sign = columns(3).to(dtype)
    alike = torch.full_like(reward, 0.99)

    for gamma in (alike, alike[0]):
        torch.testing.assert_close(
            q_target(reward, next_value, sign > 0, gamma=gamma), q_target(reward, next_value, sign > 0, gamma=0.99)
        )


def test_q_target_does_not_read_the_value_after_a_termination_with_a_gamma_a_row():
    reward, terminated, gamma = torch.tensor([1.0, 2.0]), torch.tensor([True, False]), torch.tensor([0.5, 0.25])

    assert q_target(reward, torch.tensor([torch.nan, 8.0]), terminated, gamma=gamma).tolist() == [1.0, 4.0]


@pytest.mark.parametrize(
    ("reward", "next_value", "terminated"),
    [((6, 1), (6,), (6,)), ((6,), (6, 1), (6,)), ((6,), (6,), (6, 1)), ((1,), (6,), (6,))],
)
def test_q_target_refuses_what_torch_would_broadcast(reward, next_value, terminated):
    with pytest.raises(ValueError, match=r"q_target\(\) wants reward, terminated \[B\].*pass one number for each row"):
        q_target(torch.ones(reward), torch.ones(next_value), torch.zeros(terminated, dtype=torch.bool), gamma=0.9)


def test_q_target_refuses_gammas_of_another_shape():
    reward, next_value, sign = columns(3)

    with pytest.raises(ValueError, match=r"gamma of reward's shape \(50,\), got \(50, 1\)"):
        q_target(reward, next_value, sign > 0, gamma=reward.unsqueeze(-1))


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


@pytest.mark.parametrize("delta", [0.1, 1.0, 3.0])
def test_huber_matches_its_equation(delta):
    error = torch.cat((3 * columns(1)[0], torch.tensor([0.0, delta, -delta, 1e30])))
    expected = [e * e / 2 if abs(e) <= delta else delta * (abs(e) - delta / 2) for e in error.tolist()]

    np.testing.assert_allclose(huber(error, delta), expected, rtol=1e-12)
    assert huber(error.reshape(6, 9)).shape == (6, 9)
    assert torch.equal(huber(error), huber(error, 1.0))


def test_the_gradient_of_huber_is_the_error_clipped():
    error = (3 * columns(1)[0]).requires_grad_()
    huber(error, 0.7).sum().backward()

    torch.testing.assert_close(error.grad, error.detach().clamp(-0.7, 0.7), rtol=1e-12, atol=0)


def test_a_weighted_mean_is_that_of_the_products():
    loss, weight = columns(2)
    expected = math.fsum(x * w for x, w in zip(loss.tolist(), weight.tolist(), strict=True)) / 50

    np.testing.assert_allclose(weighted_mean(loss, weight), expected, rtol=1e-12)
    np.testing.assert_allclose(weighted_mean(loss, None), math.fsum(loss.tolist()) / 50, rtol=1e-12)
    torch.testing.assert_close(weighted_mean(loss, torch.ones(50).double()), weighted_mean(loss, None), rtol=1e-12, atol=0)


def test_smaller_weights_shrink_the_step():
    loss = columns(1)[0].requires_grad_()
    weighted_mean(loss, torch.full((50,), 0.5, dtype=torch.float64)).backward()

    torch.testing.assert_close(loss.grad, torch.full((50,), 0.5 / 50, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("shape", [(50,), (10, 5)])
def test_policy_gradient_loss_matches_its_equation(shape):
    log_prob, advantage, sign = columns(3).reshape(3, *shape)
    valid = sign > 0
    products = (log_prob * advantage).flatten().tolist()
    kept = [x for x, is_kept in zip(products, valid.flatten().tolist(), strict=True) if is_kept]

    np.testing.assert_allclose(policy_gradient_loss(log_prob, advantage), -math.fsum(products) / 50, rtol=1e-12)
    np.testing.assert_allclose(policy_gradient_loss(log_prob, advantage, valid), -math.fsum(kept) / len(kept), rtol=1e-12)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
def test_steps_that_do_not_count_have_no_part_in_the_policy_gradient(junk):
    log_prob, advantage, sign = columns(3)
    valid = sign > 0
    log_prob[~valid] = advantage[~valid] = junk
    log_prob.requires_grad_()
    loss = policy_gradient_loss(log_prob, advantage, valid)
    loss.backward()

    expected = torch.where(valid, -advantage / valid.sum(), 0)
    assert loss.isfinite()
    torch.testing.assert_close(log_prob.grad, expected, rtol=1e-12, atol=0)


def test_the_policy_gradient_is_not_one_of_the_critic():
    log_prob, advantage = (x.clone().requires_grad_() for x in columns(2))
    policy_gradient_loss(log_prob, advantage).backward()

    torch.testing.assert_close(log_prob.grad, -advantage.detach() / 50, rtol=1e-12, atol=0)
    assert advantage.grad is None


def test_where_no_step_counts_the_policy_gradient_is_zero():
    log_prob, advantage = columns(2)
    log_prob.requires_grad_()
    loss = policy_gradient_loss(log_prob, advantage, torch.zeros(50, dtype=torch.bool))
    loss.backward()

    assert loss.item() == 0
    assert log_prob.grad.abs().max() == 0


@pytest.mark.parametrize("log_alpha", [-5.0, 0.0, 2.0])
def test_temperature_loss_matches_its_equation(log_alpha):
    log_prob, number = columns(1)[0], torch.tensor(log_alpha, dtype=torch.float64)
    expected = math.fsum(-math.exp(log_alpha) * (x - 2.0) for x in log_prob.tolist()) / 50

    np.testing.assert_allclose(temperature_loss(number, log_prob, -2.0), expected, rtol=1e-12)


@pytest.mark.parametrize(("entropy", "direction"), [(1.0, 1), (2.0, 0), (3.0, -1)])
def test_the_temperature_rises_where_the_entropy_is_below_its_target_and_falls_above(entropy, direction):
    log_alpha = torch.tensor([-1.0], requires_grad=True)
    log_prob = torch.full((10,), -entropy, requires_grad=True)
    temperature_loss(log_alpha, log_prob, target_entropy=2.0).backward()

    assert torch.sign(-log_alpha.grad).item() == direction
    assert log_prob.grad is None


@pytest.mark.parametrize("junk", [0.0, 1e30, torch.nan])
def test_a_masked_mean_is_that_of_the_steps_that_count(junk):
    g = torch.Generator().manual_seed(0)
    x, valid = torch.randn(5, 4, generator=g, dtype=torch.float64), torch.rand(5, 4, generator=g) < 0.6
    expected = sum(float(one) for one, counts in zip(x.flatten(), valid.flatten()) if counts) / int(valid.sum())

    np.testing.assert_allclose(masked_mean(x.masked_fill(~valid, junk), valid), expected, rtol=1e-12)
    np.testing.assert_allclose(masked_mean(x, None), x.numpy().mean(), rtol=1e-12)
    assert masked_mean(x, valid & False) == 0


@pytest.mark.parametrize("expectile", [0.1, 0.5, 0.9])
def test_expectile_loss_matches_its_equation(expectile):
    error = columns(1)[0]
    expected = [abs(expectile - (1 if x < 0 else 0)) * x * x for x in error.tolist()]

    np.testing.assert_allclose(expectile_loss(error, expectile), expected, rtol=1e-12)


def test_the_weight_of_an_advantage_is_limited_and_takes_no_gradient():
    advantage = torch.tensor([-1.0, 0.0, 1.0, 1e30], requires_grad=True)
    weight = advantage_weight(advantage, beta=2.0, limit=5.0)

    np.testing.assert_allclose(weight, [math.exp(-2), 1.0, 5.0, 5.0], rtol=1e-6)
    assert not weight.requires_grad
