"""Draws against their probabilities; log-probabilities and divergences against torch.distributions."""

import math

import numpy as np
import pytest
import torch
from torch import distributions

from ding_lite.functional import (
    bernoulli_kl,
    bernoulli_log_prob,
    categorical_entropy,
    categorical_kl,
    gaussian_kl,
    gaussian_log_prob,
    sample_categorical,
    squashed_gaussian_log_prob,
    unsquash,
)

N = 40_000


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def double(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def p_value(count: torch.Tensor, expected: torch.Tensor) -> float:
    """Of Pearson's chi-square test: how often chance alone would differ as much."""
    chi_square = ((count - expected) ** 2 / expected).sum()
    return torch.special.gammaincc(torch.tensor((len(count) - 1) / 2).double(), chi_square / 2).item()


def frequency(logit: torch.Tensor) -> torch.Tensor:
    return torch.bincount(sample_categorical(logit.expand(N, -1), generator()), minlength=logit.shape[-1])


@pytest.mark.few
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [0.0, 50.0, -1000.0])
@pytest.mark.parametrize("n", [2, 5, 30])
def test_categories_are_drawn_as_often_as_softmax_says(n, shift, dtype):
    logit = double(n)
    count = frequency((logit + shift).to(dtype))

    assert count.sum() == N
    assert p_value(count, N * logit.softmax(-1)) > 1e-3


def test_neighbouring_rows_are_drawn_independently_of_each_other():
    drawn = sample_categorical(torch.zeros(N, 2, 3), generator())
    count = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=9)

    assert drawn.shape == (N, 2)
    assert drawn.dtype == torch.int64
    assert p_value(count, torch.full((9,), N / 9)) > 1e-3


def test_impossible_categories_are_never_drawn():
    logit = torch.tensor([-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf])
    count = frequency(logit)

    assert count[[0, 2, 4]].tolist() == [0, 0, 0]
    assert p_value(count[[1, 3]], N * logit[[1, 3]].softmax(-1)) > 1e-3


@pytest.mark.parametrize("best", [1e4, 1e30, 3e38])
def test_a_category_far_above_the_others_is_always_drawn(best):
    logit = torch.tensor([-best, 0.0, best, -torch.inf])

    assert frequency(logit).tolist() == [0, 0, N, 0]


def test_a_single_category_is_always_drawn():
    assert frequency(torch.tensor([-7.0])).tolist() == [N]


def test_the_same_generator_state_draws_the_same_and_another_does_not():
    logit = torch.zeros(100, 4)

    assert torch.equal(sample_categorical(logit, generator(1)), sample_categorical(logit, generator(1)))
    assert not torch.equal(sample_categorical(logit, generator(1)), sample_categorical(logit, generator(2)))


def test_drawing_leaves_the_probabilities_and_the_global_generator_untouched():
    logit, before = torch.zeros(10, 4), torch.get_rng_state()
    sample_categorical(logit, generator())

    assert torch.equal(logit, torch.zeros(10, 4))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("log_std_shape", [(3,), (6, 5, 3)])
def test_gaussian_log_prob_matches_torch(log_std_shape):
    mean, log_std, action = double(6, 5, 3), double(*log_std_shape, seed=1), double(6, 5, 3, seed=2)
    expected = distributions.Normal(mean, log_std.exp()).log_prob(action).sum(-1)

    torch.testing.assert_close(gaussian_log_prob(mean, log_std, action), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("log_std", [-20.0, 10.0])
def test_gaussian_log_prob_is_exact_far_out(log_std):
    mean, scale = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([log_std], dtype=torch.float64)
    expected = distributions.Normal(mean, scale.exp()).log_prob(torch.tensor(1.0)).sum(-1)

    torch.testing.assert_close(gaussian_log_prob(mean, scale, mean + 1), expected, rtol=1e-12, atol=0)


def test_gaussian_log_prob_has_the_gradients_of_torch():
    action, (mean, log_std) = double(6, 3, seed=2), (double(6, 3), double(3, seed=1))
    ours = [x.clone().requires_grad_() for x in (mean, log_std)]
    theirs = [x.clone().requires_grad_() for x in (mean, log_std)]
    gaussian_log_prob(*ours, action).sum().backward()
    distributions.Normal(theirs[0], theirs[1].exp()).log_prob(action).sum().backward()

    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 30.0, 500.0])
