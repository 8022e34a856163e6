"""Evaluation: whole episodes, each environment as many as the others.

Room: ding_lite.rollout, floor 4. Imports the room's workers and envs.
"""

from __future__ import annotations

import itertools

import torch

from ding_lite.data import allocate
from ding_lite.envs import Episode
from ding_lite.rollout.workers import LocalWorker

_MOST_STEPS = 1_000_000


def play_episodes(worker: LocalWorker, count: int) -> list[Episode]:
    """Play `count` episodes from their start, and return them by environment and number.

    Each environment plays its share and no more counts, however long its episodes take: taking the first `count` to end
    would favour short ones.

    Raises:
        RuntimeError: an episode does not end within a million steps.
    """
    num_envs = worker.num_envs
    due = [count // num_envs + (index < count % num_envs) for index in range(num_envs)]
    episodes: list[Episode] = []
    worker.begin()
    out = allocate(worker.obs_spec, num_envs)
    begun_at, oldest = [0] * num_envs, 0
    with torch.inference_mode():
        for now in itertools.count(1):
            step = worker.env.advance(worker.policy.env_action(worker.act(worker.env.current)["action"]), out)
            for episode in step.finished:
                begun_at[episode.env] = now
                if due[episode.env] > 0:
                    due[episode.env] -= 1
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
