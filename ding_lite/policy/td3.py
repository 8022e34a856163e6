"""TD3: DDPG with three changes against overestimated values: two critics, delayed actor updates, and target smoothing.

Fujimoto et al. (2018), https://arxiv.org/abs/1802.09477.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from ding_lite.basics import ranged_field
from ding_lite.data import Tree
from ding_lite.policy_base import Policy, live_from_next_step
from ding_lite.policy_parts import (
    BoxLearnConfig,
    BoxPolicyConfig,
    GaussianNoiseCollectConfig,
    GaussianNoiseMixin,
    LearningRateScheduleMixin,
    TargetNetworkMixin,
    critic_regression,
)
from ding_lite.run_configs import EnvConfig, PendulumRunConfig, mujoco_envs


@dataclasses.dataclass
class TD3LearnConfig(BoxLearnConfig):
    """Learning."""

    live_settings = live_from_next_step("actor_update_freq", "target_noise", "target_noise_clip")

    target_update_freq: int = ranged_field(2, low=1)
    """Gradient steps between two updates of the target networks."""

    actor_update_freq: int = ranged_field(2, low=1)
    """Gradient steps of the critics per gradient step of the actor."""

    target_noise: float = ranged_field(0.2, low=0)
    """Standard deviation of the noise added to the target actor's actions, for actions scaled to [-1, 1]."""

    target_noise_clip: float = ranged_field(0.5, low=0)
    """The noise is clipped to [-target_noise_clip, target_noise_clip]."""


@dataclasses.dataclass
class TD3PolicyConfig(BoxPolicyConfig):
    """TD3."""

    learn: TD3LearnConfig = dataclasses.field(default_factory=TD3LearnConfig)
    """Learning."""

    collect: GaussianNoiseCollectConfig = dataclasses.field(default_factory=GaussianNoiseCollectConfig)
    """Collection."""


@dataclasses.dataclass
class TD3Config(PendulumRunConfig):
    """TD3, on Pendulum-v1."""

    exp_name: str = "runs/td3"
    """Folder of the run, for metrics, configuration and checkpoints."""

    policy: TD3PolicyConfig = dataclasses.field(default_factory=TD3PolicyConfig)
    """The algorithm."""


_TD3_MUJOCO = {
    "random_collect_size": 25_000,
    "model.encoder_hidden_size_list": [256, 256],
    "learn": {"batch_size": 256, "learning_starts": 25_000, "learning_rate": 3e-4},
    "other.replay_buffer_size": 1_000_000,
    "eval.evaluator.eval_freq": 5000,
}


@dataclasses.dataclass
class TD3MuJoCoConfig(TD3Config):
    """TD3, on Hopper-v5 and other tasks of MuJoCo: a million environment steps, one gradient step for each.

    The settings of the code of Fujimoto et al. (2018), with 8 environments instead of one.
    """

    exp_name: str = "runs/td3_mujoco"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(121_876, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=lambda: mujoco_envs("Hopper-v5", stop_value=3800.0))
    """Environments."""

    policy: TD3PolicyConfig = dataclasses.field(default_factory=lambda: TD3PolicyConfig().override(_TD3_MUJOCO))
    """The algorithm."""


class TD3Policy(GaussianNoiseMixin, TargetNetworkMixin, LearningRateScheduleMixin, Policy):
    """Twin delayed DDPG, for actions in a Box with finite bounds and observations of any space."""

    config_type: ClassVar[type[TD3PolicyConfig]] = TD3PolicyConfig
    cfg: TD3PolicyConfig
    learns_from = "transitions"

    def step_variant(self) -> bool:
        """Whether the actor learns in this gradient step."""
        return self.train_iter % self.cfg.learn.actor_update_freq == 0

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The losses of critics and actor. The gradient of each only reaches its own network.

            loss = critic_loss + (actor_loss if train_iter % actor_update_freq == 0)

        Args:
            batch: see `DDPGPolicy.loss`.

        Returns:
            The scalar loss; and a dict to log, with critic_loss, mean q_value, actor_loss if it was computed and, if the batch
            has weights, the priority of each row, [B].
        """
        loss, stats = self.critic_loss(batch)
        if not self.step_variant():
            return loss, stats
        actor_loss = self.actor_loss(batch)
        return loss + actor_loss, {**stats, "actor_loss": actor_loss.detach()}

    def critic_loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The loss of the critics: the target is the minimum of both target critics, for the target actor's action with noise.

            a'     = clip(mu_target(s') + clip(noise, -target_noise_clip, target_noise_clip), -1, 1)
            target = r + discount * (1 - terminated) * min_k Q_target_k(s', a')
            loss   = mean(sum_k (target - Q_k(s, a))^2) / 2

        Args:
            batch: see `loss`.

        Returns:
            See `critic_regression`.

        Reference:
            Fujimoto et al. (2018), https://arxiv.org/abs/1802.09477, algorithm 1.
        """
        learn = self.cfg.learn
        with torch.no_grad():
            next_action = self.target_model.actor(batch.next_obs)
            noise = torch.randn(next_action.shape, generator=self.generator, dtype=next_action.dtype, device=next_action.device)
            noise = (learn.target_noise * noise).clamp_(-learn.target_noise_clip, learn.target_noise_clip)
            next_value = self.target_model.critic(batch.next_obs, (next_action + noise).clamp_(-1, 1)).amin(0)
        q_value = self.model.critic(batch.obs, self.model.bounds.to_unit(batch.action))
        return critic_regression(q_value, next_value, batch, self.cfg.discount_factor)

    def actor_loss(self, batch: Tree) -> Tensor:
        """The loss of the actor: the negated value of its actions, by the first critic.

            loss = -mean(Q_1(s, mu(s)))

        Reference:
            Fujimoto et al. (2018), https://arxiv.org/abs/1802.09477, algorithm 1.
        """
        q_value: Tensor = self.model.critic(batch.obs, self.model.actor(batch.obs), frozen=True)
        return -q_value[0].mean()
