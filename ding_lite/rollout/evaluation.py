"""Evaluation: whole episodes, with the same number in each environment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from ding_lite.data import Spec, allocate
from ding_lite.engine import WorkCancelled
from ding_lite.envs import EpisodeResult, Step, Stepper

_MOST_STEPS = 1_000_000


def split_evenly(count: int, among: int) -> list[int]:
    """`count` split as evenly as possible; the first ones get the remainder.

    Example:
        >>> split_evenly(7, 3)
        [3, 2, 2]
    """
    return [count // among + (index < count % among) for index in range(among)]


class EpisodeBudget:
    """The number of episodes that each environment still has to complete; further ones do not count.

    Taking the first episodes that end, in any environment, would favour short ones.

    Args:
        count: total number of episodes, split evenly; or the number for each environment.
        num_envs: B.
        first_env: index of the first environment.
    """

    def __init__(self, count: int | Sequence[int], num_envs: int, first_env: int = 0) -> None:
        self.due = split_evenly(count, num_envs) if isinstance(count, int) else list(count)
        self._first_env, self._begun_at, self._oldest = first_env, [0] * num_envs, 0

    @property
    def is_used_up(self) -> bool:
        """Whether all episodes are complete."""
        return not any(self.due)

    def count(self, finished: Sequence[EpisodeResult], now: int) -> list[EpisodeResult]:
        """The episodes that ended with step `now` and count.

        Raises:
            RuntimeError: an episode that counts has not ended after a million steps.
        """
        counted: list[EpisodeResult] = []
        for episode in finished:
            index = episode.env - self._first_env
            self._begun_at[index] = now
            if self.due[index] > 0:
                self.due[index] -= 1
                counted.append(episode)
        if finished:
            self._oldest = min((begun for begun, more in zip(self._begun_at, self.due) if more), default=now)
        if now - self._oldest >= _MOST_STEPS:
            raise RuntimeError(
                f"an episode does not end within {_MOST_STEPS:,} steps: give the environment a time limit, as with "
                "make_envs(..., max_episode_steps=1000)."
            )
        return counted


class EpisodeWorker(Protocol):
    """What playing and recording whole episodes ask of the worker that acts."""

    @property
    def env(self) -> Stepper:
        """Its environments."""

    @property
    def num_envs(self) -> int:
        """How many."""

    @property
    def first_env(self) -> int:
        """Index of the first, where it is one worker of several."""

    @property
    def obs_spec(self) -> Spec:
        """Of one observation."""

    def begin(self) -> None:
        """Begin an episode in every environment."""

    def act(self, obs: Any, random: bool = False, **kwargs: Any) -> dict[str, Any]:
        """The action for each observation, and other outputs."""

    def step(self, outputs: Mapping[str, Any], out: Any, /) -> Step:
        """Do what `act` gave, and write the observations to act on next to `out`."""


def play_episodes(
    worker: EpisodeWorker, count: int | Sequence[int], is_stopping: Callable[[], bool] = lambda: False
) -> list[EpisodeResult]:
    """Run `count` episodes from their start, and return them by environment and number.

    Args:
        worker: the worker that acts.
        count: total number of episodes, split evenly; or the number for each environment; see `EpisodeBudget`.
        is_stopping: checked before each step; once it is true, the evaluation stops.

    Raises:
        WorkCancelled: `is_stopping()` became true.
        RuntimeError: an episode does not end within a million steps.
    """
    budget = EpisodeBudget(count, worker.num_envs, worker.first_env)
    episodes: list[EpisodeResult] = []
    worker.begin()
    out = allocate(worker.obs_spec, worker.num_envs)
    with torch.inference_mode():
        for now in itertools.count(1):
            if budget.is_used_up:
                break
            if is_stopping():
                raise WorkCancelled("the run ended during an evaluation.")
            episodes += budget.count(worker.step(worker.act(worker.env.current), out).finished, now)
    return sorted(episodes, key=lambda episode: (episode.env, episode.number))
