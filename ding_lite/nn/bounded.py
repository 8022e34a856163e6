"""Bounded actions: actors for Box actions with finite bounds, and critics that judge them.

Actors and critics see actions in units: each element from -1 to 1, whatever the bounds, and [B, A], whatever the shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Generator, Tensor, nn

from ding_lite.functional import squashed_gaussian_sample
from ding_lite.nn.encoders import ConvLayers, make_encoder, make_network
from ding_lite.nn.ensembles import EnsembleMLP

LOG_STD_RANGE = (-20.0, 2.0)
"""Of a squashed Gaussian before the squashing, as the code of Haarnoja et al. (2018) has it."""


class ActionBounds(nn.Module):
    """Between actions in units and those of a Box.

    Args:
        space: of floats, with finite bounds.

    Example:
        >>> ActionBounds(spaces.Box(-2.0, 4.0, (1,)))(torch.tensor([[-1.0], [0.5]])).tolist()
        [[-2.0], [2.5]]
    """

    low: Tensor
    high: Tensor
    middle: Tensor
    reach: Tensor
    per_reach: Tensor

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.shape, self.width = space.shape, int(np.prod(space.shape))
        low, high = (bound.astype(np.float64).ravel() for bound in (space.low, space.high))
        self._is_unit = bool((low == -1).all() and (high == 1).all())
        middle, reach = low / 2 + high / 2, high / 2 - low / 2
        per_reach = np.divide(1, reach, out=np.zeros_like(reach), where=reach > 0)
        inner_low, inner_high = _inner(low, high)
        arrays = {"low": inner_low, "high": inner_high, "middle": middle, "reach": reach, "per_reach": per_reach}
        for name, array in arrays.items():
            self.register_buffer(name, torch.as_tensor(array, dtype=torch.float32), persistent=False)

    def forward(self, unit: Tensor) -> Tensor:
        """Actions [B, *shape] of the Box, for those in units [B, A]."""
        action = torch.addcmul(self.middle, unit, self.reach).clamp(self.low, self.high)  # rounding may end outside
        return action.reshape(-1, *self.shape)

    def to_unit(self, action: Tensor) -> Tensor:
        """Actions in units [B, A], for those of the Box [B, *shape]; 0 where its bounds leave no choice."""
        action = action.reshape(len(action), -1).to(self.middle.dtype)
        return action if self._is_unit else (action - self.middle) * self.per_reach


def _inner(low: Any, high: Any) -> tuple[Any, Any]:
    """The bounds in float32, rounded towards each other."""
    inner_low, inner_high = low.astype(np.float32), high.astype(np.float32)
    inner_low = np.where(inner_low < low, np.nextafter(inner_low, np.float32(np.inf)), inner_low)
    return inner_low, np.where(inner_high > high, np.nextafter(inner_high, np.float32(-np.inf)), inner_high)


class TanhActor(nn.Module):
    """One action for an observation: a network's output, squashed.

    Args:
        network: from observations to A numbers.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Any) -> Tensor:
        """Actions in units [B, A]."""
        return torch.tanh(self.network(obs))


class SquashedGaussianActor(nn.Module):
    """A distribution over actions for an observation: a diagonal Gaussian, squashed by tanh.

    Args:
        network: from observations to 2 A numbers: means, and logarithms of standard deviations.

    Reference:
        Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905, appendix C.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Mean and log_std before the squashing, each [B, A]."""
        mean, log_std = self.network(obs).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def sample(self, obs: Any, generator: Generator) -> tuple[Tensor, Tensor]:
        """Actions drawn from it in units [B, A], through which gradients pass, and their log-density there [B]."""
        mean, log_std = self(obs)
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return squashed_gaussian_sample(mean, log_std, noise)


class ActionCritic(nn.Module):
    """Values of actions, Q(s, a), by K critics.

    Args:
        encoder: from observations to features [B, F], shared by all K.
        critics: from F + A numbers to one.
    """

    def __init__(self, encoder: nn.Module, critics: EnsembleMLP) -> None:
        super().__init__()
        self.encoder, self.critics = encoder, critics

    def forward(self, obs: Any, unit: Tensor, *, frozen: bool = False) -> Tensor:
        """Values [K, B] of actions in units [B, A].

        Args:
            frozen: keep gradients from the critics; they still reach the actions.
        """
        features: Tensor = self.encoder(obs)
        values: Tensor = self.critics(torch.cat((features.detach() if frozen else features, unit), -1), frozen=frozen)
        return values.squeeze(-1)


class BoundedActorCritic(nn.Module):
    """An actor for bounded actions, the critics that judge it, and the bounds.

    Args:
        actor: from observations to actions in units, or to a distribution over them.
        critic: of observations and actions in units.
        bounds: of the actions.
    """

    actor: TanhActor | SquashedGaussianActor
    critic: ActionCritic
    bounds: ActionBounds

    def __init__(self, actor: TanhActor | SquashedGaussianActor, critic: ActionCritic, bounds: ActionBounds) -> None:
        super().__init__()
        self.actor, self.critic, self.bounds = actor, critic, bounds


def make_bounded_actor_critic(
    observation_space: gymnasium.Space[Any],
    action_space: spaces.Box,
    hidden_sizes: Sequence[int],
    activation: str = "relu",
    conv_layers: ConvLayers | None = None,
    *,
    num_critics: int = 2,
    stochastic: bool = False,
) -> BoundedActorCritic:
    """An actor and `num_critics` critics for these spaces.

    Args:
        action_space: of floats, with finite bounds.
        hidden_sizes, activation, conv_layers: see `make_network`.
        stochastic: a SquashedGaussianActor instead of a TanhActor.
    """
    bounds = ActionBounds(action_space)
    outputs = 2 * bounds.width if stochastic else bounds.width
    network = make_network(observation_space, hidden_sizes, outputs, activation, conv_layers)
    actor = SquashedGaussianActor(network) if stochastic else TanhActor(network)
    encoder, features = make_encoder(observation_space, conv_layers)
    critics = EnsembleMLP(num_critics, [features + bounds.width, *hidden_sizes, 1], activation)
    return BoundedActorCritic(actor, ActionCritic(encoder, critics), bounds)
