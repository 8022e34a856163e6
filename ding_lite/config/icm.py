"""The configuration of DQN with the exploration bonus of ICM."""

from __future__ import annotations

import dataclasses

from ding_lite.config.mountain_car import MountainCarConfig
from ding_lite.rewards import ICMRewardConfig


@dataclasses.dataclass
class ICMConfig(MountainCarConfig):
    """DQN with the exploration bonus of ICM, on MountainCar-v0."""

    exp_name: str = "runs/icm"
    """Folder of the run, for metrics, configuration and checkpoints."""

    reward_model: ICMRewardConfig = dataclasses.field(
        default_factory=lambda: ICMRewardConfig(bonus_weight=1.0, bonus_steps=20_000)
    )
    """The exploration bonus."""
