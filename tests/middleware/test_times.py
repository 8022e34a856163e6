"""Where the time of a run goes, as its rows say."""

import json
import time
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import torch

from ding_lite import task
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import Task, contract
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    EpisodeCollector,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    online_logger,
)
from ding_lite.policy import DQNPolicy
from ding_lite.policy_base.learn_modes import LearnMode

STEP_S, ACT_S, PROCESS_S = 0.004, 0.006, 0.01


class SlowEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(STEP_S)
        self.steps += 1
        return np.zeros(2, np.float32), 0.0, self.steps == 2, False, {}


class SlowDQN(DQNPolicy):
    def compute_actions(self, obs, state=(), **kwargs):
        time.sleep(ACT_S)
        return super().compute_actions(obs, state, **kwargs)


@contract(reads=("env_step",), stage="process")
def slow_process(ctx):
    time.sleep(PROCESS_S)


def last_row(folder, collector, **options):
    workers = options.pop("workers", None)
    settings = {"policy.collect.n_sample": 2, "policy.collect.n_episode": 1, "log.every_s": 1e9}
    cfg = DQNConfig(exp_name=str(folder)).override(settings)
    cfg.policy.override({"learn.learning_starts": 2, "learn.batch_size": 2, "learn.update_per_collect": 4})
    envs = make_envs(SlowEnv, 2, workers=2, backend=workers) if workers else make_envs(SlowEnv, 1)
    policy = SlowDQN(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer = ReplayBuffer(1000)
    with task.start(ctx=OnlineRLContext(), **options):
        task.use(eps_greedy_handler(cfg))
        task.use(collector(cfg, policy.collect_mode, envs))
        task.use(data_pusher(cfg, buffer))
        task.use(slow_process)
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
        task.use(online_logger(cfg, show_every_s=1e9))
        task.run(max_step=4)
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.few
@pytest.mark.parametrize(
    ("collector", "options"),
    [(StepCollector, {}), (StepCollector, {"async_mode": True}), (EpisodeCollector, {}), (EpisodeCollector, {"max_lag": 1})],
)
def test_each_part_of_the_time_has_a_column(tmp_path, collector, options):
    row = last_row(tmp_path / "run", collector, **options)

    assert row["time/inference"] >= 2 * ACT_S
    assert row["time/env_step"] >= 2 * STEP_S
    assert row["time/inference"] + row["time/env_step"] <= row["time/collect"]
    assert row["time/process"] >= PROCESS_S
    assert row["learn/gradient_steps"] == 4 * 4
    assert "learn/gradient_steps_throughput" in row
    assert "time/env_wait" not in row
    assert "time/device_copy" not in row


@pytest.mark.parametrize("backend", ["local", "process"])
def test_workers_report_their_times_and_how_long_they_were_waited_for(tmp_path, backend):
    row = last_row(tmp_path / "run", StepCollector, workers=backend)

    assert ACT_S <= row["time/inference"] < 3 * (ACT_S + row["time/env_step"])
    assert row["time/env_step"] >= STEP_S
    if backend == "process":
        assert row["time/env_wait"] > 0


def test_copies_to_a_device_are_measured():
    class Policy(DQNPolicy):
        def learn(self, batch):
            return {}

    policy = Policy(None, SlowEnv.observation_space, SlowEnv.action_space)
    policy.dry_run()
    policy.device = torch.device("meta")
    rows = {name: torch.zeros(3, 2) for name in ("obs", "next_obs")}
    LearnMode(policy).forward({**rows, **{name: torch.zeros(3) for name in ("action", "reward", "terminated")}})

    assert policy.hook_metrics.reduce()["time"]["device_copy"].peek() > 0


def test_stage_seconds_are_those_of_the_forward_steps_of_each_stage():
    @contract(stage="collect")
    def collect(ctx):
        time.sleep(0.002)

    def unknown(ctx):
        time.sleep(0.004)

    for options in ({}, {"async_mode": True}):
        found = []

        @contract(stage="record")
        def look(ctx, found=found):
            found.append(loop.stage_seconds())

        with Task().start(**options) as loop:
            for fn in (collect, unknown, look):
                loop.use(fn)
            loop.run(max_step=2)
            between = loop.stage_seconds()
            loop.run(max_step=2)
        for earlier, later in pairwise([*found[:2], between, *found[2:]]):
            assert all(later[stage] >= spent for stage, spent in earlier.items())
        assert found[-1]["collect"] - found[0]["collect"] >= 0.002
        assert found[-1]["learn"] - found[0]["learn"] >= 0.008
        assert found[-1]["process"] == 0


def test_the_time_of_a_run_includes_what_is_before_the_logger_in_the_first_iteration(tmp_path):
    cfg = DQNConfig(exp_name=str(tmp_path / "run"))

    def slow(ctx):
        time.sleep(0.3)

    with task.start(ctx=OnlineRLContext()):
        task.use(slow)
        task.use(online_logger(cfg, show_every_s=1e9))
        task.run(max_step=1)
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])["time_s"] >= 0.3
