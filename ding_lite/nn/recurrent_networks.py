"""Recurrent networks: an actor and a critic, or the value of each action, on recurrent features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from torch import Tensor, nn

from ding_lite.nn.actor_critics import ActorCritic
from ding_lite.nn.distributions import ActionDistribution, action_distribution
from ding_lite.nn.encoders import ConvLayers, make_network
from ding_lite.nn.initialization import orthogonal
from ding_lite.nn.normalization import make_normalizer
from ding_lite.nn.q_networks import DuelingHead
from ding_lite.nn.recurrent import RecurrentFeatures


class RecurrentActorCritic(ActorCritic):
    """An actor and a critic on the same recurrent features. Called directly, it takes features.

    Args:
        memory: from observations and state to features.
        actor: from features to the numbers that the distribution takes.
        critic: from features to one number.
        distribution: over actions.
        normalizer: what observations go through in the memory's encoder; None for nothing.
    """

    def __init__(
        self,
        memory: RecurrentFeatures,
        actor: nn.Module,
        critic: nn.Module,
        distribution: ActionDistribution,
        normalizer: nn.Module | None = None,
    ) -> None:
        super().__init__(actor, critic, distribution, normalizer=normalizer)
        self.memory = memory

    def _features(self, obs: Any) -> Any:
        return obs  # they are features here

    def from_batch(self, batch: Any) -> tuple[Tensor, list[Any]]:
        """Refused: what follows on what is not said by a batch alone.

        Raises:
            TypeError
        """
        raise TypeError(
            "a network with an LSTM has no from_batch(): call unroll(obs, state, restart), as policy.evaluate_batch() does."
        )

    def initial_state(self) -> list[Tensor]:
        """The state where an episode begins."""
        return self.memory.initial_state()

    def step(self, obs: Any, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Logit [B, width] of observations [B, ...], and the next state."""
        features, state = self.memory.step(obs, state)
        return self.logits(features), state

    def unroll(self, obs: Any, state: Sequence[Tensor], restart: Tensor) -> tuple[Tensor, Tensor]:
        """Logit [T, B, width] and value [T, B] of T steps; see `RecurrentFeatures.unroll`."""
        return self(self.memory.unroll(obs, state, restart)[0])  # type: ignore[no-any-return]

    def unroll_values(self, obs: Any, next_obs: Any, state: Sequence[Tensor], restart: Tensor) -> tuple[Tensor, Tensor]:
        """Value and next_value [T, B] of T steps; see `RecurrentFeatures.unroll_ahead`."""
        features, next_features = self.memory.unroll_ahead(obs, next_obs, state, restart)
        return self.values(features), self.values(next_features)


class RecurrentQNetwork(nn.Module):
    """The value of each action, from recurrent features.

    Args:
        memory: from observations and state to features.
        head: from features [..., F] to values [..., A].
    """

    def __init__(self, memory: RecurrentFeatures, head: nn.Module) -> None:
        super().__init__()
        self.memory, self.head = memory, head

    def initial_state(self) -> list[Tensor]:
        """The state where an episode begins."""
        return self.memory.initial_state()

    def step(self, obs: Any, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Values [B, A] at observations [B, ...], and the next state."""
        features, state = self.memory.step(obs, state)
        return self.head(features), state

    def advance(self, obs: Any, state: Sequence[Tensor], restart: Tensor) -> list[Tensor]:
        """The state after T steps; see `RecurrentFeatures.unroll`."""
        return self.memory.unroll(obs, state, restart)[1]

    def unroll_ahead(self, obs: Any, next_obs: Any, state: Sequence[Tensor], restart: Tensor) -> tuple[Tensor, Tensor]:
        """Values at T observations and at those after them, [T, B, A]; see `RecurrentFeatures.unroll_ahead`."""
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
) -> RecurrentActorCritic:
    """An actor and a critic with an LSTM for these spaces, with orthogonal weights.

    The last layers are such that actions are nearly uniform and values small at the start.

    Args:
        hidden_sizes, activation, conv_layers: of the encoder, see `make_network`.
        lstm_size: of the LSTM.
        normalize_obs: begin with what `make_normalizer` gives.
    """
    distribution = action_distribution(action_space)
    encoder = orthogonal(make_network(observation_space, hidden_sizes, None, activation, conv_layers))
    normalizer = make_normalizer(observation_space) if normalize_obs else None
    encoder = encoder if normalizer is None else nn.Sequential(normalizer, encoder)
    actor = orthogonal(nn.Linear(lstm_size, distribution.width), 0.01)
    critic = orthogonal(nn.Linear(lstm_size, 1), 1.0)
    memory = RecurrentFeatures(encoder, hidden_sizes[-1], lstm_size)
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
) -> RecurrentQNetwork:
    """A network with an LSTM from observations of this space to Q-values [B, A].

    Args:
        num_actions: A.
        hidden_sizes, activation, conv_layers: of the encoder, see `make_network`.
        lstm_size: of the LSTM.
        dueling: split the head into state value and advantage.
    """
    memory = RecurrentFeatures(make_network(space, hidden_sizes, None, activation, conv_layers), hidden_sizes[-1], lstm_size)
    return RecurrentQNetwork(memory, (DuelingHead if dueling else nn.Linear)(lstm_size, num_actions))
