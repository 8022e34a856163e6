"""TD3: DDPG with three remedies against values that are too high: two critics, a late actor, and smoothed targets.

Fujimoto et al. (2018), https://arxiv.org/abs/1802.09477.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ding_lite.basics import ranged_field
from ding_lite.data import Tree
from ding_lite.policy_base import Policy
from ding_lite.policy_parts import (
    BoxConfig,
    BoxLearnConfig,
    GaussianNoiseActing,
    GaussianNoiseCollectConfig,
    TargetNetwork,
    critic_regression,
)
from ding_lite.run_configs import PendulumRunConfig


@dataclasses.dataclass
class TD3LearnConfig(BoxLearnConfig):
    """Learning."""

    target_update_freq: int = ranged_field(2, low=1)
    """Gradient steps between two moves of the target networks."""

    actor_update_freq: int = ranged_field(2, low=1)
    """Gradient steps of the critics for each of the actor."""

    target_noise: float = ranged_field(0.2, low=0)
    """Standard deviation of what is added to the target actor's actions, in halves of each action's range."""

    target_noise_clip: float = ranged_field(0.5, low=0)
    """Limit of what is added, either way, in the same unit."""


@dataclasses.dataclass
class TD3PolicyConfig(BoxConfig):
    """TD3."""

    learn: TD3LearnConfig = dataclasses.field(default_factory=TD3LearnConfig)
    """Learning."""

    collect: GaussianNoiseCollectConfig = dataclasses.field(default_factory=GaussianNoiseCollectConfig)
    """Collecting."""


@dataclasses.dataclass
class TD3Config(PendulumRunConfig):
    """TD3, on Pendulum-v1."""

    exp_name: str = "runs/td3"
    """Folder of the run: curve, configuration, checkpoints."""

    policy: TD3PolicyConfig = dataclasses.field(default_factory=TD3PolicyConfig)
    """The algorithm."""


class TD3Policy(GaussianNoiseActing, TargetNetwork, Policy):
    """Twin delayed DDPG, for actions in a Box with finite bounds and observations of any space."""

    config_type = TD3PolicyConfig
    cfg: TD3PolicyConfig
    learns_from = "transitions"

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The critics' error and, when its turn comes, the actor's, each with gradients for its own part alone.

            loss = critic_loss + (actor_loss every actor_update_freq-th gradient step, from the first on)

        Args:
            batch: as for DDPGPolicy.

        Returns:
            The scalar loss, and to log critic_loss, mean Q-value, in its turn actor_loss and, with weights, the priority of
            each row, [B].
        """
        loss, stats = self.critic_loss(batch)
        if self.train_iter % self.cfg.learn.actor_update_freq:
            return loss, stats
        actor_loss = self.actor_loss(batch)
        return loss + actor_loss, {**stats, "actor_loss": actor_loss.detach()}

    def critic_loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """Both critics learn the lower of two target values, of an action near to that of the target actor.

            a'     = clip(mu_target(s') + clip(noise, -target_noise_clip, target_noise_clip), -1, 1)
            target = r + discount * (1 - terminated) * min_k Q_target_k(s', a')
            loss   = mean(sum_k (target - Q_k(s, a))^2) / 2

        Reference:
            Fujimoto et al. (2018), https://arxiv.org/abs/1802.09477, algorithm 1.
        """
        learn = self.cfg.learn
        with torch.no_grad():
            aim = self.target_model.actor(batch.next_obs)
            noise = torch.randn(aim.shape, generator=self.generator, dtype=aim.dtype, device=aim.device)
            noise = (learn.target_noise * noise).clamp_(-learn.target_noise_clip, learn.target_noise_clip)
            next_value = self.target_model.critic(batch.next_obs, (aim + noise).clamp_(-1, 1)).amin(0)
        q_value = self.model.critic(batch.obs, self.model.bounds.to_unit(batch.action))
        return critic_regression(q_value, next_value, batch, self.cfg.discount_factor)

    def actor_loss(self, batch: Tree) -> Tensor:
        """What the first critic thinks of the actor's actions, negated.

            loss = -mean(Q_1(s, mu(s)))

        Reference:
            Fujimoto et al. (2018), https://arxiv.org/abs/1802.09477, algorithm 1.
        """
        q_value: Tensor = self.model.critic(batch.obs, self.model.actor(batch.obs), frozen=True)
        return -q_value[0].mean()
