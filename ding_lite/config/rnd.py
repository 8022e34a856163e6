"""The configuration of DQN with the exploration bonus of RND."""

from __future__ import annotations

import dataclasses

from ding_lite.config.mountain_car import MountainCarConfig
from ding_lite.rewards import RNDRewardConfig


@dataclasses.dataclass
class RNDConfig(MountainCarConfig):
    """DQN with the exploration bonus of RND, on MountainCar-v0."""

    exp_name: str = "runs/rnd"
    """Folder of the run, for metrics, configuration and checkpoints."""

    reward_model: RNDRewardConfig = dataclasses.field(default_factory=lambda: RNDRewardConfig(bonus_steps=20_000))
    """The exploration bonus."""
