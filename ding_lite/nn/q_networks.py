"""Q-networks: networks from observations to the value of each action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from torch import Tensor, nn

from ding_lite.nn.encoders import ConvLayers, EncoderAndHead, make_encoder, make_network
from ding_lite.nn.ensembles import EnsembleMLP
from ding_lite.nn.normalization import normalized_inputs


def make_q_network(
    space: gymnasium.Space[Any],
    num_actions: int,
    hidden_sizes: Sequence[int],
    activation: str = "relu",
    conv_layers: ConvLayers | None = None,
    *,
    dueling: bool = False,
    normalize_obs: bool = False,
    layer_norm: bool = False,
) -> nn.Module:
    """Make a network from observations to Q-values [B, A].

    `encode(obs)` returns the features [B, F] of the last hidden layer, and `from_features(features)` the Q-values.

    Args:
        space: observation space.
        num_actions: A.
        hidden_sizes, activation, conv_layers, layer_norm: see `make_network`.
        dueling: split the head into state value and advantage.
        normalize_obs: normalise observations, see `make_normalizer`.
    """
    out = None if dueling else num_actions
    network: nn.Module = make_network(space, hidden_sizes, out, activation, conv_layers, layer_norm)
    if dueling:
        network = EncoderAndHead(network, DuelingHead(hidden_sizes[-1], num_actions))
    return normalized_inputs(space, network, normalize_obs)


class QEnsemble(nn.Module):
    """K networks from observations to the value of each action, with a shared encoder.

    Args:
        encoder: maps observations to features [B, F].
        critics: map [B, F] to [K, B, A].
    """

    def __init__(self, encoder: nn.Module, critics: EnsembleMLP) -> None:
        super().__init__()
        self.encoder, self.critics = encoder, critics

    def forward(self, obs: Any) -> Tensor:
        """Compute Q_k(s, a), [K, B, A]."""
        return self.critics(self.encoder(obs))  # type: ignore[no-any-return]


def make_q_ensemble(
    space: gymnasium.Space[Any],
    num_actions: int,
    hidden_sizes: Sequence[int],
    activation: str = "relu",
    conv_layers: ConvLayers | None = None,
    *,
    count: int = 2,
    normalizer: nn.Module | None = None,
    layer_norm: bool = False,
) -> QEnsemble:
    """Make K networks from observations to Q-values.

    Args:
        space: observation space.
        num_actions: A.
        hidden_sizes, activation, conv_layers, layer_norm: see `make_network`.
        count: K.
        normalizer: normalises observations, for example that of the actor; None for no normalisation.
    """
    encoder, features = make_encoder(space, conv_layers)
    if normalizer is not None:
        encoder = nn.Sequential(normalizer, encoder)
    return QEnsemble(encoder, EnsembleMLP(count, [features, *hidden_sizes, num_actions], activation, layer_norm))


class DuelingHead(nn.Module):
    """The dueling head of a Q-network: state value plus advantage, where the advantage has mean 0 over actions.

        Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')

    Reference:
        Wang et al. (2016), https://arxiv.org/abs/1511.06581, eq. 9.
    """

    def __init__(self, in_features: int, num_actions: int) -> None:
        super().__init__()
        self.value, self.advantage = nn.Linear(in_features, 1), nn.Linear(in_features, num_actions)

    def forward(self, features: Tensor) -> Tensor:
        """Map [..., F] to [..., A]."""
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(-1, keepdim=True)  # type: ignore[no-any-return]
