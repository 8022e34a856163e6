"""Pieces: groups of environments, each on its own host, in this process or in one process per piece."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Literal, SupportsIndex, get_args

from ding_lite.basics import require_extra
from ding_lite.envs.changes import Change
from ding_lite.envs.progress import describe_progress, progress_size
from ding_lite.envs.saved_states import pieces_of
from ding_lite.processes import Copied, Host, LocalHost, ProcessHost, gather_results, load_states, release_hosts

_DEPTH = 128  # maximum number of pending rollouts, far above any max_lag
ENV = "env"
"""Name of the environments of a piece among the objects of its host."""

MakeHost = Callable[[int, int], Host]
"""A function of a piece's first environment and size that returns its host."""


class Pieces:
    """Environments in pieces, each with its own host."""

    num_envs: int
    hosts: list[Host]
    slices: list[slice]
    """The environments of each piece."""
    made_as: dict[str, Any] | None
    """See `SameStepVectorEnv.made_as`."""

    def _start(
        self,
        sizes: Sequence[int],
        make_host: MakeHost,
        make: Callable[..., Any],
        args_of: Callable[[slice], tuple[Any, ...]],
        require_alike: Callable[[Sequence[Any]], None],
    ) -> Any:
        """Make the environments of all pieces at the same time. Returns the traits of the first piece.

        Args:
            sizes: number of environments in each piece.
            make_host: makes the host of a piece.
            make: request that makes the environments of a piece, and returns a `Copied` with their traits.
            args_of: function of a piece that returns the arguments of this request.
            require_alike: raises an error if the traits of the pieces differ.
        """
        ends = list(accumulate(sizes))
        self.slices = [slice(end - size, end) for size, end in zip(sizes, ends)]
        self.hosts, self.num_envs = [], ends[-1]
        try:
            for piece in self.slices:
                self.hosts.append(make_host(piece.start, len_of(piece)))
            made = [host.submit(make, *args_of(piece), lasting=True) for host, piece in zip(self.hosts, self.slices)]
            traits = [copied.value for copied in gather_results(self.hosts, made)]
            require_alike(traits)
        except BaseException:
            release_hosts(self.hosts, for_good=True)
            raise
        return traits[0]

    def ask(self, fn: Callable[..., Any], *each: Sequence[Any]) -> list[Any]:
        """Call `fn(objects, ...)` on all hosts at the same time, each with its item of `each`."""
        return gather_results(self.hosts, [host.submit(fn, *args) for host, *args in zip(self.hosts, *each)])

    @property
    def works_in_background(self) -> bool:
        """Whether the pieces work in the background."""
        return all(host.works_in_background for host in self.hosts)

    def apply_changes(self, changes: Sequence[Change]) -> tuple[Any, ...]:
        """Apply and record one change per environment. Returns their results."""
        answers = self.ask(_change, [Copied(changes[piece]) for piece in self.slices])
        return tuple(result for copied in answers for result in copied.value)

    def read_attribute(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment."""
        return tuple(value for copied in self.ask(_read, [name] * len(self.hosts)) for value in copied.value)

    def state_dict(self) -> dict[str, Any]:
        """The state of each environment, by piece."""
        return {"made_as": self.made_as, "pieces": [host.state(ENV)[ENV] for host in self.hosts]}

    def _pieces_in(self, state: Any) -> list[Any]:
        """The saved state of each piece.

        Raises:
            TypeError, ValueError: not a state of environments in pieces, or the number of pieces differs.
        """
        pieces = pieces_of(state)
        if len(pieces) != len(self.hosts):
            raise ValueError(
                f"the state of environments in {len(pieces)} piece{'s' if len(pieces) > 1 else ''} does not fit "
                f"{len(self.hosts)}: make them with "
                f"workers={len(pieces)}."
            )
        return pieces

    def _load_pieces(self, pieces: Sequence[Any]) -> None:
        """Restore each piece. If one fails, all are restored to their state before the call."""
        load_states(self.hosts, ENV, pieces)
        self.accept_loss()

    def accept_loss(self) -> None:
        """Continue after a process has died or was killed, because the environments begin anew or have another state. The
        workers and policies in it continue from their last known state, until theirs is loaded too."""
        for host in self.hosts:
            host.accept_loss()

    def release(self) -> None:
        """End the processes; the next call starts them again in the same state."""
        release_hosts(self.hosts)


Backend = Literal["local", "process", "ray"]
"""Where environments are stepped: in this process, in processes of this machine, or on a Ray cluster."""


@dataclasses.dataclass(frozen=True)
class WorkerSettings:
    """Where environments are stepped, by how many workers; see `make_envs`."""

    workers: int
    backend: Backend
    restart: bool
    timeout_s: float
    start_timeout_s: float
    ray_address: str | None
    num_cpus_per_worker: float | None
    num_gpus_per_worker: float
    worker_resources: Mapping[str, float] | None

    def idle(self) -> list[str]:
        """The settings of "ray" that are given, as text."""
        names = ("ray_address", "num_cpus_per_worker", "num_gpus_per_worker", "worker_resources")
        return [f"{name}={getattr(self, name)!r}" for name in names if getattr(self, name)]


def sizes_and_hosts(caller: str, name: str, num_envs: int, settings: WorkerSettings) -> tuple[list[int], MakeHost] | None:
    """The number of environments in each piece, and the function that makes hosts; None for environments in one piece of this
    process.

    Args:
        caller: name of the calling function, for messages.
        name: name of the environments, for messages.
        num_envs: number of environments.
        settings: the workers.

    Raises:
        ValueError: workers is not in 1 to num_envs, the backend is unknown, a setting of "ray" is used with another backend, or
            the cluster does not have the resources.
        ImportError, ConnectionError: Ray is not installed, or no cluster answers.
    """
    workers, backend = settings.workers, settings.backend
    if not isinstance(workers, SupportsIndex) or not 1 <= workers <= num_envs:
        raise ValueError(
            f"{caller}(workers={workers!r}) for {num_envs} environments: each worker needs at least one environment, "
            f"expected 1 to {num_envs}."
        )
    if backend not in get_args(Backend):
        raise ValueError(f"{caller}(backend={backend!r}): unknown backend, use 'local', 'process' or 'ray'.")
    if backend != "ray" and (idle := settings.idle()):
        raise ValueError(f"{caller}(backend={backend!r}, {idle[0]}): this is a setting of backend='ray'.")
    if backend == "local" and workers == 1:
        return None
    sizes = [num_envs // workers + (index < num_envs % workers) for index in range(workers)]
    if backend == "local":
        return sizes, local_host
    if backend == "process":
        return sizes, partial(_host_elsewhere, ProcessHost, name, settings)
    require_extra("ray", "ray", f"{caller}(backend='ray')")
    # By name, because it imports Ray, and because it is in a layer above this one.
    make = importlib.import_module("ding_lite.distributed.ray_hosts").host_factory(
        caller,
        workers,
        restart=settings.restart,
        address=settings.ray_address,
        num_cpus=settings.num_cpus_per_worker,
        num_gpus=settings.num_gpus_per_worker,
        custom=settings.worker_resources,
    )
    return sizes, partial(_host_elsewhere, make, name, settings)


def _host_elsewhere(make: Callable[..., Host], name: str, settings: WorkerSettings, first_env: int, num_envs: int) -> Host:
    """A host for a piece of environments in another process, made by `ProcessHost` or a function with its arguments."""
    describe = partial(describe_progress, num_envs=num_envs, first_env=first_env)
    name = f"{name}, environments {first_env} to {first_env + num_envs - 1}"
    return make(name, progress_size(num_envs), describe, settings.timeout_s, settings.restart, _DEPTH, settings.start_timeout_s)


def local_host(first_env: int, num_envs: int) -> LocalHost:
    """A host for a piece of environments in this process."""
    return LocalHost()


def len_of(piece: slice) -> int:
    """The number of environments of a piece."""
    return int(piece.stop - piece.start)


# Functions that run in the process of the environments.


def _change(objects: dict[str, Any], changes: Copied[Sequence[Change]]) -> Copied[tuple[Any, ...]]:
    return Copied(objects[ENV].apply_changes(changes.value))


def _read(objects: dict[str, Any], name: str) -> Copied[tuple[Any, ...]]:
    return Copied(objects[ENV].read_attribute(name))
