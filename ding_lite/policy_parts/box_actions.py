"""Box actions: the parts that policies for them have in common."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite.basics import ranged_field
from ding_lite.data import Tree
from ding_lite.data.trees import first_leaf
from ding_lite.envs import SpaceError
from ding_lite.functional import q_target, weighted_mean
from ding_lite.nn import ActionBounds, BoundedActorCritic, make_bounded_actor_critic
from ding_lite.policy_base import CollectConfig, live_from_next_step
from ding_lite.policy_check import HookError, require_members, require_output
from ding_lite.policy_parts.param_groups import ParamGroupsMixin
from ding_lite.policy_parts.replay_configs import OffPolicyConfig, OffPolicyLearnConfig
from ding_lite.policy_parts.replay_losses import bootstrap_discount, row_weight


@dataclasses.dataclass
class BoxLearnConfig(OffPolicyLearnConfig):
    """Learning an actor and critics from replayed transitions."""

    live_settings = live_from_next_step("learning_rate_actor")

    batch_size: int = ranged_field(128, low=1, high=10_000_000)
    """Transitions per gradient step."""

    update_per_collect: int = ranged_field(8, low=1, high=1_000_000)
    """Gradient steps after each collection."""

    learning_rate_actor: float | None = ranged_field(None, low=0)
    """Learning rate of the actor; None for learning_rate, the rate of the critics."""

    target_update_freq: int = ranged_field(1, low=1)
    """Gradient steps between two updates of the target networks."""

    target_update_theta: float = ranged_field(0.005, low=0, high=1)
    """Coefficient of the Polyak update of the target networks; 1 copies the weights."""


@dataclasses.dataclass
class BoxCollectConfig(CollectConfig):
    """Collection."""

    fixed_settings = dict.fromkeys(
        ("noise_correlation", "noise_sigma"), "the acting copies, which may be in worker processes, have it: start a new run."
    )

    n_sample: int = ranged_field(8, low=1, high=10_000_000)
    """Transitions per iteration, rounded up to whole steps of all environments."""

    noise_correlation: float = ranged_field(0.0, low=0, high=0.999)
    """Correlation of the exploration noise in successive steps of an episode; 0 for independent noise. Correlated noise helps
    if a single action has little effect, such as with small time steps."""


@dataclasses.dataclass
class BoxPolicyConfig(OffPolicyConfig):
    """The configuration of an off-policy algorithm for Box actions."""

    fixed_settings = dict.fromkeys(("random_collect_size",), "the collector is made with it: start a new run.")

    random_collect_size: int = ranged_field(1000, low=0, high=10_000_000)
    """Environment steps with random actions before the policy acts, for StepCollector."""

    learn: BoxLearnConfig = dataclasses.field(default_factory=BoxLearnConfig)
    """Learning."""

    collect: BoxCollectConfig = dataclasses.field(default_factory=BoxCollectConfig)
    """Collection."""


OFFLINE_POLICIES_FOR_DISCRETE_ACTIONS = (
    "BCPolicy or DecisionTransformerPolicy, which support all spaces, or, for Discrete actions, DiscreteIQLPolicy or "
    "DiscreteCQLPolicy"
)
"""What `BoxActionMixin.for_other_actions` of a policy that learns from datasets advises."""

FOR_RECORDED_ACTIONS = OFFLINE_POLICIES_FOR_DISCRETE_ACTIONS  # its name in earlier versions


class BoxActionMixin(ParamGroupsMixin):
    """A mixin for Box actions with finite bounds: an actor, critics, and exploration noise.

    `model.actor` and `model.critic` use actions scaled to [-1, 1]; batches contain the actions of the environment.
    """

    action_space: spaces.Box
    cfg: BoxPolicyConfig
    model: Any
    target_model: Any
    num_critics = 2
    stochastic = False
    """Whether the actor returns a distribution over actions instead of one action."""
    squashed = True
    """Whether a stochastic actor squashes its Gaussian by tanh."""
    for_other_actions: ClassVar[str] = "PPOPolicy, which supports all spaces"
    """The policies that learn in the same way and have other action spaces, for messages."""

    def check_spaces(self) -> None:
        """Raise SpaceError if the action space is not a Box of floats with finite bounds."""
        super().check_spaces()
        space, kind = self.action_space, type(self).__name__
        if not isinstance(space, spaces.Box):
            raise SpaceError(f"{kind} wants actions in a Box of floats, got {space}: use {self.for_other_actions}.")
        if not np.issubdtype(space.dtype, np.floating):
            raise SpaceError(f"{kind} wants actions in a Box of floats, got {space}: make it a MultiDiscrete space.")
        with np.errstate(over="ignore"):
            bounds = np.array([space.low, space.high]).astype(np.float32)  # as the networks compute
        if not np.isfinite(bounds).all():
            raise SpaceError(
                f"{kind} wants actions with finite bounds, also in float32, got {space} with low {space.low.tolist()} and "
                f"high {space.high.tolist()}: set bounds with gymnasium.wrappers.TransformAction, or use "
                f"{self.for_other_actions}."
            )

    def make_model(self) -> BoundedActorCritic:
        """Make the actor, the critics, and the bounds of actions."""
        model = self.cfg.model
        return make_bounded_actor_critic(
            self.observation_space,
            self.action_space,
            model.encoder_hidden_size_list,
            model.activation,
            model.conv_layers,
            num_critics=self.num_critics,
            stochastic=self.stochastic,
            squashed=self.squashed,
            normalize_obs=model.normalize_obs,
            layer_norm=model.layer_norm,
        )

    def take_model(self, model: nn.Module) -> nn.Module:
        """The module, with `bounds` of actions if it has none.

        Raises:
            TypeError: it has no actor or no critic, or one of them is no module.
        """
        actor = "actor(obs) -> (mean, log_std)" if self.stochastic else "actor(obs) -> [B, A]"
        if self.stochastic and self.squashed:
            actor += ", and actor.sample(obs, generator)"
        members = {
            "actor": f"{actor}, for actions scaled to [-1, 1]",
            "critic": "critic(obs, scaled_action, frozen=False) -> [K, B]",
        }
        require_members(self, model, members, modules=("actor", "critic"))
        if not hasattr(model, "bounds"):
            model.bounds = ActionBounds(self.action_space)
        return super().take_model(model)

    def check_model(self, obs: Any) -> None:
        """Check the shapes of what actor and critic return, and that `frozen` blocks the gradients of the critic."""
        count, width = len(first_leaf(obs)), self.model.bounds.width
        found = self.model.actor(obs)
        for name, part in zip(("mean", "log_std"), found) if self.stochastic else (("unit actions", found),):
            require_output(self, "actor(obs)", part, (count, width), f"{name} [B, A], of actions scaled to [-1, 1]")
        unit = torch.zeros(count, width, device=self.device)
        value = self.model.critic(obs, unit, frozen=True)
        critics = 1 if self.num_critics == 1 else None  # the losses of two critics take any number of them
        require_output(self, "critic(obs, scaled_action)", value, (critics, count), "the values [K, B] of K critics")
        if value.requires_grad:
            raise HookError(
                f"the model of {type(self).__name__}, a {type(self.model).__name__}, does not block the gradients to the "
                "weights of the critic in critic(obs, scaled_action, frozen=True), so the loss of the actor would train the "
                "critic: detach them there, as ding_lite.nn.QCritic does."
            )

    def param_groups(self) -> Mapping[str, tuple[Iterable[nn.Parameter], float]]:
        """The parameters and learning rates of critics and actor."""
        learn = self.cfg.learn
        actor_rate = learn.learning_rate if learn.learning_rate_actor is None else learn.learning_rate_actor
        return {
            "critic": (self.model.critic.parameters(), learn.learning_rate),
            "actor": (self.model.actor.parameters(), actor_rate),
        }

    def get_initial_state(self) -> list[Any]:
        """The noise before the first step of an episode, zeros [A]; empty if the noise is independent."""
        return [torch.zeros(self.model.bounds.width)] if self.cfg.collect.noise_correlation else []

    def draw_noise(self, like: Tensor, state: Sequence[Any]) -> tuple[Tensor, Sequence[Any]]:
        """Draw exploration noise.

            noise = c * previous_noise + sqrt(1 - c^2) * N(0, 1), c = cfg.collect.noise_correlation

        Args:
            like: a tensor [B, A] with the shape and device of the noise.
            state: recurrent state: the noise [B, A] of the previous step; empty for independent noise.

        Returns:
            Noise [B, A], and the next state. Independent noise is standard normal. The variance of correlated noise is
            1 - c^2 in the first step of an episode, and converges to 1.

        Reference:
            A discrete-time Ornstein-Uhlenbeck process, as in Lillicrap et al. (2016), https://arxiv.org/abs/1509.02971.
        """
        noise = torch.randn(like.shape, generator=self.generator, device=like.device)
        if not state:
            return noise, state
        correlation = self.cfg.collect.noise_correlation
        noise = correlation * state[0] + math.sqrt(1 - correlation**2) * noise
        return noise, [noise]


@dataclasses.dataclass
class GaussianNoiseCollectConfig(BoxCollectConfig):
    """Collection with noise added to actions."""

    noise_sigma: float = ranged_field(0.1, low=0)
    """Standard deviation of the noise, for actions scaled to [-1, 1]."""


class GaussianNoiseMixin(BoxActionMixin):
    """A mixin for deterministic actors: exploration adds Gaussian noise to their actions."""

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Compute the actor's actions; if it explores, add noise of `cfg.collect.noise_sigma` and clip to the bounds."""
        unit: Tensor = self.model.actor(obs)
        if explore:
            collect: Any = self.cfg.collect
            noise, state = self.draw_noise(unit, state)
            unit = torch.add(unit, noise, alpha=collect.noise_sigma).clamp_(-1, 1)
        return self.model.bounds(unit), state, {}


