"""Evaluation: whole episodes, each environment as many as the others.

Room: ding_lite.rollout, floor 4. Imports the room's workers and envs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from ding_lite.data import allocate
from ding_lite.engine import BrokenOff
from ding_lite.envs import Episode

if TYPE_CHECKING:
    from ding_lite.rollout.workers import LocalWorker

_MOST_STEPS = 1_000_000


def shares(count: int, among: int) -> list[int]:
    """`count` shared out as evenly as it goes, the first getting what is left over.

    Example:
        >>> shares(7, 3)
        [3, 2, 2]
    """
    return [count // among + (index < count % among) for index in range(among)]


def play_episodes(
    worker: LocalWorker, count: int | Sequence[int], is_stopping: Callable[[], bool] = lambda: False
) -> list[Episode]:
    """Play `count` episodes from their start, and return them by environment and number.

    Each environment plays its share and no more counts, however long its episodes take: taking the first `count` to end
    would favour short ones.

    Args:
        worker: acts.
        count: episodes, shared out evenly; or how many in each environment.
        is_stopping: asked before each step; once it is true, the evaluation is broken off.

    Raises:
        BrokenOff: it was.
        RuntimeError: an episode does not end within a million steps.
    """
    num_envs = worker.num_envs
    due = shares(count, num_envs) if isinstance(count, int) else list(count)
    episodes: list[Episode] = []
    worker.begin()
    out = allocate(worker.obs_spec, num_envs)
    begun_at, oldest = [0] * num_envs, 0
    with torch.inference_mode():
        for now in itertools.count(1) if any(due) else ():
            if is_stopping():
                raise BrokenOff("the run ended during an evaluation.")
            step = worker.env.advance(worker.policy.env_action(worker.act(worker.env.current)["action"]), out)
            for episode in step.finished:
                index = episode.env - worker.first_env
                begun_at[index] = now
                if due[index] > 0:
                    due[index] -= 1
                    episodes.append(episode)
            if step.finished:
                if not any(due):
                    break
                oldest = min(begun for begun, more in zip(begun_at, due) if more)
            if now - oldest >= _MOST_STEPS:
                raise RuntimeError(
                    f"an evaluation episode does not end within {_MOST_STEPS:,} steps: give the environment a time limit, as "
                    "with make_envs(..., max_episode_steps=1000)."
                )
    return sorted(episodes, key=lambda episode: (episode.env, episode.number))
