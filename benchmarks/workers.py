"""Worker processes: CartPole collected by two processes beside one collector of this process; environment steps a second.

Wall time: it wants two cores that nobody else uses. The limit is the collector of this process, measured in turn.

Room: benchmarks, floor 7.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from measure import one_thread, report

from ding_lite.config import DQNConfig
from ding_lite.envs import ENV, SplitVectorEnv, make_envs
from ding_lite.policy import DQNPolicy
from ding_lite.rollout import LocalWorker, SplitWorker, make_worker

ENVS, STEPS, ROUNDS = 128, 64, 15
CFG = DQNConfig().override({"policy.model.encoder_hidden_size_list": [64, 64]})


def worker_of(**where: Any) -> LocalWorker | SplitWorker:
    envs = make_envs("CartPole-v1", ENVS, **where)
    policy = DQNPolicy(CFG.policy, envs.single_observation_space, envs.single_action_space)
    return make_worker(envs, policy.collect_mode)


def seconds_of(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def collect_and_forget(objects: dict[str, Any], name: str) -> None:
    objects[name].collect(STEPS, eps=0.1)


def in_turn(*functions: Callable[[], object]) -> list[tuple[float, ...]]:
    for function in functions:
        function()
        function()
    return [tuple(seconds_of(function) for function in functions) for _ in range(ROUNDS)]


def main() -> None:
    one_thread()
    here = worker_of()
    for count in (1, 2):
        there = worker_of(workers=count, backend="process")
        assert isinstance(there, SplitWorker)
        assert isinstance(there.env, SplitVectorEnv)
        env: SplitVectorEnv = there.env
        name = next(key for key in env.ask(names)[0] if key not in (ENV, "crumbs") and "policy" not in key)
        samples = in_turn(
            partial(here.collect, STEPS, eps=0.1),
            partial(there.collect, STEPS, eps=0.1),
            partial(env.ask, collect_and_forget, [name] * count),
        )
        local, process, _ = (statistics.median(column) for column in zip(*samples))
        work = ENVS * STEPS
        report("workers", "one collector here", "env_steps_per_s", work / local, envs=ENVS)
        report("workers", "ours", "env_steps_per_s", work / process, envs=ENVS, workers=count)
        target = {"target": "at least 1.7"} if count == 2 else {}
        gain = statistics.median(row[0] / row[1] for row in samples)
        report("workers", "ours", "times_one_collector_here", gain, workers=count, **target)
        moving = statistics.median(1 - row[2] / row[1] for row in samples)
        report("workers", "ours", "share_of_time_moving_data", moving, workers=count, target="at most 0.05")
        env.close()


def names(objects: dict[str, Any]) -> list[str]:
    return list(objects)


if __name__ == "__main__":
    main()
