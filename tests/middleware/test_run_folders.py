"""The folder of a run: one process at a time writes to it."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch

from ding_lite import Context, Task
from ding_lite.basics import FolderInUseError
from ding_lite.config import DQNConfig
from ding_lite.middleware import CkptSaver, online_logger

WITH_WORKERS = """
import sys
from ding_lite import task
from ding_lite.config import PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver, StepCollector, online_logger
from ding_lite.policy import PPOPolicy

cfg = PPOConfig(exp_name=sys.argv[1])
cfg.override({"policy.collect.n_sample": 4, "seed": 7})
envs = make_envs("CartPole-v1", 2, workers=2, backend="process")
policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)

def report(ctx):
    if ctx.total_step == 1:
        print("workers", *(host.pid for host in envs.hosts), flush=True)
        sys.stdin.read()

with task.start(ctx=OnlineRLContext()):
    task.use(StepCollector(cfg, policy.collect_mode, envs))
    task.use(CkptSaver(policy, cfg.exp_name))
    task.use(online_logger(cfg))
    task.use(report)
    task.run(max_step=3)
"""


def started(program, *arguments):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(folder, steps=2):
    loop = Task()
    with loop.start(ctx=Context()):
        loop.use(CkptSaver(torch.nn.Linear(1, 1), folder, train_freq=1))
        loop.use(online_logger(DQNConfig(exp_name=str(folder)), show_every_s=1e9))
        loop.run(max_step=steps)


def test_a_run_with_workers_keeps_its_folder_until_it_is_killed(tmp_path):
    folder = tmp_path / "run"
    first, workers = started(WITH_WORKERS, folder), []
    try:
        line = next(line for line in first.stdout if line.startswith("workers"))
        workers += [psutil.Process(int(pid)) for pid in line.split()[1:]]
        for worker in workers:
            worker.suspend()  # it cannot end with its parent
        config, begun = (folder / "config.json").read_bytes(), time.monotonic()
        for make in (lambda: online_logger(DQNConfig(exp_name=folder)), lambda: CkptSaver(torch.nn.Linear(1, 1), folder)):
            with pytest.raises(FolderInUseError, match=rf"folder {folder}: process {first.pid} on .*\(exp_name\), or end"):
                make()
        assert time.monotonic() - begun < 1
        assert (folder / "config.json").read_bytes() == config
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert all(worker.is_running() for worker in workers)
        run(folder)
        assert (folder / "config.json").read_bytes() != config
    finally:
        for process in (first, *workers):
            process.kill()
        first.communicate()


def test_a_process_may_run_in_a_folder_again_and_leaves_it_free(tmp_path):
    logger = online_logger(DQNConfig(exp_name=str(tmp_path)), show_every_s=1e9)
    for _ in range(2):
        run(tmp_path)

    assert (tmp_path / ".lock").exists()  # of `logger`
    logger.release()
    assert not (tmp_path / ".lock").exists()


def test_objects_that_are_used_in_a_second_run_lock_the_folder_again(tmp_path):
    loop, found = Task(), []
    saver = CkptSaver(torch.nn.Linear(1, 1), tmp_path)
    logger = online_logger(DQNConfig(exp_name=str(tmp_path)), show_every_s=1e9)
    for one in (saver, logger):
        with loop.start(ctx=Context()):
            loop.use(one).use(lambda ctx: found.append((tmp_path / ".lock").exists()))
            loop.run(max_step=1)
        found.append((tmp_path / ".lock").exists())
        saver.release()
        logger.release()

    assert found == [True, True, True, False]


def test_a_saver_in_a_new_folder_locks_it_in_the_first_iteration(tmp_path):
    loop, found = Task(), []
    saver = CkptSaver(torch.nn.Linear(1, 1), tmp_path / "run", save_finish=False)
    assert not (tmp_path / "run").exists()
    with loop.start(ctx=Context()):
        loop.use(saver).use(lambda ctx: found.append((tmp_path / "run/.lock").exists()))
        loop.run(max_step=1)

    assert found == [True]
    assert not (tmp_path / "run/.lock").exists()
