"""Worker processes: CartPole collected by two processes beside one collector of this process; environment steps a second.

Measures wall time, so it needs two idle cores. The limit is the collector of this process, measured in turn.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from measure import one_thread, report

from ding_lite.config import DQNConfig
from ding_lite.envs import SplitVectorEnv, make_envs
from ding_lite.policy import DQNPolicy
from ding_lite.rollout import LocalWorker, SplitWorker, make_worker

ENVS, STEPS, ROUNDS = 256, 64, 21
CFG = DQNConfig().override({"policy.model.encoder_hidden_size_list": [64, 64]})


def worker_of(**where: Any) -> LocalWorker | SplitWorker:
    envs = make_envs("CartPole-v1", ENVS, **where)
    policy = DQNPolicy(CFG.policy, envs.single_observation_space, envs.single_action_space)
    return make_worker(envs, policy.collect_mode)


def seconds_of(worker: LocalWorker | SplitWorker) -> float:
    begin = time.perf_counter()
    worker.collect(STEPS, eps=0.1)
    return time.perf_counter() - begin


def share_moving(there: SplitWorker, seconds: float) -> float:
    """The fraction of the last collection in which no worker collected."""
    begun, ended = there.span or (0, 0)
    return 1 - (ended - begun) / 1e9 / seconds


def main() -> None:
    one_thread()
    here = worker_of()
    for count in (1, 2):
        there = worker_of(workers=count, backend="process")
        assert isinstance(there, SplitWorker)
        assert isinstance(there.env, SplitVectorEnv)
        samples = []
        for turn in range(ROUNDS + 2):
            local, process = seconds_of(here), seconds_of(there)
            if turn >= 2:
                samples.append((local, process, share_moving(there, process)))
        here_s, there_s, moving = (statistics.median(column) for column in zip(*samples))
        report("workers", "one collector here", "env_steps_per_s", ENVS * STEPS / here_s, envs=ENVS)
        report("workers", "ours", "env_steps_per_s", ENVS * STEPS / there_s, envs=ENVS, workers=count)
        gain = statistics.median(local / process for local, process, _ in samples)
        target = {"target": "at least 1.7"} if count == 2 else {}
        report("workers", "ours", "times_one_collector_here", gain, workers=count, **target)
        report("workers", "ours", "share_of_time_moving_data", moving, workers=count, target="at most 0.05")
        there.env.close()


if __name__ == "__main__":
    main()
