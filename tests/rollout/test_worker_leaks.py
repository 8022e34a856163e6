"""Workers that come and go leave nothing: no thread, process, descriptor, mapping, name in shared memory, or memory.

`CYCLES=1000 make test ARGS="tests/rollout/test_worker_leaks.py"` starts and ends them 100 times, instead of 8.
"""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv
from leaks import CYCLES, require_nothing_left

from ding_lite.engine import Context, Task, contract
from ding_lite.envs import make_envs
from ding_lite.policy import DQNPolicy, DQNPolicyConfig
from ding_lite.rollout import make_worker

pytestmark = pytest.mark.timeout(600)
FEW = max(8, CYCLES // 10 if CYCLES > 200 else 0)


@pytest.fixture(autouse=True, scope="module")
def warm():
    """The fork server and the resource tracker run, and torch has its threads."""
    torch.set_num_threads(1)
    for end in ("release", "close", "forget"):
        cycle(end)


def cycle(end, number=0):
    envs = make_envs("CartPole-v1", 4, seed=number, workers=2, backend="process", restart=number % 2 == 1)
    cfg = DQNPolicyConfig().override({"model.encoder_hidden_size_list": [64, 64]})
    policy = DQNPolicy(cfg, envs.single_observation_space, envs.single_action_space)
    worker = make_worker(envs, policy.collect_mode)
    columns = worker.collect(100).trajectories.columns
    worker.play_episodes(4)
    if end == "release":
        envs.release()
        if number % 4 == 0:
            worker.collect(1)
            envs.release()
    if end == "close":
        envs.close()
    return columns


@pytest.mark.slow
@pytest.mark.parametrize("end", ["release", "close", "forget"])
def test_cycles_leave_nothing_behind(end, census):
    require_nothing_left(partial(cycle, end), FEW, warm_up=1, census=census)


def test_tasks_with_environments_of_gymnasium_in_processes_leave_nothing_behind(census):
    def run(number):
        envs = AsyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 2, context="forkserver", autoreset_mode="NextStep")
        policy = DQNPolicy(DQNPolicyConfig(), envs.single_observation_space, envs.single_action_space)
        worker = make_worker(envs, policy.collect_mode)
        with Task().start(ctx=Context(), async_mode=number % 2 == 1) as task:
            task.use(contract(uses=(envs, policy.collect_mode), stage="collect")(lambda ctx: worker.collect(4) and None))
            task.run(max_step=2)
        envs.close()

    require_nothing_left(run, FEW // 2, warm_up=2, census=census)


@pytest.mark.slow
def test_rollouts_outlive_the_processes_and_hold_no_shared_memory(census):
    before = census()
    columns = cycle("close")
    checksum = float(np.sum(columns["obs"]))
    after = census()
    cycle("close")
    assert float(np.sum(columns["obs"])) == checksum
    assert after == before


def test_environments_whose_maker_failed_leave_nothing_behind(census):
    before = census()
    for _ in range(3):
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            make_envs("CartPole-v1", 4, workers=2, backend="process", colour="red")
    assert census() == before


@pytest.mark.slow
def test_stopping_the_task_gives_the_processes_back(census):
    before = census()
    envs = make_envs("CartPole-v1", 2, workers=2, backend="process")
    policy = DQNPolicy(DQNPolicyConfig(), envs.single_observation_space, envs.single_action_space)
    worker = make_worker(envs, policy.collect_mode)
    seen = []

    @contract(uses=(envs, policy.collect_mode))
    def collect(ctx):
        seen.append(worker.collect(4).trajectories.columns["obs"])

    task = Task()
    for _ in range(2):
        with task.start(ctx=Context()):
            task.use(collect).run(max_step=2)
        assert [host.pid for host in envs.hosts] == [None, None]
        assert census() == before
    expected = make_envs("CartPole-v1", 2, workers=2)
    policy = DQNPolicy(DQNPolicyConfig(), expected.single_observation_space, expected.single_action_space)
    worker = make_worker(expected, policy.collect_mode)
    np.testing.assert_array_equal(seen, [worker.collect(4).trajectories.columns["obs"] for _ in range(4)])
