"""Sections of configuration of off-policy algorithms."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ding_lite.basics import Config, di_engine_settings, ranged_field
from ding_lite.policy_base import LearnConfig, ModelConfig, PolicyConfig, live_from_next_step

_TARGET = "the target network is updated every policy.learn.target_update_freq gradient steps."
_EPSILON = "epsilon is policy.other.eps, with start, end and decay, the latter in environment steps."


@dataclasses.dataclass
class OffPolicyLearnConfig(LearnConfig):
    """Learning from replayed transitions."""

    foreign: ClassVar[Mapping[str, str]] = {
        "train_batch_size": "the transitions per gradient step are policy.learn.batch_size.",
        **dict.fromkeys(("target_network_update_freq", "target_update_interval"), _TARGET),
        "gradient_steps": "the gradient steps after each collection are policy.learn.update_per_collect.",
    }
    live_settings = dict.fromkeys(("update_per_collect", "learning_starts"), "the next iteration") | live_from_next_step(
        "target_update_freq", "target_update_theta"
    )

    update_per_collect: int = ranged_field(64, low=1, high=1_000_000)
    """Gradient steps after each collection."""

    learning_starts: int = ranged_field(1000, low=0)
    """Transitions in the buffer before the first gradient step."""

    target_update_freq: int = ranged_field(50, low=1)
    """Gradient steps between two updates of the target network."""

    target_update_theta: float = ranged_field(1.0, low=0, high=1)
    """Coefficient of the Polyak update of the target network; 1 copies the weights."""


@dataclasses.dataclass
class ReplayConfig(Config):
    """Replay."""

    di_engine: ClassVar[Mapping[str, str]] = di_engine_settings.REPLAY
    fixed_settings = dict.fromkeys(("*",), "the replay buffer is made with it: start a new run.")

    replay_buffer_size: int = ranged_field(50_000, low=1, high=1_000_000_000)
    """Capacity of the buffer, in transitions."""


@dataclasses.dataclass
class EpsConfig(Config):
    """Schedule of epsilon, the probability of a random action."""

    live_settings = dict.fromkeys(("type", "start", "end", "decay"), "the next rollout")

    type: Literal["exp", "linear"] = "linear"
    """Shape of the decay."""

    start: float = ranged_field(1.0, low=0, high=1)
    """Epsilon at the first step."""

    end: float = ranged_field(0.04, low=0, high=1)
    """Final epsilon."""

    decay: int = ranged_field(5000, low=1)
    """Environment steps until the final epsilon ("linear"), or until 63% of the decay ("exp")."""


@dataclasses.dataclass
class EpsReplayConfig(ReplayConfig):
    """Exploration and replay."""

    eps: EpsConfig = dataclasses.field(default_factory=EpsConfig)
    """Schedule of epsilon."""


@dataclasses.dataclass
class OffPolicyConfig(PolicyConfig):
    """The configuration of an off-policy algorithm."""

    sums_rewards: ClassVar[bool] = False
    """Whether the policy itself sums the rewards of `nstep` steps, from those of single steps in the replay buffer."""
    live_settings = live_from_next_step("discount_factor")
    fixed_settings = dict.fromkeys(("nstep",), "the rewards in the replay buffer are sums of so many steps: start a new run.")

    discount_factor: float = ranged_field(0.99, low=0, high=1)
    """Discount factor gamma, per step."""

    nstep: int = ranged_field(1, low=1, high=10_000)
    """Steps of n-step returns, computed by nstep_reward_enhancer."""

    learn: OffPolicyLearnConfig = dataclasses.field(default_factory=OffPolicyLearnConfig)
    """Learning."""

    other: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    """Replay."""

    def liveness(self, name: str) -> tuple[bool, str]:
        """Whether a setting can be changed in a run, and when or why not: `discount_factor` only if nstep is 1."""
        if name == "discount_factor" and self.nstep > 1 and not self.sums_rewards:
            return False, "the rewards in the replay buffer are sums with it, as policy.nstep is above 1: start a new run."
        return super().liveness(name)


@dataclasses.dataclass
class ValueBasedConfig(OffPolicyConfig):
    """The configuration of a value-based off-policy algorithm, such as DQN."""

    foreign: ClassVar[Mapping[str, str]] = {
        "epsilon": f"{_EPSILON} That of the optimizer is policy.learn.optimizer_eps.",
        **dict.fromkeys(("exploration_final_eps", "exploration_fraction", "exploration_initial_eps"), _EPSILON),
    }

    other: EpsReplayConfig = dataclasses.field(default_factory=EpsReplayConfig)
    """Exploration and replay."""


@dataclasses.dataclass
class EncoderHeadModelConfig(ModelConfig):
    """An encoder, followed by hidden layers of the head."""

    encoder_hidden_size_list: list[int] = ranged_field(default_factory=lambda: [64], low=1, high=16_384)
    """Width of each hidden layer of the encoder."""

    head_hidden_size_list: list[int] = ranged_field(default_factory=lambda: [64], low=1, high=16_384)
    """Width of each hidden layer of the head."""


@dataclasses.dataclass
class OfflineModelConfig(ModelConfig):
    """Networks with wider layers, as in the papers on learning from datasets."""

    encoder_hidden_size_list: list[int] = ranged_field(default_factory=lambda: [256, 256], low=1, high=16_384)
    """Width of each hidden layer."""


@dataclasses.dataclass
class PriorityConfig(ReplayConfig):
    """Prioritised replay; see PrioritizedReplayBuffer."""

    priority_alpha: float = ranged_field(0.5, low=0, high=1)
    """Exponent of priorities; 0 samples uniformly."""

    priority_beta: float = ranged_field(0.4, low=0, high=1)
    """Initial exponent of the importance weights; 1 corrects the sampling bias completely."""

    priority_beta_end: float = ranged_field(1.0, low=0, high=1)
    """Final exponent of the importance weights."""

    priority_beta_samples: int = ranged_field(100_000, low=1)
    """Batches sampled until the final exponent."""

    priority_lag: int = ranged_field(0, low=0, high=1)
    """1 samples each batch before the new priorities of the previous batch are known, so that it can be prepared early."""

    def priorities(self) -> dict[str, Any]:
        """Keyword arguments for PrioritizedReplayBuffer."""
        names = ("alpha", "beta", "beta_end", "beta_samples", "lag")
        return {name: getattr(self, f"priority_{name}") for name in names}


WideModelConfig = OfflineModelConfig  # its name in earlier versions
ExplorationConfig = EpsReplayConfig  # its name in earlier versions
HeadModelConfig = EncoderHeadModelConfig  # its name in earlier versions
