"""Reward models: they add to the rewards of the environment, or replace them."""

from ding_lite.rewards.rnd import RNDRewardConfig, RNDRewardModel

__all__ = ["RNDRewardConfig", "RNDRewardModel"]
