"""PPO: several epochs on each new rollout, with a clipped loss so that the policy stays close to the one that collected.

Schulman et al. (2017), https://arxiv.org/abs/1707.06347, with details of Huang et al. (2022), "The 37 Implementation Details of
Proximal Policy Optimization", including those for LSTMs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ding_lite.basics import ranged_field
from ding_lite.data import Tree, minibatches
from ding_lite.data.trees import has_leaf
from ding_lite.functional import ppo_policy_loss, ppo_value_loss
from ding_lite.nn import get_action_mask, masked
from ding_lite.policy_base import MultiEpochLearnConfig, OnPolicyConfig, Policy, live_from_next_step
from ding_lite.policy_parts import (
    ActorCriticMixin,
    KLCoeffMixin,
    RecurrentActorCriticMixin,
    RecurrentModelConfig,
    is_in_use,
    mean_stats,
)
from ding_lite.run_configs import AtariEnvConfig, EnvConfig, OnPolicyRunConfig, mujoco_envs


@dataclasses.dataclass
class PPOLearnConfig(MultiEpochLearnConfig):
    """Learning from a rollout."""

    live_settings = dict.fromkeys(("unroll_len",), "the next rollout") | live_from_next_step(
        "clip_ratio", "value_clip", "kl_coeff", "kl_target", "target_kl"
    )

    unroll_len: int | None = ranged_field(None, low=1, high=100_000)
    """With an LSTM or attention, length of the sequences to learn from; None for the length of the rollout."""

    entropy_weight: float = ranged_field(0.01, low=0)
    """Weight of the entropy bonus. PPOMuJoCoConfig, PPOTransformerConfig and examples/ppo_continuous.py set it to 0."""

    clip_ratio: float = ranged_field(0.2, low=0, high=1)
    """Clip range of the probability ratio: [1 - clip_ratio, 1 + clip_ratio]."""

    value_clip: float | None = ranged_field(None, low=0)
    """Clip range of the critic's value around its value at collection, in units of return; None for no clipping."""

    kl_coeff: float = ranged_field(0.0, low=0)
    """Initial weight of the KL penalty, which is then adapted to kl_target; 0 for no penalty."""

    kl_target: float = ranged_field(0.01, low=0)
    """Target of the KL divergence from the policy that collected, in nats, to adapt kl_coeff."""

    target_kl: float | None = ranged_field(None, low=0)
    """Stop the epochs over a rollout if the last KL divergence of an epoch exceeds this, in nats; None for never."""


@dataclasses.dataclass
class PPOPolicyConfig(OnPolicyConfig):
    """PPO."""

    model: RecurrentModelConfig = dataclasses.field(default_factory=RecurrentModelConfig)
    """Actor and critic."""

    learn: PPOLearnConfig = dataclasses.field(default_factory=PPOLearnConfig)
    """Learning."""


