"""Numbers on their way: from policies, environments, learners and evaluators, in every place, to the rows of a run."""

import dataclasses
import json
import os
import re
import sys
import time
from types import SimpleNamespace

import cloudpickle
import gymnasium
import numpy as np
import pytest
import torch

from ding_lite import Context, Task, contract
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import ReplayBuffer, tree
from ding_lite.envs import make_envs
from ding_lite.metrics import MetricsLogger
from ding_lite.middleware import (
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    inferencer,
    interaction_evaluator,
    offline_logger,
    online_logger,
    rolloutor,
    trainer,
)
from ding_lite.policy import DQNPolicy
from ding_lite.rollout.metrics_aggregators import MetricsAggregator

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Telling(DQNPolicy):
    """Logs in each hook what the test can count."""

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        self.metrics.log_value("asked", len(obs), reduce="sum")
        return super().compute_actions(obs, state, explore=explore, **kwargs)

    def loss(self, batch):
        loss, stats = super().loss(batch)
        self.metrics.log_value("steps_of_loss", 1, reduce="sum")
        self.metrics.log_value("special_loss_term", loss.detach(), reduce="sum")
        return loss, stats


class Laps(gymnasium.Wrapper):
    """Counts steps on the right, which the last info of an episode tells."""

    def reset(self, **kwargs):
        self.laps = 0
        return self.env.reset(**kwargs)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.laps += bool(obs[0] > 0)
        return obs, reward, terminated, truncated, {"laps": self.laps} if terminated or truncated else info


class Rows(list):
    """A sink."""

    write = list.append

    def close(self):
        pass


