"""Evaluators that share a mode: each measures the weights that it reports, on several threads as on one."""

import copy
import threading

import gymnasium
import numpy as np
import pytest
import torch
from weight_policies import Weight

from ding_lite import Task, contract
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import WorkCancelled
from ding_lite.envs import make_envs, make_multi_agent_envs
from ding_lite.middleware import interaction_evaluator, metric_evaluator, multi_agent_evaluator
from ding_lite.middleware.evaluation_turns import EvaluationTurn
from ding_lite.policy import PolicyConfig

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:another evaluator has written")]

GATE = threading.Event()
"""Evaluations of the weight 6 wait for it after their first step."""


class Paid(gymnasium.Env):
    """Episodes of 4 steps whose reward is the action."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(0, 1e6, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 1 and round(float(action[0])) == 6:
            assert GATE.wait(60)
        return np.zeros(1, np.float32), float(action[0]), self.steps == 4, False, {}


class PaidAgents:
    """The same with one agent."""

    possible_agents = ["a"]
    metadata = {}

    def __init__(self):
        self.env, self.agents = Paid(), []

    def observation_space(self, agent):
        return Paid.observation_space

    def action_space(self, agent):
        return Paid.action_space

    def reset(self, seed=None, options=None):
        self.agents = ["a"]
        obs, info = self.env.reset(seed=seed)
        return {"a": obs}, {"a": info}

    def step(self, actions):
        obs, reward, terminated, truncated, info = self.env.step(actions["a"])
        self.agents = [] if terminated else ["a"]
        return {"a": obs}, {"a": reward}, {"a": terminated}, {"a": truncated}, {"a": info}


def policy_of_weight(weight):
    policy = Weight(PolicyConfig(seed=0), Paid.observation_space, Paid.action_space)
    policy.set_weights({"weight": torch.full((1, 1), float(weight))})
    return policy


def on_envs(cfg, mode):
    return interaction_evaluator(cfg, mode, make_envs(Paid, 1))


def on_agents(cfg, mode):
    return multi_agent_evaluator(cfg, {"p": mode}, make_multi_agent_envs(PaidAgents, 1), lambda agent: "p")


def on_a_dataset(cfg, mode):
    def metric(mode, dataset):
        env = Paid()
        obs, _ = env.reset()
        return sum(env.step(mode.forward(obs[None])[0][0])[1] for _ in range(4))

    zeros, ends = np.zeros((2, 1), np.float32), np.ones(2, np.bool_)
    rows = {"obs": zeros, "action": zeros, "reward": zeros[:, 0], "next_obs": zeros, "terminated": ends, "truncated": ~ends}
    return metric_evaluator(cfg, mode, rows, metric)


def evaluations(makes, async_mode, max_lag):
    """(train_iter, value, weight) of each evaluation of two evaluators, with intervals of 6 and 4 gradient steps."""
    (GATE.clear if async_mode else GATE.set)()
    cfg, policy, rows, task = DQNConfig(), policy_of_weight(0), ([], []), Task()
    cfg.override({"env.stop_value": None, "env.n_evaluator_episode": 1, "log.video_every": 0})

    @contract(reads=("train_iter",), writes=("train_iter",), uses=(policy.learn_mode,), stage="learn")
    def learn(ctx):
        policy.learn_mode.forward({})
        ctx.train_iter += 1
        if ctx.total_step == 13:  # after the second evaluator has begun to evaluate a later weight
            GATE.set()

    def noting(found):
        @contract(reads=("eval_value", "last_eval_iter", "eval_weights"), uses=(found,), stage="evaluate")
        def note(ctx):
            if ctx.eval_weights:
                weights = ctx.eval_weights.get("p", ctx.eval_weights)
                found.append((ctx.last_eval_iter, ctx.eval_value, float(weights["weight"])))

        note.end_run = note
        return note

    with task.start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()):
        for make, every, found in zip(makes, (6, 4), rows):
            own = copy.deepcopy(cfg)
            own.policy.eval.evaluator.eval_freq = every
            task.use(make(own, policy.eval_mode)).use(noting(found))
        task.use(learn).run(max_step=18)
    return rows


@pytest.mark.parametrize("max_lag", [1, 2])
@pytest.mark.parametrize("first", [on_envs, on_agents, on_a_dataset])
def test_evaluators_that_share_a_mode_measure_the_weights_that_they_report(first, max_lag):
    expected, found = (evaluations((first, on_envs), async_mode, max_lag) for async_mode in (False, True))

    assert found == expected
    assert all(len(rows) > 3 for rows in found)
    assert all((value, weight) == (4 * train_iter, train_iter) for rows in found for train_iter, value, weight in rows)


def test_a_turn_waits_for_earlier_turns_of_its_modes_unless_the_run_stops():
    one, other = policy_of_weight(1).eval_mode, policy_of_weight(1).eval_mode
    first, second, unrelated = EvaluationTurn([one]), EvaluationTurn([other, one]), EvaluationTurn([other])
    second.end()  # as after an error
    with unrelated.taken(lambda: False):
        pass
    with pytest.raises(WorkCancelled, match="the run ended before an evaluation"), EvaluationTurn([one]).taken(lambda: True):
        pass
    first.end()
    with EvaluationTurn([one]).taken(lambda: True):
        pass


def test_in_its_turn_a_mode_acts_with_the_weights_of_the_turn():
    policy = policy_of_weight(1)
    mode, obs = policy.eval_mode, np.zeros((1, 1), np.float32)
    turn = EvaluationTurn([mode])
    policy.set_weights({"weight": torch.full((1, 1), 2.0)})
    later = EvaluationTurn([mode])
    with turn.taken(lambda: False):
        assert (mode.forward(obs)[0].item(), mode.acting_snapshot.values[0].item()) == (1, 1)
    with later.taken(lambda: False):
        assert mode.forward(obs)[0].item() == 2
