"""Logged values of learning are means over all gradient steps, also if iterations take different numbers of them."""

import math

import numpy as np
import pytest
import torch

from ding_lite import Task, contract
from ding_lite.config import IMPALAConfig, PPOConfig, RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.metrics import MetricsLogger
from ding_lite.metrics.outputs import Outputs
from ding_lite.middleware import (
    EpisodeCollector,
    StepCollector,
    gae_estimator,
    multistep_trainer,
    online_logger,
    onpolicy_data_fetcher,
)
from ding_lite.policy import IMPALAPolicy, PPOPolicy
from ding_lite.policy_parts import mean_stats

PPO = PPOConfig().override({"policy.learn": {"epoch_per_collect": 3, "batch_size": 16}})
IMPALA = IMPALAConfig().override({"policy.learn": {"epoch_per_collect": 3, "batch_size": 48}})


class Rows:
    def __init__(self):
        self.rows = []

    def write(self, row):
        self.rows.append(row)

    def close(self):
        pass


def counting(base):
    """A policy that logs two numbers of its own, the second in every third gradient step, and keeps them."""

    class Counting(base):
        def after_init(self):
            super().after_init()
            self.seen = {"x": [], "sometimes": []}

        def loss(self, batch):
            loss, stats = super().loss(batch)
            x = float(self.train_iter**2)
            stats = {**stats, "x": x, **({"sometimes": x} if self.train_iter % 3 == 0 else {})}
            for name in self.seen.keys() & stats.keys():
                self.seen[name].append(x)
            return loss, stats

    return Counting


def spreading(base):
    """The same, with an optimizer loop of its own, which `gradient_step` does not count."""

    class Spreading(counting(base)):
        def learn_on_batch(self, batch):
            found = []
            for _ in range(1 + len(batch.reward) // 10):
                loss, stats = self.loss(self.loss_batch(batch))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.train_iter += 1
                found.append({"x": torch.tensor(stats["x"])})
            return mean_stats(found)

    return Spreading


def run(kind, cfg, async_mode=False, max_lag=0, log_freq=10**6):
    cfg = cfg.override({"policy.collect.n_episode": 2, "seed": 0})
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = kind(cfg.policy, envs.single_observation_space, envs.single_action_space)
    loop, sink, steps = Task(), Rows(), []
    with loop.start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()):
        loop.use(EpisodeCollector(cfg, policy.collect_mode, envs))
        is_ppo = isinstance(policy, PPOPolicy)
        loop.use(gae_estimator(cfg, policy.collect_mode) if is_ppo else onpolicy_data_fetcher(cfg))
        loop.use(multistep_trainer(cfg, policy.learn_mode)).use(lambda ctx: steps.append(ctx.train_iter))
        loop.use(online_logger(cfg, sinks=[sink], train_show_freq=log_freq))
        loop.run(max_step=4)
    assert len({after - before for before, after in zip([0, *steps], steps)}) > 1
    return policy, sink.rows


def mean(values):
    return sum(values) / len(values)


@pytest.mark.few
@pytest.mark.filterwarnings("ignore:asynchronous mode cannot overlap")
@pytest.mark.parametrize(
    ("kind", "cfg", "names"),
    [
        (counting(PPOPolicy), PPO, ("x", "sometimes")),
        (
            counting(IMPALAPolicy),
            IMPALA,
            ("x", "sometimes"),
        ),
        (spreading(PPOPolicy), PPO, ("x",)),
    ],
    ids=["PPO", "IMPALA", "own steps"],
)
@pytest.mark.parametrize(("async_mode", "max_lag"), [(False, 0), (True, 1)])
def test_each_gradient_step_has_the_same_weight_in_a_row(kind, cfg, names, async_mode, max_lag, tmp_path):
    policy, rows = run(kind, cfg.override({"exp_name": str(tmp_path / "run")}), async_mode, max_lag)

    for name in names:
        assert rows[-1][f"learn/{name}"] == pytest.approx(mean(policy.seen[name]))


@pytest.mark.filterwarnings("ignore:asynchronous mode cannot overlap")
def test_rows_of_ppo_are_the_same_on_one_thread_and_on_several(tmp_path):
    rows = [
        run(counting(PPOPolicy), PPO.override({"exp_name": str(tmp_path / str(mode))}), mode, 1, 10)[1]
        for mode in (False, True)
    ]
    learned = [
        [
            {name: it for name, it in row.items() if name.startswith("learn/") and not name.endswith("_throughput")}
            for row in one
        ]
        for one in rows
    ]

    assert len(learned[0]) > 1
    assert learned[0] == learned[1]


def test_statistics_of_a_whole_rollout_count_once_per_rollout(tmp_path):
    class Stats(counting(PPOPolicy)):
        def stats(self, batch):
            self.lengths = [*getattr(self, "lengths", []), float(len(batch.reward))]
            return {**super().stats(batch), "length": self.lengths[-1]}

    policy, rows = run(Stats, PPO.override({"exp_name": str(tmp_path / "run")}))

    assert rows[-1]["learn/length"] == pytest.approx(mean(policy.lengths))


