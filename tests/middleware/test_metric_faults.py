"""What cannot be logged, and most names that clash, cost a warning at most: never a run, and no other number."""

import copy
import dataclasses
import math
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from file_faults import Faults

from ding_lite import Context, Task, contract
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext, TrainOutput
from ding_lite.data import ReplayBuffer
from ding_lite.engine import WorkCancelled, load_checkpoint, save_checkpoint
from ding_lite.envs import EpisodeResult, make_envs
from ding_lite.metrics import DEFAULT_STATS_CLS_LOOKUP, MetricsLogger, StatsBase
from ding_lite.metrics.outputs import Outputs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    interaction_evaluator,
    online_logger,
)
from ding_lite.policy import DQNPolicy
from ding_lite.policy_check import HookError
from ding_lite.rollout.metrics_aggregators import MetricsAggregator
from ding_lite.sinks import read_row


class Rows(list):
    write = list.append

    def close(self):
        pass


def run(tmp_path, policy_type, *more, ctx=None, iterations=4):
    cfg = DQNConfig(exp_name=tmp_path / "run").override({"policy.learn.learning_starts": 64, "env.n_evaluator_episode": 2})
    cfg.override({"policy.learn.update_per_collect": 2, "env.stop_value": None})
    envs, tests = make_envs("CartPole-v1", 4, seed=0), make_envs("CartPole-v1", 2, seed=1)
    policy = policy_type(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer_, rows, task = ReplayBuffer(1000), Rows(), Task()
    with task.start(ctx=ctx or OnlineRLContext()):
        task.use(interaction_evaluator(cfg, policy.eval_mode, tests))
        for middleware in more:
            task.use(middleware)
        task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.0}))
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(online_logger(cfg, show_every_s=1e9, sinks=[rows]))
        task.run(max_step=iterations)
    *_, row, last = [{}, *rows]
    found = {**row, **last} if "collect/env_steps" not in last else last  # the last may hold the final evaluation alone
    assert found["collect/env_steps"] > 0
    return found


def telling(**stats):
    class Telling(DQNPolicy):
        def loss(self, batch):
            loss, own = super().loss(batch)
            now = {name: value for name, value in stats.items() if name != "late" or self.train_iter % 2}
            return loss, {**own, **now}

    return Telling


def test_a_loss_may_give_anything_to_log(tmp_path):
    odd = {"vector": torch.arange(5.0), "inner": {"a": torch.tensor(2.0), "b": {"c": 3}}, "late": torch.tensor(7.0)}
    with pytest.warns(UserWarning, match="of the output of learning is not logged") as caught:
        row = run(tmp_path, telling(text="words", nothing=None, time=1.0, **odd))

    found = [row[f"learn/{name}"] for name in ("vector", "inner/a", "inner/b/c", "late")]
    assert found == [2.0, 2.0, 3.0, 7.0]
    assert "learn/q_value" in row
    assert {name for name in ("text", "nothing", "time") if any(repr(name) in str(one.message) for one in caught)} == {
        *("text", "nothing", "time")
    }


@pytest.mark.few
@pytest.mark.parametrize(
    ("name", "reduce"), [("time", "mean"), (("time", "collect"), "sum"), ("eps", "max"), ("env_steps", "mean")]
)
def test_a_name_that_clashes_loses_itself_and_nothing_else(tmp_path, name, reduce):
    class Clashing(DQNPolicy):
        def compute_actions(self, obs, state=None, **kwargs):
            self.metrics.log_value(name, 5.0, reduce=reduce)
            self.metrics.log_value("own", 1.0)
            return super().compute_actions(obs, state, **kwargs)

    def explore(ctx):
        ctx.collect_kwargs.update(eps=0.5)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        row = run(tmp_path, Clashing, explore)
    assert row["collect/eps"] == 0.5 or name == "eps"
    assert row["time/collect"] < 5
    assert row["collect/env_steps"] > 5
    assert row["evaluate/own"] == 1.0
    assert name == "time" or any("some metrics are lost" in str(one.message) for one in caught)


