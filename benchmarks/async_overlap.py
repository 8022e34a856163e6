"""Overlap: the wall time of an asynchronous run, relative to the longer of collection and training, and the cost of the engine.

Measures wall time, so it needs two idle cores. Each run and its limit are measured in turn, and the median of the ratios is
reported.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
import torch
from measure import one_thread, report

from ding_lite import Task, contract
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import OffPolicyLearner, StepCollector, data_pusher, eps_greedy_handler
from ding_lite.policy import DQNPolicy
from ding_lite.processes import WorkerProcess
from ding_lite.rollout import make_worker

ITERATIONS = 100
ROUNDS = 11
PIECE_S = 0.005  # duration of collection and of training, if the work is fixed


class BusyEnv(gymnasium.Env[Any, Any]):
    """An environment with CartPole's spaces and episodes of 200 steps, whose steps count in pure Python."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, count: int) -> None:
        self.count, self.now = count, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        count_up(self.count)
        self.now += 1
        return self._obs(), 1.0, False, self.now >= 200, {}

    def _obs(self) -> Any:
        return self.np_random.random(4, np.float32)


def count_up(count: int) -> int:
    x = 0
    for i in range(count):
        x += i & 3
    return x


def products(count: int) -> None:
    one = torch.ones(64, 64)
    for _ in range(count):
        torch.mm(one, one)


def calibrated(work: Callable[[int], object], seconds: float) -> int:
    """The argument with which `work` takes this number of seconds."""
    count = 1000
    for _ in range(6):
        count = max(1, int(count * seconds / min(seconds_of(partial(work, count)) for _ in range(5))))
    return count


def seconds_of(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compare_walls(
    what: str, metric: str, target: str, limit: Callable[[], float], ours: Callable[[], float], **others: Callable[[], float]
) -> None:
    """Report the median ratio of ours, and of the others, to the limit; seconds, measured in turn."""
    functions = {"limit": limit, "ours": ours, **others}
    rows = [{name: function() for name, function in functions.items()} for _ in range(ROUNDS)]
    for name in functions:
        report("async_overlap", name, "seconds", statistics.median(row[name] for row in rows), work=what)
        if name != "limit":
            ratio = statistics.median(row[name] / row["limit"] for row in rows)
            report("async_overlap", name, metric, ratio, work=what, **({"target": target} if target and name == "ours" else {}))


def staged(stage: str, work: Callable[[], object]) -> Callable[[Any], None]:
    touches = {"collect": {"writes": ("trajectories",)}, "learn": {"reads": ("trajectories",)}}[stage]

    @contract(**touches, stage=stage)
    def middleware(ctx: Any) -> None:
        work()
        if stage == "collect":
            ctx.trajectories = ()

    return middleware


@contextmanager
def started(async_mode: bool, *middleware: Callable[[Any], Any], max_lag: int | None = None) -> Iterator[Task]:
    task = Task()
    with task.start(async_mode=async_mode, ctx=OnlineRLContext(), max_lag=max_lag):
        for one in middleware:
            task.use(one)
        yield task


def sleeping() -> None:
    def ours() -> float:
        collect, learn = (staged(stage, lambda: time.sleep(PIECE_S)) for stage in ("collect", "learn"))
        with started(True, collect, learn) as task:
            return seconds_of(lambda: task.run(ITERATIONS))

    def limit() -> float:
        return seconds_of(lambda: [time.sleep(PIECE_S) for _ in range(ITERATIONS)])

    compare_walls("collect and train sleep 5 ms each", "over_the_longer", "at most 1.08", limit, ours)


def processing() -> None:
    """Fetch and move the next batch during training, with three middleware as a user would write them."""

    @contract(writes=("train_data",), stage="process")
    def fetch(ctx: Any) -> None:
        time.sleep(PIECE_S)
        ctx.train_data = ()

    @contract(reads=("train_data",), writes=("train_data",), stage="process")
    def move(ctx: Any) -> None:
        time.sleep(PIECE_S)
        ctx.train_data = (*ctx.train_data,)

    @contract(reads=("train_data",), stage="learn")
    def learn(ctx: Any) -> None:
        time.sleep(2 * PIECE_S)

    def run(async_mode: bool) -> float:
        with started(async_mode, fetch, move, learn) as task:
            return seconds_of(lambda: task.run(ITERATIONS))

    what = "fetch 5 ms and move 5 ms beside train 10 ms, by sleep"
    compare_walls(what, "over_synchronous", "at most 0.6", lambda: run(False), lambda: run(True))


def three_lanes() -> None:
    """A chain of three lanes, which overlap fully only with `max_lag=2`."""

    @contract(writes=("trajectories",), stage="collect")
    def collect(ctx: Any) -> None:
        time.sleep(PIECE_S)
        ctx.trajectories = ()

    @contract(reads=("trajectories",), writes=("train_data",), stage="process")
    def process(ctx: Any) -> None:
        time.sleep(PIECE_S)
        ctx.train_data = ()

    @contract(reads=("train_data",), stage="learn")
    def learn(ctx: Any) -> None:
        time.sleep(PIECE_S)

    def run(max_lag: int) -> float:
        with started(True, collect, process, learn, max_lag=max_lag) as task:
            return seconds_of(lambda: task.run(ITERATIONS))

    def limit() -> float:
        return seconds_of(lambda: [time.sleep(PIECE_S) for _ in range(ITERATIONS)])

    what = "collect, process and train sleep 5 ms each, max_lag=2"
    compare_walls(what, "over_the_longest", "at most 1.1", limit, lambda: run(2), **{"max_lag=1": lambda: run(1)})


def computing() -> None:
    counts, muls = calibrated(collector(), PIECE_S), calibrated(products, PIECE_S)
    cfg = DQNConfig().override({"policy.collect.n_sample": 1})
    envs = make_envs(lambda: BusyEnv(counts), 1, backend="process")
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    collect = StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.0})
    learn = staged("learn", lambda: products(muls))

    def ours(max_lag: int) -> float:
        with started(True, collect, learn, max_lag=max_lag) as task:
            task.run(5)
            return seconds_of(lambda: task.run(ITERATIONS))

    def by_hand() -> float:
        """The same by hand, with one byte per request and answer: two processes that wait for each other as with max_lag=1."""
        context = multiprocessing.get_context("forkserver")
        here, there = context.Pipe()
        process = context.Process(target=answer_bytes, args=(there, counts))
        process.start()
        here.send_bytes(b"first, which waits for its start")
        here.recv_bytes()
        begin = time.perf_counter()
        here.send_bytes(b"1")
        for turn in range(ITERATIONS):
            here.send_bytes(b"1" if turn < ITERATIONS - 1 else b"")
            here.recv_bytes()
            products(muls)
        process.join()
        return time.perf_counter() - begin

    with WorkerProcess("limit") as process:

        def limit() -> float:
            """Both loops without the engine, at the same time, because two busy cores may be slower than one."""
            process.submit(collected, counts)
            return max(seconds_of(lambda: [products(muls) for _ in range(ITERATIONS)]), process.result())

        what = "pure Python in a worker process, torch here, 5 ms each"
        target = "at most 1.08"
        compare_walls(what, "over_the_longer", target, limit, lambda: ours(1), **{"by hand": by_hand})
        compare_walls(f"{what}, max_lag=3", "over_the_longer", target, limit, lambda: ours(3))
    envs.close()


