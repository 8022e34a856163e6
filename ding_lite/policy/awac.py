"""AWAC: learn Q(s, a) of the actor, and an actor that imitates the actions of the data, the better ones more.

Nair et al. (2020), https://arxiv.org/abs/2006.09359.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ding_lite.basics import ranged_field
from ding_lite.data import Tree
from ding_lite.functional import gaussian_log_prob
from ding_lite.policy_base import Policy, live_from_next_step
from ding_lite.policy_parts import (
    AdvantageWeightedMixin,
    BoxLearnConfig,
    BoxPolicyConfig,
    LearningRateScheduleMixin,
    OfflineModelConfig,
    TargetNetworkMixin,
    advantage_weighted_loss,
    critic_regression,
    limited_share,
)
from ding_lite.run_configs import OfflinePendulumRunConfig


@dataclasses.dataclass
class AWACLearnConfig(BoxLearnConfig):
    """Learning."""

    live_settings = live_from_next_step("awac_lambda", "max_weight")

    batch_size: int = ranged_field(256, low=1, high=10_000_000)
    """Transitions per gradient step."""

    learning_rate: float = ranged_field(3e-4, low=0)
    """Learning rate of the critics, and of the actor unless learning_rate_actor is set."""

    awac_lambda: float = ranged_field(1.0, low=1e-8)
    """Temperature of the weights exp(advantage / awac_lambda), in units of return; the larger, the closer to imitation."""

    max_weight: float = ranged_field(100.0, low=1)
    """Limit of the weights."""


@dataclasses.dataclass
class AWACPolicyConfig(BoxPolicyConfig):
    """AWAC."""

    model: OfflineModelConfig = dataclasses.field(default_factory=OfflineModelConfig)
    """Networks."""

    learn: AWACLearnConfig = dataclasses.field(default_factory=AWACLearnConfig)
    """Learning."""


@dataclasses.dataclass
class AWACConfig(OfflinePendulumRunConfig):
    """AWAC, on Pendulum-v1.

    The learning rates and the temperature of Nair et al. (2020), with batches of 256 transitions instead of 1024.
    """

    exp_name: str = "runs/awac"
    """Folder of the run, for metrics, configuration and checkpoints."""

    policy: AWACPolicyConfig = dataclasses.field(default_factory=AWACPolicyConfig)
    """The algorithm."""


class AWACPolicy(AdvantageWeightedMixin, TargetNetworkMixin, LearningRateScheduleMixin, Policy):
    """Advantage-weighted actor-critic, for actions in a Box with finite bounds and observations of any space."""

    config_type = AWACPolicyConfig
    cfg: AWACPolicyConfig
    learns_from = "transitions"

    def target_source(self) -> Any:
        """The critics. There is no target actor: targets use actions of the current actor."""
        return self.model.critic

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The losses of critics and actor. The gradient of each only reaches its own network.

            loss = critic_loss + actor_loss

        Args:
            batch: obs, next_obs [B, *obs_shape]; action [B, *action_shape] float; reward [B] float; terminated [B] bool;
                optionally discount [B] float for n-step rewards, weight [B] float.

        Returns:
            The scalar loss; and a dict to log, with critic_loss, actor_loss, mean q_value, mean advantage, limited_share, which
            is the share of rows whose weight is max_weight, and, if the batch has weights, the priority of each row, [B].
        """
        q_value = self.model.critic(batch.obs, self.model.bounds.to_unit(batch.action))
        critic_loss, stats = self.critic_loss(q_value, batch)
        actor_loss, advantage = self.actor_loss(q_value.detach().amin(0), batch)
        learn = self.cfg.learn
        stats["limited_share"] = limited_share(advantage, beta=1 / learn.awac_lambda, limit=learn.max_weight)
        return critic_loss + actor_loss, {**stats, "actor_loss": actor_loss.detach(), "advantage": advantage.mean()}

    def critic_loss(self, q_value: Tensor, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The loss of the critics: the target is the minimum of both target critics, for an action of the actor.

            a'     ~ pi(s')
            target = r + discount * (1 - terminated) * min_k Q_target_k(s', a')
            loss   = mean(sum_k (target - Q_k(s, a))^2) / 2

        Args:
            q_value: Q_k(s, a), [K, B].
            batch: see `loss`.

        Returns:
            See `critic_regression`.

        Reference:
            Nair et al. (2020), https://arxiv.org/abs/2006.09359, algorithm 1.
        """
        with torch.no_grad():
            next_value = self.target_model(batch.next_obs, self.draw_actions(batch.next_obs)).amin(0)
        return critic_regression(q_value, next_value, batch, self.cfg.discount_factor)

    def actor_loss(self, q_value: Tensor, batch: Tree) -> tuple[Tensor, Tensor]:
        """The loss of the actor: imitation of the actions of the data, weighted by their advantage.

            b    ~ pi(s)
            A    = min_k Q_k(s, a) - min_k Q_k(s, b)
            loss = -mean(min(exp(A / awac_lambda), max_weight) * log pi(a|s))

        Args:
            q_value: min_k Q_k(s, a), [B], without gradient.
            batch: see `loss`.

        Returns:
            The scalar loss, and the advantage A, [B].

        Reference:
            Nair et al. (2020), https://arxiv.org/abs/2006.09359, eq. 13; the limit is that of `advantage_weight`.
        """
        learn = self.cfg.learn
        with torch.no_grad():
            advantage = q_value - self.model.critic(batch.obs, self.draw_actions(batch.obs)).amin(0)
        mean, log_std = self.model.actor(batch.obs)
        log_prob = gaussian_log_prob(mean, log_std, self.model.bounds.to_unit(batch.action))
        beta, limit = 1 / learn.awac_lambda, learn.max_weight
        return advantage_weighted_loss(log_prob, advantage, batch, beta=beta, limit=limit), advantage
