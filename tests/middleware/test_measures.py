"""What the metric or the score of an evaluator remembers: it is saved with the run, or named."""

import warnings

import gymnasium
import numpy as np
import pytest

from ding_lite import Task, contract
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.datasets import open_dataset
from ding_lite.envs import make_envs, make_multi_agent_envs
from ding_lite.middleware import CkptSaver, interaction_evaluator, metric_evaluator, multi_agent_evaluator
from ding_lite.policy import DQNPolicy

SPACES = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)


class Short(gymnasium.Env):
    observation_space, action_space = SPACES

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}


class ShortForTwo:
    possible_agents = ("a", "b")

    def observation_space(self, agent):
        return SPACES[0]

    def action_space(self, agent):
        return SPACES[1]

    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return {it: np.zeros(2, np.float32) for it in "ab"}, {it: {} for it in "ab"}

    def step(self, actions):
        self.agents = []
        no = dict.fromkeys("ab", False)
        return {it: np.zeros(2, np.float32) for it in "ab"}, dict.fromkeys("ab", 1.0), dict.fromkeys("ab", True), no, {}


class Counting:
    """A measure that is another one at each call."""

    def __init__(self):
        self.count = 0

    def __call__(self, *given):
        self.count += 1
        return float(self.count)


class Saved(Counting):
    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Forgetting(Counting):
    def __call__(self, *given):
        self.calls = getattr(self, "calls", 0) + 1
        return super().__call__()

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def in_closure():
    counting = Counting()
    return lambda *given: counting()


def drawing():
    rng = np.random.default_rng(0)
    return lambda *given: float(rng.normal())


def plain():
    return lambda *given: 2.0


def of_metric(cfg, policy, measure):
    rows = {"obs": np.zeros((4, 2), np.float32), "action": np.zeros(4, np.int64), "reward": np.zeros(4, np.float32)}
    rows |= {"next_obs": rows["obs"], "terminated": np.ones(4, bool), "truncated": np.zeros(4, bool)}
    return metric_evaluator(cfg, policy.eval_mode, open_dataset(rows, *SPACES), measure)


def of_score(cfg, policy, measure):
    return interaction_evaluator(cfg, policy.eval_mode, make_envs(Short, 1), score=measure)


def of_agents(cfg, policy, measure):
    return multi_agent_evaluator(
        cfg, {"one": policy.eval_mode}, make_multi_agent_envs(ShortForTwo, 1), lambda agent: "one", score=measure
    )


def run(folder, make, measure, max_step, resume=False, **mode):
    """The values of the evaluations, and the warnings about memories."""
    cfg = DQNConfig(exp_name=str(folder)).override({"policy.eval.evaluator.eval_freq": 1, "env.n_evaluator_episode": 1})
    policy, values = DQNPolicy(cfg.policy, *SPACES), []

    @contract(reads=("train_iter", "eval_value", "total_step"), writes=("train_iter",), stage="learn")
    def learn(ctx):
        ctx.train_iter += ctx.total_step != 2  # so that nothing is evaluated after the third iteration
        if ctx.eval_value != -np.inf:
            values.append(ctx.eval_value)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=OnlineRLContext(), resume=folder if resume else None, **mode) as task:
            task.use(make(cfg, policy, measure)).use(learn).use(CkptSaver(policy, folder, train_freq=1)).run(max_step)
    return values, [
        str(it.message) for it in caught if "remembers" in str(it.message) and "learn remembers" not in str(it.message)
    ]


@pytest.mark.parametrize("make", [of_metric, of_score, of_agents])
@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=str)
def test_what_a_measure_with_a_state_remembers_goes_on_in_a_resumed_run(make, mode, tmp_path):
    whole, told = run(tmp_path / "whole", make, Saved(), 6, **mode)
    assert told == []
    first, _ = run(tmp_path / "parts", make, Saved(), 3, **mode)
    later, _ = run(tmp_path / "parts", make, Saved(), 6, resume=True, **mode)
    if not mode:
        assert first + later == whole == [1.0, 2.0, 3.0, 4.0, 5.0]
    else:  # the first part ends with the evaluation that is in progress
        assert later
        assert first + later == sorted({*first, *later})


@pytest.mark.parametrize("make", [of_metric, of_score, of_agents])
@pytest.mark.parametrize(
    ("measure", "place"),
    [(Counting, "Counting in {} {} (count), and has no"), (in_closure, "in_closure in {} {} (counting.count), and has no")]
    + [(drawing, "drawing in {} {} (rng), and has no"), (Forgetting, "Forgetting {1} (calls), and its state_dict does not")],
    ids=["object", "closure", "generator", "state that forgets"],
)
def test_what_a_measure_remembers_without_a_state_is_named(make, measure, place, tmp_path):
    name = {"of_metric": "metric_evaluator", "of_score": "interaction_evaluator", "of_agents": "multi_agent_evaluator"}[
        make.__name__
    ]
    _, (words,) = run(tmp_path, make, measure(), 3)
    assert place.format(name, "remembers something from iteration to iteration") in words
    assert measure is Forgetting or "Pass an object with __call__, state_dict() and load_state_dict(state) itself" in words


@pytest.mark.parametrize("make", [of_metric, of_score, of_agents])
def test_a_measure_that_remembers_nothing_is_not_named(make, tmp_path):
    assert run(tmp_path, make, plain(), 3)[1] == []
