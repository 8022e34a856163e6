"""Both pipelines in asynchronous mode: the same run every time, and the same as on one thread, here and in worker processes."""

import json
import re
import threading
import time
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from slow_cases import mostly_slow

from ding_lite import Task, contract, extend_contract
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    EpisodeCollector,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    online_logger,
    termination_checker,
)
from ding_lite.policy import DQNPolicy, PPOPolicy

pytestmark = pytest.mark.timeout(240)

ITERATIONS = 7
ALGORITHMS = {
    "dqn": (
        DQNConfig,
        DQNPolicy,
        {"policy.collect.n_sample": 32, "policy.learn": {"learning_starts": 32, "update_per_collect": 3, "batch_size": 16}},
    ),
    "ppo": (
        PPOConfig,
        PPOPolicy,
        {"policy.collect.n_sample": 32, "policy.learn": {"epoch_per_collect": 2, "batch_size": 16}},
    ),
}


def run(name, folder, async_mode, max_lag, workers=1, backend="local"):
    """Everything that a run comes to: weights, optimizer, random numbers, buffer, counters, curve, checkpoints."""
    make_config, make_policy, changes = ALGORITHMS[name]
    cfg = make_config(exp_name=folder, seed=3).override({**changes, "env.stop_value": None, "env.n_evaluator_episode": 2})
    cfg.policy.eval.evaluator.eval_freq = 15
    envs = make_envs("CartPole-v1", 4, seed=3, workers=workers, backend=backend)
    policy = make_policy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer = ReplayBuffer(1000, seed=3)
    loop = Task()
    with loop.start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()):
        loop.use(interaction_evaluator(cfg, policy.eval_mode, make_envs("CartPole-v1", 2, seed=4, max_episode_steps=40)))
        if name == "dqn":
            loop.use(eps_greedy_handler(cfg))
        loop.use(StepCollector(cfg, policy.collect_mode, envs))
        if name == "dqn":
            loop.use(data_pusher(cfg, buffer))
            loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
        else:
            loop.use(gae_estimator(cfg, policy.collect_mode))
            loop.use(multistep_trainer(cfg, policy.learn_mode))
        loop.use(CkptSaver(policy, cfg.exp_name, train_freq=10))
        loop.use(online_logger(cfg, train_show_freq=1, show_every_s=1e9))
        loop.run(max_step=ITERATIONS)
    ctx = loop.ctx
    names = ("total_step", "env_step", "env_episode", "train_iter", "last_eval_iter", "last_eval_value", "policy_version")
    files = sorted(path.name for path in (folder / "ckpt").iterdir())
    found = policy.state_dict(), buffer.state_dict(), [getattr(ctx, it) for it in names], files, curve_of(folder)
    envs.close()
    return found


def curve_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    by_place = ("time", "system/", "collect/workers_unanswered")
    return [
        {key: value for key, value in row.items() if not key.startswith(by_place) and not key.endswith("_throughput")}
        for row in rows
    ]


@pytest.mark.parametrize("max_lag", [1, 3])
@pytest.mark.parametrize("name", mostly_slow(ALGORITHMS, "dqn"))
def test_asynchronous_runs_are_the_run_on_one_thread(name, max_lag, tmp_path, digest):
    expected = digest(*run(name, tmp_path / "one", async_mode=False, max_lag=max_lag))

    assert digest(*run(name, tmp_path / "threads", async_mode=True, max_lag=max_lag)) == expected


@pytest.mark.parametrize("name", mostly_slow(ALGORITHMS, "dqn"))
def test_without_lag_an_asynchronous_run_is_the_plain_one_and_with_lag_it_is_another(name, tmp_path, digest):
    plain = digest(*run(name, tmp_path / "plain", async_mode=False, max_lag=None))

    assert digest(*run(name, tmp_path / "none", async_mode=True, max_lag=0)) == plain
    assert digest(*run(name, tmp_path / "default", async_mode=True, max_lag=None)) != plain


