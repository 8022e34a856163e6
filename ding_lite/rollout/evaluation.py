"""Evaluation: whole episodes, split evenly between the environments."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch

from ding_lite.basics import warn_caller
from ding_lite.data import Spec, allocate
from ding_lite.engine import WorkCancelled
from ding_lite.envs import EpisodeResult
from ding_lite.envs.names import name_of_envs
from ding_lite.envs.step_interfaces import Step, Stepper

_MOST_STEPS = 1_000_000
_MANY_STEPS = 100_000  # of an episode, before a warning
_FIX = "Set a time limit, such as make_envs(..., max_episode_steps=1000)."


def split_evenly(count: int, among: int) -> list[int]:
    """`count` split as evenly as possible; the first ones get the remainder.

    Example:
        >>> split_evenly(7, 3)
        [3, 2, 2]
    """
    return [count // among + (index < count % among) for index in range(among)]


EpisodeUnit = Literal["episodes", "steps"]
"""What the number of an `EpisodeBudget` counts."""


def shares_of(count: int | Sequence[int], num_envs: int, unit: EpisodeUnit = "episodes") -> list[int]:
    """The number of episodes or steps of each environment.

    Args:
        count: total number, split evenly; or the number for each environment. Integers of Python or numpy.
        num_envs: B.
        unit: what is counted, for messages.

    Raises:
        TypeError: neither an integer nor several.
        ValueError: a number is negative, or there is not one for each environment.

    Example:
        >>> shares_of(3, 2), shares_of([0, 4], 2)
        ([2, 1], [0, 4])
    """
    wanted = f"expected a number of {unit}, 0 or more, or one for each of the {num_envs} environments, got {count!r:.80}"
    try:
        each = split_evenly(operator.index(count), num_envs)  # type: ignore[arg-type]
    except TypeError:
        try:
            each = [operator.index(one) for one in count]  # type: ignore[union-attr]
        except TypeError:
            raise TypeError(f"{wanted} of type {type(count).__name__}: pass integers.") from None
    if len(each) != num_envs:
        raise ValueError(f"{wanted}, of length {len(each)}.")
    if min(each, default=0) < 0:
        raise ValueError(f"{wanted}.")
    return each


class EpisodeBudget:
    """The episodes that each environment still has to complete. Further episodes do not count.

    The number of episodes per environment is fixed, because the first episodes to end, in any environment, would mostly be
    short ones. In steps, each environment runs whole episodes until these have its share of the steps. So it stops after an
    episode that depends only on the lengths of its own episodes, and each episode that it begins counts, however long it is.

    Args:
        count: total number of episodes, or least number of steps, split evenly; or the number for each environment.
        num_envs: B.
        first_env: index of the first environment.
        unit: whether `count` is a number of episodes or of steps.
        env: the environments, for messages.

    Raises:
        TypeError, ValueError: as `shares_of`.
    """

    def __init__(
        self,
        count: int | Sequence[int],
        num_envs: int,
        first_env: int = 0,
        unit: EpisodeUnit = "episodes",
        env: object = None,
    ) -> None:
        self.due = shares_of(count, num_envs, unit)
        """What each environment still has to complete, in episodes or in steps."""
        self.completed = [0] * num_envs
        """Number of episodes of each environment that counted."""
        self.unit = unit
        self._first_env, self._begun_at, self._oldest = first_env, [0] * num_envs, 0
        self._env, self._has_warned = env, False

    @property
    def is_used_up(self) -> bool:
        """Whether all environments have completed their episodes."""
        return not any(self.due)

    def count(self, finished: Sequence[EpisodeResult], now: int) -> list[EpisodeResult]:
        """The episodes among `finished` that count.

        Args:
            finished: episodes that ended with this step.
            now: number of this step, from 1.

        Raises:
            RuntimeError: an episode that counts has not ended after a million steps.
        """
        counted: list[EpisodeResult] = []
        for episode in finished:
            index = episode.env - self._first_env
            self._begun_at[index] = now
            if self.due[index] > 0:
                self.due[index] = max(0, self.due[index] - (episode.length if self.unit == "steps" else 1))
                self.completed[index] += 1
                counted.append(episode)
        if finished:
            self._oldest = min((begun for begun, more in zip(self._begun_at, self.due) if more), default=now)
        if now - self._oldest >= _MANY_STEPS and not self._has_warned:
            self._has_warned = True
            warn_caller(
                f"an episode of {self._described()} has not ended after {_MANY_STEPS:,} steps, and all others wait. {_FIX}"
            )
        if now - self._oldest >= _MOST_STEPS:
            raise RuntimeError(f"an episode of {self._described()} does not end within {_MOST_STEPS:,} steps. {_FIX}")
        return counted

    def _described(self) -> str:
        """The environment with the longest episode."""
        index = next(index for index, begun in enumerate(self._begun_at) if begun == self._oldest and self.due[index])
        name = "" if self._env is None else f" ({name_of_envs(getattr(self._env, 'env', self._env))})"
        return f"environment {self._first_env + index}{name}"


class EpisodeWorker(Protocol):
    """A worker that acts in environments; the interface for `play_episodes`."""

    @property
    def env(self) -> Stepper:
        """The environments."""

    @property
    def num_envs(self) -> int:
        """Number of environments."""

    @property
    def first_env(self) -> int:
        """Index of the first environment, if it is one of several workers."""

    @property
    def obs_spec(self) -> Spec:
        """Layout of one observation."""

    def begin(self) -> None:
        """Begin an episode in every environment."""

    def act(self, obs: Any, random: bool = False, **kwargs: Any) -> dict[str, Any]:
        """The action for each observation, and other outputs."""

    def step(self, outputs: Mapping[str, Any], out: Any, /) -> Step:
        """Step with the outputs of `act`, and write the next observations to `out`, nested arrays [B, ...]."""


def play_episodes(
    worker: EpisodeWorker, count: int | Sequence[int], is_stopping: Callable[[], bool] = lambda: False, **settings: Any
) -> list[EpisodeResult]:
    """Run `count` episodes from their start, and return them by environment and number.

    Args:
        worker: the worker that acts.
        count: total number of episodes, split evenly; or the number for each environment; see `EpisodeBudget`.
        is_stopping: checked before each step; once it is true, the evaluation stops.
        **settings: for the policy's `compute_actions`, such as `eps`.

    Raises:
        TypeError: the first argument is not a worker, or the count is not of integers.
        ValueError: the count is negative, or does not have a number for each environment.
        WorkCancelled: `is_stopping()` became true.
        RuntimeError: an episode does not end within a million steps; after a hundred thousand, there is a warning.
    """
    if not callable(getattr(worker, "act", None)):
        raise TypeError(
            f"play_episodes(worker, count) wants a worker, got a {type(worker).__name__}: pass LocalWorker(envs, "
            "policy.eval_mode) for one, as in play_episodes(LocalWorker(envs, policy.eval_mode), 10)."
        )
    budget = EpisodeBudget(count, worker.num_envs, worker.first_env, env=worker.env)
    episodes: list[EpisodeResult] = []
    worker.begin()
    out = allocate(worker.obs_spec, worker.num_envs)
    with torch.inference_mode():
        for now in itertools.count(1):
            if budget.is_used_up:
                break
            if is_stopping():
                raise WorkCancelled("the run ended during an evaluation.")
            episodes += budget.count(worker.step(worker.act(worker.env.current, **settings), out).finished, now)
    return sorted(episodes, key=lambda episode: (episode.env, episode.number))
