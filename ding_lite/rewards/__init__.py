"""Reward models: what says what a step was worth beside the environment, or in its place."""

from ding_lite.rewards.rnd import RNDRewardConfig, RNDRewardModel

__all__ = ["RNDRewardConfig", "RNDRewardModel"]
