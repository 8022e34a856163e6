"""Recurrent features against a loop that takes one step after the other, with episodes that begin everywhere."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.nn import MLP, RecurrentFeatures, make_recurrent_actor_critic, make_recurrent_q_network

T, B, F, H = 9, 4, 3, 8


def made(dtype=torch.float64, seed: int = 0) -> RecurrentFeatures:
    torch.manual_seed(seed)
    network = RecurrentFeatures(nn.Linear(F, 5), 5, H)
    for param in network.lstm.parameters():
        nn.init.normal_(param, std=0.6)
    return network.to(dtype)


def inputs(share: float, num_steps: int = T, num_envs: int = B, seed: int = 0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    noise = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)  # noqa: E731
    obs, next_obs = noise(num_steps, num_envs, F), noise(num_steps, num_envs, F)
    restart = torch.rand(num_steps, num_envs, generator=g) < share
    return obs, next_obs, [noise(num_envs, H), noise(num_envs, H)], restart


def one_step(network: RecurrentFeatures, obs, h, c):
    """The equations of an LSTM, for one environment."""
    weight_ih, weight_hh, bias_ih, bias_hh = network.lstm.parameters()
    x = network.encoder(obs.unsqueeze(0))[0]
    gates = weight_ih @ x + bias_ih + weight_hh @ h + bias_hh
    enters, stays, cell, shows = gates.split(H)
    c = stays.sigmoid() * c + enters.sigmoid() * cell.tanh()
    return shows.sigmoid() * c.tanh(), c


def unrolled_by_definition(network, obs, next_obs, state, restart):
    """Features, features of what comes after each step, and the last state, environment by environment."""
    last = []
    rows = [[None] * restart.shape[1] for _ in restart], [[None] * restart.shape[1] for _ in restart]
    for b in range(restart.shape[1]):
        h, c = state[0][b], state[1][b]
        for t in range(len(restart)):
            if restart[t, b]:
                h, c = torch.zeros_like(h), torch.zeros_like(c)
            h, c = one_step(network, obs[t, b], h, c)
            rows[0][t][b] = h
            goes_on = t + 1 < len(restart) and not restart[t + 1, b]
            rows[1][t][b] = one_step(network, obs[t + 1, b] if goes_on else next_obs[t, b], h, c)[0]
        last.append((h, c))
    features, ahead = (torch.stack([torch.stack(row) for row in table]) for table in rows)
    return features, ahead, [torch.stack(element) for element in zip(*last)]


def gradients(outputs, network, *tensors):
    """Of a sum in which each number has a weight of its own."""
    total = sum((x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)).sum() for x in outputs)
    return torch.autograd.grad(total, [*network.parameters(), *tensors], materialize_grads=True)


@pytest.mark.few
@pytest.mark.parametrize("share", [0.0, 0.15, 0.6, 1.0])
@pytest.mark.parametrize(("num_steps", "num_envs"), [(T, B), (1, B), (T, 1), (1, 1)])
def test_unrolling_equals_single_steps_and_so_do_the_gradients(num_steps, num_envs, share):
    network = made()
    obs, next_obs, state, restart = inputs(share, num_steps, num_envs)
    leaves = [obs.requires_grad_(), *(element.requires_grad_() for element in state)]
    features, last = network.unroll(obs, state, restart)
    expected, _, expected_last = unrolled_by_definition(network, obs, next_obs, state, restart)

    for found, wanted in zip([features, *last], [expected, *expected_last], strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
    pairs = zip(
        gradients([features, *last], network, *leaves), gradients([expected, *expected_last], network, *leaves), strict=True
    )
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.15, 0.6, 1.0])
def test_looks_beyond_each_step_equal_single_steps(share):
    network = made()
    obs, next_obs, state, restart = inputs(share)
    leaves = [obs.requires_grad_(), next_obs.requires_grad_(), *(element.requires_grad_() for element in state)]
    found = network.unroll_ahead(obs, next_obs, state, restart)
    wanted = unrolled_by_definition(network, obs, next_obs, state, restart)[:2]

    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    for one, other in zip(gradients(found, network, *leaves), gradients(wanted, network, *leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("place", range(T))
def test_an_episode_that_begins_at_any_place_knows_nothing_of_what_was_before(place):
    network = made(torch.float32)
    obs, next_obs, state, _ = inputs(0.0, dtype=torch.float32)
    restart = torch.zeros(T, B, dtype=torch.bool)
    restart[place, 1] = True
    other_obs, other_state = obs.clone(), [element.clone() for element in state]
    other_obs[:place, 1] = 7.0
    other_state[0][1], other_state[1][1] = 1.0, -2.0
    found = network.unroll(obs, state, restart)
    other = network.unroll(other_obs, other_state, restart)

    assert torch.equal(found[0][place:], other[0][place:])
    assert all(map(torch.equal, found[1], other[1]))
    alone = network.unroll(obs[place:, 1:2], network.state_of(1), torch.zeros(T - place, 1, dtype=torch.bool))[0]
    torch.testing.assert_close(found[0][place:, 1:2], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 5, 200])
def test_a_step_in_inference_mode_equals_one_that_learns(batch_size):
    torch.manual_seed(0)
    network = RecurrentFeatures(MLP([F, 6, 5], "tanh", activate_last=True), 5, H)
    obs, _, state, _ = inputs(0.0, num_envs=batch_size, dtype=torch.float32)
    with torch.inference_mode():
        found = network.step(obs[0], state)
    wanted = network.step(obs[0], state)

    for one, other in zip([found[0], *found[1]], [wanted[0], *wanted[1]], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert wanted[0].requires_grad


def test_a_step_goes_by_the_weights_as_they_are_now():
    network = made(torch.float32)
    obs, _, state, _ = inputs(0.0, dtype=torch.float32)
    with torch.inference_mode():
        before = network.step(obs[0], state)[0]
        kept = copy.deepcopy(network)
        network.lstm.weight_hh_l0.mul_(2)
        after = network.step(obs[0], state)[0]

        assert not torch.equal(before, after)
        assert torch.equal(kept.step(obs[0], state)[0], before)


def test_an_actor_and_a_critic_step_as_they_unroll_on_nested_observations():
    space = spaces.Dict({"x": spaces.Box(-1, 1, (3,)), "kind": spaces.Discrete(4)})
    network = make_recurrent_actor_critic(space, spaces.Discrete(2), [6], 5, normalize_obs=True)
    g = torch.Generator().manual_seed(0)
    obs = {"x": torch.randn(T, B, 3, generator=g), "kind": torch.randint(4, (T, B), generator=g)}
    network.normalizer.update(obs)
    logit, value = network.unroll(obs, network.memory.state_of(B), torch.zeros(T, B, dtype=torch.bool))
    state = network.memory.state_of(B)
    for t in range(T):
        found, state = network.step({name: leaf[t] for name, leaf in obs.items()}, state)
        torch.testing.assert_close(found, logit[t], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(network.value_function(), value[t], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dueling", [False, True])
def test_a_q_network_steps_as_it_unrolls(dueling):
    torch.manual_seed(0)
    network = make_recurrent_q_network(spaces.Box(-1, 1, (F,), np.float32), 3, [6], 5, dueling=dueling)
    obs, next_obs, _, restart = inputs(0.3, dtype=torch.float32)
    restart[0] = False
    state = network.memory.state_of(B)
    q_value, next_q = network.unroll_ahead(obs, next_obs, state, restart)
    for t in range(T):
        state = [element.masked_fill(restart[t].unsqueeze(1), 0) for element in state]
        found, state = network.step(obs[t], state)
        torch.testing.assert_close(found, q_value[t], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(network.step(next_obs[-1], state)[0], next_q[-1], rtol=1e-5, atol=1e-6)
    for found, wanted in zip(network.advance(obs, network.memory.state_of(B), restart), state, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_rows_without_a_state_are_refused_with_what_takes_sequences():
    network = make_recurrent_actor_critic(spaces.Box(-1, 1, (F,), np.float32), spaces.Discrete(2), [6], 5)

    with pytest.raises(TypeError, match="call unroll"):
        network.from_batch({"obs": torch.zeros(2, F)})
