"""The configuration of each algorithm; what they hold by default solves CartPole-v1.

Room: ding_lite.config, floor 4. Imports policy and the room's runs.
"""

from __future__ import annotations

import dataclasses

from ding_lite.config.runs import RunConfig
from ding_lite.engine import bounded
from ding_lite.policy import DQNPolicyConfig, PPOPolicyConfig


@dataclasses.dataclass
class DQNConfig(RunConfig):
    """DQN."""

    exp_name: str = "runs/dqn"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(2000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    policy: DQNPolicyConfig = dataclasses.field(default_factory=DQNPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class PPOConfig(RunConfig):
    """PPO."""

    exp_name: str = "runs/ppo"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(500, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    policy: PPOPolicyConfig = dataclasses.field(default_factory=PPOPolicyConfig)
    """The algorithm."""