@pytest.mark.parametrize("name", ["time", "env_steps"])
def test_arguments_of_the_policy_may_be_called_as_they_like(tmp_path, name):
    class Taking(DQNPolicy):
        def compute_actions(self, obs, state=None, **kwargs):
            kwargs.pop(name, None)
            return super().compute_actions(obs, state, **kwargs)

    def explore(ctx):
        ctx.collect_kwargs.update({"eps": 0.5, name: 5})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = run(tmp_path, Taking, explore, iterations=1)
    assert row["collect/env_steps"] == row["env_step"]


class WithDict(DQNPolicy):
    def __init__(self, *args):
        self.metrics = {}
        super().__init__(*args)

    def loss(self, batch):
        self.metrics["seen"] = self.metrics.get("seen", 0) + 1
        return super().loss(batch)


class WithMethod(DQNPolicy):
    def metrics(self):
        return 3

    def loss(self, batch):
        assert self.metrics() == 3
        return super().loss(batch)


@pytest.mark.parametrize("policy_type", [WithDict, WithMethod])
def test_a_policy_may_have_metrics_of_its_own(tmp_path, policy_type):
    assert "learn/loss" in run(tmp_path, policy_type)


def test_a_mode_made_elsewhere_collects():
    envs = make_envs("CartPole-v1", 4)
    policy = DQNPolicy(DQNConfig().policy, envs.single_observation_space, envs.single_action_space)

    class Mode:
        def __getattr__(self, name):
            if name == "metrics":
                raise AttributeError(name)
            return getattr(policy.collect_mode, name)

    ctx = OnlineRLContext()
    StepCollector(DQNConfig(), Mode(), envs)(ctx)
    assert ctx.env_step > 0


def test_a_context_without_a_field_for_metrics_collects():
    @dataclasses.dataclass
    class Small(Context):
        collect_kwargs: dict = dataclasses.field(default_factory=dict)
        env_step: int = 0
        env_episode: int = 0
        trajectories: object = None
        trajectory_end_idx: object = None
        finished_episodes: object = None
        policy_version: int = -1

        def __post_init__(self):
            self.keep("env_step", "env_episode")

    for where in ({}, {"workers": 2, "backend": "process"}):
        envs, task = make_envs("CartPole-v1", 4, **where), Task()
        policy = DQNPolicy(DQNConfig().policy, envs.single_observation_space, envs.single_action_space)
        with task.start(ctx=Small()):
            collector = StepCollector(DQNConfig(), policy.collect_mode, envs, collect_kwargs={"eps": 0.0})
            task.use(collector).run(max_step=2)
        assert task.ctx.env_step == 128


def test_a_field_for_metrics_may_be_used_for_something_else():
    cfg, ctx = DQNConfig(), OnlineRLContext(collect_metrics=None)
    envs = make_envs("CartPole-v1", 4)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    StepCollector(cfg, policy.collect_mode, envs)(ctx)
    aggregator = MetricsAggregator()
    ctx.learn_metrics, ctx.eval_metrics, ctx.finished_episodes = {"mine": 1}, [3, "words"], None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        aggregator.take(ctx)
        aggregator.take(ctx)

    assert ctx.collect_metrics is None
    assert aggregator.row(ctx)["env_step"] == 64
    assert [str(one.message).partition(".reduce")[0] for one in caught] == [
        "some metrics are lost: ctx.learn_metrics is a dict. Append results of MetricsLogger",
        "some metrics are lost: ctx.eval_metrics has a int. Append results of MetricsLogger",
    ]


