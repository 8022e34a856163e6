"""Bounds of actions, actors within them, and the critics that judge them."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.functional import squashed_gaussian_log_prob
from ding_lite.nn import (
    ActionBounds,
    GaussianActor,
    RunningNorm,
    SquashedGaussianActor,
    make_bounded_actor_critic,
    make_state_value,
)

OBS = spaces.Box(-1, 1, (4,))


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (-2, 2), (0, 3)])
def test_actions_beyond_the_bounds_are_those_that_the_environment_gets(low, high):
    action = torch.linspace(low - 5, high + 5, 12)[:, None]
    bounds = ActionBounds(spaces.Box(low, high, (1,)))

    assert torch.equal(bounds.to_unit(action), bounds.to_unit(action.clamp(low, high)))
    assert bounds.to_unit(action).abs().max() == 1


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_units_go_to_the_bounds_and_back(shape):
    rng = np.random.default_rng(0)
    low = rng.uniform(-5, 0, shape).astype(np.float32)
    space = spaces.Box(low, (low + rng.uniform(0.5, 4, shape)).astype(np.float32), shape)
    bounds, unit = ActionBounds(space), torch.rand(20, int(np.prod(shape))) * 2 - 1
    expected = space.low + (unit.reshape(20, *shape).numpy() + 1) / 2 * (space.high - space.low)

    np.testing.assert_allclose(bounds(unit), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(bounds.to_unit(bounds(unit)), unit, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(bounds(-torch.ones_like(unit))[0], space.low, rtol=1e-6)
    np.testing.assert_allclose(bounds(torch.ones_like(unit))[0], space.high, rtol=1e-6, atol=1e-6)


def test_units_stay_as_they_are_where_the_bounds_are_units():
    bounds, action = ActionBounds(spaces.Box(-1, 1, (2,))), torch.rand(5, 2)

    assert torch.equal(bounds.to_unit(action), action)
    assert torch.equal(bounds(action), action)


def test_a_number_without_choice_is_zero_in_units():
    bounds = ActionBounds(spaces.Box(np.array([2.0, -1.0]), np.array([2.0, 1.0]), dtype=np.float64))

    assert bounds.to_unit(torch.tensor([[2.0, 0.5]])).tolist() == [[0.0, 0.5]]


def test_bounds_that_float32_cannot_hold_are_rounded_inwards():
    bounds = ActionBounds(spaces.Box(0.1, 0.3, (1,), np.float64))

    assert np.float64(bounds.low.item()) >= 0.1
    assert np.float64(bounds.high.item()) <= 0.3


def test_a_sample_and_its_density_and_their_gradients_are_those_of_a_squashed_gaussian():
    actor = SquashedGaussianActor(torch.nn.Linear(4, 6)).double()
    obs, g = torch.randn(8, 4, dtype=torch.float64), torch.Generator().manual_seed(0)
    action, log_prob = actor.sample(obs, copy.copy(g).manual_seed(0))
    noise = torch.randn(8, 3, generator=g.manual_seed(0), dtype=torch.float64)
    mean, log_std = actor(obs)
    raw = mean + log_std.exp() * noise
    expected = squashed_gaussian_log_prob(mean, log_std, raw)
    gradients = [torch.autograd.grad((one * torch.arange(8)).sum(), list(actor.parameters())) for one in (log_prob, expected)]

    torch.testing.assert_close(action, torch.tanh(raw), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(log_prob, expected, rtol=1e-12, atol=1e-12)
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


def test_standard_deviations_stay_within_their_range():
    actor = SquashedGaussianActor(torch.nn.Linear(4, 2))
    with torch.no_grad():
        actor.network.weight.fill_(1000.0)

    assert actor(torch.ones(1, 4))[1].item() == 2.0
    assert actor(-torch.ones(1, 4))[1].item() == -20.0


def test_frozen_critics_pass_gradients_to_the_actions_alone():
    model = make_bounded_actor_critic(spaces.Box(0, 255, (12, 12, 3), np.uint8), spaces.Box(-1, 1, (2,)), [8])
    obs, unit = torch.randint(0, 255, (5, 12, 12, 3), dtype=torch.uint8), torch.rand(5, 2, requires_grad=True)
    model.critic(obs, unit, frozen=True).sum().backward()

    assert unit.grad is not None
    assert all(param.grad is None for param in model.critic.parameters())
    model.critic(obs, unit).sum().backward()
    assert all(param.grad is not None for param in model.critic.parameters())


def test_critics_differ_from_each_other():
    model = make_bounded_actor_critic(OBS, spaces.Box(-1, 1, (2,)), [8], num_critics=3)
    q_value = model.critic(torch.rand(5, 4), torch.rand(5, 2))

    assert q_value.shape == (3, 5)
    assert len({row.item() for row in q_value[:, 0]}) == 3


@pytest.mark.parametrize("stochastic", [False, True])
def test_actors_give_units(stochastic):
    model = make_bounded_actor_critic(OBS, spaces.Box(-3, 5, (2, 2)), [8], stochastic=stochastic)
    obs = 100 * torch.randn(6, 4)
    unit = model.actor.sample(obs, torch.Generator())[0] if stochastic else model.actor(obs)

    assert unit.shape == (6, 4)
    assert unit.abs().max() <= 1


def test_a_gaussian_actor_has_a_mean_within_the_bounds_and_one_deviation_for_all_observations():
    model = make_bounded_actor_critic(OBS, spaces.Box(-1, 1, (2,)), [8], stochastic=True, squashed=False)
    mean, log_std = model.actor(1000 * torch.randn(50, 4))

    assert isinstance(model.actor, GaussianActor)
    assert (mean.abs() <= 1).all()
    assert log_std.shape == (50, 2)
    assert torch.equal(log_std, torch.zeros(50, 2))


def test_the_value_of_states_takes_observations_normalised_by_the_normalizer_that_it_was_given():
    normalizer = RunningNorm((4,))
    value, obs = make_state_value(OBS, [8], normalizer=normalizer), 5 + torch.randn(30, 4)
    before = value(obs)
    normalizer.update(obs)

    assert before.shape == (30,)
    assert not torch.allclose(value(obs), before)
