"""Middleware of the library behind a decorator of a script: they are what they are without it."""

import functools

import pytest
import torch
from states import same

from ding_lite import Task
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import PipelineError
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    interaction_evaluator,
    multistep_trainer,
    online_logger,
)
from ding_lite.policy import DQNPolicy, PPOPolicy

MODES = pytest.mark.parametrize("mode", [{}, {"async_mode": True}], ids=str)


def timed(middleware):
    @functools.wraps(middleware)
    def run(ctx):
        return middleware(ctx)

    return run


def pipeline(folder, decorate, mode, max_step=6, resume=None):
    """A run with everything. Returns the state of the policy, and the files in its folder."""
    cfg = DQNConfig(seed=0, exp_name=str(folder)).override(
        {"policy.collect.n_sample": 64, "policy.learn.learning_starts": 64, "policy.learn.update_per_collect": 2}
    )
    cfg.log.every_s = cfg.log.show_every_s = 1e9
    envs, evaluator_envs = make_envs("CartPole-v1", 8, seed=0), make_envs("CartPole-v1", 2, seed=1)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer_, task = ReplayBuffer(1000, seed=0), Task()
    with task.start(ctx=OnlineRLContext(), max_lag=1, resume=resume, **mode):
        for middleware in (
            interaction_evaluator(cfg, policy.eval_mode, evaluator_envs),
            eps_greedy_handler(cfg),
            StepCollector(cfg, policy.collect_mode, envs),
            data_pusher(cfg, buffer_),
            OffPolicyLearner(cfg, policy.learn_mode, buffer_),
            CkptSaver(policy, cfg.exp_name, train_freq=2),
            online_logger(cfg),
        ):
            task.use(decorate(middleware))
        task.run(max_step=max_step)
    state = policy.state_dict()
    return {name: state[name] for name in ("model", "optimizer", "train_iter", "learn")}, files_in(folder)


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@MODES
def test_a_run_of_decorated_middleware_is_the_same_with_the_same_files(mode, tmp_path):
    plain, files = pipeline(tmp_path / "plain", lambda middleware: middleware, mode)
    decorated, other_files = pipeline(tmp_path / "decorated", timed, mode)

    assert same(decorated, plain)
    assert other_files == files
    assert any(file.startswith("run/state_") for file in files)


def test_a_run_of_decorated_middleware_is_resumed(tmp_path):
    whole, _ = pipeline(tmp_path / "whole", lambda middleware: middleware, {})
    pipeline(tmp_path / "cut", timed, {}, max_step=3)
    resumed, _ = pipeline(tmp_path / "cut", timed, {}, resume=str(tmp_path / "cut"))

    assert same(resumed, whole)


def test_checks_before_the_run_look_behind_decorators(tmp_path):
    cfg = PPOConfig(exp_name=str(tmp_path))
    envs = make_envs("CartPole-v1", 4, seed=0)
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)

    def advice(decorate):
        task = Task().start(ctx=OnlineRLContext())
        for middleware in (StepCollector(cfg, policy.collect_mode, envs), multistep_trainer(cfg, policy.learn_mode)):
            task.use(decorate(middleware))
        with pytest.raises(PipelineError) as caught:
            task.run(max_step=1)
        return str(caught.value)

    assert "gae_estimator" in advice(lambda middleware: middleware)
    assert "gae_estimator" in advice(timed)


def every_third(middleware):
    calls = 0

    @functools.wraps(middleware)
    def run(ctx):
        nonlocal calls
        calls += 1
        return middleware(ctx) if calls % 3 == 1 else None

    return run


def test_what_a_decorator_remembers_is_named(tmp_path):
    with pytest.warns(UserWarning, match=r"remembers something from iteration to iteration \(calls\)"):
        pipeline(tmp_path, lambda it: every_third(it) if isinstance(it, OffPolicyLearner) else it, {})


class Scaled(DQNPolicy):
    """Its loss reads a dict of the script."""

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss * SCALES["loss"], stats


SCALES = {"loss": 1.0}


def scaling(middleware):
    @functools.wraps(middleware)
    def run(ctx):
        SCALES["loss"] = 1.0 + ctx.total_step
        return middleware(ctx)

    return run


def test_what_a_decorator_changes_and_another_lane_reads_is_named():
    cfg = DQNConfig(seed=0).override({"policy.learn.learning_starts": 64})
    envs = make_envs("CartPole-v1", 8, seed=0)
    policy = Scaled(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer_, task = ReplayBuffer(1000, seed=0), Task().start(ctx=OnlineRLContext(), async_mode=True)
    task.use(scaling(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.1})))
    task.use(data_pusher(cfg, buffer_)).use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
    with pytest.warns(
        UserWarning, match=r"StepCollector .* holds SCALES, a dict, and so does the policy that OffPolicyLearner"
    ):
        task.run(max_step=6)


@pytest.mark.parametrize("times", [1, 2])
def test_the_state_of_a_decorator_and_that_of_what_it_decorates_are_both_saved(times, tmp_path):
    class Walk:
        def __init__(self):
            self.steps = 0

        def __call__(self, ctx):
            self.steps += 1

        def state_dict(self):
            return {"steps": self.steps}

        def load_state_dict(self, state):
            self.steps = state["steps"]

    def counted(middleware, calls):
        @functools.wraps(middleware)
        def run(ctx):
            calls[0] += 1
            return middleware(ctx)

        run.state_dict = lambda: {"calls": calls[0]}
        run.load_state_dict = lambda state: calls.__setitem__(0, state["calls"])
        return run

    def go(steps, resume=None):
        walk, counts = Walk(), [[0] for _ in range(times)]
        decorated, task = walk, Task()
        for calls in counts:
            decorated = counted(decorated, calls)
        with task.start(resume=resume):
            task.use(decorated).use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1000))
            assert "Walk" in task.describe()
            task.run(max_step=steps)
        return walk.steps, *(calls[0] for calls in counts)

    assert go(3) == (3,) * (times + 1)
    assert go(5, resume=tmp_path) == (5,) * (times + 1)
