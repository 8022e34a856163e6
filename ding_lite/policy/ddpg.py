"""DDPG: learn Q(s, a) and a deterministic actor that maximises it; explore with noise.

Lillicrap et al. (2016), https://arxiv.org/abs/1509.02971, on Silver et al. (2014), "Deterministic Policy Gradient Algorithms".
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ding_lite.data import Tree
from ding_lite.policy_base import Policy
from ding_lite.policy_parts import (
    BoxPolicyConfig,
    GaussianNoiseCollectConfig,
    GaussianNoiseMixin,
    LearningRateScheduleMixin,
    TargetNetworkMixin,
    critic_regression,
)
from ding_lite.run_configs import PendulumRunConfig


@dataclasses.dataclass
class DDPGPolicyConfig(BoxPolicyConfig):
    """DDPG."""

    collect: GaussianNoiseCollectConfig = dataclasses.field(default_factory=GaussianNoiseCollectConfig)
    """Collection."""


@dataclasses.dataclass
class DDPGConfig(PendulumRunConfig):
    """DDPG, on Pendulum-v1."""

    exp_name: str = "runs/ddpg"
    """Folder of the run, for metrics, configuration and checkpoints."""

    policy: DDPGPolicyConfig = dataclasses.field(default_factory=DDPGPolicyConfig)
    """The algorithm."""


class DDPGPolicy(GaussianNoiseMixin, TargetNetworkMixin, LearningRateScheduleMixin, Policy):
    """Deep deterministic policy gradient, for actions in a Box with finite bounds and observations of any space."""

    config_type = DDPGPolicyConfig
    cfg: DDPGPolicyConfig
    learns_from = "transitions"
    num_critics = 1

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The losses of critic and actor. The gradient of each only reaches its own network.

            loss = critic_loss + actor_loss

        Args:
            batch: obs, next_obs [B, *obs_shape]; action [B, *action_shape] float; reward [B] float; terminated [B] bool;
                discount [B] float for n-step rewards; weight [B] float with prioritised replay, for the loss of the critic.

        Returns:
            The scalar loss; and a dict to log, with critic_loss, actor_loss, mean q_value and, if the batch has weights, the
            priority of each row, [B].
        """
        critic_loss, stats = self.critic_loss(batch)
        actor_loss = self.actor_loss(batch)
        return critic_loss + actor_loss, {**stats, "actor_loss": actor_loss.detach()}

    def critic_loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The loss of the critic, with the target actor's action as the next action.

            target = r + discount * (1 - terminated) * Q_target(s', mu_target(s'))
            loss   = mean((target - Q(s, a))^2) / 2

        Args:
            batch: see `loss`.

        Returns:
            See `critic_regression`.

        Reference:
            Lillicrap et al. (2016), https://arxiv.org/abs/1509.02971, eq. 4 and 5.
        """
        with torch.no_grad():
            next_action = self.target_model.actor(batch.next_obs)
            next_value = self.target_model.critic(batch.next_obs, next_action).squeeze(0)
        q_value = self.model.critic(batch.obs, self.model.bounds.to_unit(batch.action))
        return critic_regression(q_value, next_value, batch, self.cfg.discount_factor)

    def actor_loss(self, batch: Tree) -> Tensor:
        """The loss of the actor: the negated value of its actions.

            loss = -mean(Q(s, mu(s)))

        Reference:
            Lillicrap et al. (2016), https://arxiv.org/abs/1509.02971, eq. 6.
        """
        q_value: Tensor = self.model.critic(batch.obs, self.model.actor(batch.obs), frozen=True)
        return -q_value.mean()
