"""Workers of a Ray cluster: how throughput grows with their number, what Ray costs, and what deaths cost.

Measures wall time on a cluster that it starts on this machine, so it needs idle cores. With `--kills`, one of four workers is
killed every two seconds: the rollouts must be those of workers that live, at half of the throughput or more.

    python benchmarks/ray_workers.py
    python benchmarks/ray_workers.py --kills --seconds 60
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import ray
from measure import one_thread, report
from numpy.typing import NDArray

from ding_lite.config import DQNConfig
from ding_lite.data import flatten
from ding_lite.distributed import connect
from ding_lite.envs import make_envs
from ding_lite.policy import DQNPolicy
from ding_lite.rollout import SplitWorker, make_worker

STEPS, ROUNDS = 100, 5
CFG = DQNConfig().override({"policy.model.encoder_hidden_size_list": [64, 64]})


class Waits(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each step also waits, as for a simulator on another machine."""

    def step(self, action: Any) -> Any:
        time.sleep(0.005)
        return self.env.step(action)


class Computes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each step also computes for about half a millisecond."""

    def step(self, action: Any) -> Any:
        sum(index * index for index in range(8000))
        return self.env.step(action)


def make_waiting() -> Any:
    return Waits(gymnasium.make("CartPole-v1"))


def make_computing() -> Any:
    return Computes(gymnasium.make("CartPole-v1"))


def worker_of(make: Any, count: int, backend: str, restart: bool = False) -> SplitWorker:
    envs: Any = make_envs(make, count, seed=0, workers=count, backend=backend, restart=restart)  # type: ignore[arg-type]
    policy = DQNPolicy(CFG.policy, envs.single_observation_space, envs.single_action_space)
    worker = make_worker(envs, policy.collect_mode)
    assert isinstance(worker, SplitWorker)
    return worker


def steps_per_s(make: Any, count: int, steps: int = STEPS) -> float:
    """Environment steps a second of so many workers of a cluster, each with one environment, in rollouts of so many steps."""
    worker = worker_of(make, count, "ray")
    worker.collect(steps, eps=0.1)
    samples = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        worker.collect(steps, eps=0.1)
        samples.append(time.perf_counter() - begun)
    worker.env.close()
    return count * steps / statistics.median(samples)


def scaling() -> None:
    first = steps_per_s(make_waiting, 1)
    for count in (1, 2, 4, 8, 16):
        found = first if count == 1 else steps_per_s(make_waiting, count)
        target = {"target": "at least 14"} if count == 16 else {}
        report("ray, environments that wait 5 ms", "ours", "steps_per_s", found, workers=count)
        report("ray, environments that wait 5 ms", "ours", "times_one_worker", found / first, workers=count, **target)
    ratios = []
    for _ in range(3):
        one, two = (steps_per_s(make_computing, count) for count in (1, 2))
        ratios.append(two / one)
    gain = statistics.median(ratios)
    report(
        "ray, environments that compute",
        "ours",
        "times_one_worker",
        gain,
        workers=2,
        target="at least 1.7",
    )


class Sleeper:
    """An actor that does as much as a rollout of `Waits`, and answers as many bytes."""

    def rollout(self, _request: bytes) -> tuple[float, NDArray[np.uint8]]:
        begun = time.perf_counter()
        for _ in range(10):
            time.sleep(0.0053)
        return time.perf_counter() - begun, np.zeros(1500, np.uint8)


def cost_of_a_call() -> None:
    """The share of a rollout of about 50 ms that is not spent in the worker; and that of a call of Ray without this library."""
    actor = ray.remote(num_cpus=0)(Sleeper).remote()
    workers = {backend: worker_of(make_waiting, 1, backend) for backend in ("process", "ray")}
    shares: dict[str, list[float]] = {"bare call of ray": [], "process": [], "ray": []}
    for _ in range(60):  # in turn, so that what else the machine does is the same for all
        begun = time.perf_counter()
        inside, _ = ray.get(actor.rollout.remote(b"x" * 500))
        shares["bare call of ray"].append(1 - inside / (time.perf_counter() - begun))
        for backend, worker in workers.items():
            begun = time.perf_counter()
            worker.collect(10, eps=0.1)
            seconds = time.perf_counter() - begun
            first, last = worker.span or (0, 0)
            shares[backend].append(1 - (last - first) / 1e9 / seconds)
    for who, found in shares.items():
        target = {"target": "at most 0.05"} if who == "ray" else {}
        report("a rollout of 50 ms", who, "share_outside_of_the_worker", statistics.median(found[5:]), **target)
    for worker in workers.values():
        worker.env.close()
    ray.kill(actor)


def digest(rollouts: list[Any]) -> str:
    found = hashlib.sha256()
    for rollout in rollouts:
        for path, column in flatten(rollout.trajectories.columns):
            found.update(str(path).encode() + np.ascontiguousarray(column).tobytes())
    return found.hexdigest()


def collect_for(worker: SplitWorker, seconds: float, kept: list[Any]) -> float:
    """Collect for so long. Returns environment steps a second."""
    begun, steps = time.monotonic(), 0
    while time.monotonic() < begun + seconds:
        kept.append(worker.collect(20, eps=0.1))
        steps += 20 * worker.num_envs
    return steps / (time.monotonic() - begun)


@contextlib.contextmanager
def killing(worker: SplitWorker) -> Iterator[list[int]]:
    """Within the block, a worker is killed every two seconds. Gives the processes that were killed."""
    draw, is_over = random.Random(0), threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not is_over.wait(2.0):
            pids = [pid for host in worker.env.hosts if (pid := getattr(host, "pid", None)) not in (None, *killed)]
            if pids:
                killed.append(draw.choice(pids))
                os.kill(killed[-1], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        is_over.set()
        thread.join()


def deaths(seconds: float) -> None:
    rollouts: list[Any] = []
    worker = worker_of(make_waiting, 4, "ray", restart=True)
    collect_for(worker, 6.0, rollouts)
    before = collect_for(worker, 10.0, rollouts)
    with killing(worker) as killed:
        meanwhile = collect_for(worker, seconds, rollouts)
    restarts = sum(getattr(host, "restarts", 0) for host in worker.env.hosts)
    collect_for(worker, 10.0, rollouts)
    after = collect_for(worker, 10.0, rollouts)
    worker.env.close()
    other = worker_of(make_waiting, 4, "process")
    expected = [other.collect(20, eps=0.1) for _ in rollouts]
    other.env.close()
    case = "a worker killed every 2 s"
    report(case, "ours", "restarts", restarts, seconds=seconds, kills=len(killed))
    report(case, "ours", "throughput_meanwhile", meanwhile / before, target="at least 0.5")
    report(case, "ours", "throughput_10_s_later", after / before, target="at least 0.95")
    report(case, "ours", "equal_rollouts", float(digest(rollouts) == digest(expected)), rollouts=len(rollouts), target="1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", action="store_true", help="measure what deaths of workers cost, and nothing else")
    parser.add_argument("--seconds", type=float, default=60.0, help="with --kills, how long workers are killed (default: 60)")
    arguments = parser.parse_args()
    one_thread()
    connect("local")
    if arguments.kills:
        deaths(arguments.seconds)
    else:
        cost_of_a_call()
        scaling()
    ray.shutdown()


if __name__ == "__main__":
    main()
