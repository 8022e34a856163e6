"""What one step of B environments gives."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np

from ding_lite.envs.episode_starts import EpisodeResult


class Step(NamedTuple):
    """One step of B environments; the observations to act on next are written where the caller asked."""

    reward: np.ndarray[Any, Any]
    """[B] float32."""

    terminated: np.ndarray[Any, Any]
    """[B] bool: the task itself ended. Where an environment claims both endings, only this one is set."""

    truncated: np.ndarray[Any, Any]
    """[B] bool: a time limit cut the episode."""

    final_obs: dict[int, Any]
    """For each environment whose episode ended and that has been reset since: its true last observation, nested."""

    valid: np.ndarray[Any, Any] | None
    """[B] bool, False where the step was a reset that ignored its action; None where all are real steps."""

    finished: list[EpisodeResult]
    """Episodes that ended with this step."""


class Stepper(Protocol):
    """Steps B environments and keeps their current observation; what rollouts are made of."""

    num_envs: int
    single_observation_space: gymnasium.Space[Any]
    single_action_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    current: Any
    """The observations to act on next, nested arrays [B, ...]; None before `begin`."""

    last: tuple[Any, np.ndarray[Any, Any]] | None
    """Nested actions [B, ...] and rewards [B] of the last step, set by the worker that took it; None where unknown."""

    stepped_by: Any
    """What took the last step, set by it; None where unknown."""

    @property
    def restarted(self) -> np.ndarray[Any, Any] | None:
        """[B] bool: whose episode `current` begins, or is about to; None where none does."""

    def begin(self, out: Any, seed: int | None = None) -> None:
        """Begin an episode in every environment, and write the observations to `out`, nested arrays [B, ...].

        Args:
            seed: of everything from here on; None goes on from the seed there was.
        """

    def advance(self, action: Any, out: Any) -> Step:
        """Take nested actions [B, ...], and write the observations to act on next to `out`."""
