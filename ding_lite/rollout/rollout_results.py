"""Rollout results: the return types of workers."""

from __future__ import annotations

from typing import NamedTuple

from ding_lite.data import Episodes, Trajectories
from ding_lite.envs import EpisodeResult

NO_POLICY = -1
"""The policy version of random actions."""


class Rollout(NamedTuple):
    """A rollout of a number of steps."""

    trajectories: Trajectories
    """[T, B, ...] transitions, each with the `policy_version` that acted, [T, B] int64."""

    episodes: list[EpisodeResult]
    """Episodes that ended during the rollout."""

    @property
    def version(self) -> int:
        """Version of the weights that acted; `NO_POLICY` for random actions."""
        return int(self.trajectories.columns["policy_version"][0, 0])

    @property
    def env_steps(self) -> int:
        """Steps of environments, without those that are only resets."""
        return len(self.trajectories)


class EpisodeRollout(NamedTuple):
    """A rollout of whole episodes."""

    transitions: Episodes
    """Their transitions, by environment and number, each with the `policy_version` that acted, int64."""

    episodes: list[EpisodeResult]
    """Summary of each episode, in the same order."""

    env_steps: int
    """Steps of environments, without those that are only resets; includes unrecorded steps of environments that had completed
    their episodes but could not be paused."""

    @property
    def version(self) -> int:
        """Version of the weights that acted; `NO_POLICY` for random actions, or if there are no transitions."""
        versions = self.transitions.rows().get("policy_version", ())
        return int(versions[0]) if len(versions) else NO_POLICY
