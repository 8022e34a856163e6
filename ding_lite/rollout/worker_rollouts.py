"""Rollouts of workers: one worker per piece of the environments, with their rollouts joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ding_lite.data import Episodes, Trajectories
from ding_lite.data.trees import map_leaves
from ding_lite.envs import INFO, SplitVectorEnv
from ding_lite.envs.info_columns import require_same_columns
from ding_lite.envs.pieces import ENV
from ding_lite.envs.spaces import column_limits
from ding_lite.policy import ActMode
from ding_lite.processes import Copied
from ding_lite.rollout.collection import LocalWorker
from ding_lite.rollout.evaluation import EpisodeUnit
from ding_lite.rollout.piece_workers import PieceWorkers, episodes_of, rows_of
from ding_lite.rollout.rollout_results import EpisodeRollout, Rollout


def make_worker(env: VectorEnv[Any, Any, Any], policy: ActMode) -> LocalWorker | SplitWorker:
    """A worker for these environments: one per piece if they are split, else one in this process.

    Raises:
        SpaceError: the policy was made for other spaces.
        TypeError: not an acting mode, or not a vector environment.
    """
    return SplitWorker(env, policy) if isinstance(env, SplitVectorEnv) else LocalWorker(env, policy)


class SplitWorker(PieceWorkers):
    """Acts in all pieces of the environments at the same time, with a copy of the policy in each; see `PieceWorkers`.

    Args:
        env: environments in pieces.
        policy: the acting mode; its copies act on the CPU.
    """

    def __init__(self, env: SplitVectorEnv, policy: ActMode) -> None:
        LocalWorker.require_fit(env, policy)
        self.env, self.policy = env, policy
        self.limits = column_limits(env.single_observation_space, env.single_action_space)
        super().__init__(env, {"": policy}, _made, LocalWorker.as_plain)

    def begin(self, seed: int | None = None) -> None:
        """Begin an episode in every environment, with this seed if it is given."""
        self.env.begin(self.env.new_obs(), seed)

    def collect(self, num_steps: int, random: bool = False, **kwargs: Any) -> Rollout:
        """Act for `num_steps` steps in every environment.

        Args:
            random: sample actions from the action space instead of the policy.
            **kwargs: for the policy's `compute_actions`.
        """
        return self.take(self.ask(num_steps, random, **kwargs))

    def ask(self, num_steps: int, random: bool = False, **kwargs: Any) -> list[Any]:
        """Begin `collect`. Returns the request, for `take` or `drop`; call these in the order of requests."""
        return self._submit(_collect, [(num_steps, random, kwargs)] * len(self.env.hosts))

    def take(self, asked: list[Any]) -> Rollout:
        """Wait for the requested rollout."""
        answers = self._taken(asked)
        columns = joined([columns for columns, _ in answers], axis=1)
        episodes = episodes_of([copied.value[0] for _, copied in answers])
        trajectories = Trajectories(columns).with_limits(self.limits)
        trajectories.begins = np.concatenate([copied.value[2] for _, copied in answers])
        return Rollout(trajectories, episodes)

    def collect_episodes(
        self, count: int | Sequence[int], random: bool = False, unit: EpisodeUnit = "episodes", **kwargs: Any
    ) -> EpisodeRollout:
        """Act for whole episodes; see `LocalWorker.collect_episodes`."""
        return self.take_episodes(self.ask_episodes(count, random, unit, **kwargs))

    def ask_episodes(
        self, count: int | Sequence[int], random: bool = False, unit: EpisodeUnit = "episodes", **kwargs: Any
    ) -> list[Any]:
        """Begin `collect_episodes`. Returns the request, for `take_episodes` or `drop`; call these in the order of requests."""
        return self._submit(_collect_episodes, [(*share, random, unit, kwargs) for share in self._shares(count, unit)])

    def take_episodes(self, asked: list[Any]) -> EpisodeRollout:
        """Wait for the requested episodes."""
        answers = self._taken(asked)
        rows = joined([rows for rows, _ in answers if rows], axis=0)
        lengths = np.concatenate([copied.value[2] for _, copied in answers])
        episodes = episodes_of([copied.value[0] for _, copied in answers])
        return EpisodeRollout(
            Episodes(rows, lengths).with_limits(self.limits), episodes, sum(copied.value[3] for _, copied in answers)
        )

    def get_weights(self) -> dict[str, torch.Tensor]:
        """A copy of the weights that acted last."""
        return self._weights_of("")


def joined(parts: Sequence[dict[str, Any]], axis: int) -> dict[str, Any]:
    """Columns of all pieces, joined in new memory.

    Raises:
        EnvDataError: columns of infos differ between pieces.
    """
    if not parts:
        return {}
    first, *rest = parts
    if INFO in first:
        require_same_columns([part[INFO] for part in parts], lead=axis + 1)
    columns: dict[str, Any] = map_leaves(lambda *leaves: np.concatenate(leaves, axis=axis), first, *rest)
    return columns


# Functions that run in the process of the environments.


class _Piece(LocalWorker):
    """The worker of a piece. Its state is pickled, including objects in the recurrent state."""

    def state_dict(self) -> dict[str, Any]:
        return self.raw_state()


def _made(objects: dict[str, Any], modes: Mapping[str, ActMode]) -> LocalWorker:
    return _Piece(objects[ENV], modes[""])


def _collect(objects: dict[str, Any], worker: LocalWorker, num_steps: int, random: bool, kwargs: Any) -> tuple[Any, ...]:
    rollout = worker.collect(num_steps, random, **kwargs)
    found = rollout.trajectories
    return found.columns, Copied((rows_of(rollout.episodes), worker.reduce_metrics(), found.begins))


def _collect_episodes(
    objects: dict[str, Any], worker: LocalWorker, due: Sequence[int], random: bool, unit: EpisodeUnit, kwargs: Any
) -> tuple[Any, ...]:
    rollout = worker.collect_episodes(due, random, unit, **kwargs)
    answers = rows_of(rollout.episodes), worker.reduce_metrics(), rollout.transitions.lengths, rollout.env_steps
    return rollout.transitions.rows(), Copied(answers)
