"""Clusters: the connection to a Ray cluster, and the resources of its machines."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import socket
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ding_lite.basics import require_extra

NAMESPACE = "ding_lite"

_kept = 0


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a worker of a cluster reserves on its machine."""

    num_cpus: float | None = None
    """CPUs; None for Ray's own rule: a worker starts where a CPU is free, and then reserves none."""

    num_gpus: float = 0.0
    custom: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Resources by the names that the machines of the cluster were started with."""

    def __post_init__(self) -> None:
        if not isinstance(self.custom, Mapping):
            raise TypeError(f"worker_resources={self.custom!r} wants a dict of amounts by name, such as {{'sim': 1}}.")
        of_custom = {f"worker_resources[{name!r}]": amount for name, amount in self.custom.items()}
        given = {"num_cpus_per_worker": self.num_cpus or 0.0, "num_gpus_per_worker": self.num_gpus, **of_custom}
        for name, amount in given.items():
            if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < math.inf:
                raise ValueError(f"{name}={amount!r} wants a number of 0 or more.")

    @property
    def asked(self) -> dict[str, float]:
        """The reserved resources by Ray's names, without those of which nothing is asked."""
        named = {"CPU": self.num_cpus or 0.0, "GPU": self.num_gpus, **self.custom}
        return {name: amount for name, amount in named.items() if amount > 0}

    @property
    def options(self) -> dict[str, Any]:
        """Options of a Ray actor."""
        if self.num_cpus is None and not self.num_gpus and not self.custom:
            return {}  # with any option, even 0 GPUs, Ray would reserve a CPU
        return {"num_cpus": self.num_cpus or 0.0, "num_gpus": self.num_gpus, "resources": dict(self.custom)}


def connect(address: str | None = None, caller: str = "connect", keep_workers: int | None = None) -> None:
    """Connect this program to a Ray cluster, unless it is connected. Without a running cluster, one is started on this machine;
    it ends with this program.

    Args:
        address: `address` of `ray.init`, such as "auto", "host:6379" or "local"; None for the environment variable RAY_ADDRESS,
            or else a cluster of this machine.
        caller: name of the calling function, for messages.
        keep_workers: maximum number of workers that are kept when environments are closed, for other environments of this
            program: a worker takes seconds to start. None keeps the number, at first 0.

    Raises:
        ImportError: the extra `ray` is not installed.
        ValueError: the program is connected to another cluster.
        ConnectionError: there is no cluster at this address.
    """
    require_extra("ray", "ray", f"{caller}(backend='ray')")
    if address is not None and not isinstance(address, str):
        raise TypeError(f"{caller}(ray_address={address!r}) wants a string such as 'host:6379', or None.")
    if keep_workers is not None and (not isinstance(keep_workers, int) or keep_workers < 0):
        raise ValueError(f"{caller}(keep_workers={keep_workers!r}) wants a whole number of 0 or more, or None.")
    ray = _ray()
    global _kept
    _kept = _kept if keep_workers is None else keep_workers
    if not ray.is_initialized():
        if left := leftovers():
            names = ", ".join(f"{pid} ({name})" for pid, name in left)
            pids = " ".join(str(pid) for pid, _ in left)
            warnings.warn(
                f"an earlier Ray cluster has left processes on this machine: {names}. They take memory; end them: kill {pids}",
                stacklevel=2,
            )
        try:
            ray.init(address, namespace=NAMESPACE, include_dashboard=False, logging_level=logging.WARNING)
        except (ConnectionError, RuntimeError) as error:
            raise ConnectionError(
                f"{caller}(ray_address={address!r}): no Ray cluster answers there: {error} Start one with `ray start --head` "
                "and pass its address, or pass ray_address=None to start one on this machine. If a cluster runs there, the "
                "environment variable RAY_AUTH_MODE may differ: set it to token, or to disabled, here and for the cluster."
            ) from error
        return
    here = ray.get_runtime_context().gcs_address
    if address is not None and ":" in address and "//" not in address and _resolved(address) != _resolved(here):
        raise ValueError(
            f"{caller}(ray_address={address!r}), but this program is connected to the cluster at {here}: pass this address or "
            "None, or call ray.shutdown() first."
        )


def leftovers() -> list[tuple[int, str]]:
    """Ids and names of processes of this user that a Ray cluster left when it was killed. They are only known on Linux."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace").strip()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            is_ours = folder.stat().st_uid == os.getuid()
        except (OSError, ValueError, IndexError):  # it has ended, or belongs to somebody else
            continue
        if name.startswith("ray::") and parent == 1 and is_ours:
            found.append((int(folder.name), name))
    return sorted(found)


def kept_workers() -> int:
    """Maximum number of workers that are kept when environments are closed; see `connect`."""
    return _kept


def _resolved(address: str) -> str:
    """An address with the number of its host."""
    host, _, port = address.rpartition(":")
    try:
        number = socket.gethostbyname(host)
    except OSError:
        return address
    return f"{_ray().util.get_node_ip_address() if number.startswith('127.') else number}:{port}"


def require_resources(resources: Resources, count: int, caller: str, held: Mapping[str, float], unit: str = "worker") -> None:
    """Check that the machines of the cluster can hold `count` workers at the same time, if no other program runs there.

    Args:
        resources: what each worker reserves.
        count: number of workers.
        caller: name of the calling function, for messages.
        held: what other workers of this program have reserved.
        unit: what a worker is called in the settings: "worker" or "learner".

    Raises:
        ValueError: they cannot.
        ConnectionError: there is no machine.
    """
    ray, asked = _ray(), resources.asked
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not machines:
        raise ConnectionError(
            f"{caller}(): no machine of the cluster answers: start one, and call ray.shutdown() to connect anew."
        )
    if not any(all(machine.get(name, 0.0) >= amount for name, amount in asked.items()) for machine in machines):
        there = "; ".join(_described(machine, asked) for machine in machines)
        raise ValueError(
            f"{caller}() asks for {_described(asked, asked)} for each {unit}, and no machine of the cluster has that: it has "
            f"{there}. Lower {_settings_of(asked, unit)}, or add machines."
        )
    total = ray.cluster_resources()
    wanted = {name: amount * count for name, amount in asked.items()}
    short = {name: amount for name, amount in wanted.items() if total.get(name, 0.0) < amount + held.get(name, 0.0)}
    if short:
        number = "workers" if unit == "worker" else f"num_{unit}s"
        others = f", of which other workers of this program hold {_described(held, short)}" if held else ""
        raise ValueError(
            f"{caller}() asks for {_described(short, short)} for {count} {unit}{'s' if count > 1 else ''}, and the cluster has "
            f"{_described(total, short)}{others}. Lower {number} or {_settings_of(short, unit)}, or add machines."
        )


def available(resources: Resources) -> str:
    """What is asked for a worker, and what the cluster has free now, for a message."""
    asked = resources.asked or {"CPU": 1.0}
    return f"a worker asks for {_described(asked, asked)}, and {_described(_ray().available_resources(), asked)} is free"


def _ray() -> Any:
    """Ray, which takes most of a second to import. Its functions have no types."""
    import ray

    return ray


def _described(amounts: Mapping[str, float], names: Mapping[str, float]) -> str:
    return ", ".join(f"{amounts.get(name, 0.0):g} {name}" for name in names) or "nothing"


def _settings_of(asked: Mapping[str, float], unit: str) -> str:
    names = {"CPU": f"num_cpus_per_{unit}", "GPU": f"num_gpus_per_{unit}"}
    return " and ".join(dict.fromkeys(names.get(name, f"{unit}_resources") for name in asked))