def collector() -> Callable[[int], object]:
    """A function that collects one step of an environment that counts up to its argument, in this process."""
    env = BusyEnv(0)
    envs = make_envs(lambda: env, 1)
    policy = DQNPolicy(DQNConfig().policy, envs.single_observation_space, envs.single_action_space)
    worker = make_worker(envs, policy.collect_mode)

    def collect(count: int) -> None:
        env.count = count
        worker.collect(1, eps=0.1)

    return collect


def collected(objects: dict[str, Any], count: int) -> float:
    collect = objects.get("collect") or objects.setdefault("collect", collector())
    return seconds_of(lambda: [collect(count) for _ in range(ITERATIONS)])


def answer_bytes(pipe: Connection, count: int) -> None:
    """Collect once for each message, until an empty one."""
    one_thread()
    collect, going_on = collector(), True
    while going_on:
        going_on = bool(pipe.recv_bytes())
        collect(count)
        pipe.send_bytes(b"1")


def empty() -> None:
    @contract(reads=("train_iter",), writes=("eval_value",), stage="evaluate")
    def evaluate(ctx: Any) -> None:
        pass

    @contract(reads=("env_step",), writes=("env_step", "trajectories"), stage="collect")
    def collect(ctx: Any) -> None:
        pass

    @contract(reads=("trajectories", "train_iter"), writes=("train_iter",), stage="learn")
    def learn(ctx: Any) -> None:
        pass

    count, rounds = 2000, 11
    for async_mode in (True, False):
        with started(async_mode, evaluate, collect, learn) as task:
            task.run(100)
            spent = statistics.median(seconds_of(lambda: task.run(count)) / count for _ in range(rounds))
        target = {"target": "at most 60"} if async_mode else {}
        report("async_overlap", "ours", "us_per_iteration", spent * 1e6, lanes=3 if async_mode else 1, work="nothing", **target)


