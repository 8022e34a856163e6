"""Reward models: what says what a step was worth beside the environment, or in its place.

Room: ding_lite.rewards, floor 3. Imports nn, hooks, data and the engine.
"""

from ding_lite.rewards.rnd import RNDRewardConfig, RNDRewardModel

__all__ = ["RNDRewardConfig", "RNDRewardModel"]
