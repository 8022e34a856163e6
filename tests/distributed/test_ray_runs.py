"""Runs whose environments live on a Ray cluster: the hash of the run on this machine, also after a death."""

import importlib
import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch
from example_runs import small, spied
from states import same

from ding_lite import task
from ding_lite.envs import make_envs
from ding_lite.policy import DQNPolicy, DQNPolicyConfig
from ding_lite.rollout import make_worker

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("cluster")]
BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"

NAMES = ["dqn", "ppo", "sac", "r2d2", "impala"]


def result(name, folder, backend, **settings):
    """Counters, checkpoints, evaluations, and the states of environments, policies and buffers at the end."""
    module, cfg = small(name, folder, **{"env.workers": 2, "env.backend": backend, **settings})
    made = spied(module)
    module.main(cfg)
    counters = [getattr(task.ctx, it, 0) for it in ("total_step", "env_step", "env_episode", "train_iter", "last_eval_iter")]
    files = [torch.load(path, weights_only=True) for path in sorted((folder / "ckpt").glob("*.pt"))]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [[value for key, value in sorted(row.items()) if key.startswith("evaluate/")] for row in rows]
    left = [thing.state_dict() for thing in made]
    return [counters, files, [row for row in evaluated if row], [_of_one_piece(state) for state in left]]


def _of_one_piece(state):
    """The state of environments in one piece, which are saved as pieces where they live elsewhere."""
    pieces = state.get("pieces", [])
    return {**pieces[0], "made_as": state["made_as"]} if len(pieces) == 1 else state  # which the whole says, not the piece


@pytest.mark.parametrize("name", NAMES)
def test_an_asynchronous_run_on_the_cluster_is_the_run_on_one_thread(name, tmp_path):
    expected = result(name, tmp_path / "local", "local", max_lag=1)
    found = result(name, tmp_path / "ray", "ray", max_lag=1, async_mode=True)

    assert expected[0][3] > 0  # it learned
    assert same(found, expected)


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_run_on_the_cluster_is_the_run_in_this_process(name, tmp_path):
    assert same(result(name, tmp_path / "ray", "ray"), result(name, tmp_path / "local", "local"))


def rollouts(backend, kill=lambda envs, number: None, **settings):
    """Rollouts with other weights each time, and the state at the end."""
    envs = make_envs("CartPole-v1", 4, seed=3, workers=2, backend=backend, **settings)
    policy = DQNPolicy(DQNPolicyConfig(), envs.single_observation_space, envs.single_action_space)
    worker = make_worker(envs, policy.collect_mode)
    found = []
    for number in range(6):
        asked = [worker.ask(20, eps=0.2), worker.ask(20, eps=0.2)]
        kill(envs, number)
        found += [worker.take(one).trajectories.columns for one in asked]
        policy.set_weights({name: value * 1.01 for name, value in policy.get_weights().items()})
    found += [envs.state_dict(), policy.state_dict(), worker.state_dict()]
    envs.close()
    return found, worker.reduce_metrics()


def test_workers_that_die_change_no_rollout_and_are_counted():
    def kill(envs, number):
        if number % 2:
            os.kill(envs.hosts[number // 2 % 2].pid, signal.SIGKILL)

    expected, _ = rollouts("process")  # as with local workers, which have one request at a time
    found, metrics = rollouts("ray", kill, restart=True)
    assert same(found, expected)
    assert sum(float(one["workers_unanswered"].reduce()) for one in metrics if "workers_unanswered" in one) == 3


def test_a_killed_driver_leaves_no_worker_and_its_run_is_resumed_on_the_cluster(cluster, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    chaos = importlib.import_module("chaos")
    before = worker_pids()

    def arguments(folder, backend):
        where = f"--max-lag 1 --env.workers 2 --env.backend {backend} --max-step 16 --env.stop-value None"
        small_ = "--env.n-evaluator-episode 2 --env.evaluator-env-num 2 --env.max-episode-steps 100"
        return [*where.split(), *small_.split(), "--exp-name", str(folder)]

    on_cluster = [*arguments(tmp_path / "killed", "ray"), "--async-mode", "--env.ray-address", cluster]
    whole = chaos.run_example("ppo", arguments(tmp_path / "whole", "local"), tmp_path / "whole" / "run.log")
    saved = tmp_path / "killed" / "run" / "manifest.json"
    killed = chaos.run_example("ppo", on_cluster, saved, [(0.05, signal.SIGKILL)])
    until = time.monotonic() + 30
    while worker_pids() - before and time.monotonic() < until:
        time.sleep(0.1)
    left = worker_pids() - before
    resumed = chaos.run_example("ppo", ["--resume", str(tmp_path / "killed")], tmp_path / "killed" / "run.log")

    assert (whole.status, killed.status, resumed.status) == (0, -signal.SIGKILL, 0), resumed.errors
    assert left == set()
    wanted, found = (chaos.outcome(tmp_path / name, 0) for name in ("whole", "killed"))
    assert chaos.differences(found, wanted) == []


def worker_pids():
    """The processes of workers on this machine."""
    return {it.pid for it in psutil.process_iter(["name"]) if it.info["name"].startswith("ray::WorkerActo")}