def critic_regression(q_value: Tensor, next_value: Tensor, batch: Tree, gamma: float) -> tuple[Tensor, dict[str, Any]]:
    """The loss of K critics: half the squared error, summed over the critics.

        target = r + discount * (1 - terminated) * next_value
        loss   = mean_b sum_k (target_b - Q_k(s_b, a_b))^2 / 2

    Args:
        q_value: Q_k(s, a), [K, B] float.
        next_value: value of the next state, [B] float, without gradient.
        batch: reward [B] float; terminated [B] bool; optionally discount, weight [B] float.
        gamma: discount factor if the batch has no discount.

    Returns:
        The scalar loss; and a dict to log, with critic_loss, the mean q_value and, if the batch has weights, the priority of
        each row, [B]: the mean absolute error over the critics.
    """
    target = q_target(batch.reward, next_value, batch.terminated, gamma=bootstrap_discount(batch, gamma))
    error = target - q_value
    weight = row_weight(batch)
    loss = weighted_mean(0.5 * error.square().sum(0), weight)
    stats = {"critic_loss": loss.detach(), "q_value": q_value.detach().mean()}
    return loss, stats if weight is None else {**stats, "priority": error.detach().abs().mean(0)}


BoxConfig = BoxPolicyConfig  # its name in earlier versions
BoxActing = BoxActionMixin  # its name in earlier versions
GaussianNoiseActing = GaussianNoiseMixin  # its name in earlier versions
