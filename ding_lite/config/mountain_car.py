"""DQN on MountainCar-v0, where it learns nothing without an exploration bonus: what the configurations of bonuses share."""

from __future__ import annotations

import dataclasses

from ding_lite.basics import ranged_field
from ding_lite.policy import DQNConfig, DQNPolicyConfig
from ding_lite.run_configs import EnvConfig


@dataclasses.dataclass
class MountainCarConfig(DQNConfig):
    """DQN on MountainCar-v0."""

    max_step: int = ranged_field(36_000, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions, and takes one gradient step."""

    env: EnvConfig = dataclasses.field(
        default_factory=lambda: EnvConfig.default(
            "MountainCar-v0", collector_env_num=4, n_evaluator_episode=16, evaluator_env_num=16, stop_value=-120.0
        )
    )
    """Environments."""

    policy: DQNPolicyConfig = dataclasses.field(
        default_factory=lambda: DQNPolicyConfig().override(
            {
                "collect.n_sample": 4,
                "discount_factor": 0.98,
                "learn": {"batch_size": 128, "learning_rate": 5e-4, "target_update_freq": 200},
                "other.eps": {"decay": 10_000, "end": 0.05},
            }
        )
    )
    """The algorithm."""
