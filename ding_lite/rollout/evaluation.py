"""Evaluation: whole episodes, each environment as many as the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from ding_lite.data import Spec, allocate
from ding_lite.engine import BrokenOff
from ding_lite.envs import Episode, Step, Stepper

_MOST_STEPS = 1_000_000


def shares(count: int, among: int) -> list[int]:
    """`count` shared out as evenly as it goes, the first getting what is left over.

    Example:
        >>> shares(7, 3)
        [3, 2, 2]
    """
    return [count // among + (index < count % among) for index in range(among)]


class Quotas:
    """How many episodes each environment still has to play: its share and no more counts, however long its episodes take.

    To take the first that end, wherever they are played, would favour short ones.

    Args:
        count: episodes, shared out evenly; or how many in each environment.
        num_envs: B.
        first_env: index of the first of them.
    """

    def __init__(self, count: int | Sequence[int], num_envs: int, first_env: int = 0) -> None:
        self.due = shares(count, num_envs) if isinstance(count, int) else list(count)
        self._first_env, self._begun_at, self._oldest = first_env, [0] * num_envs, 0

    @property
    def are_met(self) -> bool:
        """Whether no episode is left to play."""
        return not any(self.due)

    def count(self, finished: Sequence[Episode], now: int) -> list[Episode]:
        """Those of the episodes which ended with step `now` that count.

        Raises:
            RuntimeError: one that is still to count has not ended for a million steps.
        """
        counted: list[Episode] = []
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
) -> list[Episode]:
    """Play `count` episodes from their start, and return them by environment and number.

    Args:
        worker: acts.
        count: episodes, shared out evenly; or how many in each environment; see `Quotas`.
        is_stopping: asked before each step; once it is true, the evaluation is broken off.

    Raises:
        BrokenOff: it was.
        RuntimeError: an episode does not end within a million steps.
    """
    quotas = Quotas(count, worker.num_envs, worker.first_env)
    episodes: list[Episode] = []
    worker.begin()
    out = allocate(worker.obs_spec, worker.num_envs)
    with torch.inference_mode():
        for now in itertools.count(1):
            if quotas.are_met:
                break
            if is_stopping():
                raise BrokenOff("the run ended during an evaluation.")
            episodes += quotas.count(worker.step(worker.act(worker.env.current), out).finished, now)
    return sorted(episodes, key=lambda episode: (episode.env, episode.number))
