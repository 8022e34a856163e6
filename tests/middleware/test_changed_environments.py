"""Environments that a middleware changes during a run: the result depends neither on threads nor processes, nor on a resume."""

import dataclasses
import os
import signal
import sys
import time

import cloudpickle
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from states import same, through_a_file

from ding_lite import Task, contract
from ding_lite.config import PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, gae_estimator, interaction_evaluator, multistep_trainer
from ding_lite.policy import PPOPolicy

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:LevelContext keeps")]
ITERATIONS = 6


class Drift(gymnasium.Env):
    """A walk of seven steps; the level is in observations and rewards."""

    observation_space, action_space = spaces.Box(-99, 99, (2,), np.float32), spaces.Discrete(2)

    def __init__(self):
        self.level = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = self.np_random.normal(), 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        self.at += 0.1 * self.level + self.np_random.normal() * (0.5 + int(action))
        return self._observe(), float(self.at + self.level), False, self.steps == 7, {}

    def raise_level(self):
        self.level += 1
        return self.level

    def _observe(self):
        return np.array([self.at, self.level], np.float32)


@dataclasses.dataclass
class LevelContext(OnlineRLContext):
    returns: list = dataclasses.field(default_factory=list, metadata={"kept": True})
    values: list = dataclasses.field(default_factory=list, metadata={"kept": True})


def after_rollout(env):
    """Changes the environments by the episodes of the iteration, in the middle of an episode."""

    @contract(reads=("finished_episodes", "total_step"), uses=(env,), stage="process")
    def change(ctx):
        if sum(episode.return_ for episode in ctx.finished_episodes) > 0:
            env.call("raise_level")
        elif ctx.total_step:
            env.set_attr("level", [ctx.total_step + index for index in range(env.num_envs)])

    return change


def before_rollout(env):
    """Changes them while earlier rollouts may be pending."""

    @contract(reads=("total_step",), uses=(env,), stage="explore")
    def change(ctx):
        if ctx.total_step % 2:
            env.set_attr("level", ctx.total_step)
            assert env.get_attr("level") == (ctx.total_step,) * env.num_envs

    return change


def without_contract(env):
    def change(ctx):
        if ctx.total_step == 2:
            env.call("raise_level")

    return change


class SlowDrift(Drift):
    def step(self, action):
        time.sleep(0.001)  # so that other middleware work while an evaluation is in progress
        return super().step(action)


def run(place, mode=None, options=None, state=None, saved=None, evaluates=False, kills=()):
    """Returns, values of evaluations, weights and the state of the environments after the run."""
    options = options or {"workers": 2}
    envs, evaluator_envs = make_envs(Drift, 4, 0, **options), make_envs(SlowDrift, 2, 1)
    cfg = PPOConfig().override({"policy.collect.n_sample": 20, "policy.learn.epoch_per_collect": 1, "env.stop_value": None})
    cfg.override({"policy.model.encoder_hidden_size_list": [8], "policy.eval.evaluator.eval_freq": 1})
    cfg.override({"env.n_evaluator_episode": 2})
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    loop, hosts = Task(), getattr(envs, "hosts", ())

    @contract(reads=("trajectories", "returns", "eval_value", "values"), writes=("returns", "values"), stage="record")
    def note(ctx):
        ctx.returns = [*ctx.returns, float(ctx.trajectories.batch.reward.sum())]
        ctx.values = [*ctx.values, float(ctx.eval_value)]
        if ctx.total_step in kills and (pid := hosts[ctx.total_step % 2].pid) is not None:
            os.kill(pid, signal.SIGKILL)
        if saved is not None and ctx.total_step == 2:
            loop.between_iterations(lambda: saved.append(through_a_file(loop.state_dict())))

    with loop.start(ctx=LevelContext(), **(mode or {})):
        if evaluates:
            loop.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_envs))
            loop.use(before_rollout(evaluator_envs))
        if place is before_rollout:
            loop.use(place(envs))
        loop.use(StepCollector(cfg, policy.collect_mode, envs))
        if place is not before_rollout:
            loop.use(place(envs))
        loop.use(gae_estimator(cfg, policy.collect_mode)).use(multistep_trainer(cfg, policy.learn_mode)).use(note)
        if state is not None:
            loop.load_state_dict(state)
        loop.run(ITERATIONS, final=False)
        result = loop.ctx.returns, loop.ctx.values, policy.get_weights(), envs.state_dict(), envs.get_attr("level")
    envs.close()
    return through_a_file(list(result))


PLACES = pytest.mark.parametrize("place", [after_rollout, before_rollout, without_contract])
PROCESS = {"workers": 2, "backend": "process", "restart": True}


@pytest.mark.few
@pytest.mark.parametrize(
    ("place", "lag"), [(after_rollout, 2), (before_rollout, 0), (before_rollout, 2), (without_contract, 2)]
)
@pytest.mark.filterwarnings("ignore:.*cannot overlap")
def test_on_threads_and_in_processes_it_is_as_on_one_thread(place, lag):
    oracle = run(place, {"max_lag": lag})

    assert len(set(oracle[0])) == ITERATIONS
    assert oracle[-1] != (0,) * 4
    assert same(run(place, {"async_mode": True, "max_lag": lag}), oracle)
    assert same(run(place, {"async_mode": True, "max_lag": lag}, PROCESS), oracle)


def test_in_one_piece_without_lag_it_is_as_in_a_plain_loop():
    assert same(
        run(after_rollout, {"async_mode": True, "max_lag": 0}, {"workers": 1}), run(after_rollout, None, {"workers": 1})
    )


def test_environments_of_an_evaluation_in_progress_are_changed_when_it_has_ended():
    oracle = run(after_rollout, {"max_lag": 1}, evaluates=True)

    assert len({value for value in oracle[1] if np.isfinite(value)}) > 3
    assert same(run(after_rollout, {"async_mode": True, "max_lag": 1}, evaluates=True), oracle)


@pytest.mark.parametrize(("place", "mode"), [(after_rollout, {}), (before_rollout, {"async_mode": True, "max_lag": 1})])
def test_workers_that_are_killed_and_restarted_have_had_the_changes(place, mode):
    oracle = run(place, {"max_lag": mode.get("max_lag", 0)})

    assert same(run(place, mode, PROCESS, kills=(1, 2, 4)), oracle)


@pytest.mark.few
@pytest.mark.parametrize("place", [after_rollout, before_rollout])
@pytest.mark.parametrize("mode", [{}, {"async_mode": True, "max_lag": 1}], ids=["sync", "async"])
@pytest.mark.parametrize("options", [{"workers": 2}, PROCESS], ids=["here", "processes"])
def test_a_resumed_run_equals_the_unbroken_one(place, mode, options):
    saved = []
    unbroken = run(place, mode, options, saved=saved)
    (state,) = saved

    assert 0 < state["done"] < ITERATIONS
    assert same(run(place, mode, options, state=state), unbroken)
    assert torch.is_tensor(next(iter(unbroken[2].values())))
