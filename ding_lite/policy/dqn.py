"""DQN: learn the value of each action, act greedily on it, explore with random actions.

Mnih et al. (2015), https://www.nature.com/articles/nature14236; double: van Hasselt et al. (2016),
https://arxiv.org/abs/1509.06461; dueling: Wang et al. (2016), https://arxiv.org/abs/1511.06581.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ding_lite.basics import ranged_field
from ding_lite.data import Tree
from ding_lite.functional import q_target
from ding_lite.nn import make_q_network, masked
from ding_lite.policy_base import ModelConfig, Policy, live_from_next_step
from ding_lite.policy_parts import (
    EpsilonGreedyMixin,
    LearningRateScheduleMixin,
    TargetNetworkMixin,
    ValueBasedConfig,
    bootstrap_discount,
    weighted_loss,
)
from ding_lite.run_configs import AtariEnvConfig, RunConfig


@dataclasses.dataclass
class DQNModelConfig(ModelConfig):
    """The Q-network."""

    dueling: bool = False
    """Split the head into state value and advantage."""


@dataclasses.dataclass
class DQNPolicyConfig(ValueBasedConfig):
    """DQN and its variants."""

    live_settings = live_from_next_step("double")

    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network evaluates it."""

    model: DQNModelConfig = dataclasses.field(default_factory=DQNModelConfig)
    """The Q-network."""


@dataclasses.dataclass
class DQNConfig(RunConfig):
    """DQN."""

    exp_name: str = "runs/dqn"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(2000, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    policy: DQNPolicyConfig = dataclasses.field(default_factory=DQNPolicyConfig)
    """The algorithm."""


_DQN_ATARI = {
    "model.encoder_hidden_size_list": [512],
    "learn": {
        "batch_size": 32,
        "learning_rate": 1e-4,
        "update_per_collect": 8,
        "learning_starts": 80_000,
        "target_update_freq": 1000,
    },
    "collect.n_sample": 32,
    "other": {"replay_buffer_size": 1_000_000, "eps": {"end": 0.01, "decay": 1_000_000}},
    "eval.evaluator.eval_freq": 62_500,
}


@dataclasses.dataclass
class DQNAtariConfig(DQNConfig):
    """DQN on Atari games: 10 million steps, which are 40 million frames, with one gradient step per 4 steps."""

    exp_name: str = "runs/dqn_atari"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(312_500, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    env: AtariEnvConfig = dataclasses.field(default_factory=lambda: AtariEnvConfig.default(stop_value=20.0))
    """Environments."""

    policy: DQNPolicyConfig = dataclasses.field(default_factory=lambda: DQNPolicyConfig().override(_DQN_ATARI))
    """The algorithm."""


class DQNPolicy(EpsilonGreedyMixin, TargetNetworkMixin, LearningRateScheduleMixin, Policy):
    """Q-learning with a target network, for Discrete actions and observations of any space."""

    config_type: ClassVar[type[DQNPolicyConfig]] = DQNPolicyConfig
    cfg: DQNPolicyConfig
    learns_from = "transitions"

    def make_model(self) -> nn.Module:
        """Make the network from observations to Q-values [B, A]."""
        model = self.cfg.model
        return make_q_network(
            self.observation_space,
            self.num_actions,
            model.encoder_hidden_size_list,
            model.activation,
            model.conv_layers,
            dueling=model.dueling,
            normalize_obs=model.normalize_obs,
            layer_norm=model.layer_norm,
        )

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The Huber loss of Q-learning, for one-step or n-step returns.

            target = r + discount * (1 - terminated) * Q_target(s', a')
            a'     = argmax_a Q(s', a) if double else argmax_a Q_target(s', a)

        The next action a' is one that the `action_mask` of s' allows, if observations have one.

        Args:
            batch: obs, next_obs [B, *obs_shape]; action [B] int64; reward [B] float; terminated [B] bool; discount [B] float
                for n-step rewards; weight [B] float with prioritised replay.

        Returns:
            The scalar loss; and a dict to log, with loss, mean q_value and, if the batch has weights, the priority of each row,
            [B]: the absolute error.

        Reference:
            van Hasselt et al. (2016), https://arxiv.org/abs/1509.06461, eq. 4.
        """
        return self.td_loss(self.model(batch.obs), batch)

    def td_loss(self, q_values: Tensor, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """`loss` for values [B, A] of `batch.obs` that were computed before, for example from features that another loss uses
        too."""
        with torch.no_grad():
            next_q = self.target_model(batch.next_obs)
            choosing_q = self.model(batch.next_obs) if self.cfg.double else next_q
            best = masked(choosing_q, batch.next_obs).argmax(-1, keepdim=True)
            next_value = next_q.gather(-1, best).squeeze(-1)
            target = q_target(
                batch.reward, next_value, batch.terminated, gamma=bootstrap_discount(batch, self.cfg.discount_factor)
            )
        index = self.action_index(batch.action)
        q_value = q_values.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        loss = nn.functional.smooth_l1_loss(q_value, target, reduction="none")
        mean_loss, stats = weighted_loss(loss, lambda: target - q_value, batch)
        return mean_loss, {**stats, "q_value": q_value.detach().mean()}