def run(tmp_path, where, iterations=9, freq=10**9, **mode):
    cfg = DQNConfig(exp_name=tmp_path / "run").override(
        {"policy.learn.learning_starts": 64, "policy.learn.update_per_collect": 3, "env.stop_value": None}
    )
    cfg.override({"policy.eval.evaluator.eval_freq": 9, "env.n_evaluator_episode": 4, "log.every_s": 1e9})
    envs = make_envs("CartPole-v1", 4, seed=0, wrappers=[Laps], **where)
    tests = make_envs("CartPole-v1", 2, seed=1, wrappers=[Laps], **where)
    policy = Telling(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer_, rows, seen = ReplayBuffer(1000), Rows(), []

    @contract(may_read=("finished_episodes", "train_output", "eval_value", "last_eval_iter"), uses=(seen,), stage="record")
    def look(ctx):
        evaluated = [(ctx.eval_value, ctx.last_eval_iter)] if ctx.eval_value > -np.inf else []
        seen.append((ctx.finished_episodes, ctx.train_output or [], evaluated))

    look.end_run = look
    task = Task()
    with task.start(ctx=OnlineRLContext(), **mode):
        task.use(interaction_evaluator(cfg, policy.eval_mode, tests))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(look)
        task.use(online_logger(cfg, show_every_s=1e9, train_show_freq=freq, sinks=[rows]))
        task.run(max_step=iterations)
    return rows, seen, policy


@pytest.mark.few
@pytest.mark.parametrize(
    ("where", "mode"),
    [
        ({}, {}),
        ({}, {"async_mode": True}),
        ({"workers": 2}, {"max_lag": 1}),
        ({"workers": 2, "backend": "process"}, {}),
        ({"workers": 2, "backend": "process"}, {"async_mode": True}),
    ],
    ids=["one-sync", "one-async", "split-lag", "process-sync", "process-async"],
)
def test_every_number_of_every_component_is_in_the_rows_once(tmp_path, where, mode):
    rows, seen, policy = run(tmp_path, where, **mode)
    episodes = [one for finished, _, _ in seen for one in finished]
    outputs = [one for _, output, _ in seen for one in output]
    evaluated = [value for _, _, found in seen for value, _ in found]
    evaluated_at = [train_iter for _, _, found in seen for _, train_iter in found]

    def total(name):
        return sum(row.get(name, 0) for row in rows)

    last = rows[-1]
    assert total("collect/env_steps") == last["env_step"] == 9 * 64
    assert total("collect/asked") == last["env_step"]
    assert total("collect/episodes_this_iter") == len(episodes) == last["env_episode"] > 5
    assert total("learn/steps_of_loss") == len(outputs) == last["train_iter"] == policy.train_iter > 20
    assert total("learn/special_loss_term") == pytest.approx(sum(one["loss"].item() for one in outputs), rel=1e-6)
    # With fewer than a hundred episodes the summary is of all of them, in the last row at the latest.
    returns, laps = [one.return_ for one in episodes], [one.info["laps"] for one in episodes]
    assert last["collect/episode_return_mean"] == pytest.approx(np.mean(returns))
    assert (last["collect/episode_return_min"], last["collect/episode_return_max"]) == (min(returns), max(returns))
    assert last["collect/custom_metrics/laps_mean"] == pytest.approx(np.mean(laps))
    assert [row["evaluate/episode_return_mean"] for row in rows if "evaluate/episodes" in row] == evaluated
    assert total("evaluate/episodes") == 4 * len(evaluated) >= 8
    weights_at = [(row["evaluate/train_iter"], row["evaluate/env_step"]) for row in rows if "evaluate/episodes" in row]
    assert weights_at[0] == (0, 0)
    assert [iteration for iteration, _ in weights_at] == evaluated_at
    assert total("evaluate/asked") > 4 * len(evaluated)
    assert all(row["evaluate/custom_metrics/laps_max"] >= 0 for row in rows if "evaluate/episodes" in row)
    assert 0 < last["collect/eps"] <= 1
    assert all(last[f"time/{what}"] > 0 for what in ("collect", "learn", "evaluate"))
    assert ("collect/workers_unanswered" in last) == ("backend" in where)


@pytest.mark.parametrize("where", [{"workers": 2}, {"workers": 2, "backend": "process"}], ids=["split", "process"])
def test_rows_are_the_same_on_one_thread_and_on_three(tmp_path, where):
    def told(mode):
        rows, _, _ = run(tmp_path, where, freq=1, **mode)
        by_the_clock = ("time", "system", "collect/env_steps_throughput", "learn/gradient_steps_throughput")
        return [{name: it for name, it in row.items() if not name.startswith(by_the_clock)} for row in rows]

    assert told({"async_mode": True}) == told({"max_lag": 1})


def test_means_of_learning_are_those_of_all_gradient_steps_since_the_row_before(tmp_path):
    rows, seen, _ = run(tmp_path, {}, freq=7)
    outputs = [one for _, output, _ in seen for one in output]
    cut = [0, *(row["train_iter"] for row in rows)]
    assert len(rows) >= 3
    for row, begun, ended in zip(rows, cut, cut[1:]):
        if ended > begun:
            assert row["learn/q_value"] == pytest.approx(np.mean([one["q_value"].item() for one in outputs[begun:ended]]))


def test_a_worker_that_had_to_be_started_again_is_counted_as_one_that_did_not_answer(tmp_path):
    fault = tmp_path / "fault"
    fault.touch()

    class Dying(gymnasium.Wrapper):
        def step(self, action):
            if fault.exists() and os.getpid() != parent:
                fault.unlink()
                os.kill(os.getpid(), 9)
            return self.env.step(action)

    parent = os.getpid()
    rows, _, _ = run(tmp_path, {"workers": 2, "backend": "process", "restart": True})
    assert sum(row.get("collect/workers_unanswered", 0) for row in rows) == 0
    cfg = DQNConfig()
    envs = make_envs("CartPole-v1", 4, wrappers=[Dying], workers=1, backend="process", restart=True)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    ctx = OnlineRLContext()
    StepCollector(cfg, policy.collect_mode, envs)(ctx).take(ctx)
    envs.close()
    root = MetricsLogger(root=True)
    root.aggregate(ctx.collect_metrics)
    assert root.peek("workers_unanswered") == 1


def test_step_by_step_collection_tells_the_same_counts(tmp_path):
    cfg = PPOConfig()
    envs = make_envs("CartPole-v1", 4)
    policy = Telling(DQNConfig().policy, envs.single_observation_space, envs.single_action_space)
    rows, task = Rows(), Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(inferencer(0, policy.collect_mode, envs, collect_kwargs={"eps": 0.0}))
        task.use(rolloutor(policy.collect_mode, envs))
        task.use(online_logger(show_every_s=1e9, sinks=[rows])).run(max_step=30)

    assert (rows[-1]["collect/env_steps"], rows[-1]["collect/asked"], rows[-1]["env_step"]) == (120, 120, 120)
    assert cfg.log.every_s == 2.0


def test_a_middleware_of_ones_own_logs_beside_the_others(tmp_path):
    rows, task = Rows(), Task()
    metrics = MetricsLogger()

    @contract(reads=("learn_metrics",), writes=("learn_metrics",), stage="learn")
    def training_step(ctx):
        metrics.log_value("some_mean_result", float(ctx.total_step), reduce="mean", window=5)
        with metrics.log_time(("time", "some_code")):
            sum(range(1000))
        ctx.learn_metrics.append(metrics.reduce())

    with task.start(ctx=OnlineRLContext()):
        task.use(training_step).use(online_logger(show_every_s=1e9, sinks=[rows])).run(max_step=4)

    assert rows[-1]["learn/some_mean_result"] == 1.5
    assert 0 < rows[-1]["time/some_code"] < 1


def test_offline_runs_count_gradient_steps_and_epochs(tmp_path):
    cfg = DQNConfig(exp_name=tmp_path / "run")
    envs = make_envs("CartPole-v1", 2)
    policy = Telling(cfg.policy, envs.single_observation_space, envs.single_action_space)
    obs = torch.randn(16, 4)
    batch = tree(
        {
            "obs": obs,
            "next_obs": obs,
            "action": torch.zeros(16, dtype=torch.int64),
            "reward": torch.ones(16),
            "terminated": torch.zeros(16, dtype=torch.bool),
        }
    )

    def fetch(ctx):
        ctx.train_data, ctx.train_epoch = batch, ctx.total_step // 2

    task = Task()
    with task.start(ctx=OfflineRLContext()):
        task.use(fetch).use(trainer(cfg, policy.learn_mode))
        task.use(offline_logger(cfg, show_every_s=1e9, train_show_freq=1)).run(max_step=4)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]

    assert [(row["train_iter"], row["train_epoch"]) for row in rows] == [(1, 0), (2, 0), (3, 1), (4, 1)]
    assert all(row["learn/steps_of_loss"] == 1 for row in rows)
    assert "env_step" not in rows[0]


