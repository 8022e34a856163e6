"""How a run ends, and what it says of itself: its final weights, its last row, its last line, its files, its environment."""

import csv
import dataclasses
import json
import math
import re
import signal
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from forked_scripts import run_script

from ding_lite import Context, PipelineError, Task, contract
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import load_checkpoint
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    interaction_evaluator,
    offline_logger,
    online_logger,
    run_savers,
    termination_checker,
)
from ding_lite.policy import DQNPolicy

pytestmark = pytest.mark.timeout(120)

MODES = pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["sync", "lag", "async"])


class Generous(gymnasium.Env):
    """Not registered anywhere; ten steps that pay 193 each."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 193.0, self.steps == 10, False, {}


class Run:
    """A run of DQN, and what is left of it."""

    def __init__(self, folder, env="CartPole-v1", changes=(), saver=True):
        self.cfg = DQNConfig(exp_name=str(folder), seed=3).override({"env.n_evaluator_episode": 2, **dict(changes)})
        self.cfg.override({"policy.collect.n_sample": 32, "policy.eval.evaluator.eval_freq": 10**6, "log.every_s": 1e9})
        self.cfg.override({"policy.learn": {"learning_starts": 32, "update_per_collect": 3, "batch_size": 16}})
        short = {"max_episode_steps": 40} if env == "CartPole-v1" else {}
        self.envs, self.tests = make_envs(env, 4, seed=3), make_envs(env, 2, seed=4, **short)
        self.policy = DQNPolicy(self.cfg.policy, self.envs.single_observation_space, self.envs.single_action_space)
        self.buffer, self.folder, self.task = ReplayBuffer(1000, seed=3), folder, Task()
        self.first, self.last, self.saver = [], [], saver

    def go(self, *steps, **mode):
        cfg, policy, task = self.cfg, self.policy, self.task
        with task.start(ctx=OnlineRLContext(), **mode):
            task.use(online_logger(cfg, show_every_s=1e9))  # before the evaluator, which names the environment
            task.use(interaction_evaluator(cfg, policy.eval_mode, self.tests))
            for one in self.first:
                task.use(one)
            task.use(eps_greedy_handler(cfg)).use(StepCollector(cfg, policy.collect_mode, self.envs))
            task.use(data_pusher(cfg, self.buffer)).use(OffPolicyLearner(cfg, policy.learn_mode, self.buffer))
            if self.saver:
                task.use(CkptSaver(policy, cfg.exp_name))
            for one in self.last:
                task.use(one)
            for max_step in steps:
                task.run(max_step=max_step)
        return self

    @property
    def rows(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def config(self):
        return json.loads((self.folder / "config.json").read_text())


# The final weights.


def user(task):
    def ends_at_three(ctx):
        yield
        task.finish = ctx.total_step == 3

    return ends_at_three


@pytest.mark.few
@MODES
@pytest.mark.parametrize("ending", ["max_step", "checker first", "checker last", "finish"])
def test_however_a_run_ends_its_final_weights_are_evaluated_and_stand_in_the_last_row_and_in_best(mode, ending, tmp_path):
    run = Run(tmp_path, changes={"env.stop_value": None})
    run.first += [termination_checker(max_train_iter=12)] if ending == "checker first" else []
    run.last += [termination_checker(max_train_iter=12)] if ending == "checker last" else []
    run.last += [user(run.task)] if ending == "finish" else []
    run.go(4 if ending == "max_step" else 50, **mode)
    ctx, last, best = run.task.ctx, run.rows[-1], load_checkpoint(tmp_path / "ckpt/best.pt")
    values = [row["evaluate/episode_return_mean"] for row in run.rows if "evaluate/episodes" in row]

    assert ctx.last_eval_iter == ctx.train_iter == last["evaluate/train_iter"] == last["train_iter"] > 0
    assert values[-1] == ctx.last_eval_value == ctx.eval_value
    assert best["eval_value"] == max(values)
    assert load_checkpoint(tmp_path / "ckpt/final.pt")["counters"]["train_iter"] == ctx.train_iter
    if best["evaluated_at"] == ctx.train_iter:
        assert all(torch.equal(best["model"][name], it) for name, it in run.policy.get_weights().items())


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["max_step", "checker"])
def test_the_end_is_the_same_on_one_thread_and_on_several(ending, tmp_path, digest):
    def found(name, **mode):
        run = Run(tmp_path / name, changes={"env.stop_value": None, "policy.eval.evaluator.eval_freq": 5})
        run.cfg.policy.eval.evaluator.eval_freq = 5
        run.last += [termination_checker(max_train_iter=20)] if ending == "checker" else []
        run.go(9 if ending == "max_step" else 50, **mode)
        rows = [{name: it for name, it in row.items() if name.startswith(("evaluate/", "total"))} for row in run.rows]
        rows = [{name: it for name, it in row.items() if "time" not in name} for row in rows]
        return digest(rows, run.policy.get_weights(), run.buffer.state_dict(), run.tests.state_dict())

    expected = found("one", max_lag=1)
    assert {found(f"async {turn}", async_mode=True) for turn in range(2)} == {expected}
    assert found("plain") == found("no lag", async_mode=True, max_lag=0)


def test_two_runs_in_a_row_leave_what_one_leaves_but_for_the_evaluator(tmp_path, digest):
    def found(name, *steps):
        run = Run(tmp_path / name, changes={"env.stop_value": None}).go(*steps)
        return digest(run.policy.state_dict(), run.buffer.state_dict(), run.envs.state_dict())

    assert found("two", 3, 4) == found("one", 7)


@pytest.mark.few
@MODES
def test_a_run_that_its_evaluator_ended_is_not_evaluated_once_more(mode, tmp_path):
    run = Run(tmp_path, changes={"env.stop_value": 5.0}).go(50, **mode)

    assert len([row for row in run.rows if "evaluate/episodes" in row]) == 1
    assert run.task.end_reason.words.startswith("stop_value 5 was reached: interaction_evaluator found ")
    assert run.task.end_reason.words.endswith(" in CartPole-v1")


def test_a_finished_run_can_be_resumed_though_its_evaluator_evaluates_nothing_again(tmp_path, capsys):
    @contract(reads=("env_step",), writes=("eval_value", "last_eval_value", "env_step"), stage="evaluate")
    def evaluate(ctx):
        ctx.eval_value = ctx.last_eval_value = 1.0
        ctx.env_step += 10

    def go(resume):
        run = Run(tmp_path, changes={"env.stop_value": None})
        with run.task.start(ctx=OnlineRLContext(), resume=resume), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # best.pt is not written
            run.task.use(evaluate).use(CkptSaver(run.policy, tmp_path, train_freq=100))
            run.task.use(online_logger(run.cfg, show_every_s=1e9)).run(max_step=2)
        return run.rows

    assert go(None) == go(tmp_path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert "ended after 20 environment steps" in last
    assert "The last evaluation found 1.0. It made no gradient step." in last


def test_the_final_weights_are_evaluated_though_an_earlier_run_of_the_evaluator_ended_in_this_iteration(tmp_path):
    run = Run(tmp_path, changes={"env.stop_value": 5.0})
    cfg, policy, task, scores = run.cfg, run.policy, run.task, [10.0]
    evaluator = interaction_evaluator(cfg, policy.eval_mode, run.tests, score=lambda episode: scores[-1])

    def go(max_step):
        with task.start(ctx=OnlineRLContext()):
            task.use(evaluator).use(eps_greedy_handler(cfg)).use(StepCollector(cfg, policy.collect_mode, run.envs))
            task.use(data_pusher(cfg, run.buffer)).use(OffPolicyLearner(cfg, policy.learn_mode, run.buffer)).run(max_step)
        return task.ctx.last_eval_iter, task.ctx.train_iter

    assert go(50) == (0, 3)
    assert "stop_value 5 was reached" in task.end_reason.words
    scores.append(0.0)
    assert go(1) == (3, 3)


SCRIPT = """
import signal, sys
sys.path.insert(0, sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from test_run_ends import Run

run = Run(Path(sys.argv[2]), changes={"env.stop_value": None})
run.last.append(lambda ctx: signal.raise_signal(signal.SIGINT) if ctx.total_step == 3 else None)
run.go(50)
print("not reached")
"""


def test_ctrl_c_ends_a_script_without_a_traceback_and_says_what_was_saved(tmp_path):
    done = run_script(SCRIPT, __file__.rpartition("/")[0], tmp_path)

    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    resume = f'continue the run with task.start(resume="{tmp_path}")'
    assert f"SIGINT was received: the final state is saved in {tmp_path}/ckpt/final.pt; {resume}\n" in done.stderr
    assert "because SIGINT was received. The last evaluation found" in done.stdout
    assert "after 0 of 12 gradient steps; the final weights were not evaluated." in done.stdout
    assert load_checkpoint(tmp_path / "ckpt/final.pt")["counters"]["train_iter"] == 12


@MODES
def test_the_last_line_says_how_to_continue_a_run_that_began_at_a_later_iteration(tmp_path, mode, capsys):
    @contract(stage="learn")
    def interrupted(ctx):
        if ctx.total_step == 7:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit), Task().start(ctx=OnlineRLContext(total_step=5), **mode) as loop:
        loop.use(interrupted).use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1)).run(20)
    assert f'final.pt; continue the run with task.start(resume="{tmp_path}")\n' in capsys.readouterr().err


# The environment that is really used.


def test_an_environment_of_ones_own_does_not_end_at_the_threshold_of_the_default_one(tmp_path, capsys):
    run = Run(tmp_path, Generous, saver=False).go(4)
    end = capsys.readouterr().out.splitlines()[-1]

    assert run.task.ctx.total_step == 3
    assert (run.cfg.env.id, run.cfg.env.stop_value) == ("Generous", None)
    assert (run.config["env"]["id"], run.config["env"]["stop_value"]) == ("Generous", None)
    assert "because max_step=4 was reached. The last evaluation found 1930.0, with the final weights." in end
    assert f"Curve: {tmp_path}/metrics.jsonl" in end
    assert "ckpt" not in end
    run.cfg.report_and_exit_code(run.task.ctx.last_eval_value)
    assert capsys.readouterr().out.startswith("Generous: mean return 1930.0 at the last evaluation.")


class Declining(Generous):
    """Pays less in each episode."""

    def reset(self, *, seed=None, options=None):
        self.episodes = getattr(self, "episodes", 0) + 1
        return super().reset(seed=seed)

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        return obs, 100.0 / self.episodes, terminated, truncated, info


@MODES
def test_the_evaluation_that_ends_a_run_is_the_last_one(tmp_path, mode):
    run = Run(tmp_path, Declining, changes={"env.stop_value": 900.0})
    run.cfg.policy.eval.evaluator.eval_freq = 3
    run.go(20, **mode)

    assert str(run.task.end_reason) == "stop_value 900 was reached: interaction_evaluator found 1000.0 in Declining"
    assert run.task.ctx.last_eval_value == 1000.0
    assert run.cfg.report_and_exit_code(run.task.ctx.last_eval_value) == 0


@pytest.mark.parametrize("how", ["constructor", "override", "assignment"])
def test_a_stop_value_that_was_set_holds_for_any_environment(how, tmp_path):
    run = Run(tmp_path, Generous, saver=False)
    if how == "constructor":
        run.cfg.env = type(run.cfg.env)(stop_value=475.0, n_evaluator_episode=2)
    elif how == "override":
        run.cfg.override({"env.stop_value": 475.0})
    else:
        run.cfg.env.stop_value = 475.0
    run.go(4)

    assert run.task.ctx.total_step == 0
    assert str(run.task.end_reason) == "stop_value 475 was reached: interaction_evaluator found 1930.0 in Generous"


def test_environments_of_gymnasium_bring_their_own_threshold_and_a_name_that_was_set_stays():
    def settled(env, **changes):
        cfg = DQNConfig().override({f"env.{name}": value for name, value in changes.items()})
        tests = make_envs(env, 1)
        policy = DQNPolicy(cfg.policy, tests.single_observation_space, tests.single_action_space)
        interaction_evaluator(cfg, policy.eval_mode, tests)
        return cfg.env.id, cfg.env.stop_value

    assert settled("CartPole-v1") == ("CartPole-v1", 475.0)
    assert settled("Acrobot-v1") == ("Acrobot-v1", -100.0)
    assert settled(lambda: gymnasium.make("Acrobot-v1")) == ("Acrobot-v1", -100.0)
    assert settled(Generous, id="my corridor") == ("my corridor", None)
    assert settled(Generous, id="my corridor", stop_value=7.0) == ("my corridor", 7.0)
    with pytest.warns(UserWarning, match="cfg.env.id = 'CartPole-v0' was set, but .* for evaluation are Acrobot-v1"):
        assert settled("Acrobot-v1", id="CartPole-v0") == ("Acrobot-v1", -100.0)


# Evaluations by a middleware of the user's own.


@dataclasses.dataclass
class Own:
    """Writes ctx.eval_value in each iteration, and what else it is told to."""

    policy: object
    also: tuple = ()

    def __call__(self, ctx):
        ctx.eval_value = 10.0 + ctx.total_step
        if "weights" in self.also:
            ctx.eval_weights = self.policy.get_weights()
        if "iter" in self.also:
            ctx.last_eval_iter = ctx.train_iter


@pytest.mark.few
@pytest.mark.parametrize("also", [("weights",), ("iter",), ()])
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_value_that_a_middleware_of_ones_own_writes_is_in_the_files_and_in_best_or_a_message_says_why(also, place, tmp_path):
    run = Run(tmp_path, changes={"env.stop_value": None})
    getattr(run, place).append(Own(run.policy, also))
    task, cfg, policy = run.task, run.cfg, run.policy
    pipeline = [StepCollector(cfg, policy.collect_mode, run.envs), data_pusher(cfg, run.buffer)]
    pipeline += [OffPolicyLearner(cfg, policy.learn_mode, run.buffer)]
    is_known = also == ("weights",) or (also == ("iter",) and place == "last")

    def go():
        with task.start(ctx=OnlineRLContext()):
            for one in (*run.first, eps_greedy_handler(cfg), *pipeline, *run.last):
                task.use(one)
            task.use(CkptSaver(policy, cfg.exp_name)).use(online_logger(cfg, show_every_s=1e9)).run(max_step=3)

    if is_known:
        go()
        best = load_checkpoint(tmp_path / "ckpt/best.pt")
        assert best["eval_value"] == 12.0
        if place == "last":
            assert all(torch.equal(best["model"][name], it) for name, it in policy.get_weights().items())
    else:
        with pytest.warns(UserWarning, match=r"wrote ctx.eval_value = 10 without ctx.eval_weights, and best.pt is not written"):
            go()
        assert not (tmp_path / "ckpt/best.pt").exists()
    assert [row["evaluate/score"] for row in run.rows if "evaluate/score" in row] == [10.0, 11.0, 12.0]


def test_one_warning_says_that_best_is_not_written_for_a_value_that_is_not_a_number(tmp_path):
    def evaluate(ctx):
        ctx.eval_value = math.nan

    words = "ctx.eval_value is nan after 0 gradient steps, and best.pt is not written for it"
    with Task().start(ctx=OnlineRLContext()) as loop, pytest.warns(UserWarning, match=words) as found:
        loop.use(evaluate).use(CkptSaver(torch.nn.Linear(2, 1), tmp_path)).run(max_step=3)
    assert sum("best.pt" in str(it.message) for it in found) == 1


# Outside reinforcement learning.


@dataclasses.dataclass
class Supervised(Context):
    samples: int = 0
    epoch: int = 0

    def __post_init__(self):
        self.keep("samples")


@pytest.mark.parametrize("logger", [online_logger, offline_logger])
@MODES
def test_loggers_take_any_context_and_count_by_its_own_counters(logger, mode, tmp_path, capsys):
    @contract(reads=("samples",), writes=("samples", "epoch"), stage="learn")
    def learn(ctx):
        ctx.samples += 16
        ctx.epoch = ctx.samples // 32

    for counters in (("samples", "epoch"), ()):
        task, folder = Task(), tmp_path / str(len(counters))
        with task.start(ctx=Supervised(), **mode):
            task.use(learn).use(logger(DQNConfig(exp_name=str(folder)), show_every_s=1e9, counters=counters)).run(max_step=4)
        last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        assert last["total_step"] == 3
        assert (last.get("samples"), last.get("epoch")) == ((64, 2) if counters else (None, None))
        assert ("ended after 64 samples in" if counters else "ended after 4 iterations in") in capsys.readouterr().out


@pytest.mark.parametrize("value", [None, "late", True, torch.tensor(3)], ids=repr)
def test_a_step_that_is_no_number_is_refused_before_the_run_or_by_the_next_row(value, tmp_path):
    seen, cfg = [], DQNConfig(exp_name=tmp_path).override({"log.every_s": 0})

    @contract(writes=("samples",), stage="learn")
    def learn(ctx):
        seen.append(ctx.total_step)
        ctx.samples = value

    words = rf"counts the steps of the run by ctx.samples, which is {re.escape(repr(value))}, but wants a number: set it before"
    for begins, iterations in ((value, []), (0, [0])):
        seen.clear()
        task = Task()
        with task.start(ctx=Supervised(samples=begins)):
            task.use(learn).use(online_logger(cfg, show_every_s=1e9, counters=("samples",)))
            with pytest.raises(TypeError, match=words):
                task.run(max_step=4)
        assert seen == iterations


def test_a_resumed_run_keeps_its_rows_also_of_a_counter_that_goes_down_and_of_a_file_that_lost_one(tmp_path, monkeypatch):
    monkeypatch.setattr(run_savers, "_SHARE", math.inf)  # saves in each iteration
    cfg = DQNConfig(exp_name=tmp_path).override({"log.every_s": 0})

    def go(max_step, resume=None, loses=None):
        @contract(reads=("samples",), writes=("samples",), stage="learn")
        def learn(ctx):
            ctx.samples -= 10
            if ctx.total_step == loses:
                (tmp_path / "metrics.csv").rename(tmp_path / "held.csv")
                (tmp_path / "metrics.csv").mkdir()  # the row cannot be written
            elif (tmp_path / "held.csv").exists():
                (tmp_path / "metrics.csv").rmdir()
                (tmp_path / "held.csv").rename(tmp_path / "metrics.csv")
            if ctx.total_step == 4 and resume is None:
                raise ValueError("the cause")

        task = Task()
        with task.start(ctx=Supervised(samples=100), resume=resume), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logger = online_logger(cfg, show_every_s=1e9, counters=("samples",))
            task.use(learn).use(logger).use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1)).run(max_step)

    with pytest.raises(ValueError, match="the cause"):
        go(6, loses=1)
    go(7, resume=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["samples"] for row in rows] == [90, 80, 70, 60, 50, 40, 30]
    with open(tmp_path / "metrics.csv", newline="") as file:
        assert [int(row["samples"]) for row in csv.DictReader(file)] == [90, 70, 60, 50, 40, 30]


@pytest.mark.parametrize(("steps", "said"), [(0, True), (1, False)])
def test_the_end_line_says_where_a_run_made_no_gradient_step(steps, said, tmp_path, capsys):
    @contract(reads=("train_iter",), writes=("train_iter",), stage="learn")
    def learn(ctx):
        ctx.train_iter += steps

    task = Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(learn).use(online_logger(DQNConfig(exp_name=str(tmp_path)), show_every_s=1e9)).run(max_step=4)
    assert ("It made no gradient step." in capsys.readouterr().out) == said


def test_a_counter_that_the_context_lacks_is_refused_before_the_run():
    for options in ({"counters": ("sampels",)}, {"train_show_freq": 3}):
        task = Task()
        with task.start(ctx=Supervised()), pytest.raises(PipelineError, match=r"online_logger reads ctx\.\w+, but Supervised"):
            task.use(online_logger(**options)).run(max_step=1)


def test_offline_logger_works_with_a_context_of_ones_own(tmp_path):
    @dataclasses.dataclass
    class Mine(Context):
        train_iter: int = 0

        def __post_init__(self):
            self.keep("train_iter")

    def learn(ctx):
        ctx.train_iter += 1

    task = Task()
    with task.start(ctx=Mine()):
        task.use(learn).use(offline_logger(PPOConfig(exp_name=str(tmp_path)))).run(max_step=3)
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["train_iter"] == 3


def test_offline_contexts_are_evaluated_at_the_end_as_well(tmp_path):
    run = Run(tmp_path, changes={"env.stop_value": None})

    @contract(reads=("train_iter",), writes=("train_iter",), stage="learn")
    def learn(ctx):
        ctx.train_iter += 1

    task = Task()
    with task.start(ctx=OfflineRLContext()):
        task.use(interaction_evaluator(run.cfg, run.policy.eval_mode, run.tests)).use(learn)
        task.use(offline_logger(run.cfg, show_every_s=1e9)).run(max_step=3)
    assert (task.ctx.last_eval_iter, run.rows[-1]["evaluate/train_iter"]) == (3, 3)


# What is left.


def test_time_left_goes_by_the_termination_checker(tmp_path, capsys):
    run = Run(tmp_path, changes={"env.stop_value": None}, saver=False)
    run.last += [termination_checker(max_env_step=32 * 20)]
    task, seen = run.task, []

    def look(ctx):
        seen.append(task.progress)

    run.last.append(look)
    run.go(10**6)
    assert seen == [pytest.approx((k + 1) / 20) for k in range(20)]
    assert "because termination_checker found env_step 640, and max_env_step is 640." in capsys.readouterr().out