def test_bernoulli_log_prob_matches_torch(scale):
    logit, bit = scale * double(6, 5, 3), double(6, 5, 3, seed=1) > 0
    expected = distributions.Bernoulli(logits=logit).log_prob(bit.double()).sum(-1)

    torch.testing.assert_close(bernoulli_log_prob(logit, bit), expected, rtol=1e-12, atol=1e-12)
    assert bernoulli_log_prob(logit, bit).isfinite().all()


def test_bernoulli_log_prob_has_the_gradient_of_torch():
    logit, bit = double(6, 3), double(6, 3, seed=1) > 0
    mine, other = logit.clone().requires_grad_(), logit.clone().requires_grad_()
    bernoulli_log_prob(mine, bit).sum().backward()
    distributions.Bernoulli(logits=other).log_prob(bit.double()).sum().backward()

    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (7, 2), (3, 4, 5), (0, 3)])
def test_the_entropy_of_a_categorical_is_torchs(shape):
    log_prob = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(-1)

    torch.testing.assert_close(
        categorical_entropy(log_prob), torch.distributions.Categorical(logits=log_prob, validate_args=False).entropy()
    )


def test_what_is_ruled_out_adds_nothing_to_the_entropy_nor_to_its_gradient():
    logit = torch.tensor([[0.0, -torch.inf, 1.0], [2.0, 0.5, -1.0]], dtype=torch.float64, requires_grad=True)
    categorical_entropy(logit.log_softmax(-1)).sum().backward()
    pair = torch.tensor([[0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    categorical_entropy(pair.log_softmax(-1)).sum().backward()

    assert logit.grad[0, 1] == 0
    torch.testing.assert_close(logit.grad[0, [0, 2]], pair.grad[0])


def squashed(mean, log_std):
    normal = distributions.Normal(mean, log_std.exp())
    return distributions.TransformedDistribution(normal, distributions.TanhTransform())


@pytest.mark.parametrize("log_std_shape", [(3,), (6, 5, 3)])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_squashed_gaussian_log_prob_matches_torch(dtype, rtol, log_std_shape):
    mean, log_std, raw = double(6, 5, 3), double(*log_std_shape, seed=1), double(6, 5, 3, seed=2)
    expected = squashed(mean, log_std).log_prob(raw.tanh()).sum(-1)
    result = squashed_gaussian_log_prob(*(x.to(dtype) for x in (mean, log_std, raw)))

    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("raw", [-1e4, -300.0, -12.0, -1e-8, 0.0, 12.0, 300.0, 1e4])
def test_squashed_gaussian_log_prob_is_exact_where_tanh_is_one(raw, dtype):
    raw = torch.tensor([[raw]], dtype=dtype, requires_grad=True)
    mean, log_std = raw.detach(), torch.zeros(1, dtype=dtype)
    log_prob = squashed_gaussian_log_prob(mean, log_std, raw)
    log_prob.sum().backward()
    u = raw.detach().double().abs().item()
    expected = -0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - u - math.log1p(math.exp(-2 * u)))

    assert log_prob.item() == pytest.approx(expected, rel=1e-12 if dtype == torch.float64 else 1e-6)
    assert raw.grad.item() == pytest.approx(2 * math.tanh(mean.item()), rel=1e-6, abs=torch.finfo(dtype).eps)


def test_the_density_of_squashed_actions_adds_up_to_one():
    action = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    density = squashed_gaussian_log_prob(
        torch.tensor(0.3, dtype=torch.float64), torch.tensor([-0.5], dtype=torch.float64), action.atanh().unsqueeze(-1)
    ).exp()

    assert torch.trapezoid(density, action).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (7, 2), (3, 4, 5), (0, 3)])
def test_the_divergence_of_categoricals_is_torchs(shape):
    p, q = double(*shape).log_softmax(-1), double(*shape, seed=1).log_softmax(-1)
    expected = distributions.kl_divergence(*(distributions.Categorical(logits=x, validate_args=False) for x in (p, q)))

    torch.testing.assert_close(categorical_kl(p, q), expected, rtol=1e-12, atol=1e-14)