@dataclasses.dataclass
class PPOConfig(OnPolicyRunConfig):
    """PPO."""

    exp_name: str = "runs/ppo"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(500, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    policy: PPOPolicyConfig = dataclasses.field(default_factory=PPOPolicyConfig)
    """The algorithm."""


_PPO_LSTM = {
    "model": {"lstm_size": 64, "normalize_obs": True},
    "learn": {"unroll_len": 32, "value_weight": 0.1},
    "collect": {"discount_factor": 0.98, "gae_lambda": 0.8},
    "eval.evaluator.eval_freq": 200,
}


@dataclasses.dataclass
class PPOLSTMConfig(PPOConfig):
    """PPO with an LSTM, on CartPole without velocities."""

    exp_name: str = "runs/ppo_lstm"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(500, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=lambda: EnvConfig.default("CartPoleNoVel-v1", stop_value=475.0))
    """Environments."""

    policy: PPOPolicyConfig = dataclasses.field(default_factory=lambda: PPOPolicyConfig().override(_PPO_LSTM))
    """The algorithm."""


_PPO_ATARI = {
    "model": {"encoder_hidden_size_list": [512], "activation": "relu", "share_encoder": True},
    "learn": {
        "batch_size": 256,
        "epoch_per_collect": 4,
        "learning_rate": 2.5e-4,
        "lr_schedule": [(0, 2.5e-4), (156_256, 0.0)],
        "clip_ratio": 0.1,
        "value_clip": 0.1,
        "value_weight": 0.5,
        "entropy_weight": 0.01,
        "grad_clip_norm": 0.5,
    },
    "collect.n_sample": 1024,
    "eval.evaluator.eval_freq": 4000,
}


@dataclasses.dataclass
class PPOAtariConfig(PPOConfig):
    """PPO on Atari games: 10 million steps, which are 40 million frames."""

    exp_name: str = "runs/ppo_atari"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(9766, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions. The learning rate falls to 0 over 9766
    iterations: with another number, change policy.learn.lr_schedule."""

    env: AtariEnvConfig = dataclasses.field(default_factory=lambda: AtariEnvConfig.default(stop_value=20.0))
    """Environments."""

    policy: PPOPolicyConfig = dataclasses.field(default_factory=lambda: PPOPolicyConfig().override(_PPO_ATARI))
    """The algorithm."""


_PPO_TRANSFORMER = {
    "model": {"attention_window": 8, "normalize_obs": True},
    "learn": {"unroll_len": 32, "value_weight": 0.1, "entropy_weight": 0.0},
    "collect": {"discount_factor": 0.98, "gae_lambda": 0.8},
    "eval.evaluator.eval_freq": 200,
}


@dataclasses.dataclass
class PPOTransformerConfig(PPOConfig):
    """PPO with attention, on CartPole without velocities."""

    exp_name: str = "runs/ppo_transformer"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(500, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=lambda: EnvConfig.default("CartPoleNoVel-v1", stop_value=475.0))
    """Environments."""

    policy: PPOPolicyConfig = dataclasses.field(default_factory=lambda: PPOPolicyConfig().override(_PPO_TRANSFORMER))
    """The algorithm."""


_PPO_MUJOCO = {
    "model.normalize_obs": True,
    "learn": {
        "batch_size": 64,
        "learning_rate": 3e-4,
        "lr_schedule": [(0, 3e-4), (156_160, 0.0)],  # 488 iterations of 10 epochs with 32 gradient steps each
        "optimizer_eps": 1e-5,
        "entropy_weight": 0.0,
    },
    "collect.n_sample": 2048,
    "eval.evaluator.eval_freq": 1600,
}


@dataclasses.dataclass
class PPOMuJoCoConfig(PPOConfig):
    """PPO, on Hopper-v5 and other tasks of MuJoCo: a million environment steps, normalised observations.

    The settings of Huang et al. (2022) for continuous actions, without clipping of the value, and with 8 environments instead
    of one. The learning rate reaches 0 after max_step iterations of n_sample transitions: change all three together.
    """

    exp_name: str = "runs/ppo_mujoco"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(488, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=lambda: mujoco_envs("Hopper-v5", stop_value=3800.0))
    """Environments."""

    policy: PPOPolicyConfig = dataclasses.field(default_factory=lambda: PPOPolicyConfig().override(_PPO_MUJOCO))
    """The algorithm."""


class PPOPolicy(RecurrentActorCriticMixin, ActorCriticMixin, KLCoeffMixin, Policy):
    """Proximal policy optimization, for actions and observations of any space, optionally with an LSTM or attention."""

    config_type = PPOPolicyConfig
    cfg: PPOPolicyConfig

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """The clipped surrogate loss, the loss of the critic, the entropy bonus, and the KL penalty.

            loss = policy_loss + value_weight * vf_loss - entropy_coeff * entropy + kl_coeff * kl

        Args:
            batch: obs [B, *obs_shape]; action [B, *action_shape]; log_prob, advantage, value, return_ [B] float. With an LSTM
                or attention, all of these [N, L, ...]; terminated, truncated and, optionally, valid [N, L] bool; state_in_0,
                state_in_1, ... [N, ...], the recurrent state before the first step.

        Returns:
            The scalar loss; and a dict to log, with total_loss, policy_loss, vf_loss, entropy, kl and clip_frac.

        Reference:
            Schulman et al. (2017), https://arxiv.org/abs/1707.06347, eq. 8 and 9.
        """
        return self.clipped_loss(*self.evaluate_batch(batch))

    def clipped_loss(self, logit: Tensor, value: Tensor, batch: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """`loss` for logit [N, width] and value [N] of `batch.obs` that were computed before, for example from features that
        another loss uses too. The `action_mask` of `batch.obs` masks the logit, if it has not yet."""
        learn = self.cfg.learn
        mask = get_action_mask(batch.obs) if has_leaf(batch, "obs") else None
        if mask is not None and mask.shape == logit.shape:  # a distribution of the script may have another width
            logit = masked(logit, batch.obs)
        log_prob, entropy = self.model.distribution.evaluate(logit, batch.action)
        advantage = self.advantages(batch.advantage)
        policy_loss, log_ratio = ppo_policy_loss(log_prob, batch.log_prob, advantage, clip_ratio=learn.clip_ratio)
        vf_loss = ppo_value_loss(value, batch.value, batch.return_, value_clip=learn.value_clip)
        # The estimator k3 of http://joschu.net/blog/kl-approx.html: unbiased, as is its gradient, and never negative.
        ratio_minus_1 = log_ratio.expm1()
        kl = (ratio_minus_1 - log_ratio).mean()
        clip_frac = (ratio_minus_1.detach().abs() > learn.clip_ratio).float().mean()
        penalty = self.kl_coeff * kl if is_in_use(self.kl_coeff) else None
        return self.actor_critic_loss(policy_loss, vf_loss, entropy.mean(), penalty, kl=kl, clip_frac=clip_frac)

    def learn_on_batch(self, batch: Tree) -> dict[str, Tensor]:
        """Learn from a rollout in epochs of shuffled minibatches; with an LSTM or attention, minibatches of sequences.

        Args:
            batch: see `loss`, but [T, B, ...]; optionally valid [T, B] bool, False for rows to leave out.

        Returns:
            The means of the statistics of `loss` over all gradient steps, and the result of `stats`.
        """
        learn = self.cfg.learn
        rows, batch_size = self.learning_rows(batch, learn.batch_size)
        size = self.rows_per_step(rows, batch_size)
        steps: list[dict[str, Any]] = []
        for _ in range(learn.epoch_per_collect):
            for part in minibatches(rows, size, self.generator):
                steps.append(self.gradient_step(part))
            if learn.target_kl is not None and float(steps[-1].get("kl", 0.0)) > learn.target_kl:
                break
        return {**mean_stats(steps), **self.stats(batch)}

    def stats(self, batch: Tree) -> dict[str, Any]:
        """Statistics of the rollout: vf_explained_var, cur_lr and cur_kl_coeff."""
        return {**super().stats(batch), "cur_kl_coeff": torch.full((), self.kl_coeff)}
