"""Ray hosts: objects of a worker of a Ray cluster, which is restarted in the same state on any machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from ding_lite.distributed.clusters import Resources, connect, require_resources
from ding_lite.distributed.references import StoredValue
from ding_lite.distributed.worker_actors import Actors, RayWorker
from ding_lite.processes import Patience, RestartingHost, Shared

PATIENCE = Patience(attempts=6, error_attempts=2, backoff_s=1.0)
"""A lost machine is given time to be replaced. An error of the program is tried once more, because it may come from a machine
with other packages or a full disk; the second one is final."""


def host_factory(
    caller: str,
    workers: int,
    *,
    restart: bool,
    address: str | None = None,
    num_cpus: float | None = None,
    num_gpus: float = 0.0,
    custom: Mapping[str, float] | None = None,
    unit: str = "worker",
) -> Callable[..., RayHost]:
    """Connect to the cluster, and return a function with the arguments of `ProcessHost` that makes the hosts of a group.

    Args:
        caller: name of the calling function, for messages.
        workers: number of workers of the group.
        restart: whether workers are restarted. Then one more is started in advance.
        address: see `connect`.
        num_cpus, num_gpus, custom: what each worker reserves; see `Resources`.
        unit: what a worker is called in the settings: "worker" or "learner".

    Raises:
        ValueError: the cluster does not have the resources, or the program is connected to another one.
        ConnectionError: no cluster answers.
    """
    resources = Resources(num_cpus, num_gpus, {} if custom is None else custom)
    connect(address, caller)
    require_resources(resources, workers, caller, Actors.held(), unit)
    return partial(RayHost, Actors(resources, spares=int(restart)))


def machine_address() -> str:
    """The address of the machine on which a worker runs, for other machines of the cluster."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class RayHost(RestartingHost):
    """Objects of a worker of a Ray cluster. With `restart`, it is replaced if it dies, hangs, or its machine is lost.

    Args:
        actors: starts its workers.
        name, progress_size, describe, timeout_s, start_timeout_s: as for `WorkerProcess`.
        restart, depth: as for `RestartingHost`.
    """

    def __init__(
        self,
        actors: Actors,
        name: str,
        progress_size: int = 0,
        describe: Callable[[NDArray[np.int64]], str] | None = None,
        timeout_s: float = 60.0,
        restart: bool = False,
        depth: int = 1,
        start_timeout_s: float = 120.0,
    ) -> None:
        new = partial(RayWorker, actors, name, progress_size, describe, timeout_s, start_timeout_s)
        super().__init__(name, new, restart, depth, min(2.0, timeout_s), PATIENCE)

    def share(self, value: Any) -> Shared[Any]:
        """A value in the object store of the cluster, to which the requests of several hosts refer."""
        return StoredValue(value)
