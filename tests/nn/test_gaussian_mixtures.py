"""Mixtures of Gaussians against torch.distributions and against draws."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions

from ding_lite.envs import SpaceError
from ding_lite.nn import GaussianMixture

SPACES = {
    "one number": spaces.Box(-1.0, 1.0, (1,)),
    "no dimension": spaces.Box(-1.0, 1.0, ()),
    "a vector, each element with its bounds": spaces.Box(np.float32([-2, 0]), np.float32([2, 10])),
    "a matrix": spaces.Box(-1.0, 3.0, (2, 2)),
    "without bounds": spaces.Box(-np.inf, np.inf, (3,)),
    "half a bound": spaces.Box(np.float32([0, -1]), np.float32([np.inf, 1])),
    "equal bounds": spaces.Box(np.float32([1, -1]), np.float32([1, 1])),
}
each = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
counts = pytest.mark.parametrize("components", [1, 2, 5])


def made(space, components, n=6, dtype=torch.float64, seed=0):
    distribution = GaussianMixture(space, components).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    return distribution, torch.randn(n, distribution.width, generator=generator, dtype=torch.float64).to(dtype), generator


def by_torch(space, components, logit):
    """The same mixture, of torch.distributions."""
    size = int(np.prod(space.shape))
    low, high = (torch.as_tensor(bound.astype(np.float64).ravel()) for bound in (space.low, space.high))
    unbounded = ~(low.isfinite() & high.isfinite() & (low < high))
    low, high = low.masked_fill(unbounded, -1), high.masked_fill(unbounded, 1)
    weight, mean, raw = logit.split([components, components * size, components * size], -1)
    mean = (low + high) / 2 + mean.reshape(-1, components, size) * (high - low) / 2
    std = (0.01 + torch.log1p(raw.reshape(-1, components, size).exp())) * (high - low) / 2
    parts = distributions.Independent(distributions.Normal(mean, std), 1)
    return distributions.MixtureSameFamily(distributions.Categorical(logits=weight), parts)


@each
@counts
def test_the_log_density_and_its_gradient_are_those_of_torch(space, components):
    distribution, logit, generator = made(space, components)
    logit.requires_grad_()
    action, log_prob = distribution.sample(logit.detach(), generator)
    found = distribution.evaluate(logit, action)[0]
    wanted = by_torch(space, components, logit).log_prob(action.reshape(len(logit), -1))

    assert action.shape == (6, *space.shape)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(log_prob, found.detach(), rtol=1e-10, atol=1e-10)
    grads = [torch.autograd.grad(one.sum(), logit)[0] for one in (found, wanted)]
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-10)


@each
@counts
def test_the_entropy_is_a_bound_that_draws_do_not_exceed(space, components):
    distribution, logit, generator = made(space, components)
    bound = distribution.evaluate(logit, torch.zeros(6, *space.shape, dtype=torch.float64))[1]
    mixture = by_torch(space, components, logit)
    torch.manual_seed(0)
    drawn = -mixture.log_prob(mixture.sample((20_000,))).mean(0)

    assert (bound > drawn - 0.03).all()
    assert (bound < drawn + 1.5).all()
    if components == 1:
        torch.testing.assert_close(bound, mixture.component_distribution.entropy().squeeze(-1), rtol=1e-10, atol=1e-10)


def test_the_entropy_is_exact_for_equal_gaussians_and_for_distant_ones():
    distribution, logit, _ = made(SPACES["one number"], 2, 1)
    weight, action = [0.4, -0.3], torch.zeros(1, 1, dtype=torch.float64)
    one = made(SPACES["one number"], 1)[0].evaluate(torch.tensor([[0.0, 0.2, 0.5]], dtype=torch.float64), action)[1]
    same = torch.tensor([[*weight, 0.2, 0.2, 0.5, 0.5]], dtype=torch.float64)
    far = torch.tensor([[*weight, -500.0, 500.0, 0.5, 0.5]], dtype=torch.float64)
    choice = distributions.Categorical(logits=torch.tensor(weight, dtype=torch.float64)).entropy()

    torch.testing.assert_close(distribution.evaluate(same, action)[1], one)
    torch.testing.assert_close(distribution.evaluate(far, action)[1], one + choice)


@each
@counts
def test_the_divergence_is_0_for_equal_parameters_and_that_of_torch_for_one_gaussian(space, components):
    distribution, logit, _ = made(space, components)
    other = logit.roll(1, 0)

    torch.testing.assert_close(distribution.kl(logit, logit), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-12)
    if components == 1:
        pair = [by_torch(space, 1, numbers).component_distribution for numbers in (logit, other)]
        wanted = distributions.kl_divergence(*pair).squeeze(-1)
        torch.testing.assert_close(distribution.kl(logit, other), wanted, rtol=1e-9, atol=1e-9)


def test_draws_have_the_mean_and_the_standard_deviation_of_the_mixture():
    space, n = SPACES["a vector, each element with its bounds"], 40_000
    distribution, logit, generator = made(space, 3, 1)
    mixture = by_torch(space, 3, logit)
    action = distribution.sample(logit.expand(n, -1), generator)[0]

    assert ((action.mean(0) - mixture.mean[0]).abs() < 4 * mixture.stddev[0] / n**0.5).all()
    assert (action.std(0) / mixture.stddev[0] - 1).abs().max() < 0.03


@each
@counts
def test_the_mode_is_the_mean_of_the_most_probable_gaussian(space, components):
    distribution, logit, _ = made(space, components)
    mixture = by_torch(space, components, logit)
    best = mixture.mixture_distribution.logits.argmax(-1)
    wanted = mixture.component_distribution.mean[torch.arange(6), best].reshape(6, *space.shape)

    torch.testing.assert_close(distribution.mode(logit), wanted)


def test_actions_at_a_bound_and_huge_numbers_give_finite_densities_and_gradients():
    distribution, logit, _ = made(SPACES["a matrix"], 3, 2, torch.float32)
    for scale in (1.0, 1e4):
        numbers = (scale * logit).requires_grad_()
        log_prob, entropy = distribution.evaluate(numbers, torch.tensor([-1.0, 3.0]).repeat(2, 2, 1))
        (log_prob + entropy).sum().backward()

        assert log_prob.isfinite().all()
        assert entropy.isfinite().all()
        assert numbers.grad.isfinite().all()


def test_the_generator_decides_the_draw_and_the_global_one_is_untouched():
    distribution, logit, _ = made(SPACES["a matrix"], 3)
    before = torch.get_rng_state()
    one, again, other = (distribution.sample(logit, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2))

    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("reach", [1e38, 3.4e38, 1e300, 1e6, 1e-60])
def test_bounds_that_are_no_bounds_do_not_count(reach):
    plain, _, _ = made(SPACES["without bounds"], 2)
    distribution = GaussianMixture(spaces.Box(-reach, reach, (3,), np.float64), 2)

    assert torch.equal(distribution.reach, plain.reach.float())
    assert torch.equal(distribution.middle, plain.middle.float())


@pytest.mark.parametrize("components", [0, -1, 2.5, True, "2"])
def test_a_number_of_gaussians_that_is_none_is_named(components):
    with pytest.raises(ValueError, match=rf"components={components!r}\) wants the number of Gaussians"):
        GaussianMixture(SPACES["a matrix"], components)


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(0, 9, (2,), np.int64)])
def test_another_space_is_named(space):
    with pytest.raises(SpaceError, match="GaussianMixture wants a Box of floats, got"):
        GaussianMixture(space, 2)