@pytest.mark.parametrize("field", ["learn_metrics", "collect_metrics", "eval_metrics"])
@pytest.mark.parametrize(
    ("wrap", "words"), [(dict, "is a dict"), (lambda it: (it,), "is a tuple"), (lambda it: 3.0, "is a float")]
)
def test_metrics_that_are_set_instead_of_appended_are_lost_with_one_warning(field, wrap, words):
    aggregator, logger, ctx = MetricsAggregator(), MetricsLogger(), OnlineRLContext(train_output={"loss": 1.0})
    logger.log_value("mine", 1.0)
    setattr(ctx, field, wrap(logger.reduce()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        aggregator.take(ctx)
        aggregator.take(ctx)

    assert [str(one.message).partition(". ")[0] for one in caught] == [f"some metrics are lost: ctx.{field} {words}"]
    assert aggregator.row(ctx)["learn/loss"] == 1.0


class Last(StatsBase):
    stats_cls_identifier = "last"

    def __init__(self):
        super().__init__()
        self.total = 0.0

    def push(self, value):
        self.total += value

    def peek(self, compile=True):
        return self.total if compile else [self.total]

    def clear(self):
        if not self.is_root:
            self.total = 0.0

    def merge(self, incoming_stats):
        self.total += sum(one.total for one in incoming_stats)


def test_a_run_that_logs_a_kind_of_ones_own_can_be_resumed(tmp_path):
    metrics = MetricsLogger(stats_cls_lookup={**DEFAULT_STATS_CLS_LOOKUP, "last": Last})

    def go(max_step, resume=None, logs=True):
        task, rows = Task(), Rows()

        @contract(may_read=("learn_metrics",), may_write=("learn_metrics",), stage="learn")
        def log(ctx):
            if logs:
                metrics.log_value("mine", 1.0, reduce="last")
                ctx.learn_metrics = [*ctx.learn_metrics, metrics.reduce()]

        with task.start(ctx=OnlineRLContext(), resume=resume):
            task.use(log).use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1))
            task.use(online_logger(DQNConfig(exp_name=tmp_path), sinks=[rows])).run(max_step)
        return rows[-1]

    assert go(3)["learn/mine"] == 3
    assert "learn/mine" not in go(4, tmp_path, logs=False)  # keeps what it does not know
    assert go(6, tmp_path)["learn/mine"] == 5


def test_a_kind_that_was_logged_here_and_is_unknown_is_refused():
    logger = MetricsLogger(stats_cls_lookup={**DEFAULT_STATS_CLS_LOOKUP, "last": Last})
    logger.log_value("mine", 1.0, reduce="last")
    with pytest.raises(ValueError, match="unknown reduce='last'"):
        MetricsLogger().set_state(logger.get_state())


@pytest.mark.parametrize("order", [1, -1])
def test_a_number_beside_a_dict_of_the_same_name_is_lost_with_one_warning(order):
    output = [{"a": {"x": 1.0}, "b": 1.0}, {"a": 2.0, "b": 3.0}][::order]
    found, caught = taken(output, output)

    assert found == {"a/x": 1.0, "b": 2.0}
    assert caught == [
        "'a' of the output of learning is not logged: it is 2.0 of type float, and a dict in another gradient step: use two "
        "names."
    ]


def test_what_a_learner_of_ones_own_puts_out_stays_beside_what_others_log():
    aggregator, logger, ctx = MetricsAggregator(), MetricsLogger(), OnlineRLContext()
    logger.log_value("mine", 1.0)
    ctx.learn_metrics.append(logger.reduce())
    ctx.train_output = [{"loss": 2.0, "mine": 5.0}, {"loss": 4.0, "mine": 5.0}]
    with pytest.warns(UserWarning, match="'mine' in ctx.train_output is not logged"):
        aggregator.take(ctx)
    row = aggregator.row(ctx)

    assert (row["learn/loss"], row["learn/mine"]) == (3.0, 1.0)


def taken(*outputs, **logged):
    """The columns and the warnings of iterations in which a learner has logged some values, and these are train_output."""
    aggregator, logger = MetricsAggregator(), MetricsLogger(owner="the learner")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for output in outputs:
            ctx = OnlineRLContext(train_output=output)
            logger.log_dict(logged)
            ctx.learn_metrics.append(logger.reduce())
            aggregator.take(ctx)
        row = aggregator.row(ctx)
    found = {name.removeprefix("learn/"): value for name, value in row.items() if name.startswith("learn/")}
    return found, [str(one.message) for one in caught]


@pytest.mark.parametrize(
    "output", [{"total_loss": 100.0, "mine": 1.0}, [{"total_loss": 2.0, "mine": 1.0}, {"total_loss": 3.0}]]
)
def test_another_number_by_the_name_of_a_learner_is_lost_with_one_warning(output):
    found, caught = taken(output, output, output, total_loss=2.0)
    assert found == {"total_loss": 2.0, "mine": 1.0}
    assert caught == [
        "some metrics are lost: 'total_loss' in ctx.train_output is not logged, because the learner has logged another number "
        "by this name in this iteration: use another name."
    ]


