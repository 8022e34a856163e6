"""Sections of configuration of policies that learn from replay."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from ding_lite.basics import Config, ranged_field
from ding_lite.policy_base import LearnConfig, ModelConfig, PolicyConfig


@dataclasses.dataclass
class OffPolicyLearnConfig(LearnConfig):
    """Learning from replayed transitions."""

    update_per_collect: int = ranged_field(64, low=1, high=1_000_000)
    """Gradient steps after each collection."""

    learning_starts: int = ranged_field(1000, low=0)
    """Transitions in the buffer before the first gradient step."""

    target_update_freq: int = ranged_field(50, low=1)
    """Gradient steps between two moves of the target network."""

    target_update_theta: float = ranged_field(1.0, low=0, high=1)
    """How far each move goes: 1 copies the weights, less averages them in."""


@dataclasses.dataclass
class ReplayConfig(Config):
    """Replay."""

    replay_buffer_size: int = ranged_field(50_000, low=1, high=1_000_000_000)
    """Transitions that the buffer holds."""


@dataclasses.dataclass
class EpsConfig(Config):
    """How often an action is random."""

    type: Literal["exp", "linear"] = "linear"
    """Shape of the decay."""

    start: float = ranged_field(1.0, low=0, high=1)
    """Probability at the first step."""

    end: float = ranged_field(0.04, low=0, high=1)
    """Probability that it goes to."""

    decay: int = ranged_field(5000, low=1)
    """Environment steps: "linear" arrives there, "exp" has come 63% of the way."""


@dataclasses.dataclass
class ExplorationConfig(ReplayConfig):
    """Exploration and replay."""

    eps: EpsConfig = dataclasses.field(default_factory=EpsConfig)
    """Random actions."""


@dataclasses.dataclass
class OffPolicyConfig(PolicyConfig):
    """What policies need to know that learn from replayed transitions."""

    discount_factor: float = ranged_field(0.99, low=0, high=1)
    """gamma, a step."""

    nstep: int = ranged_field(1, low=1, high=10_000)
    """Rewards that are summed up before the bootstrap, by nstep_reward_enhancer."""

    learn: OffPolicyLearnConfig = dataclasses.field(default_factory=OffPolicyLearnConfig)
    """Learning."""

    other: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    """Replay."""


@dataclasses.dataclass
class ValueBasedConfig(OffPolicyConfig):
    """What policies need to know that act greedily on values of actions, learned from replay."""

    other: ExplorationConfig = dataclasses.field(default_factory=ExplorationConfig)
    """Exploration and replay."""


@dataclasses.dataclass
class HeadModelConfig(ModelConfig):
    """An encoder with layers of its own behind it."""

    encoder_hidden_size_list: list[int] = ranged_field(default_factory=lambda: [64], low=1, high=16_384)
    """Width of each hidden layer of the encoder."""

    head_hidden_size_list: list[int] = ranged_field(default_factory=lambda: [64], low=1, high=16_384)
    """Width of each hidden layer behind it."""


@dataclasses.dataclass
class PriorityConfig(ReplayConfig):
    """Replay by priority; see PrioritizedReplayBuffer."""

    priority_alpha: float = ranged_field(0.5, low=0, high=1)
    """How much priorities count; 0 draws uniformly."""

    priority_beta: float = ranged_field(0.4, low=0, high=1)
    """How much of the bias of such draws is taken back at first."""

    priority_beta_end: float = ranged_field(1.0, low=0, high=1)
    """And how much in the end."""

    priority_beta_samples: int = ranged_field(100_000, low=1)
    """Gradient steps until then."""

    priority_lag: int = ranged_field(0, low=0, high=1)
    """With 1, a batch is drawn before the one before it has its new priorities, so that it can be made ready meanwhile."""

    def priorities(self) -> dict[str, Any]:
        """What a PrioritizedReplayBuffer wants to know."""
        names = ("alpha", "beta", "beta_end", "beta_samples", "lag")
        return {name: getattr(self, f"priority_{name}") for name in names}
