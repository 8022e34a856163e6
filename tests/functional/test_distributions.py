"""Draws against their probabilities, and log-probabilities against torch.distributions."""

import pytest
import torch
from torch import distributions

from ding_lite.functional import bernoulli_log_prob, categorical_entropy, gaussian_log_prob, sample_categorical

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
