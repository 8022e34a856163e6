"""Actor-critics for bounded actions: actors for Box actions with finite bounds, and critics Q(s, a).

Actors and critics use unit actions: scaled to [-1, 1] and flattened to [B, A].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from torch import Generator, Tensor, nn

from ding_lite.functional import squashed_gaussian_sample
from ding_lite.nn.action_bounds import ActionBounds
from ding_lite.nn.encoders import ConvLayers, make_encoder, make_network
from ding_lite.nn.ensembles import EnsembleMLP
from ding_lite.nn.normalization import make_normalizer

LOG_STD_RANGE = (-20.0, 2.0)
"""Range of log_std of a squashed Gaussian, as in the code of Haarnoja et al. (2018)."""


GAUSSIAN_LOG_STD_RANGE = (-5.0, 2.0)
"""Range of log_std of a Gaussian that is not squashed, as in the code of Kostrikov et al. (2021)."""


class TanhActor(nn.Module):
    """A deterministic actor: the tanh of a network's output.

    Args:
        network: maps observations to [B, A].
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Any) -> Tensor:
        """Compute unit actions [B, A]."""
        return torch.tanh(self.network(obs))


class SquashedGaussianActor(nn.Module):
    """A stochastic actor: a diagonal Gaussian, squashed by tanh.

    Args:
        network: maps observations to [B, 2 * A], mean and log_std.

    Reference:
        Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905, appendix C.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Compute mean and log_std of the Gaussian before squashing, each [B, A]."""
        mean, log_std = self.network(obs).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def sample(self, obs: Any, generator: Generator) -> tuple[Tensor, Tensor]:
        """Sample unit actions [B, A] by reparameterization, so that gradients pass; and their log-density [B]."""
        mean, log_std = self(obs)
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return squashed_gaussian_sample(mean, log_std, noise)


class GaussianActor(nn.Module):
    """A stochastic actor: a diagonal Gaussian around the tanh of a network's output. It is not squashed.

    The density is finite at the bounds, unlike that of a squashed Gaussian, so it can be fitted to recorded actions. Its mass
    outside of the bounds is clipped when acting. The standard deviation does not depend on the observation.

    Args:
        network: maps observations to [B, A].
        width: A.

    Reference:
        The actor of the code of Kostrikov et al. (2021), https://arxiv.org/abs/2110.06169.
    """

    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.network, self.log_std = network, nn.Parameter(torch.zeros(width))

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Compute mean, in [-1, 1], and log_std of the Gaussian, each [B, A]."""
        mean = torch.tanh(self.network(obs))
        return mean, self.log_std.expand_as(mean)

    @torch.no_grad()
    def limit_log_std_(self) -> None:
        """Move log_std into `GAUSSIAN_LOG_STD_RANGE`, in place.

        Call it after a gradient step. With a clamp in `forward` instead, log_std would have no gradient outside of the range,
        and would stay there.
        """
        self.log_std.clamp_(*GAUSSIAN_LOG_STD_RANGE)


class ValueCritic(nn.Module):
    """A critic V(s).

    Args:
        network: maps observations to [B, 1].
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Any) -> Tensor:
        """Compute V(s), [B]."""
        return self.network(obs).squeeze(-1)  # type: ignore[no-any-return]


class QCritic(nn.Module):
    """K critics Q_k(s, a) with a shared encoder.

    Args:
        encoder: maps observations to features [B, F].
        critics: map [B, F + A] to [K, B, 1].
    """

    def __init__(self, encoder: nn.Module, critics: EnsembleMLP) -> None:
        super().__init__()
        self.encoder, self.critics = encoder, critics

    def forward(self, obs: Any, scaled_action: Tensor, *, frozen: bool = False) -> Tensor:
        """Compute the values [K, B] of unit actions.

        Args:
            obs: observations [B, *obs_shape], nested like the space.
            scaled_action: unit actions [B, A], scaled to [-1, 1].
            frozen: block gradients to the weights of encoder and critics; gradients still reach the actions.
        """
        features: Tensor = self.encoder(obs)
        inputs = torch.cat((features.detach() if frozen else features, scaled_action), -1)
        values: Tensor = self.critics(inputs, frozen=frozen)
        return values.squeeze(-1)


class BoundedActorCritic(nn.Module):
    """An actor for bounded actions, critics, and the bounds.

    Args:
        actor: maps observations to unit actions, or to a distribution over them.
        critic: maps observations and unit actions to values.
        bounds: converts unit actions to actions of the Box.
        normalizer: the normalizer in actor and critic, whose statistics are updated after learning; None for none.
    """

    actor: TanhActor | SquashedGaussianActor | GaussianActor
    critic: QCritic
    bounds: ActionBounds

    def __init__(
        self,
        actor: TanhActor | SquashedGaussianActor | GaussianActor,
        critic: QCritic,
        bounds: ActionBounds,
        normalizer: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.actor, self.critic, self.bounds, self.normalizer = actor, critic, bounds, normalizer


def make_state_value(
    observation_space: gymnasium.Space[Any],
    hidden_sizes: Sequence[int],
    activation: str = "relu",
    conv_layers: ConvLayers | None = None,
    *,
    normalizer: nn.Module | None = None,
    layer_norm: bool = False,
) -> ValueCritic:
    """Make a critic V(s).

    Args:
        observation_space: observation space of one environment.
        hidden_sizes, activation, conv_layers, layer_norm: see `make_network`.
        normalizer: normalises observations, for example that of the actor; None for no normalisation.
    """
    network: nn.Module = make_network(observation_space, hidden_sizes, 1, activation, conv_layers, layer_norm)
    return ValueCritic(network if normalizer is None else nn.Sequential(normalizer, network))


def make_bounded_actor_critic(
    observation_space: gymnasium.Space[Any],
    action_space: spaces.Box,
    hidden_sizes: Sequence[int],
    activation: str = "relu",
    conv_layers: ConvLayers | None = None,
    *,
    num_critics: int = 2,
    stochastic: bool = False,
    squashed: bool = True,
    normalize_obs: bool = False,
    layer_norm: bool = False,
) -> BoundedActorCritic:
    """Make an actor and critics for these spaces.

    Args:
        observation_space: observation space of one environment.
        action_space: a Box of floats with finite bounds.
        hidden_sizes, activation, conv_layers, layer_norm: see `make_network`.
        num_critics: number of critics.
        stochastic: make a SquashedGaussianActor instead of a TanhActor.
        squashed: False makes a GaussianActor instead of a SquashedGaussianActor.
        normalize_obs: normalise observations, see `make_normalizer`; actor and critics share the statistics.
    """
    bounds = ActionBounds(action_space)
    outputs = 2 * bounds.width if stochastic and squashed else bounds.width
    network: nn.Module = make_network(observation_space, hidden_sizes, outputs, activation, conv_layers, layer_norm)
    encoder, features = make_encoder(observation_space, conv_layers)
    normalizer = make_normalizer(observation_space) if normalize_obs else None
    if normalizer is not None:
        network, encoder = nn.Sequential(normalizer, network), nn.Sequential(normalizer, encoder)
    actor: TanhActor | SquashedGaussianActor | GaussianActor = TanhActor(network)
    if stochastic:
        actor = SquashedGaussianActor(network) if squashed else GaussianActor(network, bounds.width)
    critics = EnsembleMLP(num_critics, [features + bounds.width, *hidden_sizes, 1], activation, layer_norm)
    return BoundedActorCritic(actor, QCritic(encoder, critics), bounds, normalizer)


ActionCritic = QCritic  # its name in earlier versions