def test_each_nested_name_that_is_lost_has_its_warning():
    output = {"inner": {"a": 3.0, "b": 1.0, "c": 5}}
    found, caught = taken(output, output, inner={"a": 2.0, "c": 5.0})
    assert found == {"inner/a": 2.0, "inner/c": 5.0}
    assert [text.partition(" in ctx")[0].rpartition(" ")[2] for text in caught] == ["'inner/a'", "'inner/b'"]
    assert "'inner' was logged before" in caught[1]


@pytest.mark.parametrize(
    ("output", "logged"),
    [
        ({"loss": 2.000001, "mine": 1}, {"loss": 2.0}),
        ({"loss": torch.tensor(1 / 3), "mine": 1}, {"loss": 1 / 3}),
        ([{"loss": 1.0, "mine": 1}, {"loss": 3.0}], {"loss": 2.0}),
        ({"loss": math.nan, "mine": 1}, {"loss": math.nan}),
        ({"loss": math.inf, "mine": 1}, {"loss": math.inf}),
        ({"rows": torch.arange(3.0), "inner": {"a": 2.0}, "mine": 1}, {"rows": 1.0, "inner": {"a": 2}}),
    ],
)
def test_the_same_number_by_that_name_is_no_loss(output, logged):
    found, caught = taken(output, **logged)
    assert (found["mine"], caught) == (1.0, [])


@pytest.mark.parametrize("kind", [list, tuple])
def test_the_steps_may_be_a_list_or_a_tuple(kind):
    assert taken(kind([{"mine": 1.0}, {"mine": 3.0}])) == ({"mine": 2.0}, [])


@pytest.mark.parametrize(
    ("output", "found", "words"),
    [
        (3.0, {}, "ctx.train_output is a float"),
        ("loss", {}, "ctx.train_output is a str"),
        (iter([{"mine": 1.0}]), {}, "ctx.train_output is a list_iterator"),
        ([{"mine": 1.0}, None], {"mine": 1.0}, "an entry of the list in ctx.train_output is a NoneType"),
    ],
)
def test_an_output_without_names_is_lost_with_one_warning(output, found, words):
    assert taken(output, output) == (
        found,
        [
            f"some metrics are lost: {words}. Set it to a dict of values by name, or to a list of such dicts, one for each "
            "gradient step."
        ],
    )


def test_a_value_that_is_no_number_loses_itself_alone_with_one_warning_per_name():
    output = [{"loss": 1.0, "text": "a"}, {"loss": None, "text": "b"}, {"loss": 3.0, "text": "c"}]
    found, caught = taken(output, output)
    assert found == {"loss": 2.0}
    assert sorted(caught) == [
        "'loss' of the output of learning is not logged: None of type NoneType is neither a number nor an array of numbers.",
        "'text' of the output of learning is not logged: 'a' of type str is neither a number nor an array of numbers.",
    ]


@pytest.mark.parametrize("value", [1j, torch.tensor(1j), torch.ones(2, dtype=torch.complex64), np.array([1j, 2]), [1j, 2]])
@pytest.mark.parametrize("steps", [1, 2])
def test_complex_numbers_are_refused_by_name(value, steps):
    metrics = MetricsLogger()
    with pytest.warns(UserWarning, match="'wave' of the output of learning is not logged: .*(is complex|neither a number)"):
        Outputs(metrics).log([{"wave": value, "q_value": 1.0}] * steps)
    assert MetricsLogger.peek_results(metrics.reduce()) == {"q_value": 1.0}


TAKEN = "a name under which ding_lite logs a value of its own"


