"""Actor and critic: a distribution over actions and a value, from observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from torch import Tensor, nn

from ding_lite.nn.distributions import ActionDistribution, action_distribution
from ding_lite.nn.encoders import ConvLayers, make_network
from ding_lite.nn.initialization import orthogonal
from ding_lite.nn.normalization import make_normalizer


class ActorCritic(nn.Module):
    """A distribution over actions and a value, from observations.

    Args:
        actor: from observations, or features, to the numbers that the distribution takes.
        critic: from observations, or features, to one number; None for none.
        distribution: over actions.
        encoder: from observations to the features that both take; None where each begins with the observations.
        normalizer: what observations go through first, see `make_normalizer`; None for nothing.
    """

    distribution: ActionDistribution

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module | None,
        distribution: ActionDistribution,
        encoder: nn.Module | None = None,
        normalizer: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.actor, self.critic, self.distribution, self.encoder = actor, critic, distribution, encoder
        self.normalizer = normalizer
        self._last: dict[str, Any] = {}

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Logit [..., width] and value [...]."""
        features = self._features(obs)
        return self._logits(features), self._values(features)

    def logits(self, obs: Any) -> Tensor:
        """What the distribution over actions is made from, [..., width]."""
        return self._logits(self._features(obs))

    def values(self, obs: Any) -> Tensor:
        """V(obs) [...]."""
        return self._values(self._features(obs))

    def from_batch(self, batch: Any) -> tuple[Tensor, list[Any]]:
        """Logit [..., width] of `batch.obs`, and the next recurrent state, of which this network has none."""
        return self.logits(batch["obs"]), []

    def last_output(self) -> Tensor:
        """The logit that was computed last, [..., width]."""
        return self._last["logit"]  # type: ignore[no-any-return]

    def value_function(self) -> Tensor:
        """V [...] of the observations whose logit was computed last."""
        return self._values(self._last["features"])

    def _features(self, obs: Any) -> Any:
        if self.normalizer is not None:
            obs = self.normalizer(obs)
        return obs if self.encoder is None else self.encoder(obs)

    def _logits(self, features: Any) -> Tensor:
        logit: Tensor = self.actor(features)
        self._last["features"], self._last["logit"] = features, logit
        return logit

    def _values(self, features: Any) -> Tensor:
        if self.critic is None:
            raise TypeError("this network has no critic: make it with one.")
        return self.critic(features).squeeze(-1)  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": {}}  # what was computed is no part of a copy, which autograd could not make either


def make_actor_critic(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    hidden_sizes: Sequence[int],
    activation: str = "tanh",
    conv_layers: ConvLayers | None = None,
    share_encoder: bool = False,
    normalize_obs: bool = False,
) -> ActorCritic:
    """An actor and a critic for these spaces, with orthogonal weights.

    The last layers are such that actions are nearly uniform and values small at the start.

    Args:
        hidden_sizes, activation, conv_layers: see `make_network`.
        share_encoder: one encoder for both.
        normalize_obs: begin with what `make_normalizer` gives.

    Reference:
        Huang et al. (2022), "The 37 Implementation Details of Proximal Policy Optimization", detail 2.
    """
    distribution = action_distribution(action_space)
    options = (activation, conv_layers)
    normalizer = make_normalizer(observation_space) if normalize_obs else None
    if share_encoder:
        encoder = orthogonal(make_network(observation_space, hidden_sizes, None, *options))
        actor = orthogonal(nn.Linear(hidden_sizes[-1], distribution.width), 0.01)
        return ActorCritic(actor, orthogonal(nn.Linear(hidden_sizes[-1], 1), 1.0), distribution, encoder, normalizer)
    actor = orthogonal(make_network(observation_space, hidden_sizes, distribution.width, *options), last_gain=0.01)
    critic = orthogonal(make_network(observation_space, hidden_sizes, 1, *options), last_gain=1.0)
    return ActorCritic(actor, critic, distribution, normalizer=normalizer)
