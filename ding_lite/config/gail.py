"""The configuration of PPO that imitates an expert by GAIL."""

from __future__ import annotations

import dataclasses

from ding_lite.basics import ranged_field
from ding_lite.policy import PPOConfig
from ding_lite.rewards import GAILRewardConfig


@dataclasses.dataclass
class GAILConfig(PPOConfig):
    """PPO that imitates an expert by GAIL."""

    exp_name: str = "runs/gail"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(500, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    expert_data: str | list[str] | None = None
    """Dataset of the expert: a folder that offline_data_saver has written, or a dataset of Minari; several are used as one.
    None for episodes of a controller of CartPole-v1."""

    reward_model: GAILRewardConfig = dataclasses.field(default_factory=GAILRewardConfig)
    """The discriminator."""
