"""`encode` and `from_features`: the two parts of every network of the library, and the names of its weights."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.nn import (
    CategoricalHead,
    CosineEmbedding,
    EncoderAndHead,
    ImplicitQuantileNetwork,
    NoisyMLP,
    make_actor_critic,
    make_atom_network,
    make_network,
    make_q_network,
    normalized_inputs,
)

VECTOR = spaces.Box(-1, 1, (4,), np.float32)
NESTED = spaces.Dict({"x": VECTOR, "kind": spaces.Discrete(3)})
ACTIONS = spaces.Discrete(2)
OBS = {"vector": torch.randn(5, 4), "nested": {"x": torch.randn(5, 4), "kind": torch.arange(5) % 3}}

NETWORKS = {
    "plain": lambda space, norm: make_q_network(space, 2, [6, 7], normalize_obs=norm),
    "dueling": lambda space, norm: make_q_network(space, 2, [6, 7], normalize_obs=norm, dueling=True),
    "atoms": lambda space, norm: make_atom_network(space, 2, 3, [6, 7], normalize_obs=norm),
    "dueling atoms": lambda space, norm: make_atom_network(space, 2, 3, [6, 7], normalize_obs=norm, dueling=True),
    "noisy": lambda space, norm: normalized_inputs(
        space, EncoderAndHead(make_network(space, [6, 7]), CategoricalHead(2, NoisyMLP([7, 6]))), norm
    ),
    "actor-critic": lambda space, norm: make_actor_critic(space, ACTIONS, [6, 7], share_encoder=True, normalize_obs=norm),
}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("space", [VECTOR, NESTED], ids=["vector", "nested"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_output_is_that_of_the_features(name, space, norm):
    network, obs = NETWORKS[name](space, norm), OBS["vector" if space is VECTOR else "nested"]
    if norm:
        network.normalizer.update(obs)
    features = network.encode(obs)

    assert features.shape == (5, 7)
    torch.testing.assert_close(network.from_features(features), network(obs), rtol=0, atol=0)


@pytest.mark.parametrize("norm", [False, True])
def test_quantiles_at_levels_are_those_of_the_features(norm):
    quantiles = ImplicitQuantileNetwork(make_network(VECTOR, [7]), CosineEmbedding(4, 7), nn.Linear(7, 2))
    network = normalized_inputs(VECTOR, quantiles, norm)
    tau = torch.rand(5, 3)

    assert torch.equal(network.from_features(network.encode(OBS["vector"]), tau), network(OBS["vector"], tau))


def test_features_of_actor_and_critic_without_a_shared_encoder_are_normalised_observations():
    network = make_actor_critic(VECTOR, ACTIONS, [6], normalize_obs=True)
    network.normalizer.update(OBS["vector"])

    torch.testing.assert_close(network.encode(OBS["vector"]).mean(0), torch.zeros(4), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "dueling", "atoms", "dueling atoms", "noisy"])
@pytest.mark.parametrize("space", [VECTOR, NESTED], ids=["vector", "nested"])
def test_a_head_that_is_added_is_not_called_and_leaves_the_names_of_the_other_weights(name, space):
    network, obs = NETWORKS[name](space, False), OBS["vector" if space is VECTOR else "nested"]
    before, names = network(obs), list(network.state_dict())
    network.predictor = nn.Linear(7, 4)

    torch.testing.assert_close(network(obs), before, rtol=0, atol=0)
    assert list(network.state_dict()) == [*names, "predictor.weight", "predictor.bias"]
    assert names[0].split(".")[0] in ("0", "1", "layers", "advantage")
