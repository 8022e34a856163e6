"""Split rollouts: a worker for each piece of the environments, wherever it is hosted, and their rollouts as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ding_lite.data import Episodes, Trajectories, map_leaves
from ding_lite.engine import BrokenOff, released
from ding_lite.envs import ENV, Episode, SplitVectorEnv, column_limits
from ding_lite.metrics import MetricsLogger
from ding_lite.policy import ActMode, Weights
from ding_lite.processes import Kept, answers
from ding_lite.rollout.evaluation import shares
from ding_lite.rollout.recordings import EpisodeRollout, Rollout
from ding_lite.rollout.workers import LocalWorker

_numbers = count()


def make_worker(env: VectorEnv[Any, Any, Any], policy: ActMode) -> LocalWorker | SplitWorker:
    """What acts in these environments: in each piece of them, where they are split, else here.

    Raises:
        SpaceError: the policy was made for other spaces.
        TypeError: not a mode that acts, or not a vector environment.
    """
    return SplitWorker(env, policy) if isinstance(env, SplitVectorEnv) else LocalWorker(env, policy)


class SplitWorker:
    """Acts in every piece of the environments at the same time, with a copy of the policy in each.

    Each copy has random numbers of its own, and takes the weights that the policy's mode has when it is asked. Answers are
    taken in the order of the pieces, so that nothing depends on who is faster.

    Args:
        env: environments in pieces.
        policy: the mode that acts; its copies act on the CPU.
    """

    def __init__(self, env: SplitVectorEnv, policy: ActMode) -> None:
        LocalWorker.require_fit(env, policy)
        self.env, self.policy = env, policy
        self.limits = column_limits(env.single_observation_space, env.single_action_space)
        self.num_envs: int = env.num_envs
        self._name = f"worker {next(_numbers)}"
        self._sent: list[tuple[int, Weights] | None] = [None] * len(env.hosts)
        """What each piece acts with: the how-manieth process it is, and which weights it was sent."""
        self._acted_with: Weights | None = None
        self._arrays = Weights(0, [])
        self._restarts, self._metrics = 0, MetricsLogger(owner="the workers")
        self._logged: list[dict[Any, Any]] = []
        made = [host.submit(_make, self._name, policy.worker_copy(index), lasting=True) for index, host in enumerate(env.hosts)]
        answers(env.hosts, made)
        policy.bind_remote(self._generator_states, self._load_generator_states)

    def begin(self, seed: int | None = None) -> None:
        """Begin an episode in every environment, with this seed where one is given."""
        self.env.begin(self.env.new_obs(), seed)

    def collect(self, num_steps: int, random: bool = False, **kwargs: Any) -> Rollout:
        """Act for `num_steps` steps in every environment.

        Args:
            random: take actions from the action space instead of the policy.
            **kwargs: for the policy's `compute_actions`.
        """
        return self.take(self.ask(num_steps, random, **kwargs))

    @property
    def works_alone(self) -> bool:
        """Whether what `ask` began goes on while nobody waits for it."""
        return self.env.works_alone

    def ask(self, num_steps: int, random: bool = False, **kwargs: Any) -> list[Any]:
        """Begin `collect`. Returns what `take` or `drop` want, each in the order of asking."""
        return self._submit(_collect, [(num_steps, random, kwargs)] * len(self.env.hosts))

    def take(self, asked: list[Any]) -> Rollout:
        """The rollout that was asked for."""
        told = self._taken(asked)
        columns = _joined([columns for columns, _ in told], axis=1)
        return Rollout(Trajectories(columns).within(self.limits), [Episode(*row) for _, kept in told for row in kept.value[0]])

    def collect_episodes(self, count: int | Sequence[int], random: bool = False, **kwargs: Any) -> EpisodeRollout:
        """Act for `count` whole episodes, or so many in each environment; see `ding_lite.rollout.record_episodes`."""
        return self.take_episodes(self.ask_episodes(count, random, **kwargs))

    def ask_episodes(self, count: int | Sequence[int], random: bool = False, **kwargs: Any) -> list[Any]:
        """Begin `collect_episodes`. Returns what `take_episodes` or `drop` want, each in the order of asking."""
        due = shares(count, self.num_envs) if isinstance(count, int) else list(count)
        return self._submit(_collect_episodes, [(due[piece], random, kwargs) for piece in self.env.slices])

    def take_episodes(self, asked: list[Any]) -> EpisodeRollout:
        """The episodes that were asked for."""
        told = self._taken(asked)
        rows = _joined([rows for rows, _ in told if rows], axis=0)
        lengths = np.concatenate([kept.value[2] for _, kept in told])
        episodes = [Episode(*row) for _, kept in told for row in kept.value[0]]
        return EpisodeRollout(Episodes(rows, lengths).within(self.limits), episodes, sum(kept.value[3] for _, kept in told))

    def _taken(self, asked: list[Any]) -> list[Any]:
        """What the pieces gave; and what they logged is kept for `reduce_metrics`."""
        told = self._answers(asked)
        self._logged += [one for _, kept in told for one in kept.value[1] if one]
        if self.works_alone:
            restarts = sum(getattr(host, "restarts", 0) for host in self.env.hosts)
            self._metrics.log_value("workers_unanswered", restarts - self._restarts, reduce="sum")
            self._restarts = restarts
        return told

    def drop(self, asked: list[Any]) -> None:
        """Do without the rollout that was asked for; the environments go through it all the same."""
        for host, request in zip(self.env.hosts, asked):
            host.forget(request)

    @property
    def span(self) -> tuple[int, int] | None:
        """When the work on the last answers began and ended; see `Remainder.span`."""
        spans = [host.span for host in self.env.hosts if host.span is not None]
        return (min(begun for begun, _ in spans), max(ended for _, ended in spans)) if spans else None

    def play_episodes(self, count: int | Sequence[int], is_stopping: Callable[[], bool] = lambda: False) -> list[Episode]:
        """Play `count` episodes, or so many in each environment, from their start; see `ding_lite.rollout.play_episodes`.

        Raises:
            BrokenOff: `is_stopping()` became true.
        """
        due = shares(count, self.num_envs) if isinstance(count, int) else list(count)
        try:
            asked = self._submit(_play, [(due[piece],) for piece in self.env.slices])
            told = self._answers(asked, is_stopping)
        except InterruptedError as error:
            raise BrokenOff("the run ended during an evaluation.") from error
        self._logged += [one for kept in told for one in kept.value[1] if one]
        return [Episode(*row) for kept in told for row in kept.value[0]]

    def reduce_metrics(self) -> list[dict[Any, Any]]:
        """What the copies of the policy logged while they acted, since the last time, and how many workers did not answer."""
        reduced, self._logged = [*self._logged, self._metrics.reduce()], []
        return reduced

    def _submit(self, fn: Callable[..., Any], each: Sequence[tuple[Any, ...]]) -> list[Any]:
        weights = self.policy.weights
        if weights is not self._acted_with:
            self._arrays = weights.as_arrays()
        self._acted_with, sent = weights, self._arrays
        requests: list[Any] = []
        for host, last, args in zip(self.env.hosts, self._sent, each):
            # Told apart as objects: after load_state_dict() other weights may bear a version that there was.
            is_there = last is not None and last[0] == host.starts and last[1] is weights
            new = None if is_there else sent
            requests.append(host.submit(fn, self._name, new, *args, prepare=(_adopt, (self._name, sent))))
        self._sent = [(host.starts, weights) for host in self.env.hosts]
        return requests

    def _answers(self, asked: Sequence[Any], is_stopping: Callable[[], bool] = lambda: False) -> list[Any]:
        try:
            with released():
                return answers(self.env.hosts, asked, is_stopping)
        except BaseException:
            self._sent = [None] * len(self._sent)  # who knows what each has
            raise

    def get_weights(self) -> dict[str, torch.Tensor]:
        """A copy of the weights that it acted with last."""
        if self._acted_with is not None:
            self.policy.actor.copy_weights(self._acted_with)
        return self.policy.get_weights()

    def state_dict(self) -> dict[str, Any]:
        """The policy's state in each environment, and the generators of random actions, by piece.

        Raises:
            TypeError: a recurrent state holds objects that no checkpoint holds.
        """
        return {"pieces": [LocalWorker.as_plain(host.state(self._name)[self._name]) for host in self.env.hosts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as the worker did that gave this state."""
        pieces = state.get("pieces", [state])
        if len(pieces) != len(self.env.hosts):
            raise ValueError(
                f"the state of {len(pieces)} workers does not fit {len(self.env.hosts)}: make the environments with "
                f"workers={len(pieces)}."
            )
        for host, piece in zip(self.env.hosts, pieces):
            host.load_state({self._name: piece})

    def _generator_states(self) -> list[dict[str, Any]]:
        mode = _mode_key(self._name)
        return [host.state(mode)[mode] for host in self.env.hosts]

    def _load_generator_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        for host, state in zip(self.env.hosts, states, strict=True):
            host.load_state({_mode_key(self._name): state})