def test_a_context_without_fields_for_metrics_still_learns(tmp_path):
    @dataclasses.dataclass
    class Small(Context):
        train_data: object = None
        train_output: object = None
        train_iter: int = 0

    learned = []

    class Policy:
        train_iter = version = 0

        def forward(self, batch):
            self.train_iter += 1
            learned.append(batch)
            return {"loss": torch.tensor(1.0)}

    task = Task()
    with task.start(ctx=Small(train_data="batch")):
        task.use(trainer(DQNConfig(), Policy())).run(max_step=2)
    assert learned == ["batch", "batch"]


def test_a_logger_goes_on_from_its_saved_state(tmp_path):
    def made(rows):
        return online_logger(DQNConfig(exp_name=tmp_path / "run"), show_every_s=1e9, train_show_freq=1, sinks=[rows])

    def go(logger, steps):
        counts = MetricsLogger()

        def collect(ctx):
            counts.log_value("seen", 1, reduce="lifetime_sum")
            ctx.collect_metrics.append(counts.reduce())
            ctx.env_step, ctx.train_iter = steps[ctx.total_step], steps[ctx.total_step]

        task = Task()
        with task.start(ctx=OnlineRLContext()):
            task.use(collect).use(logger).run(max_step=len(steps))

    def lines():
        return [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]

    first = made(rows := Rows())
    go(first, [1, 2, 3])
    state = first.state_dict()
    go(first, [4, 5])  # after the state was saved: lost with the process
    assert [row["env_step"] for row in lines()] == [1, 2, 3, 4, 5]
    second = made(rows := Rows())
    second.load_state_dict(state)
    go(second, [4, 5, 6])

    assert [row["env_step"] for row in lines()] == [1, 2, 3, 4, 5, 6]
    assert [row["collect/seen"] for row in rows] == [4, 5, 6]
    times = [row["time_s"] for row in lines()]
    assert times == sorted(times)
    assert times[3] >= state["time_s"] - 0.001  # rounded


