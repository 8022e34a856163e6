"""squashed_gaussian_sample() against the density by the change of variables, and its gradients against autograd's own."""

import math

import pytest
import torch

from ding_lite.functional import squashed_gaussian_log_prob, squashed_gaussian_sample


def inputs(*shape: int, seed: int = 0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("shape", [(7, 3), (1, 1), (2, 4, 2), (0, 2)])
def test_the_density_is_that_of_the_change_of_variables(shape):
    mean, log_std, noise = inputs(*shape)
    action, log_prob = squashed_gaussian_sample(mean, log_std, noise)
    expected = torch.zeros(shape[:-1], dtype=torch.float64)
    for index in (
        torch.cartesian_prod(*(torch.arange(n) for n in shape)).reshape(-1, len(shape)).tolist() if 0 not in shape else []
    ):
        m, s, e = (x[tuple(index)].item() for x in (mean, log_std, noise))
        u = m + math.exp(s) * e
        assert action[tuple(index)].item() == pytest.approx(math.tanh(u), rel=1e-12)
        expected[tuple(index[:-1])] += -(e**2) / 2 - s - math.log(2 * math.pi) / 2 + 2 * math.log(math.cosh(u))

    torch.testing.assert_close(log_prob, expected, rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_the_density_of_the_number_drawn():
    mean, log_std, noise = inputs(9, 3)
    raw = mean + log_std.exp() * noise
    weight = torch.arange(9, dtype=torch.float64)
    wanted = torch.autograd.grad((squashed_gaussian_log_prob(mean, log_std, raw) * weight).sum(), (mean, log_std))
    found = torch.autograd.grad((squashed_gaussian_sample(mean, log_std, noise)[1] * weight).sum(), (mean, log_std))

    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("mean", [60.0, -60.0])
def test_it_stays_finite_where_tanh_is_one(mean):
    mean, zero = torch.tensor([[mean]], requires_grad=True), torch.zeros(1, 1)
    action, log_prob = squashed_gaussian_sample(mean, zero, zero)
    log_prob.sum().backward()

    assert action.abs().item() == 1
    # 2 log cosh(u) is 2 (|u| - log 2) there.
    assert log_prob.item() == pytest.approx(2 * (60 - math.log(2)) - math.log(2 * math.pi) / 2, rel=1e-6)
    assert mean.grad.item() == pytest.approx(math.copysign(2, mean.item()), rel=1e-6)