@pytest.mark.parametrize(
    ("name", "workers", "max_lag", "async_mode"),
    mostly_slow(
        [("dqn", 1, 1, True), ("ppo", 2, 1, False), ("dqn", 2, 1, True), ("ppo", 2, 3, True), ("dqn", 4, 0, True)],
        *[("dqn", 1, 1, True), ("ppo", 2, 3, True)],
    ),
)
def test_runs_with_worker_processes_are_the_run_with_as_many_workers_here(name, workers, max_lag, async_mode, tmp_path, digest):
    expected = digest(*run(name, tmp_path / "here", async_mode=False, max_lag=max_lag, workers=workers))
    found = run(name, tmp_path / "processes", async_mode, max_lag, workers=workers, backend="process")

    assert digest(*found) == expected


def counters_before(collector, backend, async_mode, max_lag):
    """env_step and env_episode of each iteration, as a middleware before the collector reads them."""
    cfg = DQNConfig(seed=3).override({"policy.collect": {"n_sample": 32, "n_episode": 4}})
    envs = make_envs("CartPole-v1", 4, seed=3, workers=2, backend=backend, max_episode_steps=8)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer, seen, loop = ReplayBuffer(1000, seed=3), [], Task()

    @contract(reads=("env_step", "env_episode"), uses=(seen,), stage="explore")
    def look(ctx):
        seen.append((ctx.env_step, ctx.env_episode))

    with loop.start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()):
        loop.use(look)
        loop.use(collector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}))
        loop.use(data_pusher(cfg, buffer))
        loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
        loop.run(max_step=5)
    envs.close()
    return np.array(seen[:5])  # in asynchronous mode, the collector runs ahead


@pytest.mark.parametrize("async_mode", [False, True])
@pytest.mark.parametrize("max_lag", [0, 2])
@pytest.mark.parametrize(("collector", "late"), [(StepCollector, [1]), (EpisodeCollector, [0, 1])])
def test_before_the_collector_counters_that_worker_processes_know_late_are_read_late(collector, late, max_lag, async_mode):
    expected = counters_before(collector, "local", False, max_lag)
    assert (np.diff(expected[:, 0]) > 0).all()
    expected[:, late] = np.concatenate([np.zeros((max_lag, 2), int), expected])[: len(expected), late]

    np.testing.assert_array_equal(counters_before(collector, "process", async_mode, max_lag), expected)


@pytest.mark.few
@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_each_transition_bears_the_version_that_acted_and_the_lag_is_in_the_curve(max_lag, tmp_path):
    _, buffer, _, _, curve = run("dqn", tmp_path / "run", async_mode=True, max_lag=max_lag)
    steps = 3  # gradient steps an iteration, from the first on
    versions = np.asarray(buffer["columns"]["policy_version"]).reshape(ITERATIONS, -1)

    assert versions.tolist() == [[steps * max(0, k - max_lag)] * 32 for k in range(ITERATIONS)]
    assert [row["learn/policy_lag"] for row in curve] == [steps * min(k, max_lag) for k in range(ITERATIONS)]


