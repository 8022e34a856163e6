"""Networks for distributions over returns: N numbers per action, for fixed atoms or for given quantile levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from ding_lite.nn.encoders import ConvLayers, EncoderAndHead, make_network
from ding_lite.nn.layers import MLP
from ding_lite.nn.normalization import normalized_inputs


class CategoricalHead(nn.Module):
    """A head with N numbers for each of A actions: logits of atoms, or quantiles.

    With `value`, the head is dueling: Z(s, a) = V(s) + A(s, a) - mean_a' A(s, a'), for each atom.

    Without `value`, and if `advantage` has `encode` and `from_features`, such as an `MLP`, this class has them too.

    Args:
        num_actions: A.
        advantage: maps features [..., F], or observations, to [..., A * N].
        value: maps the same input to [..., N]; None for no dueling.

    Reference:
        Wang et al. (2016), https://arxiv.org/abs/1511.06581, eq. 9; on atoms: Hessel et al. (2018),
        https://arxiv.org/abs/1710.02298, section "The Integrated Agent".
    """

    def __init__(self, num_actions: int, advantage: nn.Module, value: nn.Module | None = None) -> None:
        super().__init__()
        self.num_actions, self.advantage, self.value = num_actions, advantage, value

    def forward(self, features: Any) -> Tensor:
        """Map [..., F] to [..., A, N]."""
        atoms = self._by_action(self.advantage(features))
        if self.value is None:
            return atoms
        return self.value(features).unsqueeze(-2) + atoms - atoms.mean(-2, keepdim=True)  # type: ignore[no-any-return]

    def encode(self, obs: Any) -> Tensor:
        """The features of observations, [..., F], if `advantage` takes observations."""
        return self.advantage.encode(obs)  # type: ignore[operator, no-any-return]

    def from_features(self, features: Tensor) -> Tensor:
        """The numbers [..., A, N] for the features that `encode` returned."""
        return self._by_action(self.advantage.from_features(features))  # type: ignore[operator]

    def _by_action(self, flat: Any) -> Tensor:
        return flat.unflatten(-1, (self.num_actions, -1))  # type: ignore[no-any-return]


def make_atom_network(
    space: gymnasium.Space[Any],
    num_actions: int,
    num_atoms: int,
    hidden_sizes: Sequence[int],
    activation: str = "relu",
    conv_layers: ConvLayers | None = None,
    *,
    dueling: bool = False,
    normalize_obs: bool = False,
    layer_norm: bool = False,
) -> nn.Module:
    """Make a network from observations to N numbers for each action, [B, A, N].

    `encode(obs)` returns the features [B, F] of the last hidden layer, and `from_features(features)` the numbers.

    Args:
        space: observation space.
        num_actions: A.
        num_atoms: N.
        hidden_sizes, activation, conv_layers, layer_norm: see `make_network`.
        dueling: split the head into state value and advantage.
        normalize_obs: normalise observations, see `make_normalizer`.
    """
    options = (activation, conv_layers, layer_norm)
    network: nn.Module
    if dueling:
        encoder, width = make_network(space, hidden_sizes, None, *options), hidden_sizes[-1]
        head = CategoricalHead(num_actions, nn.Linear(width, num_actions * num_atoms), nn.Linear(width, num_atoms))
        network = EncoderAndHead(encoder, head)
    else:
        network = CategoricalHead(num_actions, make_network(space, hidden_sizes, num_actions * num_atoms, *options))
    return normalized_inputs(space, network, normalize_obs)


class CosineEmbedding(nn.Module):
    """Features of quantile levels tau: ReLU(linear(cos(pi * i * tau))), i = 0, ..., size - 1.

    Args:
        size: number of cosines.
        out: number of features.

    Reference:
        Dabney et al. (2018), https://arxiv.org/abs/1806.06923, eq. 4.
    """

    angles: Tensor

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.register_buffer("angles", math.pi * torch.arange(size, dtype=torch.float32), persistent=False)
        self.layers = MLP([size, out], activate_last=True)

    def forward(self, tau: Tensor) -> Tensor:
        """Map levels [..., N] to features [..., N, out]."""
        return self.layers(torch.cos(tau.unsqueeze(-1) * self.angles))  # type: ignore[no-any-return]


class ImplicitQuantileNetwork(nn.Module):
    """Quantiles of each action's return, at given quantile levels tau.

        Z_tau(s, a) = f(psi(s) * phi(tau))_a

    Args:
        encoder: psi, maps observations to [B, F].
        embedding: phi, maps tau [..., N] to [..., N, F].
        head: f, maps [B, N, F] to [B, N, A].

    Reference:
        Dabney et al. (2018), https://arxiv.org/abs/1806.06923, section 3.1.
    """

    def __init__(self, encoder: nn.Module, embedding: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.embedding, self.head = encoder, embedding, head

    def forward(self, obs: Any, tau: Tensor) -> Tensor:
        """Compute quantiles [B, A, N] for observations [B, ...] and levels [B, N]; levels [N] are shared by all rows."""
        return self.from_features(self.encode(obs), tau)

    def encode(self, obs: Any) -> Tensor:
        """The features of observations, [B, F]."""
        return self.encoder(obs)  # type: ignore[no-any-return]

    def from_features(self, features: Tensor, tau: Tensor) -> Tensor:
        """The quantiles [B, A, N] for the features that `encode` returned."""
        return self.head(features.unsqueeze(-2) * self.embedding(tau)).transpose(-1, -2)  # type: ignore[no-any-return]
