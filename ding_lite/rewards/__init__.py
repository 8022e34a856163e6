"""Reward models: they add to the rewards of the environment, or replace them."""

from ding_lite.rewards.gail import GAILRewardConfig, GAILRewardModel
from ding_lite.rewards.icm import ICMRewardConfig, ICMRewardModel
from ding_lite.rewards.rnd import RNDRewardConfig, RNDRewardModel

__all__ = [
    "GAILRewardConfig",
    "GAILRewardModel",
    "ICMRewardConfig",
    "ICMRewardModel",
    "RNDRewardConfig",
    "RNDRewardModel",
]