@pytest.mark.parametrize("empty", [torch.zeros(0), np.zeros(0), [], torch.zeros(0, 3, dtype=torch.int64)])
def test_an_empty_array_is_no_value(empty):
    full, rows = torch.full((3,), 4.0), Rows()

    @contract(writes=("train_output",), stage="learn")
    def learn(ctx):
        ctx.train_output = {"large": empty if ctx.total_step % 2 else full, "never": empty}

    task = Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(learn).use(online_logger(RunConfig(), sinks=[rows])).run(4)
    (row,) = rows.rows
    metrics = MetricsLogger()
    Outputs(metrics).log([{"x": full}, {"x": empty}, {"x": 7.0}])

    assert row["learn/large"] == 4.0
    assert math.isnan(row["learn/never"])
    assert metrics.peek("x") == 5.5


def test_an_empty_array_is_no_value_in_a_mean_over_minibatches():
    empty, steps = torch.zeros(0), [torch.tensor([1.0, 3.0]), torch.zeros(0), torch.tensor([6.0])]
    found = mean_stats([{"x": it, "y": empty} for it in steps])

    assert found["x"] == 4.0
    assert found["y"].isnan()


MASKED = [
    (np.ma.array([1.0, 2.0, 6.0], mask=[0, 1, 0]), 3.5),
    (np.ma.array([[1, 2], [3, 4]], mask=[[1, 1], [1, 0]]), 4.0),
    (np.ma.array([2.5], mask=[False]), 2.5),
    (np.ma.array([1.0, 2.0], mask=True), math.nan),
    (np.ma.masked, math.nan),
]
"""Masked arrays with the mean of what their mask does not hide."""


@pytest.mark.parametrize(("value", "mean"), MASKED)
def test_masked_numbers_are_left_out(value, mean):
    metrics = MetricsLogger()
    Outputs(metrics).log([{"x": value, "loss": 1.0}])
    metrics.log_values("several", np.atleast_1d(value).ravel())
    if value.size == 1:
        metrics.log_value("single", value)
        assert metrics.peek("single") == pytest.approx(mean, nan_ok=True)

    assert metrics.peek("x") == pytest.approx(mean, nan_ok=True)
    assert metrics.peek("several", default=math.nan) == pytest.approx(mean, nan_ok=True)
    assert mean_stats([{"x": value}])["x"].item() == pytest.approx(mean, nan_ok=True)


def test_masked_numbers_are_left_out_of_means_over_gradient_steps():
    steps = [{"x": np.ma.array([1.0, 9.0], mask=[0, 1])}, {"x": np.ma.masked}, {"x": 5.0}]
    metrics = MetricsLogger()
    Outputs(metrics).log(steps)

    assert metrics.peek("x") == 3.0
    assert mean_stats(steps)["x"] == 3.0


def test_nested_statistics_of_minibatches_are_means_too():
    assert mean_stats([{"aux": {"a": 1.0}}, {"aux": {"a": 3.0, "b": 1.0}}]) == {"aux": {"a": 2.0, "b": 1.0}}


@pytest.mark.parametrize("kind", [PPOPolicy, IMPALAPolicy])
@pytest.mark.parametrize("value", ["a text", None])
def test_what_is_not_numeric_in_the_loss_of_minibatches_is_named(kind, value):
    class Own(kind):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss, {**stats, "mine": value}

    envs = make_envs("CartPole-v1", 2, seed=0)
    cfg = {PPOPolicy: PPOConfig, IMPALAPolicy: IMPALAConfig}[kind]()
    cfg.policy.collect.n_sample = 64
    policy = Own(cfg.policy, envs.single_observation_space, envs.single_action_space)
    loop = Task()
    with loop.start(ctx=OnlineRLContext()):
        loop.use(StepCollector(cfg, policy.collect_mode, envs))
        loop.use(gae_estimator(cfg, policy.collect_mode) if kind is PPOPolicy else onpolicy_data_fetcher(cfg))
        loop.use(multistep_trainer(cfg, policy.learn_mode))
        with pytest.warns(UserWarning, match="'mine' of the output of learning is not logged"):
            loop.run(1)

    assert "total_loss" in loop.ctx.train_output


@pytest.mark.parametrize("make", [torch.tensor, np.array, list])
@pytest.mark.parametrize(("numbers", "mean"), [([2**24 + 1] * 2, 2**24 + 1.0), ([True, False], 0.5), ([0.1, 0.1], 0.1)])
def test_the_mean_of_several_numbers_has_all_their_digits(make, numbers, mean):
    metrics = MetricsLogger()
    Outputs(metrics).log([{"x": make(numbers)}])
    single = make is torch.tensor and isinstance(numbers[0], float)  # torch's own type of 0.1

    assert metrics.peek("x") == pytest.approx(mean, rel=1e-6 if single else 1e-15)