class Slow(gymnasium.Env):
    """Episodes of one step, which lasts until the test lets it end."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    gate = threading.Event()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert Slow.gate.wait(60)
        return np.zeros(2, np.float32), 7.0, True, False, {}


def test_a_long_evaluation_stalls_nobody_and_joins_when_the_next_is_due(tmp_path):
    cfg = DQNConfig(exp_name=tmp_path).override({"env.n_evaluator_episode": 1, "env.stop_value": None})
    cfg.policy.eval.evaluator.eval_freq = 20
    envs = make_envs(Slow, 1)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    evaluated = []

    @contract(reads=("train_iter",), writes=("train_iter",), stage="learn")
    def learn(ctx):
        ctx.train_iter += 1
        if ctx.total_step == 15:  # long before its result is wanted, long after it began
            Slow.gate.set()

    @contract(may_read=("eval_value", "last_eval_iter"), stage="record")
    def record(ctx):
        if ctx.eval_value > -float("inf"):
            evaluated.append((ctx.total_step, ctx.last_eval_iter, ctx.eval_value))

    record.end_run = record

    def results(async_mode):
        evaluated.clear()
        Slow.gate.clear() if async_mode else Slow.gate.set()
        loop = Task()
        with loop.start(async_mode=async_mode, max_lag=1, ctx=OnlineRLContext()):
            loop.use(interaction_evaluator(cfg, policy.eval_mode, envs))
            loop.use(learn)
            loop.use(record)
            loop.run(max_step=60)
        return list(evaluated)

    # Begun in iterations 0, 22 and 43, with train_iter as it was two iterations before; the last joins before the end, when
    # the final weights are evaluated.
    assert results(async_mode=True) == results(async_mode=False) == [(21, 0, 7.0), (41, 20, 7.0), (58, 40, 7.0), (59, 60, 7.0)]


@pytest.mark.few
@pytest.mark.parametrize("mode", [{"async_mode": True}, {"max_lag": 1}, {}], ids=["async", "lag", "sync"])
def test_what_is_still_evaluated_when_the_run_ends_joins_and_then_the_final_weights_are_and_nothing_is_left(mode, tmp_path):
    cfg = DQNConfig(exp_name=tmp_path).override({"env.n_evaluator_episode": 4, "env.stop_value": None})
    envs = make_envs("CartPole-v1", 1, max_episode_steps=None)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    evaluator = interaction_evaluator(cfg, policy.eval_mode, envs)

    @contract(reads=("train_iter",), writes=("train_iter",), stage="learn")
    def learn(ctx):
        ctx.train_iter += 1

    evaluated = []

    @contract(may_read=("eval_value", "last_eval_iter"), stage="record")
    def record(ctx):
        if ctx.eval_value > -float("inf"):
            evaluated.append((ctx.total_step, ctx.last_eval_iter))

    record.end_run = record
    for _ in range(2):
        evaluated.clear()
        loop = Task()
        with loop.start(ctx=OnlineRLContext(), **mode):
            loop.use(evaluator)
            loop.use(learn)
            loop.use(record)
            loop.use(termination_checker(max_train_iter=5))
            loop.run(max_step=10**6)
        assert loop.ctx.train_iter == loop.ctx.last_eval_iter == 5
        assert evaluated == [(4 if loop.max_lag else 0, 0), (4, 5)]
        assert str(loop.end_reason) == "termination_checker found train_iter 5, and max_train_iter is 5"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("task.")]


def test_an_error_in_an_evaluation_ends_the_run(tmp_path):
    class Raises(Slow):
        def step(self, action):
            raise OSError("the simulator is gone")

    cfg = DQNConfig(exp_name=tmp_path).override({"env.n_evaluator_episode": 1})
    envs = make_envs(Raises, 1)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)

    @contract(reads=("train_iter",), writes=("train_iter",), stage="learn")
    def learn(ctx):
        time.sleep(0.001)

    loop = Task()
    with loop.start(async_mode=True, ctx=OnlineRLContext()):
        loop.use(interaction_evaluator(cfg, policy.eval_mode, envs))
        loop.use(learn)
        with pytest.raises(OSError, match="simulator is gone") as caught:
            loop.run(max_step=10**9)
    notes = caught.value.__notes__
    assert any("raised by environment 0" in note for note in notes)
    assert any(
        re.match(r"in interaction_evaluator \(.*, deferred by middleware interaction_evaluator \(", note) for note in notes
    )


@pytest.mark.few
@pytest.mark.parametrize("named", ["policy", "model", "learn_mode"])
def test_naming_the_policy_its_model_or_its_learn_mode_orders_alike(named):
    def run(**mode):
        cfg = DQNConfig().override({"policy.learn": {"learning_starts": 8, "update_per_collect": 8}})
        envs = make_envs("CartPole-v1", 4, seed=1)
        policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
        thing = {"policy": policy, "model": policy.model, "learn_mode": policy.learn_mode}[named]
        buffer_, seen, loop = ReplayBuffer(1000), [], Task()

        @contract(reads=("trajectories",), uses=(thing, seen), stage="process")
        def mean_q(ctx):
            with torch.inference_mode():
                seen.append(float(policy.model(ctx.trajectories.batch.obs.reshape(-1, 4)).mean()))

        with loop.start(ctx=OnlineRLContext(), **mode):
            loop.use(eps_greedy_handler(cfg)).use(StepCollector(cfg, policy.collect_mode, envs)).use(mean_q)
            loop.use(data_pusher(cfg, buffer_)).use(OffPolicyLearner(cfg, policy.learn_mode, buffer_)).run(5)
        return seen

    wanted = run(max_lag=1)
    assert [run(async_mode=True) for _ in range(2)] == [wanted] * 2


@pytest.mark.few
@pytest.mark.parametrize(
    ("held", "named", "warns"),
    [
        ("model", (), True),
        ("policy", (), True),
        ("model", ("collect_mode",), True),
        ("model", ("model",), False),
        ("model", ("learn_mode",), False),
        ("policy", ("policy",), False),
        ("collect_mode", ("collect_mode",), False),
    ],
)
def test_a_middleware_that_holds_what_the_learner_changes_names_it_or_is_warned(held, named, warns):
    cfg = PPOConfig().override({"policy.collect.n_sample": 8, "policy.learn.epoch_per_collect": 1})
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    things = {"policy": policy, **{name: getattr(policy, name) for name in ("model", "collect_mode", "learn_mode")}}
    thing = things[held]

    @contract(reads=("trajectories",), writes=("trajectories",), uses=[things[name] for name in named], stage="process")
    def bonus(ctx):
        ctx.trajectories = thing and ctx.trajectories

    with Task().start(async_mode=True, max_lag=1, ctx=OnlineRLContext()) as loop:
        loop.use(StepCollector(cfg, policy.collect_mode, envs)).use(bonus)
        loop.use(gae_estimator(cfg, policy.collect_mode)).use(multistep_trainer(cfg, policy.learn_mode))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loop.run(2)
    found = [str(one.message) for one in caught if "nothing orders" in str(one.message).lower()]
    assert len(found) == warns
    assert all(
        re.search(r"bonus .* holds thing, an? \w+ that multistep_trainer uses, .* uses=\(thing,\)", text) for text in found
    )


class RatedCollector(StepCollector):
    """Also looks at the gradient steps."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.steps = []
        extend_contract(self, reads=("train_iter",))

    def __call__(self, ctx):
        super().__call__(ctx)
        self.steps.append(ctx.train_iter)


