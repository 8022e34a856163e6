"""Recordings: what a worker hands back of its steps, and the recording of whole episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from ding_lite.data import Episodes, RolloutBuffer, Trajectories, available_bytes, cut_episodes, flatten, map_leaves
from ding_lite.envs import Episode, LocalVectorEnv
from ding_lite.policy import ActMode
from ding_lite.rollout.evaluation import EpisodeWorker, Quotas

NO_POLICY = -1
"""The version of no weights."""

_AT_FIRST = 128  # steps that are allocated; twice as many whenever they are full


class Rollout(NamedTuple):
    """A number of steps."""

    trajectories: Trajectories
    """[T, B, ...] transitions, each with the `policy_version` that acted, [T, B] int64."""

    episodes: list[Episode]
    """Those that ended on the way."""

    @property
    def version(self) -> int:
        """Of the weights that acted; `NO_POLICY` where actions were random."""
        return int(self.trajectories.columns["policy_version"][0, 0])

    @property
    def env_steps(self) -> int:
        """Steps of environments, without those that were only resets."""
        return len(self.trajectories)


class EpisodeRollout(NamedTuple):
    """A number of whole episodes."""

    recorded: Episodes
    """Their transitions, by environment and number, each with the `policy_version` that acted, int64."""

    episodes: list[Episode]
    """What each of them amounted to, in the same order."""

    env_steps: int
    """Steps of environments, without those that were only resets; also the steps of environments that had played their share
    and could not be kept from going on."""

    @property
    def version(self) -> int:
        """Of the weights that acted; `NO_POLICY` where actions were random, or nothing was done."""
        versions = self.recorded.rows().get("policy_version", ())
        return int(versions[0]) if len(versions) else NO_POLICY


class RecordingWorker(EpisodeWorker, Protocol):
    """What recording asks beside that."""

    @property
    def policy(self) -> ActMode:
        """The mode that acts."""

    @property
    def limits(self) -> dict[str, Any]:
        """The least and the largest value of each place in discrete columns."""


def record_episodes(worker: RecordingWorker, count: int | Sequence[int], random: bool = False, **kwargs: Any) -> EpisodeRollout:
    """Record `count` episodes from their start to their end. Each environment plays its share, see `Quotas`.

    Environments of `make_envs` rest when they have played their share, and begin the next recording with the episode that they
    are at the beginning of then. Others go on until all have, unrecorded, and begin anew each time.

    Args:
        worker: acts.
        count: episodes, shared out evenly; or how many in each environment.
        random: take actions from the action space instead of the policy.
        **kwargs: for the policy's `compute_actions`.

    Raises:
        RuntimeError: an episode does not end within a million steps.
        MemoryError: it does not end before memory does.
    """
    quotas = Quotas(count, worker.num_envs, worker.first_env)
    if quotas.are_met:
        return EpisodeRollout(Episodes({}, []), [], 0)
    due, env = list(quotas.due), worker.env
    resting = env if isinstance(env, LocalVectorEnv) else None
    if resting is None or env.current is None or env.restarted is None or not env.restarted.all():
        worker.begin()
    if resting is not None:
        resting.rest(index for index, more in enumerate(due) if not more)
    try:
        storage, episodes = _recorded(worker, quotas, random, kwargs)
    finally:
        if resting is not None:
            resting.wake()
    env.current = map_leaves(np.copy, env.current)  # or it would keep the memory of all that led to it
    version = NO_POLICY if random else worker.policy.version
    trajectories = storage.trajectories(policy_version=np.full((storage.num_steps, worker.num_envs), version))
    recorded = cut_episodes(trajectories, due).within(worker.limits)
    env_steps = len(trajectories) if resting is None else int(recorded.lengths.sum())
    return EpisodeRollout(recorded, sorted(episodes, key=lambda episode: (episode.env, episode.number)), env_steps)


def _recorded(
    worker: EpisodeWorker, quotas: Quotas, random: bool, kwargs: dict[str, Any]
) -> tuple[RolloutBuffer, list[Episode]]:
    """Every step until each environment has played its share, and the episodes that count."""
    storage = RolloutBuffer(_AT_FIRST, worker.num_envs, worker.obs_spec)
    obs = storage.obs_at(0)
    map_leaves(np.copyto, obs, worker.env.current)
    episodes: list[Episode] = []
    resting = worker.env if isinstance(worker.env, LocalVectorEnv) else None
    t = 0
    with torch.inference_mode():
        while not quotas.are_met:
            if t == storage.num_steps:
                _grow(storage)
            outputs = worker.act(obs, random, **kwargs)
            obs = storage.obs_at(t + 1)
            step = worker.step(outputs, obs)
            storage.add(t, outputs, *step[:-1])
            t += 1
            counted = quotas.count(step.finished, t)
            episodes += counted
            if resting is not None and counted:
                ended = (episode.env - worker.first_env for episode in counted)
                resting.rest(index for index in ended if not quotas.due[index])
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