def real() -> None:
    """DQN in one worker process with environment steps of 1 ms; learning takes as long as collection."""
    counts = calibrated(count_up, 0.001)
    cfg = DQNConfig().override({"policy.collect.n_sample": 32, "policy.learn.learning_starts": 64})
    cfg.policy.learn.update_per_collect = updates_for(cfg, 0.032)
    envs = make_envs(lambda: BusyEnv(counts), 4, backend="process")
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer = ReplayBuffer(10_000)
    middleware = (
        eps_greedy_handler(cfg),
        StepCollector(cfg, policy.collect_mode, envs),
        data_pusher(cfg, buffer),
        OffPolicyLearner(cfg, policy.learn_mode, buffer),
    )

    def run(async_mode: bool) -> float:
        with started(async_mode, *middleware) as task:
            task.run(5)
            spent = seconds_of(lambda: task.run(50))
            if async_mode:
                task.report()
        return spent

    compare_walls(
        "DQN, 1 ms a step in a worker process", "of_the_sync_run", "at most 1/1.7", lambda: run(False), lambda: run(True)
    )
    envs.close()


def updates_for(cfg: DQNConfig, seconds: float) -> int:
    """The number of gradient steps that take this number of seconds."""
    policy = DQNPolicy(cfg.policy, BusyEnv.observation_space, BusyEnv.action_space)
    batch = {
        "obs": torch.zeros(64, 4),
        "next_obs": torch.zeros(64, 4),
        "action": torch.zeros(64, dtype=torch.int64),
        "reward": torch.zeros(64),
        "terminated": torch.zeros(64, dtype=torch.bool),
    }
    buffer = ReplayBuffer(64)
    buffer.push(batch)

    def learn(count: int) -> None:
        for _ in range(count):
            policy.learn_mode.forward(buffer.sample(64))

    learn(20)
    return max(1, round(seconds / statistics.median(seconds_of(lambda: learn(20)) / 20 for _ in range(9))))


class Elsewhere:
    """A policy whose gradient step is `count` matrix products, as for a device that computes in the background."""

    train_iter = version = 0

    def __init__(self, count: int) -> None:
        self._count = count

    def forward(self, batch: Any) -> dict[str, Any]:
        products(self._count)
        return {}


def prefetching() -> None:
    """Eight batches of images per iteration: training alone, with prefetching of the next batch, and without prefetching."""
    count, size, space = 2000, 256, gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    images = np.random.default_rng(0).integers(0, 256, (count, *space.shape), np.uint8)
    buffer = ReplayBuffer(count)
    rest = {"action": np.zeros(count, np.int64), "reward": np.zeros(count, np.float32), "terminated": np.zeros(count, np.bool_)}
    buffer.push({"obs": images, "next_obs": images, **rest})
    copying = statistics.median(seconds_of(lambda: buffer.sample(size)) for _ in range(21))
    cfg = DQNConfig().override({"policy.learn": {"learning_starts": 1, "update_per_collect": 8}})
    learn = DQNPolicy(cfg.policy, space, gymnasium.spaces.Discrete(4)).learn_mode
    for what, policy, rows, iterations, target in (  # of eight batches, the first is copied before
        ("training that takes as long as copying its batch", Elsewhere(calibrated(products, copying)), size, 20, "at most 1.3"),
        ("DQN on the CPU", learn, 32, 1, ""),
    ):
        cfg.policy.learn.batch_size = rows
        batch = buffer.sample(rows)

        def run(prefetch: bool, policy: Any = policy, iterations: int = iterations) -> float:
            with started(True, OffPolicyLearner(cfg, policy, buffer, prefetch=prefetch)) as task:
                task.run(1)
                return seconds_of(lambda: task.run(iterations))

        def limit(policy: Any = policy, batch: Any = batch, iterations: int = iterations) -> float:
            return seconds_of(lambda: [policy.forward(batch) for _ in range(8 * iterations)])

        what = f"{what}, 8 batches of {rows} transitions of 84x84x4 an iteration"
        without = partial(run, False)
        compare_walls(what, "over_training_alone", target, limit, partial(run, True), **{"without prefetch": without})


def main() -> None:
    one_thread()
    sleeping()
    processing()
    prefetching()
    three_lanes()
    computing()
    empty()
    real()


if __name__ == "__main__":
    main()