def test_a_logger_that_is_used_again_removes_no_row(tmp_path):
    def go(logger, steps, ctx):
        def collect(ctx):
            ctx.env_step, ctx.train_iter = ctx.env_step + 10, ctx.train_iter + 1

        task = Task()
        with task.start(ctx=ctx):
            task.use(collect).use(logger).run(max_step=steps)
        return [row["env_step"] for row in map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())]

    def made():
        return online_logger(DQNConfig(exp_name=tmp_path / "run"), show_every_s=1e9, train_show_freq=1)

    first = made()
    assert go(first, 3, OnlineRLContext()) == [10, 20, 30]
    second = made()
    second.load_state_dict(first.state_dict())
    assert go(second, 2, OnlineRLContext(env_step=30, train_iter=3)) == [10, 20, 30, 40, 50]
    state = second.state_dict()
    assert go(second, 1, OnlineRLContext(env_step=50, train_iter=5)) == [10, 20, 30, 40, 50, 60]
    assert go(second, 2, OnlineRLContext()) == [10, 20, 30, 40, 50, 60, 10, 20]  # its counters begin anew
    assert go(second, 1, OnlineRLContext(env_step=20, train_iter=2))[5:] == [60, 10, 20, 30]
    second.load_state_dict(state)  # the rows after it are those of another future
    assert go(second, 1, OnlineRLContext(env_step=50, train_iter=5)) == [10, 20, 30, 40, 50, 60]


def test_the_time_of_a_run_is_that_of_all_its_parts_without_the_breaks(tmp_path, monkeypatch, capsys):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr("ding_lite.middleware.loggers.time", clock)
    logger = online_logger(DQNConfig(exp_name=tmp_path / "run"), show_every_s=1e9, train_show_freq=1)

    def go():
        def collect(ctx):
            now[0] += 60
            ctx.env_step, ctx.train_iter = ctx.env_step + 1, ctx.train_iter + 1

        task = Task()
        with task.start(ctx=OnlineRLContext()):
            task.use(logger).use(collect).run(max_step=1)

    now[0] += 1000  # before the first iteration
    go()
    now[0] += 1000
    state = logger.state_dict()
    logger.load_state_dict(state)
    go()
    go()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]

    assert state["time_s"] == 60
    assert [row["time_s"] for row in rows] == [60, 120, 180]
    assert re.findall(r"in (\d+:\d+), because", capsys.readouterr().out) == ["1:00", "2:00", "3:00"]


def test_a_look_between_two_rows_changes_neither_and_shows_no_empty_numbers(tmp_path):
    aggregators, rows, looks = (MetricsAggregator(), MetricsAggregator()), ([], []), []
    logger = MetricsLogger()
    for iteration in range(6):
        ctx = OnlineRLContext()
        logger.log_value("loss", float(iteration))
        if iteration % 3 == 0:
            logger.log_value("rare", 1, reduce="sum")
        ctx.learn_metrics.append(logger.reduce())
        for aggregator, found in zip(aggregators, rows):
            aggregator.take(ctx)
            if aggregator is aggregators[1]:
                looks.append(aggregator.row(ctx, end=False))
            if iteration % 3 == 2:
                found.append({name: it for name, it in aggregator.row(ctx).items() if not name.startswith("system")})

    assert rows[0] == rows[1]
    assert [row["learn/loss"] for row in rows[0]] == [1.0, 4.0]
    assert [look["learn/loss"] for look in looks] == [0.0, 0.5, 1.0, 3.0, 3.5, 4.0]
    assert all(look["learn/rare"] == 1 for look in looks)
