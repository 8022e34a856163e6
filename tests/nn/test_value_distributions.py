"""Heads of N numbers an action, plain and dueling, and the implicit quantile network, against their equations."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.nn import (
    MLP,
    CategoricalHead,
    CosineEmbedding,
    DuelingHead,
    ImplicitQuantileNetwork,
    make_atom_network,
    make_network,
    seeded,
)

OBS = spaces.Box(-1, 1, (5,), np.float32)


@pytest.mark.parametrize("lead", [(6,), (4, 3), ()])
@pytest.mark.parametrize(("actions", "atoms"), [(1, 4), (3, 1), (3, 4)])
def test_a_dueling_head_is_that_of_wang_for_each_atom(actions, atoms, lead):
    with seeded(0):
        head = CategoricalHead(actions, torch.nn.Linear(7, actions * atoms), torch.nn.Linear(7, atoms)).double()
        features = torch.randn(*lead, 7, dtype=torch.float64)
    found = head(features)
    for n in range(atoms):
        wang = DuelingHead(7, actions).double()
        with torch.no_grad():
            for layer, rows, whole in (
                (wang.value, slice(n, n + 1), head.value),
                (wang.advantage, slice(n, None, atoms), head.advantage),
            ):
                layer.weight.copy_(whole.weight[rows])
                layer.bias.copy_(whole.bias[rows])
        np.testing.assert_allclose(found[..., n].detach(), wang(features).detach(), rtol=1e-12, atol=1e-13)


def test_a_plain_head_has_the_atoms_of_an_action_side_by_side():
    with seeded(0):
        network = make_atom_network(OBS, 3, 4, [8])
    with seeded(0):
        flat = make_network(OBS, [8], 12)
    obs = torch.randn(6, 5)

    assert torch.equal(network(obs), flat(obs).reshape(6, 3, 4))


@pytest.mark.parametrize("dueling", [False, True])
def test_images_and_nested_observations_have_networks_too(dueling, elements):
    space = spaces.Dict({"a": spaces.Box(0, 255, (12, 12, 3), np.uint8), "b": spaces.Discrete(3)})
    obs = {name: torch.from_numpy(leaf) for name, leaf in elements(space, 6).items()}

    assert make_atom_network(space, 2, 4, [8], dueling=dueling)(obs).shape == (6, 2, 4)


@pytest.fixture
def elements():
    return lambda space, n: {
        "a": np.stack([space["a"].sample() for _ in range(n)]),
        "b": np.array([space["b"].sample() for _ in range(n)]),
    }


def test_the_embedding_matches_its_equation():
    with seeded(0):
        embedding, tau = CosineEmbedding(6, 3).double(), torch.rand(4, 2, dtype=torch.float64)
    linear = embedding.layers.layers[0]
    weight, bias = linear.weight.detach().numpy(), linear.bias.detach().numpy()
    expected = np.zeros((4, 2, 3))
    for b, n, j in np.ndindex(4, 2, 3):
        total = sum(math.cos(math.pi * i * tau[b, n].item()) * weight[j, i] for i in range(6))
        expected[b, n, j] = max(0.0, total + bias[j])

    np.testing.assert_allclose(embedding(tau).detach(), expected, rtol=1e-6, atol=1e-7)  # pi is a float32 in the buffer
    assert not embedding.state_dict().keys() & {"angles"}


def test_the_implicit_network_multiplies_features_of_observation_and_place():
    with seeded(0):
        encoder, embedding, head = MLP([5, 8], activate_last=True), CosineEmbedding(6, 8), MLP([8, 7, 3])
        obs, tau = torch.randn(4, 5), torch.rand(4, 2)
    network = ImplicitQuantileNetwork(encoder, embedding, head)
    found = network(obs, tau)

    assert found.shape == (4, 3, 2)
    for b, n in np.ndindex(4, 2):
        expected = head(encoder(obs[b]) * embedding(tau[b, n].unsqueeze(0))[0])
        torch.testing.assert_close(found[b, :, n], expected, rtol=1e-5, atol=1e-6)


def test_places_that_all_rows_share_are_those_of_each_row():
    with seeded(0):
        network = ImplicitQuantileNetwork(MLP([5, 8], activate_last=True), CosineEmbedding(6, 8), MLP([8, 3]))
        obs, tau = torch.randn(4, 5), torch.rand(2)

    torch.testing.assert_close(network(obs, tau), network(obs, tau.expand(4, 2)))
