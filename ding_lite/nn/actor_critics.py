"""Actor-critic networks: a distribution over actions and a value, from observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
from torch import Tensor, nn

from ding_lite.nn.action_distributions import ActionDistribution, action_distribution
from ding_lite.nn.action_masks import masked
from ding_lite.nn.encoders import ConvLayers, make_network
from ding_lite.nn.initialization import orthogonal
from ding_lite.nn.normalization import make_normalizer


class ActorCritic(nn.Module):
    """An actor and a critic, with or without a shared encoder.

    `forward(obs)` is `from_features(encode(obs), obs)`. Without a shared encoder, the features are the normalised observations.
    If observations have an `action_mask`, it masks the logit (`masked`), so that actions that it does not allow have the
    probability 0, in acting and in learning.

    Args:
        actor: maps observations, or features, to the logit, [..., width].
        critic: maps observations, or features, to the value, [..., 1]; None for no critic.
        distribution: the distribution over actions that takes the logit.
        encoder: maps observations to features for actor and critic; None if they take observations.
        normalizer: normalises observations, see `make_normalizer`; None for no normalisation.
    """

    distribution: ActionDistribution

    scratch_attributes: ClassVar[tuple[str, ...]] = ("_last",)
    """What a call only writes, so that compiled gradient steps may leave it out."""

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
        """Compute logit [..., width] and value [...] of observations."""
        return self.from_features(self.encode(obs), obs)

    def logits(self, obs: Any) -> Tensor:
        """The logit of observations, [..., width]: the parameters of the distribution over actions."""
        return self._logits(self.encode(obs), obs)

    def values(self, obs: Any) -> Tensor:
        """V(obs) [...]."""
        return self._values(self.encode(obs))

    def encode(self, obs: Any) -> Any:
        """The features of observations, which actor and critic take."""
        if self.normalizer is not None:
            obs = self.normalizer(obs)
        return obs if self.encoder is None else self.encoder(obs)

    def from_features(self, features: Any, obs: Any = None) -> tuple[Tensor, Tensor]:
        """Compute logit [..., width] and value [...] from the features that `encode` returned.

        Args:
            features: the features.
            obs: the observations, whose `action_mask` masks the logit; None if they have none.
        """
        return self._logits(features, obs), self._values(features)

    def from_batch(self, batch: Any) -> tuple[Tensor, list[Any]]:
        """The logit [..., width] of `batch.obs`; and the next recurrent state, which is empty."""
        return self.logits(batch["obs"]), []

    def last_output(self) -> Tensor:
        """The logit that was last computed, [..., width]."""
        return self._last["logit"]  # type: ignore[no-any-return]

    def value_function(self) -> Tensor:
        """V(obs) [...] of the observations whose logit was last computed."""
        return self._values(self._last["features"])

    def _logits(self, features: Any, obs: Any) -> Tensor:
        logit = masked(self.actor(features), obs)
        self._last["features"], self._last["logit"] = features, logit
        return logit

    def _values(self, features: Any) -> Tensor:
        if self.critic is None:
            raise TypeError("this network has no critic: make the ActorCritic with a critic.")
        return self.critic(features).squeeze(-1)  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": {}}  # copies do not need it, and deepcopy refuses tensors of an autograd graph


def make_actor_critic(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    hidden_sizes: Sequence[int],
    activation: str = "tanh",
    conv_layers: ConvLayers | None = None,
    share_encoder: bool = False,
    normalize_obs: bool = False,
    layer_norm: bool = False,
    mixture_components: int = 0,
) -> ActorCritic:
    """Make an actor and a critic for these spaces, with orthogonal initialization.

    The actor's last layer has gain 0.01, so that actions are nearly uniform at the start; the critic's last layer has gain 1.

    Args:
        observation_space, action_space: spaces of one environment.
        hidden_sizes, activation, conv_layers, layer_norm: see `make_network`.
        share_encoder: use one encoder for both.
        normalize_obs: normalise observations, see `make_normalizer`.
        mixture_components: see `action_distribution`.

    Reference:
        Huang et al. (2022), "The 37 Implementation Details of Proximal Policy Optimization", detail 2.
    """
    distribution = action_distribution(action_space, mixture_components)
    options = (activation, conv_layers, layer_norm)
    normalizer = make_normalizer(observation_space) if normalize_obs else None
    if share_encoder:
        encoder = orthogonal(make_network(observation_space, hidden_sizes, None, *options))
        actor = orthogonal(nn.Linear(hidden_sizes[-1], distribution.width), 0.01)
        return ActorCritic(actor, orthogonal(nn.Linear(hidden_sizes[-1], 1), 1.0), distribution, encoder, normalizer)
    actor = orthogonal(make_network(observation_space, hidden_sizes, distribution.width, *options), last_gain=0.01)
    critic = orthogonal(make_network(observation_space, hidden_sizes, 1, *options), last_gain=1.0)
    return ActorCritic(actor, critic, distribution, normalizer=normalizer)