@pytest.mark.few
@pytest.mark.parametrize("name", ["gradient_steps", "gradient_steps_throughput", "policy_lag"])
def test_names_of_the_learner_are_refused_with_another_name_at_once_or_when_they_come(tmp_path, name):
    with pytest.raises(HookError, match=f"loss of Telling returns '{name}', {TAKEN}.*such as 'my_{name}'"):
        run(tmp_path, telling(**{name: torch.tensor(1.0)}))

    class Later(DQNPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss, {**stats, **({name: torch.tensor(1.0)} if self.train_iter > 2 else {})}

    with pytest.raises(ValueError, match=f"Later returns '{name}', {TAKEN}"):
        run(tmp_path, Later)


def test_a_throughput_of_the_collector_keeps_its_name(tmp_path):
    class Early(DQNPolicy):
        def compute_actions(self, obs, state=None, **kwargs):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls > self.first:
                self.metrics.log_value("env_steps_throughput", -5.0)
            return super().compute_actions(obs, state, **kwargs)

    with pytest.raises(HookError, match=f"compute_actions of Early logs 'env_steps_throughput', {TAKEN}"):
        run(tmp_path, type("Early", (Early,), {"first": 0}))
    with pytest.warns(UserWarning, match="some metrics are lost: .*env_steps_throughput.* is logged by the hooks of Late"):
        row = run(tmp_path, type("Late", (Early,), {"first": 3}))
    assert row["collect/env_steps_throughput"] > 0


def test_the_whole_loss_keeps_its_name(tmp_path):
    class Other(DQNPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss, {**stats, "loss": torch.tensor(5.0), "total_loss": torch.tensor(5.0)}

    class Assigning(DQNPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            stats["loss"] = 5.0
            return loss, stats

    with pytest.raises(HookError, match=r"loss of Other returns '(total_)?loss' to log with the value 5.0, but .*'my_"):
        run(tmp_path, Other)
    with pytest.raises(HookError, match=r"loss of Assigning returns 'loss' to log with the value 5.0, but .*'my_loss'"):
        run(tmp_path, Assigning)


def test_a_term_that_a_derived_class_adds_and_equal_values_are_fine(tmp_path):
    class Adding(DQNPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            whole = loss + 1
            return whole, {**stats, "own_loss": stats["loss"], "total_loss": whole.detach(), "cur_lr": self.cur_lr}

    class Further(Adding):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss + 1, stats

    row = run(tmp_path, Further)
    assert row["learn/loss"] == pytest.approx(row["learn/own_loss"] + 2)
    assert row["learn/total_loss"] == row["learn/loss"]
    assert row["learn/cur_lr"] == pytest.approx(0.001)


def test_two_hooks_that_log_two_values_under_one_name_are_refused(tmp_path):
    words = "loss of Telling returns 'cur_lr' to log with the value 77.0, and stats of Telling logs 0.001.*'my_cur_lr', in loss"
    with pytest.raises(HookError, match=words):
        run(tmp_path, telling(cur_lr=77.0))


@pytest.mark.filterwarnings("error:some metrics are lost")
def test_the_output_of_a_learner_counts_as_logged_until_something_is_added(tmp_path):
    seen = []

    def look(ctx):
        yield
        if ctx.train_output:
            seen.append(ctx.train_output.is_logged)
            ctx.train_output[0]["mine"] = 7.0
            seen.append(ctx.train_output.is_logged)

    run(tmp_path, DQNPolicy, look)
    assert seen[:2] == [True, False]


def test_a_middleware_behind_a_learner_that_takes_its_names_is_warned():
    def meddling(ctx):
        yield
        if ctx.train_output:
            ctx.train_output = {"loss": -99.0, "mine": 3.0}

    cfg = DQNConfig().override({"policy.learn.learning_starts": 16, "policy.learn.batch_size": 4})
    envs, rows, buffer_ = make_envs("CartPole-v1", 4, seed=0), Rows(), ReplayBuffer(1000)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    with Task().start(ctx=OnlineRLContext()) as loop:
        loop.use(online_logger(None, show_every_s=1e9, sinks=[rows]))
        loop.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.0}))
        loop.use(data_pusher(cfg, buffer_)).use(OffPolicyLearner(cfg, policy.learn_mode, buffer_)).use(meddling)
        with pytest.warns(UserWarning, match="'loss' in ctx.train_output is not logged, because OffPolicyLearner.* has logged"):
            loop.run(max_step=3)
    assert rows[-1]["learn/mine"] == 3.0
    assert rows[-1]["learn/loss"] > 0


def test_a_value_beside_means_over_different_numbers_of_steps_is_no_clash(recwarn):
    output = TrainOutput([{"loss": 1.0}, {"loss": 4.0}])
    output.num_steps = [{"loss": 2}, {}]
    logged = Outputs(MetricsLogger(owner="the learner"))
    logged.log(output, num_steps=output.num_steps)
    output.is_logged = True
    output[-1]["mine"] = 7.0
    ctx = OnlineRLContext(train_output=output, learn_metrics=[logged.metrics.reduce()])
    aggregator = MetricsAggregator()
    aggregator.take(ctx)

    assert not recwarn.list
    row = aggregator.row(ctx)
    assert (row["learn/loss"], row["learn/mine"]) == (2.0, 7.0)


def test_a_saved_logger_knows_its_place_before_its_first_row(tmp_path):
    first = online_logger(DQNConfig(exp_name=tmp_path / "run"))
    state = {**first.state_dict(), "after": 500}
    second = online_logger(DQNConfig(exp_name=tmp_path / "run"))
    second.load_state_dict(state)

    assert second.state_dict()["after"] == 500


def test_a_picture_that_cannot_be_written_costs_a_warning(tmp_path):
    def obstruct(ctx):
        (tmp_path / "run/pipeline.svg").mkdir(exist_ok=True)

    with pytest.warns(UserWarning, match=r"the picture of the pipeline is not written to .*run: .* Training goes on"):
        run(tmp_path, DQNPolicy, obstruct)


def test_an_array_beside_the_loss_does_not_stop_the_console(tmp_path):
    class Showing(DQNPolicy):
        def loss(self, batch):
            self.metrics.log_value("entropy", torch.ones(3).numpy(), reduce="item")
            return super().loss(batch)

    run(tmp_path, Showing)


def test_a_broken_off_evaluation_is_no_part_of_the_next():
    cfg = DQNConfig()
    envs = make_envs("CartPole-v1", 2)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    evaluator = interaction_evaluator(cfg, policy.eval_mode, envs)
    with pytest.raises(WorkCancelled):
        evaluator._evaluate({"train_iter": 0}, lambda: True)
    evaluation = evaluator._evaluate({"train_iter": 0})

    assert evaluation.metrics[0]["time"]["evaluate"]._count == 1


def test_a_logger_can_be_copied_and_sent():
    logger = MetricsLogger()
    logger.log_value("x", 1.0)
    for other in (copy.deepcopy(logger), pickle.loads(pickle.dumps(logger))):
        other.log_value("x", 3.0)
        assert other.peek("x") == 2.0
    assert logger.peek("x") == 1.0


def test_a_middleware_that_logs_a_name_of_the_learner_does_not_change_that_column(tmp_path):
    def meddling(ctx):
        metrics = MetricsLogger()
        metrics.log_value("q_value", -99.0)
        metrics.log_value("mine", 3.0)
        ctx.learn_metrics.append(metrics.reduce())

    with pytest.warns(UserWarning, match=r"'q_value'\) is logged by OffPolicyLearner, which learns by .*DQNPolicy at 0x"):
        row = run(tmp_path, DQNPolicy, meddling)
    assert row["learn/q_value"] > -5
    assert row["learn/mine"] == 3.0


def test_a_hook_that_logs_what_its_loss_gives_is_refused_before_the_run():
    class Both(DQNPolicy):
        def loss(self, batch):
            self.metrics.log_value("q_value", 1e6, reduce="max")
            return super().loss(batch)

    envs = make_envs("CartPole-v1", 2, seed=0)
    with pytest.raises(ValueError, match="Both returns 'q_value' to log with each gradient"):
        Both(DQNConfig().policy, envs.single_observation_space, envs.single_action_space).dry_run()


def test_a_hook_that_does_so_only_later_loses_its_own_number(tmp_path):
    class Later(DQNPolicy):
        def loss(self, batch):
            if self.train_iter > 1:
                self.metrics.log_value("q_value", 1e6, reduce="max")
            return super().loss(batch)

    with pytest.warns(UserWarning, match="some metrics are lost: .*'q_value'"):
        row = run(tmp_path, Later)
    assert -5 < row["learn/q_value"] < 1e5


@pytest.mark.parametrize(
    ("key", "column"),
    [("episode_return_mean", "episode_return_mean"), (("custom_metrics", "laps_mean"), "custom_metrics/laps_mean")],
)
def test_the_columns_of_episodes_are_nobody_elses(key, column):
    aggregator, logger, ctx = MetricsAggregator(), MetricsLogger(), OnlineRLContext()
    logger.log_value(key, -1.0)
    logger.log_value(("custom_metrics", "own"), 7.0)
    ctx.collect_metrics.append(logger.reduce())
    ctx.finished_episodes = [EpisodeResult(0, 0, 3.0, 3, info={"laps": 3})]
    aggregator.take(ctx)
    with pytest.warns(UserWarning, match=f"collect/{column} is a column of the logger itself"):
        row = aggregator.row(ctx)

    assert (row[f"collect/{column}"], row["collect/custom_metrics/own"]) == (3.0, 7.0)


def test_a_counter_does_not_take_the_column_of_the_seconds():
    with pytest.raises(ValueError, match='"time_s" is a column of each row already'):
        online_logger(counters=("time_s",))


def test_if_any_operation_on_files_fails_the_run_continues_and_loses_at_most_one_row(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power is cut here, and a busy disk would take long
    lost = []
    for fail_at in range(1, 200):
        folder, faults = tmp_path / str(fail_at), Faults(fail_at)
        with pytest.MonkeyPatch.context() as patches, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")

            def count(ctx, faults=faults, patches=patches):
                if ctx.total_step == 1:
                    faults.install(patches)
                ctx.train_iter += 1

            with Task().start(ctx=OnlineRLContext()) as task:
                task.use(count).use(online_logger(DQNConfig(exp_name=folder), show_every_s=1e9, train_show_freq=1))
                task.run(max_step=4)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        table = (folder / "metrics.csv").read_text().splitlines()
        steps = [read_row(line)["train_iter"] for line in lines]
        lost.append(9 - len(lines) - len(table))
        assert steps == sorted(set(steps) & {1, 2, 3, 4})
        assert lost[-1] == len(caught) <= 1
        assert not [*folder.rglob("*.tmp")]
        if faults.failed is None:
            break

    assert sum(lost) >= 8
    print(f"{fail_at - 1} operations on files, each of which failed in one run: {sum(lost)} rows are lost, none is half there")


@pytest.mark.parametrize("value", [Path("x"), {1, 2}, object(), torch.ones(2, dtype=torch.bfloat16), "text", None, {"a": 1}])
def test_a_run_that_logs_any_object_can_be_resumed(value, tmp_path):
    policy, logger = policy_of(), MetricsLogger()

    @contract(may_read=("learn_metrics",), may_write=("learn_metrics",), uses=(logger,), stage="learn")
    def log(ctx):
        logger.log_value("thing", value, reduce="item")
        logger.log_value("seen", 1, reduce="lifetime_sum")
        ctx.learn_metrics = [*ctx.learn_metrics, logger.reduce()]

    def go(max_step, resume=None):
        task, rows = Task(), Rows()
        cfg = DQNConfig(exp_name=tmp_path).override({"log.every_s": 1e9})
        with task.start(ctx=OnlineRLContext(), resume=resume), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            task.use(log).use(CkptSaver(policy, tmp_path, train_freq=100)).use(online_logger(cfg, sinks=[rows]))
            task.run(max_step)
        return rows[-1], [str(one.message) for one in caught if "a checkpoint cannot hold" in str(one.message)]

    _, told = go(2)
    assert len(told) == isinstance(value, (Path, set)) + (type(value) is object)
    assert all("learn/thing" in one and "cannot be resumed" not in one for one in told)
    assert go(5, resume=tmp_path)[0]["learn/seen"] == 5


def test_objects_that_the_hooks_of_a_policy_log_do_not_keep_it_from_being_saved(tmp_path):
    policy, other = policy_of(), policy_of()
    policy.hook_metrics.log_value("thing", Path("x"), reduce="item")
    policy.hook_metrics.log_value("number", 3.0)
    with pytest.warns(UserWarning, match=r"a checkpoint cannot hold, .*: thing \("):
        save_checkpoint(policy.state_dict(), tmp_path / "policy.pt")
    other.load_state_dict(load_checkpoint(tmp_path / "policy.pt"))
    assert other.hook_metrics.peek() == {"number": 3.0}


def policy_of():
    envs = make_envs("CartPole-v1", 1, seed=0)
    return DQNPolicy(DQNConfig().policy, envs.single_observation_space, envs.single_action_space)