class LossLearner(OffPolicyLearner):
    """Also looks at its own output."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.losses = []
        extend_contract(self, reads=("train_output",))

    def __call__(self, ctx):
        super().__call__(ctx)
        self.losses.append(ctx.train_output and float(ctx.train_output["loss"]))


def derived_run(**mode):
    cfg = DQNConfig()
    cfg.override({"policy.learn.learning_starts": 200, "policy.learn.batch_size": 16})
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer_ = ReplayBuffer(500, seed=0)
    collector = RatedCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.1})
    learner, loop = LossLearner(cfg, policy.learn_mode, buffer_), Task()
    with loop.start(ctx=OnlineRLContext(), **mode):
        loop.use(collector).use(data_pusher(cfg, buffer_)).use(learner).run(6)
    return collector.steps, learner.losses


def test_classes_derived_from_ours_that_touch_more_give_equal_results_on_threads():
    steps, losses = derived_run(max_lag=1)

    assert (steps, losses) == derived_run(async_mode=True, max_lag=1)
    assert losses[0] is None
    assert losses[-1] > 0


@pytest.mark.parametrize("was", ["process", "local"])
def test_a_run_that_goes_on_with_another_backend_says_so(was):
    def loop_of(backend):
        cfg = PPOConfig().override({"policy.collect.n_sample": 8, "policy.learn.epoch_per_collect": 1})
        envs = make_envs("CartPole-v1", 2, seed=0, backend=backend, workers=1)
        policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
        loop = Task().start(max_lag=1, ctx=OnlineRLContext()).use(StepCollector(cfg, policy.collect_mode, envs))
        return loop.use(gae_estimator(cfg, policy.collect_mode)).use(multistep_trainer(cfg, policy.learn_mode))

    with loop_of(was) as loop:
        loop.run(2, final=False)
        state = loop.state_dict()
    place = "processes of their own" if was == "process" else "its process"
    words = rf'StepCollector in {place}, and this one steps them in .*workers=1, backend="{was}"'
    with loop_of("local" if was == "process" else "process") as loop:
        loop.load_state_dict(state)
        with pytest.raises(ValueError, match=words):
            loop.run(4)