def test_what_a_category_ruled_out_by_the_first_costs_is_nothing():
    p = torch.tensor([[0.0, -torch.inf, 1.0], [0.0, -torch.inf, 1.0], [0.0, 1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([[1.0, -torch.inf, 0.0], [1.0, 3.0, 0.0], [-torch.inf, 1.0, 0.0]], dtype=torch.float64)
    kl = categorical_kl(p.log_softmax(-1), q.log_softmax(-1))
    kl[:2].sum().backward()
    pair = [x[0, [0, 2]].detach().log_softmax(-1) for x in (p, q)]

    torch.testing.assert_close(kl[0].detach(), categorical_kl(*pair), rtol=1e-12, atol=0)
    assert kl[1].isfinite()
    assert kl[2] == torch.inf
    assert p.grad[:2].isfinite().all()
    assert p.grad[:2, 1].tolist() == [0, 0]


@pytest.mark.parametrize("log_std_shape", [(3,), (6, 5, 3)])
def test_the_divergence_of_gaussians_is_torchs(log_std_shape):
    mean, other_mean = double(6, 5, 3), double(6, 5, 3, seed=1)
    log_std, other_log_std = double(*log_std_shape, seed=2), double(*log_std_shape, seed=3)
    pair = [distributions.Normal(m, s.exp().expand(6, 5, 3)) for m, s in [(mean, log_std), (other_mean, other_log_std)]]
    expected = distributions.kl_divergence(*pair).sum(-1)

    torch.testing.assert_close(gaussian_kl(mean, log_std, other_mean, other_log_std), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("step", [1e-3, 1e-2])
def test_the_divergence_of_nearly_equal_gaussians_keeps_its_digits_in_single_precision(step):
    mean, log_std = torch.zeros(1, 1), torch.zeros(1)
    other = torch.tensor([step])
    expected = 0.5 * math.expm1(-2 * other.item()) + other.item()

    assert gaussian_kl(mean, log_std, mean, other).item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_the_divergence_of_bits_is_torchs(scale):
    logit, other = scale * double(6, 5, 3), scale * double(6, 5, 3, seed=1)
    expected = distributions.kl_divergence(*(distributions.Bernoulli(logits=x) for x in (logit, other))).sum(-1)

    torch.testing.assert_close(bernoulli_kl(logit, other), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_divergence_of_bits_is_exact_where_they_are_all_but_certain(sign):
    logit = sign * torch.tensor([[50.0], [500.0], [torch.inf], [torch.inf], [1.0]], dtype=torch.float64)
    other = sign * torch.tensor([[40.0], [-500.0], [3.0], [-torch.inf], [torch.inf]], dtype=torch.float64)
    certain = math.log1p(math.exp(-3))
    first = math.log1p(math.exp(-40)) - math.log1p(math.exp(-50)) + math.exp(-50) * -10

    assert bernoulli_kl(logit, other).tolist() == pytest.approx([first, 500, certain, math.inf, math.inf], rel=1e-9)


@pytest.mark.parametrize("kl", ["categorical", "gaussian", "bernoulli"])
def test_a_divergence_is_zero_from_itself_and_above_zero_from_all_else(kl):
    p, q = ((double(50, 4, seed=seed), double(50, 4, seed=seed + 1)) for seed in (0, 2))
    function = {
        "categorical": lambda p, q: categorical_kl(p[0].log_softmax(-1), q[0].log_softmax(-1)),
        "gaussian": lambda p, q: gaussian_kl(*p, *q),
        "bernoulli": lambda p, q: bernoulli_kl(p[0], q[0]),
    }[kl]

    assert function(p, p).abs().max() == 0
    assert function(p, q).min() > 0


@pytest.mark.parametrize("kl", ["categorical", "gaussian", "bernoulli"])
def test_divergences_have_the_gradients_of_torch(kl):
    first = [double(6, 3, seed=seed).requires_grad_() for seed in range(4)]
    second = [x.detach().clone().requires_grad_() for x in first]
    if kl == "categorical":
        mine = categorical_kl(first[0].log_softmax(-1), first[1].log_softmax(-1))
        other = distributions.kl_divergence(*(distributions.Categorical(logits=x) for x in second[:2]))
    elif kl == "gaussian":
        mine = gaussian_kl(*first)
        pair = distributions.Normal(second[0], second[1].exp()), distributions.Normal(second[2], second[3].exp())
        other = distributions.kl_divergence(*pair).sum(-1)
    else:
        mine = bernoulli_kl(first[0], first[1])
        other = distributions.kl_divergence(*(distributions.Bernoulli(logits=x) for x in second[:2])).sum(-1)
    mine.sum().backward()
    other.sum().backward()

    for ours, theirs in zip(first, second, strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


def test_the_number_before_tanh_is_finite_at_the_bounds_and_beyond():
    action = torch.tensor([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0], dtype=torch.float64)
    limit = math.atanh(1 - 1e-6)

    found = unsquash(action)
    np.testing.assert_allclose(found, [-limit, -limit, math.atanh(-0.5), 0.0, math.atanh(0.5), limit], rtol=1e-9)
    assert unsquash(action.float()).isfinite().all()