def _joined(parts: Sequence[dict[str, Any]], axis: int) -> dict[str, Any]:
    """Columns of all pieces, side by side or one after the other, in memory of their own."""
    if not parts:
        return {}
    first, *rest = parts
    columns: dict[str, Any] = map_leaves(lambda *leaves: np.concatenate(leaves, axis=axis), first, *rest)
    return columns


def _mode_key(name: str) -> str:
    return f"{name}, policy"


# What runs where the environments are.


class _Piece(LocalWorker):
    """The worker of a piece. Its state travels by pickle, and with it whatever objects a policy remembers."""

    def state_dict(self) -> dict[str, Any]:
        return self.carried()


def _make(objects: dict[str, Any], name: str, mode: ActMode) -> None:
    objects[name] = _Piece(objects[ENV], mode)
    objects[_mode_key(name)] = mode


def _adopt(objects: dict[str, Any], name: str, weights: Weights | None) -> None:
    if weights is not None:
        mode: ActMode = objects[_mode_key(name)]
        # Copied now, because what came through shared memory is there for a moment only.
        mode.actor.copy_weights(weights.as_tensors())


def _collect(objects: dict[str, Any], name: str, weights: Weights | None, *args: Any) -> tuple[Any, ...]:
    num_steps, random, kwargs = args
    _adopt(objects, name, weights)
    worker: LocalWorker = objects[name]
    rollout = worker.collect(num_steps, random, **kwargs)
    return rollout.trajectories.columns, Kept((_rows(rollout.episodes), worker.reduce_metrics()))


def _collect_episodes(objects: dict[str, Any], name: str, weights: Weights | None, *args: Any) -> tuple[Any, ...]:
    due, random, kwargs = args
    _adopt(objects, name, weights)
    worker: LocalWorker = objects[name]
    rollout = worker.collect_episodes(due, random, **kwargs)
    told = _rows(rollout.episodes), worker.reduce_metrics(), rollout.recorded.lengths, rollout.env_steps
    return rollout.recorded.rows(), Kept(told)


def _play(objects: dict[str, Any], name: str, weights: Weights | None, due: Sequence[int]) -> Kept[tuple[Any, ...]]:
    _adopt(objects, name, weights)
    worker: LocalWorker = objects[name]
    episodes = worker.play_episodes(due, objects.get("is_stopping", lambda: False))
    return Kept((_rows(episodes), worker.reduce_metrics()))


def _rows(episodes: Sequence[Episode]) -> list[tuple[Any, ...]]:
    """As tuples, which take a third of the time to pickle."""
    return [tuple(episode) for episode in episodes]
