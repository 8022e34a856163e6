"""Attention against loops: each step over its own window, and sets in any order."""

import math

import pytest
import torch
from torch import nn

from ding_lite.nn import AttentionBlock, AttentionFeatures, SetEncoder, attention

F, D, HEADS, B = 3, 8, 2, 3


def made(window: int = 4, layers: int = 2, dtype=torch.float64) -> AttentionFeatures:
    torch.manual_seed(0)
    network = AttentionFeatures(nn.Linear(F, 5), 5, D, window, layers, HEADS)
    for param in network.parameters():
        nn.init.normal_(param, std=0.5)
    return network.to(dtype)


def inputs(share: float, num_steps: int = 9, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    obs, next_obs = torch.randn(2, num_steps, B, F, generator=g, dtype=torch.float64).to(dtype)
    return obs, next_obs, torch.rand(num_steps, B, generator=g) < share


def block_by_definition(block: AttentionBlock, tokens: list, ages: list, bias):
    """The last of the tokens after a block: softmax over scores, head by head and token by token."""
    normed = [block.attention_norm(x) for x in tokens]
    found = []
    for head in range(HEADS):
        part = slice(head * D // HEADS, (head + 1) * D // HEADS)
        query = block.query(normed[-1])[part]
        scores = [query @ block.key(x)[part] / math.sqrt(D // HEADS) + bias[age, head] for x, age in zip(normed, ages)]
        weights = torch.stack(scores).softmax(0)
        found.append(sum(weight * block.value(x)[part] for weight, x in zip(weights, normed)))
    x = tokens[-1] + block.out(torch.cat(found))
    return x + block.mlp(block.mlp_norm(x))


def features_by_definition(network, rows: list):
    """Features of the last of an episode's observations, each block over the true window of each step."""
    tokens = [network.embedding(network.encoder(row.unsqueeze(0)))[0] for row in rows]
    for block, bias in zip(network.blocks, network.age_bias):
        following = []
        for t in range(len(tokens)):
            first = max(0, t - network.window + 1)
            following.append(block_by_definition(block, tokens[first : t + 1], list(range(t - first, -1, -1)), bias))
        tokens = following
    return network.norm(tokens[-1])


def episodes(restart, b):
    """For each step, the rows of its episode up to it, from the first row on."""
    first = 0
    for t in range(len(restart)):
        first = t if restart[t, b] else first
        yield t, list(range(first, t + 1))


@pytest.mark.few
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize(("window", "layers", "num_steps"), [(4, 1, 7), (3, 2, 5), (2, 2, 1), (20, 1, 6)])
def test_a_step_attends_to_the_window_of_its_episode(window, layers, num_steps, share):
    network = made(window, layers)
    obs, next_obs, restart = inputs(share, num_steps)
    features, _ = network.unroll(obs, network.state_of(B), restart)
    ahead_of, ahead = network.unroll_ahead(obs, next_obs, network.state_of(B), restart)
    for b in range(B):
        for t, rows in episodes(restart, b):
            seen = [obs[row, b] for row in rows]
            goes_on = t + 1 < num_steps and not restart[t + 1, b]
            following = obs[t + 1, b] if goes_on else next_obs[t, b]
            torch.testing.assert_close(features[t, b], features_by_definition(network, seen), rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(ahead[t, b], features_by_definition(network, [*seen, following]), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ahead_of, features, rtol=1e-12, atol=1e-14)


@pytest.mark.few
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("chunk", [4, 256])
def test_single_steps_equal_the_unroll_over_ends_of_episodes_and_rollouts(share, chunk, monkeypatch):
    monkeypatch.setattr(attention, "_CHUNK", chunk)
    network = made(window=4)
    obs, next_obs, restart = inputs(share, num_steps=18)
    state, one = network.state_of(B), network.state_of(B)
    for start, stop in ((0, 6), (6, 7), (7, 18)):  # rollouts
        rows = slice(start, stop)
        before = [element.clone() for element in state]
        features, state = network.unroll(obs[rows], state, restart[rows])
        _, ahead = network.unroll_ahead(obs[rows], next_obs[rows], before, restart[rows])
        for t in range(start, stop):
            fresh = network.state_of(B)
            one = [
                torch.where(restart[t].view(-1, *[1] * (element.ndim - 1)), new, element) for new, element in zip(fresh, one)
            ]
            found, one = network.step(obs[t], one)
            torch.testing.assert_close(found, features[t - start], rtol=1e-10, atol=1e-12)
            goes_on = ~restart[t + 1] if t + 1 < stop else torch.zeros(B, dtype=torch.bool)
            following = torch.where(goes_on.unsqueeze(1), obs[min(t + 1, 17)], next_obs[t])
            torch.testing.assert_close(network.step(following, one)[0], ahead[t - start], rtol=1e-10, atol=1e-12)
        assert torch.equal(one[-1], state[-1])
        for element, other in zip(one[:-1], state[:-1], strict=True):
            torch.testing.assert_close(element, other, rtol=1e-10, atol=1e-12)


def test_gradients_reach_all_weights_and_the_observations_of_the_window_alone():
    network = made(window=3, layers=1)
    obs, _, restart = inputs(0.0)
    obs.requires_grad_()
    features, _ = network.unroll(obs, network.state_of(B), restart)
    (of_obs,) = torch.autograd.grad(features[5, 1].square().sum(), [obs], retain_graph=True)
    assert (of_obs[3:6, 1].abs().sum(-1) > 0).all()
    of_obs[3:6, 1] = 0
    assert not of_obs.any()
    features.square().sum().backward()
    assert all(param.grad.abs().sum() > 0 for name, param in network.named_parameters() if not name.endswith("key.bias"))


def test_what_attention_cannot_have_is_refused():
    with pytest.raises(ValueError, match="at least 2 steps, got 1"):
        AttentionFeatures(nn.Identity(), 3, 8, window=1)
    with pytest.raises(ValueError, match="multiple of the heads, got width 6 and 4 heads"):
        AttentionBlock(6, 4)


def sets(n: int = 6):
    g = torch.Generator().manual_seed(0)
    items = torch.randn(4, n, F, generator=g, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]])
    return items, mask


def test_features_of_a_set_do_not_depend_on_order_or_padding():
    torch.manual_seed(0)
    network = SetEncoder(F, D, layers=2, heads=HEADS).double()
    items, mask = sets()
    features = network(items, mask)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(network(items[:, order], mask[:, order]), features)
    junk = torch.where(mask.bool().unsqueeze(-1), items, torch.nan)
    torch.testing.assert_close(network(junk, mask), features, rtol=0, atol=0)
    for row in range(3):  # without padding
        torch.testing.assert_close(network(items[row : row + 1, mask[row].bool()]), features[row : row + 1])
    assert not features[3].any()
    other = items.clone()
    other[0, 2] += 1
    assert not torch.allclose(network(other, mask)[0], features[0])


def test_gradients_of_empty_sets_are_finite():
    network = SetEncoder(F, D, heads=HEADS).double()
    network(*sets()).sum().backward()
    assert all(param.grad.isfinite().all() for param in network.parameters())
