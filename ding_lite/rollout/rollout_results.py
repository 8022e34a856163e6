"""Rollout results: what workers return, and the collection of whole episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from ding_lite.data import Episodes, RolloutBuffer, Trajectories, available_bytes, cut_episodes, flatten, map_leaves
from ding_lite.envs import EpisodeResult, LocalVectorEnv
from ding_lite.policy import ActMode
from ding_lite.rollout.evaluation import EpisodeBudget, EpisodeWorker

NO_POLICY = -1
"""The policy version of random actions."""

_AT_FIRST = 128  # steps allocated at first; doubled when full


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
    their share but could not be paused."""

    @property
    def version(self) -> int:
        """Version of the weights that acted; `NO_POLICY` for random actions, or without any."""
        versions = self.transitions.rows().get("policy_version", ())
        return int(versions[0]) if len(versions) else NO_POLICY


class CollectingWorker(EpisodeWorker, Protocol):
    """What collecting whole episodes needs of the worker beside that."""

    @property
    def policy(self) -> ActMode:
        """The acting mode."""

    @property
    def limits(self) -> dict[str, Any]:
        """The least and the largest value of each place in discrete columns."""


def collect_episodes(
    worker: CollectingWorker, count: int | Sequence[int], random: bool = False, **kwargs: Any
) -> EpisodeRollout:
    """Record `count` whole episodes. Each environment runs its share, see `EpisodeBudget`.

    Environments of `make_envs` are not stepped after they have completed their share, and start the next recording with their
    next episode. Other environments continue unrecorded until all are done, and are reset each time.

    Args:
        worker: the worker that acts.
        count: total number of episodes, split evenly; or the number for each environment.
        random: sample actions from the action space instead of the policy.
        **kwargs: for the policy's `compute_actions`.

    Raises:
        RuntimeError: an episode does not end within a million steps.
        MemoryError: an episode does not fit into memory.
    """
    budget = EpisodeBudget(count, worker.num_envs, worker.first_env)
    if budget.is_used_up:
        return EpisodeRollout(Episodes({}, []), [], 0)
    due, env = list(budget.due), worker.env
    pausable = env if isinstance(env, LocalVectorEnv) else None
    if pausable is None or env.current is None or env.restarted is None or not env.restarted.all():
        worker.begin()
    if pausable is not None:
        pausable.pause(index for index, more in enumerate(due) if not more)
    try:
        storage, episodes = _collected(worker, budget, random, kwargs)
    finally:
        if pausable is not None:
            pausable.resume()
    env.current = map_leaves(np.copy, env.current)  # a view would keep the whole storage alive
    version = NO_POLICY if random else worker.policy.version
    trajectories = storage.trajectories(policy_version=np.full((storage.num_steps, worker.num_envs), version))
    transitions = cut_episodes(trajectories, due).with_limits(worker.limits)
    env_steps = len(trajectories) if pausable is None else int(transitions.lengths.sum())
    return EpisodeRollout(transitions, sorted(episodes, key=lambda episode: (episode.env, episode.number)), env_steps)


def _collected(
    worker: EpisodeWorker, budget: EpisodeBudget, random: bool, kwargs: dict[str, Any]
) -> tuple[RolloutBuffer, list[EpisodeResult]]:
    """All steps until each environment has completed its share, and the episodes that count."""
    storage = RolloutBuffer(_AT_FIRST, worker.num_envs, worker.obs_spec)
    obs = storage.obs_at(0)
    map_leaves(np.copyto, obs, worker.env.current)
    episodes: list[EpisodeResult] = []
    pausable = worker.env if isinstance(worker.env, LocalVectorEnv) else None
    t = 0
    with torch.inference_mode():
        while not budget.is_used_up:
            if t == storage.num_steps:
                _grow(storage)
            outputs = worker.act(obs, random, **kwargs)
            obs = storage.obs_at(t + 1)
            step = worker.step(outputs, obs)
            storage.add(t, outputs, *step[:-1])
            t += 1
            counted = budget.count(step.finished, t)
            episodes += counted
            if pausable is not None and counted:
                ended = (episode.env - worker.first_env for episode in counted)
                pausable.pause(index for index in ended if not budget.due[index])
    storage.resize(t)
    return storage, episodes


def _grow(storage: RolloutBuffer) -> None:
    """Room for twice as many steps, if there is memory for them."""
    columns = {"obs": storage.obs, **storage.outputs}
    needed, available = 2 * sum(leaf.nbytes for _, leaf in flatten(columns)), available_bytes()
    if available is not None and needed > available:
        raise MemoryError(
            f"whole episodes of more than {storage.num_steps:,} steps in each of {storage.num_envs} environments need "
            f"{needed / 1e9:.1f} GB and more, and {available / 1e9:.1f} GB are left: collect fewer at a time by "
            "policy.collect.n_episode, or give the environments a time limit, as with make_envs(..., max_episode_steps=1000)."
        )
    storage.resize(2 * storage.num_steps)
