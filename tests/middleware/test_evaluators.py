"""interaction_evaluator: when it evaluates, what it reports, and how it ends a run."""

import gymnasium
import numpy as np
import pytest

from ding_lite import Context, PipelineError, Task
from ding_lite.config import DQNConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import interaction_evaluator
from ding_lite.policy import DQNPolicy


class Fixed(gymnasium.Env):
    """Episodes of a fixed length that pay 1 a step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == self.length, False, {}


def evaluator(cfg, lengths=(3, 3)):
    made = iter(lengths)
    envs = make_envs(lambda: Fixed(next(made)), len(lengths))
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    return interaction_evaluator(cfg, policy.eval_mode, envs), policy


def evaluations(cfg, counters):
    """The iterations in which it evaluates, when train_iter and env_step go on as told."""
    evaluate, _ = evaluator(cfg)
    task, seen = Task(), []
    with task.start(ctx=OnlineRLContext()):

        def go_on(ctx):
            ctx.train_iter, ctx.env_step = counters[ctx.total_step]

        task.use(go_on).use(evaluate).use(lambda ctx: seen.append(ctx.eval_value > -np.inf))
        task.run(max_step=len(counters))
    return [index for index, evaluated in enumerate(seen) if evaluated]


def config(**evaluator_options):
    cfg = DQNConfig().override({"env.stop_value": None, "env.n_evaluator_episode": 2})
    return cfg.override({f"policy.eval.evaluator.{name}": value for name, value in evaluator_options.items()})


def test_it_evaluates_first_then_whenever_train_iter_crosses_its_interval_and_last():
    counters = [(0, 0), (4, 8), (9, 16), (10, 24), (15, 32), (31, 40), (33, 48), (34, 56)]

    assert evaluations(config(eval_freq=10), counters) == [0, 3, 5, 7]


def test_it_does_not_evaluate_again_while_nothing_is_learned():
    counters = [(0, 8 * step) for step in range(20)]

    assert evaluations(config(eval_freq=1), counters) == [0]


def test_it_evaluates_when_env_step_crosses_its_interval():
    counters = [(step, 8 * step) for step in range(12)]

    assert evaluations(config(eval_freq=1000, eval_freq_env_step=40), counters) == [0, 5, 10, 11]


def test_it_reports_the_mean_return_of_whole_episodes_equally_many_an_environment():
    cfg = config(eval_freq=10).override({"env.n_evaluator_episode": 6})
    evaluate, policy = evaluator(cfg, lengths=(2, 10))
    task = Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(evaluate).run(max_step=1)
        ctx = task.ctx

    assert ctx.eval_value == ctx.last_eval_value == pytest.approx((3 * 2 + 3 * 10) / 6)
    assert ctx.last_eval_iter == 0
    assert ctx.eval_weights.keys() == policy.get_weights().keys()


@pytest.mark.parametrize(("stop_value", "finished"), [(3.0, True), (3.1, False), (None, False)])
def test_it_ends_the_run_when_the_stop_value_is_reached(stop_value, finished):
    cfg = config(eval_freq=10).override({"env.stop_value": stop_value})
    evaluate, _ = evaluator(cfg)
    task, after = Task(), []
    with task.start(ctx=OnlineRLContext()):
        task.use(evaluate).use(lambda ctx: after.append(task.finish)).run(max_step=3)

    assert after[0] is finished
    assert len(after) == (1 if finished else 3)


def test_it_works_without_environment_steps_to_count():
    evaluate, _ = evaluator(config(eval_freq=10))
    task = Task()
    with task.start(ctx=OfflineRLContext()):
        task.use(evaluate).run(max_step=2)

    assert task.ctx.last_eval_value == 3.0


def test_a_context_without_its_fields_is_refused():
    evaluate, _ = evaluator(config(eval_freq=10))
    task = Task()
    with (
        task.start(ctx=Context()),
        pytest.raises(PipelineError, match="interaction_evaluator reads ctx.train_iter, but Context declares no such field"),
    ):
        task.use(evaluate).run(max_step=1)


def test_its_memory_can_be_saved_and_restored():
    cfg = config(eval_freq=1000, eval_freq_env_step=40)
    evaluate, _ = evaluator(cfg)
    ctx = OnlineRLContext(env_step=100)
    evaluate(ctx)
    other, _ = evaluator(cfg)
    other.load_state_dict(evaluate.state_dict())

    later = OnlineRLContext(env_step=139, last_eval_iter=0)
    other(later)
    assert later.eval_value == -np.inf
    later = OnlineRLContext(env_step=140, last_eval_iter=0)
    other(later)
    assert later.eval_value == 3.0
