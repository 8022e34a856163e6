"""Recurrent networks: actor-critics and Q-networks with recurrent features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from torch import Tensor, nn

from ding_lite.nn.action_distributions import ActionDistribution, action_distribution
from ding_lite.nn.actor_critics import ActorCritic
from ding_lite.nn.attention import AttentionFeatures
from ding_lite.nn.encoders import ConvLayers, make_network
from ding_lite.nn.initialization import orthogonal
from ding_lite.nn.normalization import make_normalizer
from ding_lite.nn.q_networks import DuelingHead
from ding_lite.nn.recurrent import RecurrentFeatures


class RecurrentActorCritic(ActorCritic):
    """An actor and a critic with shared recurrent features. `forward`, `logits` and `values` take features, which
    `memory.unroll` returns.

    As features have no mask, only `step` and `unroll` mask the logit by the `action_mask` of observations.

    Args:
        memory: maps observations and recurrent state to features.
        actor: maps features to the logit, [..., width].
        critic: maps features to the value, [..., 1].
        distribution: the distribution over actions that takes the logit.
        normalizer: the normalizer in the encoder of `memory`, whose statistics are updated after learning; None for none.
    """

    def __init__(
        self,
        memory: RecurrentFeatures | AttentionFeatures,
        actor: nn.Module,
        critic: nn.Module,
        distribution: ActionDistribution,
        normalizer: nn.Module | None = None,
    ) -> None:
        super().__init__(actor, critic, distribution, normalizer=normalizer)
        self.memory = memory

    def encode(self, obs: Any) -> Any:
        """Return the argument, because the methods of this class take features."""
        return obs

    def from_batch(self, batch: Any) -> tuple[Tensor, list[Any]]:
        """Not supported, because a batch of rows does not have the order of steps.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "a network with a recurrent state has no from_batch(): call unroll(obs, state, restart), as "
            "policy.evaluate_batch() does."
        )

    def initial_state(self) -> list[Tensor]:
        """The recurrent state at the start of an episode."""
        return self.memory.initial_state()

    def step(self, obs: Any, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Compute the logit [B, width] of observations [B, ...], and the next state."""
        features, state = self.memory.step(obs, state)
        return self._logits(features, obs), state

    def unroll(self, obs: Any, state: Sequence[Tensor], restart: Tensor) -> tuple[Tensor, Tensor]:
        """Compute logit [T, B, width] and value [T, B] of T steps; see `RecurrentFeatures.unroll`."""
        features = self.memory.unroll(obs, state, restart)[0]
        return self._logits(features, obs), self._values(features)

    def unroll_values(self, obs: Any, next_obs: Any, state: Sequence[Tensor], restart: Tensor) -> tuple[Tensor, Tensor]:
        """Compute value and next_value [T, B] of T steps; see `RecurrentFeatures.unroll_ahead`."""
        features, next_features = self.memory.unroll_ahead(obs, next_obs, state, restart)
        return self.values(features), self.values(next_features)


class RecurrentQNetwork(nn.Module):
    """A Q-network with recurrent features.

    Args:
        memory: maps observations and recurrent state to features.
        head: maps features [..., F] to values [..., A].
        normalizer: the normalizer in the encoder of `memory`, whose statistics are updated after learning; None for none.
    """

    def __init__(self, memory: RecurrentFeatures, head: nn.Module, normalizer: nn.Module | None = None) -> None:
        super().__init__()
        self.memory, self.head, self.normalizer = memory, head, normalizer

    def initial_state(self) -> list[Tensor]:
        """The recurrent state at the start of an episode."""
        return self.memory.initial_state()

    def step(self, obs: Any, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Compute the values [B, A] of observations [B, ...], and the next state."""
        features, state = self.memory.step(obs, state)
        return self.head(features), state

    def advance(self, obs: Any, state: Sequence[Tensor], restart: Tensor) -> list[Tensor]:
        """Compute the state after T steps; see `RecurrentFeatures.unroll`."""
        return self.memory.unroll(obs, state, restart)[1]

    def unroll_ahead(self, obs: Any, next_obs: Any, state: Sequence[Tensor], restart: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the values of obs and of next_obs, each [T, B, A]; see `RecurrentFeatures.unroll_ahead`."""
        features, next_features = self.memory.unroll_ahead(obs, next_obs, state, restart)
        return self.head(features), self.head(next_features)


def make_recurrent_actor_critic(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    hidden_sizes: Sequence[int],
    lstm_size: int,
    activation: str = "tanh",
    conv_layers: ConvLayers | None = None,
    normalize_obs: bool = False,
    layer_norm: bool = False,
) -> RecurrentActorCritic:
    """Make an actor and a critic with an LSTM for these spaces, with orthogonal initialization.

    The actor's last layer has gain 0.01, so that actions are nearly uniform at the start; the critic's last layer has gain 1.

    Args:
        observation_space, action_space: spaces of one environment.
        hidden_sizes, activation, conv_layers, layer_norm: the encoder, see `make_network`.
        lstm_size: width of the LSTM.
        normalize_obs: normalise observations, see `make_normalizer`.
    """
    encoder, normalizer = _encoder(observation_space, hidden_sizes, activation, conv_layers, normalize_obs, layer_norm)
    memory = RecurrentFeatures(encoder, hidden_sizes[-1], lstm_size)
    return _actor_critic(memory, lstm_size, action_space, normalizer)


def make_attention_actor_critic(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    hidden_sizes: Sequence[int],
    size: int,
    window: int,
    layers: int = 1,
    heads: int = 4,
    activation: str = "tanh",
    conv_layers: ConvLayers | None = None,
    normalize_obs: bool = False,
    layer_norm: bool = False,
) -> RecurrentActorCritic:
    """Make an actor and a critic that attend to the last observations, for these spaces; see `AttentionFeatures`.

    Weights are initialized as by `make_recurrent_actor_critic`.

    Args:
        observation_space, action_space: spaces of one environment.
        hidden_sizes, activation, conv_layers, layer_norm: the encoder, see `make_network`.
        size, window, layers, heads: the transformer blocks.
        normalize_obs: normalise observations, see `make_normalizer`.

    Raises:
        ValueError: the size is not a multiple of the heads, or the window is smaller than 2.
    """
    encoder, normalizer = _encoder(observation_space, hidden_sizes, activation, conv_layers, normalize_obs, layer_norm)
    memory = AttentionFeatures(encoder, hidden_sizes[-1], size, window, layers, heads)
    return _actor_critic(memory, size, action_space, normalizer)


def _encoder(
    space: gymnasium.Space[Any],
    hidden_sizes: Sequence[int],
    activation: str,
    conv_layers: ConvLayers | None,
    normalize_obs: bool,
    layer_norm: bool,
) -> tuple[nn.Module, nn.Module | None]:
    """An orthogonal encoder for a memory, and the normalizer in it."""
    encoder = orthogonal(make_network(space, hidden_sizes, None, activation, conv_layers, layer_norm))
    normalizer = make_normalizer(space) if normalize_obs else None
    return (encoder if normalizer is None else nn.Sequential(normalizer, encoder)), normalizer


def _actor_critic(
    memory: RecurrentFeatures | AttentionFeatures, size: int, action_space: gymnasium.Space[Any], normalizer: nn.Module | None
) -> RecurrentActorCritic:
    distribution = action_distribution(action_space)
    actor, critic = orthogonal(nn.Linear(size, distribution.width), 0.01), orthogonal(nn.Linear(size, 1), 1.0)
    return RecurrentActorCritic(memory, actor, critic, distribution, normalizer)


def make_recurrent_q_network(
    space: gymnasium.Space[Any],
    num_actions: int,
    hidden_sizes: Sequence[int],
    lstm_size: int,
    activation: str = "relu",
    conv_layers: ConvLayers | None = None,
    *,
    dueling: bool = True,
    normalize_obs: bool = False,
    layer_norm: bool = False,
) -> RecurrentQNetwork:
    """Make a network with an LSTM from observations to Q-values [B, A].

    Args:
        space: observation space.
        num_actions: A.
        hidden_sizes, activation, conv_layers, layer_norm: the encoder, see `make_network`.
        lstm_size: width of the LSTM.
        dueling: split the head into state value and advantage.
        normalize_obs: normalise observations, see `make_normalizer`.
    """
    encoder: nn.Module = make_network(space, hidden_sizes, None, activation, conv_layers, layer_norm)
    normalizer = make_normalizer(space) if normalize_obs else None
    encoder = encoder if normalizer is None else nn.Sequential(normalizer, encoder)
    memory = RecurrentFeatures(encoder, hidden_sizes[-1], lstm_size)
    return RecurrentQNetwork(memory, (DuelingHead if dueling else nn.Linear)(lstm_size, num_actions), normalizer)
