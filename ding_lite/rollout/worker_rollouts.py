"""Rollouts of workers: one worker per piece of the environments, with their rollouts joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ding_lite.data import Episodes, Trajectories, map_leaves
from ding_lite.engine import WorkCancelled, interpreter_released
from ding_lite.envs import ENV, EpisodeResult, SplitVectorEnv, column_limits
from ding_lite.metrics import MetricsLogger
from ding_lite.policy import ActMode, Weights
from ding_lite.processes import Copied, gather_results
from ding_lite.rollout.collection import LocalWorker
from ding_lite.rollout.evaluation import split_evenly
from ding_lite.rollout.rollout_results import EpisodeRollout, Rollout

_numbers = count()


def make_worker(env: VectorEnv[Any, Any, Any], policy: ActMode) -> LocalWorker | SplitWorker:
    """A worker for these environments: one per piece if they are split, else one in this process.

    Raises:
        SpaceError: the policy was made for other spaces.
        TypeError: not an acting mode, or not a vector environment.
    """
    return SplitWorker(env, policy) if isinstance(env, SplitVectorEnv) else LocalWorker(env, policy)


class SplitWorker:
    """Acts in all pieces of the environments at the same time, with a copy of the policy in each.

    Each copy has its own random generator, and uses the weights that the policy's mode has at the time of a request. Results
    are joined in the order of the pieces, so they do not depend on timing.

    Args:
        env: environments in pieces.
        policy: the acting mode; its copies act on the CPU.
    """

    def __init__(self, env: SplitVectorEnv, policy: ActMode) -> None:
        LocalWorker.require_fit(env, policy)
        self.env, self.policy = env, policy
        self.limits = column_limits(env.single_observation_space, env.single_action_space)
        self.num_envs: int = env.num_envs
        self._name = f"worker {next(_numbers)}"
        self._sent: list[tuple[int, Weights] | None] = [None] * len(env.hosts)
        """For each piece, the number of starts of its process, and the weights last sent to it."""
        self._acted_with: Weights | None = None
        self._arrays = Weights(0, [])
        self._restarts, self._metrics = 0, MetricsLogger(owner="the workers")
        self._logged: list[dict[Any, Any]] = []
        made = [host.submit(_make, self._name, policy.worker_copy(index), lasting=True) for index, host in enumerate(env.hosts)]
        gather_results(env.hosts, made)
        policy.bind_remote(self._generator_states, self._load_generator_states)

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

    @property
    def works_in_background(self) -> bool:
        """Whether work begun by `ask` continues in the background."""
        return self.env.works_in_background

    def ask(self, num_steps: int, random: bool = False, **kwargs: Any) -> list[Any]:
        """Begin `collect`. Returns the request, for `take` or `drop`; call these in the order of requests."""
        return self._submit(_collect, [(num_steps, random, kwargs)] * len(self.env.hosts))

    def take(self, asked: list[Any]) -> Rollout:
        """Wait for the requested rollout."""
        answers = self._taken(asked)
        columns = _joined([columns for columns, _ in answers], axis=1)
        return Rollout(
            Trajectories(columns).with_limits(self.limits),
            [EpisodeResult(*row) for _, copied in answers for row in copied.value[0]],
        )

    def collect_episodes(self, count: int | Sequence[int], random: bool = False, **kwargs: Any) -> EpisodeRollout:
        """Act for `count` whole episodes, or the given number in each environment; see `LocalWorker.collect_episodes`."""
        return self.take_episodes(self.ask_episodes(count, random, **kwargs))

    def ask_episodes(self, count: int | Sequence[int], random: bool = False, **kwargs: Any) -> list[Any]:
        """Begin `collect_episodes`. Returns the request, for `take_episodes` or `drop`; call these in the order of requests."""
        due = split_evenly(count, self.num_envs) if isinstance(count, int) else list(count)
        return self._submit(_collect_episodes, [(due[piece], random, kwargs) for piece in self.env.slices])

    def take_episodes(self, asked: list[Any]) -> EpisodeRollout:
        """Wait for the requested episodes."""
        answers = self._taken(asked)
        rows = _joined([rows for rows, _ in answers if rows], axis=0)
        lengths = np.concatenate([copied.value[2] for _, copied in answers])
        episodes = [EpisodeResult(*row) for _, copied in answers for row in copied.value[0]]
        return EpisodeRollout(
            Episodes(rows, lengths).with_limits(self.limits), episodes, sum(copied.value[3] for _, copied in answers)
        )

    def _taken(self, asked: list[Any]) -> list[Any]:
        """The results of the pieces; their metrics are kept for `reduce_metrics`."""
        begun = perf_counter()
        answers = self._results(asked)
        self._metrics.log_value(("time", "env_wait"), perf_counter() - begun)
        self._logged += [one for _, copied in answers for one in copied.value[1] if one]
        if self.works_in_background:
            restarts = sum(getattr(host, "restarts", 0) for host in self.env.hosts)
            self._metrics.log_value("workers_unanswered", restarts - self._restarts, reduce="sum")
            self._restarts = restarts
        return answers

    def drop(self, asked: list[Any]) -> None:
        """Discard the result of a request; the environments are stepped anyway."""
        for host, request in zip(self.env.hosts, asked):
            host.forget(request)

    @property
    def span(self) -> tuple[int, int] | None:
        """Begin and end of the work on the last results; see `PendingWork.span`."""
        spans = [host.span for host in self.env.hosts if host.span is not None]
        return (min(begun for begun, _ in spans), max(ended for _, ended in spans)) if spans else None

    def play_episodes(self, count: int | Sequence[int], is_stopping: Callable[[], bool] = lambda: False) -> list[EpisodeResult]:
        """Run `count` episodes, or the given number in each environment; see `ding_lite.rollout.play_episodes`.

        Raises:
            WorkCancelled: `is_stopping()` became true.
        """
        due = split_evenly(count, self.num_envs) if isinstance(count, int) else list(count)
        try:
            asked = self._submit(_play, [(due[piece],) for piece in self.env.slices])
            answers = self._results(asked, is_stopping)
        except InterruptedError as error:
            raise WorkCancelled("the run ended during an evaluation.") from error
        self._logged += [one for copied in answers for one in copied.value[1] if one]
        return [EpisodeResult(*row) for copied in answers for row in copied.value[0]]

    def reduce_metrics(self) -> list[dict[Any, Any]]:
        """The metrics of the workers since the last call, the mean seconds of waiting for a rollout of all workers, and
        `workers_unanswered`, the number of restarts of failed processes."""
        reduced, self._logged = [*self._logged, self._metrics.reduce()], []
        return reduced

    def _submit(self, fn: Callable[..., Any], each: Sequence[tuple[Any, ...]]) -> list[Any]:
        weights = self.policy.weights
        if weights is not self._acted_with:
            self._arrays = weights.as_arrays()
        self._acted_with, sent = weights, self._arrays
        requests: list[Any] = []
        for host, last, args in zip(self.env.hosts, self._sent, each):
            # Compared by identity, because after load_state_dict() other weights may have an earlier version.
            is_there = last is not None and last[0] == host.starts and last[1] is weights
            new = None if is_there else sent
            requests.append(host.submit(fn, self._name, new, *args, prepare=(_adopt, (self._name, sent))))
        self._sent = [(host.starts, weights) for host in self.env.hosts]
        return requests

    def _results(self, asked: Sequence[Any], is_stopping: Callable[[], bool] = lambda: False) -> list[Any]:
        try:
            with interpreter_released():
                return gather_results(self.env.hosts, asked, is_stopping)
        except BaseException:
            self._sent = [None] * len(self._sent)  # unknown weights
            raise

    def get_weights(self) -> dict[str, torch.Tensor]:
        """A copy of the weights that acted last."""
        if self._acted_with is not None:
            self.policy.actor.copy_weights(self._acted_with)
        return self.policy.get_weights()

    def state_dict(self) -> dict[str, Any]:
        """The policy's state in each environment, and the generators of random actions, by piece.

        Raises:
            TypeError: a recurrent state holds objects that a checkpoint cannot hold.
        """
        return {"pieces": [LocalWorker.as_plain(host.state(self._name)[self._name]) for host in self.env.hosts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        pieces = state.get("pieces", [state])
        if len(pieces) != len(self.env.hosts):
            raise ValueError(
                f"the state of {len(pieces)} workers does not fit {len(self.env.hosts)}: make the environments with "
                f"workers={len(pieces)}."
            )
        for host, piece in zip(self.env.hosts, pieces):
            host.load_state({self._name: piece})

    def _generator_states(self) -> list[dict[str, Any]]:
        mode = _mode(self._name)
        return [host.state(mode)[mode] for host in self.env.hosts]

    def _load_generator_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        for host, state in zip(self.env.hosts, states, strict=True):
            host.load_state({_mode(self._name): state})


def _joined(parts: Sequence[dict[str, Any]], axis: int) -> dict[str, Any]:
    """Columns of all pieces, joined in new memory."""
    if not parts:
        return {}
    first, *rest = parts
    columns: dict[str, Any] = map_leaves(lambda *leaves: np.concatenate(leaves, axis=axis), first, *rest)
    return columns


def _mode(name: str) -> str:
    return f"{name}, policy"


# Functions that run in the process of the environments.


class _Piece(LocalWorker):
    """The worker of a piece. Its state is pickled, including objects in the recurrent state."""

    def state_dict(self) -> dict[str, Any]:
        return self.raw_state()


def _make(objects: dict[str, Any], name: str, mode: ActMode) -> None:
    objects[name] = _Piece(objects[ENV], mode)
    objects[_mode(name)] = mode


def _adopt(objects: dict[str, Any], name: str, weights: Weights | None) -> None:
    if weights is not None:
        mode: ActMode = objects[_mode(name)]
        # Copied, because data in shared memory is valid only for a moment.
        mode.actor.copy_weights(weights.as_tensors())


def _collect(objects: dict[str, Any], name: str, weights: Weights | None, *args: Any) -> tuple[Any, ...]:
    num_steps, random, kwargs = args
    _adopt(objects, name, weights)
    worker: LocalWorker = objects[name]
    rollout = worker.collect(num_steps, random, **kwargs)
    return rollout.trajectories.columns, Copied((_rows(rollout.episodes), worker.reduce_metrics()))


def _collect_episodes(objects: dict[str, Any], name: str, weights: Weights | None, *args: Any) -> tuple[Any, ...]:
    due, random, kwargs = args
    _adopt(objects, name, weights)
    worker: LocalWorker = objects[name]
    rollout = worker.collect_episodes(due, random, **kwargs)
    answers = _rows(rollout.episodes), worker.reduce_metrics(), rollout.transitions.lengths, rollout.env_steps
    return rollout.transitions.rows(), Copied(answers)


def _play(objects: dict[str, Any], name: str, weights: Weights | None, due: Sequence[int]) -> Copied[tuple[Any, ...]]:
    _adopt(objects, name, weights)
    worker: LocalWorker = objects[name]
    episodes = worker.play_episodes(due, objects.get("is_stopping", lambda: False))
    return Copied((_rows(episodes), worker.reduce_metrics()))


def _rows(episodes: Sequence[EpisodeResult]) -> list[tuple[Any, ...]]:
    """As tuples, which take a third of the time to pickle."""
    return [tuple(episode) for episode in episodes]
