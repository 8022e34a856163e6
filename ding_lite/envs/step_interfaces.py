"""The interface of objects that step B environments, `Stepper`, and what it returns: `Step` and `RunningEpisode`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np

from ding_lite.envs.episode_starts import EpisodeResult


class Step(NamedTuple):
    """One step of B environments; the next observations are in the caller's arrays."""

    reward: np.ndarray[Any, Any]
    """[B] float32."""

    terminated: np.ndarray[Any, Any]
    """[B] bool: the task itself ended. If an environment sets both flags, only `terminated` is set here."""

    truncated: np.ndarray[Any, Any]
    """[B] bool: a time limit cut the episode."""

    final_obs: dict[int, Any]
    """The true final observation, nested, of each environment that was reset after the end of its episode."""

    valid: np.ndarray[Any, Any] | None
    """[B] bool, False if the step was a reset that ignored its action; None if all are real steps."""

    finished: list[EpisodeResult]
    """Episodes that ended with this step."""


class RunningEpisode(NamedTuple):
    """The current episode of an environment, before its next step."""

    env: int
    """Index of the environment."""

    number: int
    """Number of earlier episodes of this environment."""

    length: int
    """Number of steps so far."""

    total_reward: float
    """Undiscounted sum of the rewards so far; of several agents, the sum over all of them."""

    agent_id: Any = None
    """The agent that acts; None in environments of a single agent."""

    @property
    def episode_id(self) -> tuple[int, int]:
        """Index of the environment and number of the episode."""
        return self.env, self.number


class Stepper(Protocol):
    """Steps B environments and keeps their current observations; the interface for rollouts."""

    num_envs: int
    single_observation_space: gymnasium.Space[Any]
    single_action_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    current: Any
    """The observations to act on next, nested arrays [B, ...]; None before `begin`."""

    last: tuple[Any, np.ndarray[Any, Any]] | None
    """Nested actions [B, ...] and rewards [B] of the last recorded step; None if unknown."""

    stepped_by: Any
    """The object that took the last step, set by that object; None if unknown."""

    acted_by: Any
    """The object with a recurrent state that has acted for the current observations, set by that object, until the step."""

    @property
    def infos(self) -> Sequence[Mapping[str, Any]]:
        """The info of each current observation."""

    @property
    def running_episodes(self) -> list[RunningEpisode]:
        """The current episode of each environment."""

    @property
    def restarted(self) -> np.ndarray[Any, Any] | None:
        """[B] bool: whether `current` is the start of an episode, or the next step is a reset; None if all are False."""

    @property
    def idle(self) -> np.ndarray[Any, Any] | None:
        """[B] bool: whether the next action has no effect, such as in a step that is a reset; None if all are False."""

    def begin(self, out: Any, seed: int | None = None) -> None:
        """Begin an episode in every environment, and write the observations to `out`, nested arrays [B, ...].

        Args:
            seed: new seed; None continues with the current one.
        """

    def advance(self, action: Any, out: Any) -> Step:
        """Step with nested actions [B, ...], and write the next observations to `out`."""
