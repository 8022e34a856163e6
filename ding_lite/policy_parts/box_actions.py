"""Box actions: what policies share that act within a Box and learn the value of their actions from replay."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite.basics import ranged_field
from ding_lite.data import Tree, has_leaf
from ding_lite.envs import SpaceError
from ding_lite.functional import q_target, weighted_mean
from ding_lite.nn import BoundedActorCritic, make_bounded_actor_critic
from ding_lite.policy_base import CollectConfig
from ding_lite.policy_parts.param_groups import ParamGroupsMixin
from ding_lite.policy_parts.replay_configs import OffPolicyConfig, OffPolicyLearnConfig
from ding_lite.policy_parts.replay_losses import bootstrap_discount


@dataclasses.dataclass
class BoxLearnConfig(OffPolicyLearnConfig):
    """Learning an actor and critics from replayed transitions."""

    batch_size: int = ranged_field(128, low=1, high=10_000_000)
    """Transitions a gradient step."""

    update_per_collect: int = ranged_field(8, low=1, high=1_000_000)
    """Gradient steps after each collection."""

    learning_rate_actor: float | None = ranged_field(None, low=0)
    """Of the actor; None for that of the critics, learning_rate."""

    target_update_freq: int = ranged_field(1, low=1)
    """Gradient steps between two moves of the target networks."""

    target_update_theta: float = ranged_field(0.005, low=0, high=1)
    """How far each move goes: 1 copies the weights, less averages them in."""


@dataclasses.dataclass
class BoxCollectConfig(CollectConfig):
    """Collecting."""

    n_sample: int = ranged_field(8, low=1, high=10_000_000)
    """Transitions a collection, rounded up to whole steps of all environments."""

    noise_correlation: float = ranged_field(0.0, low=0, high=0.999)
    """Of the noise in one step with that in the next of the same episode; 0 draws each anew. Helps where single actions
    do little, and many of one kind a lot."""


@dataclasses.dataclass
class BoxConfig(OffPolicyConfig):
    """What policies need to know that act within a Box and learn from replay."""

    random_collect_size: int = ranged_field(1000, low=0, high=10_000_000)
    """Environment steps with random actions before the policy acts, for StepCollector."""

    learn: BoxLearnConfig = dataclasses.field(default_factory=BoxLearnConfig)
    """Learning."""

    collect: BoxCollectConfig = dataclasses.field(default_factory=BoxCollectConfig)
    """Collecting."""


class BoxActing(ParamGroupsMixin):
    """A mixin for Box actions with finite bounds: an actor and critics, and noise to explore by.

    `model.actor` and `model.critic` see actions in units, from -1 to 1 each; batches hold those of the environment.
    """

    action_space: spaces.Box
    cfg: BoxConfig
    model: Any
    target_model: Any
    num_critics = 2
    stochastic = False
    """Whether the actor gives a distribution over actions, not just one."""

    def check_spaces(self) -> None:
        """Boxes of floats with finite bounds only."""
        super().check_spaces()
        space, kind = self.action_space, type(self).__name__
        if not isinstance(space, spaces.Box):
            raise SpaceError(f"{kind} wants actions in a Box of floats, got {space}: take PPOPolicy, which takes any.")
        if not np.issubdtype(space.dtype, np.floating):
            raise SpaceError(f"{kind} wants actions in a Box of floats, got {space}: make it a MultiDiscrete space.")
        if not np.isfinite(space.low).all() or not np.isfinite(space.high).all():
            raise SpaceError(
                f"{kind} wants actions with finite bounds, got {space} with low {space.low.tolist()} and high "
                f"{space.high.tolist()}: give it bounds in a gymnasium.wrappers.TransformAction, or take PPOPolicy."
            )

    def make_model(self) -> BoundedActorCritic:
        """The actor, the critics, and the bounds of actions."""
        model = self.cfg.model
        return make_bounded_actor_critic(
            self.observation_space,
            self.action_space,
            model.encoder_hidden_size_list,
            model.activation,
            model.conv_layers,
            num_critics=self.num_critics,
            stochastic=self.stochastic,
        )

    def param_groups(self) -> Mapping[str, tuple[Iterable[nn.Parameter], float]]:
        """Critics and actor."""
        learn = self.cfg.learn
        actor_rate = learn.learning_rate if learn.learning_rate_actor is None else learn.learning_rate_actor
        return {
            "critic": (self.model.critic.parameters(), learn.learning_rate),
            "actor": (self.model.actor.parameters(), actor_rate),
        }

    def get_initial_state(self) -> list[Any]:
        """The noise before the first step of an episode, [A]; nothing where each step's is drawn anew."""
        return [torch.zeros(self.model.bounds.width)] if self.cfg.collect.noise_correlation else []

    def draw_noise(self, like: Tensor, state: Sequence[Any]) -> tuple[Tensor, Sequence[Any]]:
        """Standard normal noise [B, A], and the next state.

            noise = c * noise_before + sqrt(1 - c^2) * drawn, c = cfg.collect.noise_correlation

        Reference:
            An Ornstein-Uhlenbeck process seen at equal steps, as in Lillicrap et al. (2016), https://arxiv.org/abs/1509.02971,
            with a variance that goes to 1.
        """
        noise = torch.randn(like.shape, generator=self.generator, device=like.device)
        if not state:
            return noise, state
        correlation = self.cfg.collect.noise_correlation
        noise = correlation * state[0] + math.sqrt(1 - correlation**2) * noise
        return noise, [noise]


@dataclasses.dataclass
class GaussianNoiseCollectConfig(BoxCollectConfig):
    """Collecting with noise on each action."""

    noise_sigma: float = ranged_field(0.1, low=0)
    """Standard deviation of the noise, in halves of each action's range."""


class GaussianNoiseActing(BoxActing):
    """A mixin for actors that give one action: Gaussian noise is added to it, where it explores."""

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """The actor's actions; where it explores, with noise of `cfg.collect.noise_sigma`, cut off at the bounds."""
        unit: Tensor = self.model.actor(obs)
        if explore:
            collect: Any = self.cfg.collect
            noise, state = self.draw_noise(unit, state)
            unit = torch.add(unit, noise, alpha=collect.noise_sigma).clamp_(-1, 1)
        return self.model.bounds(unit), state, {}


def critic_regression(q_value: Tensor, next_value: Tensor, batch: Tree, gamma: float) -> tuple[Tensor, dict[str, Any]]:
    """The squared error of K critics, halved, summed over them, and what to log of it.

        target = r + discount * (1 - terminated) * next_value
        loss   = mean_b sum_k (target_b - Q_k(s_b, a_b))^2 / 2

    Args:
        q_value: [K, B] float.
        next_value: of what comes after the row, [B] float; takes no gradient.
        batch: reward [B] float; terminated [B] bool; discount, weight [B] float where there are.
        gamma: the discount where the batch has none.

    Returns:
        The scalar loss, and to log critic_loss, the mean q_value and, with weights, the priority of each row, [B], which is the
        mean of its absolute errors.
    """
    target = q_target(batch.reward, next_value, batch.terminated, gamma=bootstrap_discount(batch, gamma))
    error = target - q_value
    weight = batch.weight if has_leaf(batch, "weight") else None
    loss = weighted_mean(0.5 * error.square().sum(0), weight)
    stats = {"critic_loss": loss.detach(), "q_value": q_value.detach().mean()}
    return loss, stats if weight is None else {**stats, "priority": error.detach().abs().mean(0)}
