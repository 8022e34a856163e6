"""Workers of pieces: requests to the pieces of the environments, each with copies of the acting policies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any, Protocol

from ding_lite.engine import WorkCancelled
from ding_lite.engine.lanes import waiting_for_process
from ding_lite.envs import EpisodeResult
from ding_lite.metrics import MetricsLogger
from ding_lite.policy import ActMode, WeightsSnapshot
from ding_lite.processes import Copied, Host, Shared, gather_results, load_states
from ding_lite.rollout.evaluation import EpisodeUnit, shares_of

_numbers = count()


class EnvPieces(Protocol):
    """The interface that `PieceWorkers` needs from environments in pieces."""

    num_envs: int
    hosts: list[Host]
    slices: list[slice]

    @property
    def works_in_background(self) -> bool:
        """Whether the pieces work in the background."""

    def accept_loss(self) -> None:
        """Continue after a process has died or was killed; see `Host.accept_loss`."""


class PieceWorkers:
    """The workers of all pieces of the environments, which act at the same time with copies of the policies.

    Each copy has its own random generator, and uses the weights that the policy's mode has at the time of a request. Results
    are joined in the order of the pieces, so they do not depend on timing.

    Args:
        env: environments in pieces.
        policies: the acting mode of each policy, by name; its copies act on the CPU. A single policy may have the name "".
        make: function that makes the worker of a piece from its objects and the copies by name, in the process of the piece.
            The worker has `play_episodes`, `reduce_metrics`, `state_dict` and `load_state_dict`; the state may hold any object.
        as_plain: converts a state of such a worker to plain data.
    """

    def __init__(
        self,
        env: EnvPieces,
        policies: Mapping[str, ActMode],
        make: Callable[[dict[str, Any], dict[str, ActMode]], Any],
        as_plain: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        self._pieces, self._modes, self._as_plain = env, dict(policies), as_plain
        self.num_envs: int = env.num_envs
        self._name = f"worker {next(_numbers)}"
        self._sent: list[tuple[int, dict[str, WeightsSnapshot]] | None] = [None] * len(env.hosts)
        """For each piece, the number of starts of its process, and the weights last sent to it."""
        self._acted_with: dict[str, WeightsSnapshot] = {}
        self._arrays: dict[str, Shared[WeightsSnapshot]] = {}
        self._restarts, self._metrics = 0, MetricsLogger(owner="the workers")
        self._logged: list[dict[Any, Any]] = []
        made = [host.submit(_make, self._name, make, self._copies(index), lasting=True) for index, host in enumerate(env.hosts)]
        gather_results(env.hosts, made)
        names = [self._name, *(_mode(self._name, name) for name in self._modes)]
        # Weakly, and without the arguments of the requests, because an environment may hold the policy that acts in it.
        hosts = [weakref.ref(host) for host in env.hosts]
        lasting = [getattr(request, "lasting", None) for request in made]
        weakref.finalize(self, _discard, hosts, lasting, names).atexit = False
        for name, policy in self._modes.items():
            mode = _mode(self._name, name)
            policy.bind_remote(partial(self._states_of, mode), partial(self._load_states_of, mode))

    def _copies(self, index: int) -> dict[str, ActMode]:
        """Copies of the policies for this piece. Policies with one seed get generators that differ."""
        several = len(self._modes) > 1
        return {name: policy.worker_copy(index, name if several else None) for name, policy in self._modes.items()}

    @property
    def works_in_background(self) -> bool:
        """Whether work begun by a request continues in the background."""
        return self._pieces.works_in_background

    def drop(self, asked: list[Any]) -> None:
        """Discard the result of a request; the environments are stepped anyway."""
        for host, request in zip(self._pieces.hosts, asked):
            host.forget(request)

    @property
    def span(self) -> tuple[int, int] | None:
        """Begin and end of the work on the last results; see `PendingWork.span`."""
        spans = [host.span for host in self._pieces.hosts if host.span is not None]
        return (min(begun for begun, _ in spans), max(ended for _, ended in spans)) if spans else None

    def play_episodes(self, count: int | Sequence[int], is_stopping: Callable[[], bool] = lambda: False) -> list[EpisodeResult]:
        """Run `count` episodes, or the given number in each environment; see `ding_lite.rollout.play_episodes`.

        Raises:
            WorkCancelled: `is_stopping()` became true.
        """
        try:
            answers = self._results(self._submit(_play, self._shares(count)), is_stopping)
        except InterruptedError as error:
            self._pieces.accept_loss()  # the next evaluation begins new episodes
            raise WorkCancelled("the run ended during an evaluation.") from error
        self._logged += [one for copied in answers for one in copied.value[1] if one]
        return episodes_of([copied.value[0] for copied in answers])

    def reduce_metrics(self) -> list[dict[Any, Any]]:
        """The metrics of the workers since the last call, the mean seconds of waiting for a rollout of all workers, and
        `workers_unanswered`, the number of restarts of failed processes."""
        reduced, self._logged = [*self._logged, self._metrics.reduce()], []
        return reduced

    def _shares(self, count: int | Sequence[int], unit: EpisodeUnit = "episodes") -> list[tuple[list[int]]]:
        """The share of each environment, by piece."""
        due = shares_of(count, self.num_envs, unit)
        return [(due[piece],) for piece in self._pieces.slices]

    def _submit(self, fn: Callable[..., Any], each: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Request `fn(worker, *args)` of each piece, with the current weights."""
        weights = {name: policy.acting_snapshot for name, policy in self._modes.items()}
        # Compared by identity, because after load_state_dict() other weights may have an earlier version.
        share = self._pieces.hosts[0].share
        self._arrays = {
            name: self._arrays[name] if self._acted_with.get(name) is one else share(one.as_arrays())
            for name, one in weights.items()
        }
        self._acted_with, arrays = weights, self._arrays
        for name, policy in self._modes.items():
            policy.note_acting(weights[name])
        requests: list[Any] = []
        for host, last, args in zip(self._pieces.hosts, self._sent, each):
            there = last[1] if last is not None and last[0] == host.starts else {}
            new = {name: arrays[name] for name, one in weights.items() if there.get(name) is not one}
            requests.append(host.submit(_run, self._name, new, fn, *args, prepare=(_adopt, (self._name, arrays))))
        self._sent = [(host.starts, weights) for host in self._pieces.hosts]
        return requests

    def _results(self, asked: Sequence[Any], is_stopping: Callable[[], bool] = lambda: False) -> list[Any]:
        try:
            with waiting_for_process():
                return gather_results(self._pieces.hosts, asked, is_stopping)
        except BaseException:
            self._sent = [None] * len(self._sent)  # unknown weights
            raise

    def _taken(self, asked: list[Any]) -> list[Any]:
        """The results of the pieces, (columns, copied); the metrics, second in `copied`, are kept for `reduce_metrics`."""
        begun = perf_counter()
        answers = self._results(asked)
        self._metrics.log_value(("time", "env_wait"), perf_counter() - begun)
        self._logged += [one for _, copied in answers for one in copied.value[1] if one]
        if self.works_in_background:
            restarts = sum(getattr(host, "restarts", 0) for host in self._pieces.hosts)
            self._metrics.log_value("workers_unanswered", restarts - self._restarts, reduce="sum")
            self._restarts = restarts
        return answers

    def _weights_of(self, name: str) -> dict[str, Any]:
        """A copy of the weights with which this policy acted last."""
        if name in self._acted_with:  # another worker may have acted for the same mode since
            self._modes[name].note_acting(self._acted_with[name])
        return self._modes[name].get_weights()

    def state_dict(self) -> dict[str, Any]:
        """The state of the worker of each piece, such as recurrent states in each environment.

        Raises:
            TypeError: a recurrent state holds objects that a checkpoint cannot hold.
        """
        return {"pieces": [self._as_plain(host.state(self._name)[self._name]) for host in self._pieces.hosts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. If a piece refuses its part, the pieces before it are restored to their state before the call.

        Raises:
            ValueError: the number of pieces differs, or a piece has another recurrent state.
        """
        hosts, pieces = self._pieces.hosts, state.get("pieces", [state])
        if isinstance(pieces, Mapping):  # the state of a policy with this name, of a worker in one piece
            pieces = [state]
        if len(pieces) != len(hosts):
            raise ValueError(
                f"the state of {len(pieces)} worker{'s' if len(pieces) > 1 else ''} does not fit {len(hosts)}: make the "
                "environments with "
                f"workers={len(pieces)}."
            )
        load_states(hosts, self._name, pieces)

    def _states_of(self, mode: str) -> list[dict[str, Any]]:
        return [host.state(mode)[mode] for host in self._pieces.hosts]

    def _load_states_of(self, mode: str, states: Sequence[Mapping[str, Any]]) -> None:
        for host, state in zip(self._pieces.hosts, states, strict=True):
            host.load_state({mode: state})


def rows_of(episodes: Sequence[EpisodeResult]) -> list[tuple[Any, ...]]:
    """Episodes as tuples, which take a third of the time to pickle."""
    return [tuple(episode) for episode in episodes]


def episodes_of(pieces: Sequence[Sequence[tuple[Any, ...]]]) -> list[EpisodeResult]:
    """The episodes of all pieces, from results of `rows_of`."""
    return [EpisodeResult(*row) for rows in pieces for row in rows]


def _discard(hosts: Sequence[weakref.ref[Host]], lasting: Sequence[bytes | None], names: Sequence[str]) -> None:
    """Remove the objects of a worker that is no longer used, from all pieces."""
    for ref, packed in zip(hosts, lasting):
        if (host := ref()) is not None:
            host.discard(packed, names)


def _mode(worker: str, policy: str) -> str:
    return f"{worker}, policy {policy}".rstrip()


# Functions that run in the process of the environments.


def _make(objects: dict[str, Any], name: str, make: Callable[..., Any], modes: dict[str, ActMode]) -> None:
    objects[name] = make(objects, modes)
    for policy, mode in modes.items():
        objects[_mode(name, policy)] = mode


def _adopt(objects: dict[str, Any], name: str, weights: Mapping[str, Shared[WeightsSnapshot]]) -> None:
    for policy, one in weights.items():
        mode: ActMode = objects[_mode(name, policy)]
        # Copied, because data in shared memory is valid only for a moment.
        mode.actor.copy_weights(one.value.as_tensors())


def _run(
    objects: dict[str, Any], name: str, weights: Mapping[str, Shared[WeightsSnapshot]], fn: Callable[..., Any], *args: Any
) -> Any:
    _adopt(objects, name, weights)
    return fn(objects, objects[name], *args)


def _play(objects: dict[str, Any], worker: Any, due: Sequence[int]) -> Copied[tuple[Any, ...]]:
    episodes = worker.play_episodes(due, objects.get("is_stopping", lambda: False))
    return Copied((rows_of(episodes), worker.reduce_metrics()))
