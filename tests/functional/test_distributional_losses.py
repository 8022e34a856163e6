"""Projections and distributional losses against their definitions, and what they are for."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.functional import (
    categorical_loss,
    categorical_mean,
    categorical_projection,
    distributional_losses,
    gather_atoms,
    quantile_huber_loss,
    quantile_midpoints,
)

anything = settings(max_examples=60, deadline=None, derandomize=True)


def double(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def probabilities(rows: int, n: int, seed: int = 0) -> torch.Tensor:
    return double(rows, n, seed=seed).softmax(-1)


def flags(rows: int, p: float, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, generator=torch.Generator().manual_seed(seed)) < p


def atoms(v_min: float, v_max: float, n: int) -> torch.Tensor:
    return torch.linspace(v_min, v_max, n, dtype=torch.float64)


def projection_by_definition(next_prob, reward, terminated, v_min, v_max, gamma):
    """Algorithm 1 of the paper, and what it leaves out: all of the mass goes to an atom that is hit exactly."""
    rows, n = next_prob.shape
    width = (v_max - v_min) / (n - 1)
    projected = np.zeros((rows, n))
    for b, j in np.ndindex(rows, n):
        future = 0.0 if terminated[b] else gamma[b] * (v_min + j * width)
        position = (min(max(reward[b] + future, v_min), v_max) - v_min) / width
        below, above = math.floor(position), math.ceil(position)
        if below == above:
            projected[b, below] += next_prob[b, j]
        else:
            projected[b, below] += next_prob[b, j] * (above - position)
            projected[b, above] += next_prob[b, j] * (position - below)
    return projected


def assert_projected_as_defined(data, v_min, v_max, gamma, rtol=1e-12, atol=1e-13):
    exact = [x.double().numpy() if x.is_floating_point() else x.numpy() for x in data]
    discount = np.broadcast_to(np.asarray(gamma, np.float64), exact[1].shape)
    result = categorical_projection(*data, v_min=v_min, v_max=v_max, gamma=gamma)
    expected = projection_by_definition(*exact, v_min, v_max, discount)
    np.testing.assert_allclose(result.double(), expected, rtol=rtol, atol=atol)
    return result


@pytest.mark.parametrize("gamma", [0.0, 0.99, 1.0])
@pytest.mark.parametrize(("v_min", "v_max", "n"), [(-10, 10, 51), (0.0, 1.0, 2), (-0.3, 5.1, 7)])
@pytest.mark.parametrize("scale", [0.1, 3.0, 100.0])
def test_the_projection_matches_its_definition(scale, v_min, v_max, n, gamma):
    data = probabilities(40, n), scale * double(40, seed=1), flags(40, 0.3)

    assert_projected_as_defined(data, v_min, v_max, gamma, rtol=1e-10)


@anything
@given(st.integers(0, 5), st.integers(2, 9), st.floats(-5, 5), st.floats(0.1, 10), st.integers(0, 999))
def test_the_projection_matches_its_definition_for_any_support(rows, n, v_min, width, seed):
    data = probabilities(rows, n, seed), 3 * double(rows, seed=seed), flags(rows, 0.3, seed)
    gamma = double(rows, seed=seed + 1).sigmoid()

    assert_projected_as_defined(data, v_min, v_min + width, gamma, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("share", ["_shared_by_adding", "_shared_by_weights"])
def test_whichever_way_mass_is_shared_the_result_is_the_same(share):
    prob, position = probabilities(20, 11), 10 * double(20, 11, seed=1).sigmoid()
    position[0] = torch.arange(11.0)
    position[1], position[2] = 0.0, 10.0
    stay = torch.zeros(20, dtype=torch.bool)
    expected = projection_by_definition(prob.numpy()[:3], np.array([0.0, -100, 100]), stay[:3].numpy(), 0, 10, np.ones(3))
    result = getattr(distributional_losses, share)(prob, position)

    np.testing.assert_allclose(result[:3], expected, rtol=1e-12)
    torch.testing.assert_close(result, distributional_losses._shared_by_weights(prob, position), rtol=1e-12, atol=1e-14)


@anything
@given(st.integers(2, 60), st.floats(0, 1), st.floats(-100, 100), st.booleans(), st.integers(0, 999))
def test_no_mass_is_lost(n, gamma, reward, end, seed):
    prob = probabilities(1, n, seed)
    result = categorical_projection(prob, torch.tensor([reward]), torch.tensor([end]), v_min=-10.0, v_max=10.0, gamma=gamma)

    assert result.min() >= 0
    assert result.sum().item() == pytest.approx(1, abs=1e-14 * n)


@anything
@given(st.integers(2, 60), st.floats(0, 1), st.floats(0, 1), st.integers(0, 999))
def test_the_mean_is_kept_where_nothing_is_clipped(n, gamma, part, seed):
    prob, z = probabilities(1, n, seed), atoms(-10.0, 10.0, n)
    reward = (2 * part - 1) * (1 - gamma) * 10  # no atom leaves the support
    result = categorical_projection(
        prob, torch.tensor([reward], dtype=torch.float64), torch.tensor([False]), v_min=-10.0, v_max=10.0, gamma=gamma
    )

    assert (result @ z).item() == pytest.approx(reward + gamma * (prob @ z).item(), abs=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rewards_of_whole_atoms_move_whole_atoms(dtype):
    prob = probabilities(3, 51).to(dtype)
    reward = torch.tensor([0.0, 0.4, -1.2], dtype=dtype)  # an atom is 0.4 wide
    result = categorical_projection(prob, reward, torch.zeros(3, dtype=torch.bool), v_min=-10.0, v_max=10.0, gamma=1.0)

    assert torch.equal(result[0], prob[0])
    assert torch.equal(result[1, 1:50], prob[1, :49])
    assert torch.equal(result[2, 1:48], prob[2, 4:])
    torch.testing.assert_close(result[1, 50], prob[1, 49:].sum())
    torch.testing.assert_close(result[2, 0], prob[2, :4].sum())


@pytest.mark.parametrize(("reward", "atom"), [(1e30, 4), (-1e30, 0), (torch.inf, 4), (4.0, 4), (-4.0, 0), (2.0, 3)])
def test_a_termination_puts_all_mass_at_the_reward_and_what_is_beyond_at_the_ends(reward, atom):
    ends = torch.tensor([True])
    result = categorical_projection(probabilities(1, 5), torch.tensor([reward]), ends, v_min=-4.0, v_max=4.0, gamma=0.9)

    assert result[0, atom].item() == pytest.approx(1, abs=1e-15)
    assert result.count_nonzero() == 1


def test_a_discount_for_each_row_is_that_of_each_row():
    prob, reward, terminated = probabilities(4, 11), double(4), flags(4, 0.2)
    gamma = torch.tensor([0.0, 0.5, 0.9, 1.0], dtype=torch.float64)
    result = categorical_projection(prob, reward, terminated, v_min=-3.0, v_max=3.0, gamma=gamma)
    for b in range(4):
        row = slice(b, b + 1)
        alone = categorical_projection(prob[row], reward[row], terminated[row], v_min=-3.0, v_max=3.0, gamma=gamma[b].item())
        torch.testing.assert_close(result[row], alone, rtol=1e-14, atol=0)


def test_a_reward_that_is_not_a_number_stays_in_its_row():
    reward = torch.tensor([1.0, torch.nan, -1.0])
    result = categorical_projection(probabilities(3, 5), reward, flags(3, 0.0), v_min=-4.0, v_max=4.0, gamma=0.9)

    assert result.isnan().any(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("share", ["_shared_by_adding", "_shared_by_weights"])
def test_a_next_distribution_that_is_not_a_number_counts_only_where_the_episode_goes_on(share, monkeypatch):
    monkeypatch.setattr(distributional_losses, "_shared_by_adding", getattr(distributional_losses, share))
    prob, reward, ends = probabilities(3, 5), double(3), torch.tensor([True, True, False])
    expected = categorical_projection(prob, reward, ends, v_min=-4.0, v_max=4.0, gamma=0.9)
    prob[0], prob[2] = torch.nan, torch.nan
    result = categorical_projection(prob, reward, ends, v_min=-4.0, v_max=4.0, gamma=0.9)

    torch.testing.assert_close(result[0], expected[0], rtol=1e-12, atol=1e-15)
    assert torch.equal(result[1], expected[1])
    assert result[2].isnan().any()


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-4), (torch.bfloat16, 1e-1)])
def test_the_projection_keeps_its_dtype_to_its_precision(dtype, rtol):
    data = probabilities(40, 51).to(dtype), double(40, seed=1).float(), flags(40, 0.3)

    assert assert_projected_as_defined(data, -10.0, 10.0, 0.99, rtol, atol=rtol / 10).dtype == dtype


def test_the_projection_gives_no_gradient_and_leaves_its_inputs_untouched():
    data = [probabilities(4, 11), double(4), flags(4, 0.5), torch.full((4,), 0.9, dtype=torch.float64)]
    copies = [x.clone() for x in data]
    prob, reward, terminated, gamma = data
    prob.requires_grad_()
    result = categorical_projection(prob, reward, terminated, v_min=-3.0, v_max=3.0, gamma=gamma)

    assert not result.requires_grad
    result.fill_(5)
    assert all(map(torch.equal, data, copies))


@pytest.mark.parametrize(("n", "v_min", "v_max"), [(1, 0.0, 1.0), (5, 1.0, 1.0), (5, 1.0, 0.0), (5, float("nan"), 1.0)])
def test_a_support_without_a_width_is_refused(n, v_min, v_max):
    with pytest.raises(ValueError, match=rf"two atoms or more from v_min to a larger v_max, got {n} from {v_min} to {v_max}"):
        categorical_projection(probabilities(2, n), double(2), flags(2, 0), v_min=v_min, v_max=v_max, gamma=0.9)


@pytest.mark.parametrize("which", ["reward", "terminated", "gamma"])
def test_rows_that_do_not_match_are_refused(which):
    data = {"reward": double(4), "terminated": flags(4, 0.5), "gamma": double(4)}
    data[which] = data[which].unsqueeze(-1)

    with pytest.raises(ValueError, match=r"next_prob \[B, N\].*got \(4, 5\).*\(4, 1\)"):
        categorical_projection(probabilities(4, 5), **data, v_min=0.0, v_max=1.0)


def test_the_categorical_loss_matches_its_equation():
    log_prob, target = double(6, 5).log_softmax(-1), probabilities(6, 5, seed=1)
    expected = [
        -math.fsum(p * q for p, q in zip(*rows, strict=True)) for rows in zip(target.tolist(), log_prob.tolist(), strict=True)
    ]

    np.testing.assert_allclose(categorical_loss(log_prob, target), expected, rtol=1e-12)


def test_the_categorical_loss_pulls_probabilities_to_the_target():
    logit = double(6, 5).requires_grad_()
    target = probabilities(6, 5, seed=1)
    categorical_loss(logit.log_softmax(-1), target).sum().backward()

    torch.testing.assert_close(logit.grad, logit.detach().softmax(-1) - target, rtol=1e-12, atol=1e-14)


def test_what_both_rule_out_costs_nothing_and_has_no_gradient():
    log_prob = torch.tensor([[0.0, -torch.inf]], requires_grad=True)
    loss = categorical_loss(log_prob, torch.tensor([[1.0, 0.0]]))
    loss.sum().backward()

    assert loss.tolist() == [0.0]
    assert log_prob.grad.tolist() == [[-1.0, 0.0]]


def quantile_loss_by_definition(value, target, tau, kappa):
    loss = np.zeros(len(value))
    for b, i, j in np.ndindex(*value.shape, target.shape[1]):
        u = target[b, j] - value[b, i]
        if kappa == 0:
            size = abs(u)
        else:
            size = (u * u / 2 if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)) / kappa
        loss[b] += abs(tau[b, i] - (u < 0)) * size / target.shape[1]
    return loss


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0, 5.0])
@pytest.mark.parametrize(("rows", "n", "m"), [(6, 5, 7), (1, 1, 1), (3, 8, 8), (0, 4, 4)])
def test_the_quantile_loss_matches_its_equation(rows, n, m, kappa):
    value, target, tau = double(rows, n), double(rows, m, seed=1), double(rows, n, seed=2).sigmoid()
    expected = quantile_loss_by_definition(value.numpy(), target.numpy(), tau.numpy(), kappa)

    np.testing.assert_allclose(quantile_huber_loss(value, target, tau, kappa=kappa), expected, rtol=1e-12)
    np.testing.assert_allclose(
        quantile_huber_loss(value.float(), target.float(), tau.float(), kappa=kappa), expected, rtol=1e-4
    )


def test_fixed_quantiles_are_the_same_for_all_rows():
    value, target, tau = double(6, 5), double(6, 7, seed=1), quantile_midpoints(5, dtype=torch.float64)

    assert torch.equal(quantile_huber_loss(value, target, tau), quantile_huber_loss(value, target, tau.expand(6, 5)))


@anything
@given(st.integers(1, 8), st.integers(1, 30), st.floats(-2, 2), st.integers(0, 999))
def test_no_values_have_a_smaller_loss_than_the_quantiles(n, m, far, seed):
    target, tau = double(1, m, seed=seed), quantile_midpoints(n, dtype=torch.float64)
    quantile = target.sort(-1).values[:, (tau * m).ceil().long() - 1]
    elsewhere = quantile + far * double(1, n, seed=seed + 1)
    loss = [quantile_huber_loss(value, target, tau, kappa=0.0).item() for value in (quantile, elsewhere)]

    assert loss[0] <= loss[1] + 1e-12


@pytest.mark.parametrize("kappa", [0.0, 1e-4])
def test_descending_the_quantile_loss_finds_the_quantiles(kappa):
    target, tau = double(1, 999).sort(-1).values, quantile_midpoints(3, dtype=torch.float64)
    value = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    for k in range(400):
        (gradient,) = torch.autograd.grad(quantile_huber_loss(value, target, tau, kappa=kappa).sum(), value)
        with torch.no_grad():
            value -= 3 / (1 + k / 20) * gradient

    torch.testing.assert_close(value.detach()[0], target[0, [166, 499, 832]], rtol=0, atol=0.02)


def test_only_values_take_a_gradient_from_the_quantile_loss():
    value, target, tau = double(4, 5).requires_grad_(), double(4, 7, seed=1), torch.full((4, 5), 0.5).requires_grad_()
    quantile_huber_loss(value, target, tau).sum().backward()

    assert value.grad.isfinite().all()
    assert tau.grad is None


@pytest.mark.parametrize(
    ("value", "target", "tau"), [((4,), (4, 5), (5,)), ((4, 5), (3, 5), (5,)), ((4, 5), (4, 6), (6,)), ((4, 5), (4, 6), (4, 1))]
)
def test_quantiles_whose_shapes_do_not_match_are_refused(value, target, tau):
    with pytest.raises(ValueError, match=r"value \[B, N\], target \[B, M\], tau \[N\] or \[B, N\], got value"):
        quantile_huber_loss(torch.zeros(value), torch.zeros(target), torch.zeros(tau))


@pytest.mark.parametrize("n", [1, 2, 5, 200])
def test_midpoints_halve_the_parts_that_quantiles_make(n):
    expected = [(2 * i + 1) / (2 * n) for i in range(n)]

    np.testing.assert_allclose(quantile_midpoints(n, dtype=torch.float64), expected, rtol=1e-15)
    assert quantile_midpoints(n, device="cpu").dtype == torch.get_default_dtype()


def test_no_midpoints_are_refused():
    with pytest.raises(ValueError, match="n >= 1 quantiles, got n=0"):
        quantile_midpoints(0)


@pytest.mark.parametrize("lead", [(4,), (4, 3), ()])
def test_the_mean_is_the_sum_of_atoms_by_their_probabilities(lead):
    prob = double(*lead, 7).softmax(-1)
    z = [-3 + i * 8 / 6 for i in range(7)]
    expected = np.zeros(lead)
    for place in np.ndindex(*lead):
        expected[place] = sum(z[i] * prob[(*place, i)].item() for i in range(7))

    np.testing.assert_allclose(categorical_mean(prob, v_min=-3.0, v_max=5.0), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("gamma", [0.9, torch.tensor([0.9, 0.5, 1.0, 0.0], dtype=torch.float64)], ids=["one", "each"])
def test_where_nothing_is_clipped_a_projection_moves_the_mean_as_a_return_moves(gamma):
    prob, reward, no = probabilities(4, 11), 0.1 * double(4), torch.zeros(4, dtype=torch.bool)
    wide = torch.zeros(4, 41, dtype=torch.float64)
    wide[:, 15:26] = prob
    found = categorical_projection(wide, reward, no, v_min=-8.0, v_max=8.0, gamma=gamma)
    mean = categorical_mean(wide, v_min=-8.0, v_max=8.0)

    np.testing.assert_allclose(categorical_mean(found, v_min=-8.0, v_max=8.0), reward + gamma * mean, rtol=1e-12, atol=1e-13)


def test_the_atoms_of_an_action_are_its_row():
    value, index = double(4, 3, 5), torch.tensor([2, 0, 1, 2])
    expected = [value[b, a].tolist() for b, a in enumerate(index.tolist())]

    assert gather_atoms(value, index).tolist() == expected


def test_the_gradient_goes_to_the_atoms_of_that_action_alone():
    value, index = double(4, 3, 5).requires_grad_(), torch.tensor([2, 0, 1, 2])
    (gather_atoms(value, index) * 2).sum().backward()
    expected = torch.zeros(4, 3, 5, dtype=torch.float64)
    for b, a in enumerate(index.tolist()):
        expected[b, a] = 2

    assert torch.equal(value.grad, expected)
