"""interaction_evaluator: when it evaluates, what it reports, and how it ends a run."""

import json
import re
import signal
import sys
import threading
import time

import cloudpickle
import gymnasium
import numpy as np
import psutil
import pytest
import torch
from weight_policies import Weight

from ding_lite import Context, PipelineError, Task, contract, task
from ding_lite.config import DQNConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import load_checkpoint
from ding_lite.envs import make_envs
from ding_lite.metrics import MetricsLogger
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    interaction_evaluator,
    online_logger,
)
from ding_lite.policy import DQNPolicy, PolicyConfig
from ding_lite.rollout import LocalWorker, VideoRecorder

cloudpickle.register_pickle_by_value(sys.modules[__name__])


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


def test_a_score_of_episodes_takes_the_place_of_the_mean_return():
    cfg = DQNConfig().override({"env.n_evaluator_episode": 2, "env.stop_value": 4.5})
    made = iter((3, 7))
    envs = make_envs(lambda: Fixed(next(made)), 2)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    evaluate = interaction_evaluator(cfg, policy.eval_mode, envs, score=lambda episode: episode.length - 0.75)
    task = Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(evaluate)
        task.run(max_step=1)
    logged = MetricsLogger()
    logged.aggregate(task.ctx.eval_metrics)

    assert task.ctx.eval_value == 4.25
    assert (logged.peek("score"), logged.peek("episode_return_mean")) == (4.25, 5.0)


def evaluations(cfg, counters):
    """The iterations in which it evaluates, when train_iter and env_step go on as told, and "end" where it does afterwards."""
    evaluate, _ = evaluator(cfg)
    task, seen = Task(), []
    with task.start(ctx=OnlineRLContext()):

        def go_on(ctx):
            ctx.train_iter, ctx.env_step = counters[ctx.total_step]

        def look(ctx):
            seen.append(ctx.eval_value > -np.inf)

        look.end_run = look
        task.use(go_on).use(evaluate).use(look)
        task.run(max_step=len(counters))
    return [index if index < len(counters) else "end" for index, evaluated in enumerate(seen) if evaluated]


def config(**evaluator_options):
    cfg = DQNConfig().override({"env.stop_value": None, "env.n_evaluator_episode": 2})
    return cfg.override({f"policy.eval.evaluator.{name}": value for name, value in evaluator_options.items()})


def test_it_evaluates_first_then_whenever_train_iter_crosses_its_interval_and_the_final_weights():
    counters = [(0, 0), (4, 8), (9, 16), (10, 24), (15, 32), (31, 40), (33, 48), (34, 56)]

    assert evaluations(config(eval_freq=10), counters) == [0, 3, 5, "end"]


def test_it_does_not_evaluate_again_while_nothing_is_learned():
    counters = [(0, 8 * step) for step in range(20)]

    assert evaluations(config(eval_freq=1), counters) == [0]


def test_it_evaluates_when_env_step_crosses_its_interval():
    counters = [(step, 8 * step) for step in range(12)]

    assert evaluations(config(eval_freq=1000, eval_freq_env_step=40), counters) == [0, 5, 10, "end"]


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


def test_episodes_that_cannot_be_shared_equally_go_to_the_first_environments():
    cfg = DQNConfig().override({"env.n_evaluator_episode": 8, "log.video_every": 0})
    envs = make_envs("CartPole-v1", 3, seed=0)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    played = []
    evaluate = interaction_evaluator(cfg, policy.eval_mode, envs, score=lambda episode: played.append(episode.env) or 0.0)
    evaluate(OnlineRLContext())

    assert [played.count(env) for env in range(3)] == [3, 3, 2]


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


def end_the_global_task(how):
    """Leave the global task as a run of that kind does."""
    with task.start(async_mode=how == "async", max_lag=int(how == "async"), ctx=OnlineRLContext()):
        task.use(contract(stage="learn")(lambda ctx: task.finish_because("seen enough") if how == "finish" else None))
        task.run(max_step=3)


@pytest.mark.parametrize("how", ["async", "finish", "plain"])
def test_called_by_hand_it_evaluates_at_once_whatever_run_was_before(how):
    end_the_global_task(how)
    evaluate, _ = evaluator(config())
    ctx = OnlineRLContext()
    evaluate(ctx)
    assert ctx.eval_value == 3.0

    ctx = OnlineRLContext(train_iter=7)
    evaluate.end_run(ctx)
    assert (ctx.eval_value, ctx.last_eval_iter) == (3.0, 7)


MODES = pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag", "async"])


def dqn_run(folder, *evaluate, slices=(9,), mode, **settings):
    """A small run of DQN on CartPole with these evaluators, made from (cfg, policy); the task and what each iteration saw."""
    cfg = DQNConfig().override({"policy.learn": {"learning_starts": 1, "update_per_collect": 4}, **settings})
    envs = make_envs("CartPole-v1", 4, seed=0)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer_, loop, curve = ReplayBuffer(1000), Task(), []
    with loop.start(ctx=OnlineRLContext(), **mode):
        for make in evaluate:
            loop.use(make(cfg, policy))
        loop.use(eps_greedy_handler(cfg)).use(StepCollector(cfg, policy.collect_mode, envs)).use(data_pusher(cfg, buffer_))
        loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_)).use(CkptSaver(policy, folder))
        loop.use(contract(reads=("eval_value",), stage="record")(lambda ctx: curve.append(ctx.eval_value)))
        for k, count in enumerate(slices):
            loop.run(count, final=k + 1 == len(slices))
    return loop, policy, curve


def ours(seed=1, max_episode_steps=40, **options):
    def make(cfg, policy):
        envs = make_envs("CartPole-v1", 4, seed=seed, max_episode_steps=max_episode_steps, **options)
        return interaction_evaluator(cfg, policy.eval_mode, envs)

    return make


@pytest.mark.few
@pytest.mark.parametrize(
    ("mode", "slices"),
    [({}, (1,) * 7 + (2,)), ({"max_lag": 1}, (7, 2)), ({"async_mode": True}, (1,) * 7 + (2,)), ({"async_mode": True}, (4, 5))],
)
def test_a_run_in_slices_evaluates_what_an_unbroken_run_does(mode, slices, tmp_path):
    settings = {"policy.eval.evaluator.eval_freq": 5}
    runs = [dqn_run(tmp_path / str(len(it)), ours(), slices=it, mode=mode, **settings) for it in ((9,), slices)]
    best = [load_checkpoint(tmp_path / str(len(it)) / "ckpt" / "best.pt") for it in ((9,), slices)]

    assert runs[0][2] == runs[1][2]
    assert best[0]["eval_value"] == best[1]["eval_value"]


@pytest.mark.few
@MODES
def test_two_evaluators_play_each_at_its_own_interval_and_a_warning_says_whose_value_counts(mode, tmp_path):
    class Counted(gymnasium.Wrapper):
        resets = 0

        def reset(self, **kwargs):
            Counted.resets += 1
            return self.env.reset(**kwargs)

    with pytest.warns(UserWarning, match="another evaluator has written ctx.eval_value before interaction_evaluator"):
        loop, _, _ = dqn_run(tmp_path, ours(max_episode_steps=5), ours(2, wrappers=[Counted]), mode=mode)
    assert Counted.resets >= 8  # the first weights and the final ones
    assert loop.ctx.last_eval_value > 5


@pytest.mark.few
@MODES
def test_an_evaluator_of_ones_own_gives_the_weights_that_it_evaluated(mode, tmp_path):
    def score(mode):
        worker = LocalWorker(make_envs("CartPole-v1", 4, seed=9), mode)
        return round(float(worker.collect(num_steps=50).trajectories.batch.obs.abs().sum()), 3)

    def make(cfg, policy):
        writes, acting = ("eval_value", "eval_weights", "last_eval_iter"), policy.eval_mode

        @contract(reads=("train_iter",), writes=writes, uses=(acting,), stage="evaluate")
        def own(ctx):
            ctx.eval_value, ctx.eval_weights = score(acting), acting.get_weights()
            ctx.last_eval_iter = ctx.train_iter

        return own

    _, policy, _ = dqn_run(tmp_path, make, mode=mode)
    best = load_checkpoint(tmp_path / "ckpt" / "best.pt")
    policy.load_state_dict({"model": best["model"]})
    assert score(policy.eval_mode) == best["eval_value"]


ONE_NUMBER = [np.array([2.5]), np.array([[2.5]]), np.float32(2.5), torch.tensor([2.5]), torch.tensor(2.5, requires_grad=True)]
NO_NUMBER = [np.array([1.0, 2.0]), np.array([]), torch.ones(2), "2.5", "abc", np.array("2.5"), (2.5,), [2.5], 1j, object()]


def run_with_evaluation(value, *middleware):
    @contract(writes=("eval_value", "eval_weights"), stage="evaluate")
    def evaluate(ctx):
        ctx.eval_value, ctx.eval_weights = value, {"weight": torch.zeros(1)}

    with Task().start(ctx=OnlineRLContext()) as loop:
        loop.use(evaluate)
        for one in middleware:
            loop.use(one)
        loop.run(1)


@pytest.mark.parametrize("value", ONE_NUMBER)
def test_an_array_or_tensor_of_one_number_is_the_value_of_an_evaluation(value, tmp_path):
    policy, cfg = torch.nn.Linear(1, 1), DQNConfig(exp_name=str(tmp_path))
    run_with_evaluation(value, online_logger(cfg), CkptSaver(policy, tmp_path))

    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert (row["evaluate/score"], load_checkpoint(tmp_path / "ckpt" / "best.pt")["eval_value"]) == (2.5, 2.5)


@pytest.mark.parametrize("value", NO_NUMBER)
@pytest.mark.parametrize("is_logged", [True, False])
def test_any_other_value_of_an_evaluation_is_refused_by_name(value, is_logged, tmp_path):
    reader = online_logger(DQNConfig(exp_name=str(tmp_path))) if is_logged else CkptSaver(torch.nn.Linear(1, 1), tmp_path)
    match = rf"ctx\.eval_value is .* of type {type(value).__name__}, expected one number, such as the mean return"
    with pytest.raises(TypeError, match=match):
        run_with_evaluation(value, reader)


def test_called_by_hand_it_ends_no_run_of_others():
    task.start().stop()
    evaluate, _ = evaluator(DQNConfig().override({"env.stop_value": 1.0}))
    evaluate(OnlineRLContext())

    assert not task.finish


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


# Videos.


class Paid(gymnasium.Env):
    """Episodes of 4 steps whose reward is the action."""

    observation_space, action_space = (
        gymnasium.spaces.Box(0, 1, (1,), np.float32),
        gymnasium.spaces.Box(0, 1e6, (1,), np.float32),
    )
    length: int | None = 4

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(action[0]), self.steps == self.length, False, {}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)


def details(folder):
    """What stands beside each video, in the order of evaluations."""
    return [json.loads(path.with_suffix(".json").read_text()) for path in sorted((folder / "videos").glob("*.mp4"))]


def filmed(folder, recorder, async_mode, max_lag, backend, act=lambda ctx: None):
    """A run of 12 iterations that learns in each, and [train_iter, value] of its evaluations."""
    cfg = config(eval_freq=2).override({"exp_name": str(folder)})
    envs = make_envs(Paid, 2, workers=2, backend=backend)
    policy = Weight(PolicyConfig(seed=0), envs.single_observation_space, envs.single_action_space)
    policy.set_weights({"weight": torch.zeros(1, 1)})
    values = []

    @contract(reads=("train_iter",), writes=("train_iter",), uses=(policy.learn_mode,), stage="learn")
    def learn(ctx):
        act(ctx)
        policy.learn_mode.forward({})
        ctx.train_iter += 1

    @contract(reads=("eval_value", "last_eval_iter"), stage="record")
    def note(ctx):
        if ctx.eval_value > -np.inf:
            values.append([ctx.last_eval_iter, ctx.eval_value])

    note.end_run = note
    task = Task()
    try:
        with task.start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()):
            task.use(interaction_evaluator(cfg, policy.eval_mode, envs, recorder)).use(learn).use(note).run(max_step=12)
    finally:
        envs.close()
    return values


@pytest.mark.few
@pytest.mark.parametrize("backend", ["local", "process"])
@pytest.mark.parametrize(("async_mode", "max_lag"), [(False, 0), (False, 1), (True, 0), (True, 1), (True, 3)])
def test_it_films_the_weights_that_it_evaluates(async_mode, max_lag, backend, tmp_path):
    values = filmed(tmp_path, VideoRecorder(tmp_path, Paid, every=1), async_mode, max_lag, backend)

    assert len(values) > 3
    assert len({value for _, value in values}) > 3
    assert [[it["train_iter"], it["return"]] for it in details(tmp_path)] == values
    assert [it["evaluation"] for it in details(tmp_path)] == list(range(len(values)))


def run_of_dqn(folder, video_every, async_mode, backend="local"):
    """Everything that a run comes to."""
    changes = {"env.stop_value": None, "env.n_evaluator_episode": 2, "policy.collect.n_sample": 32}
    learn = {"learning_starts": 32, "update_per_collect": 3, "batch_size": 16}
    cfg = DQNConfig(exp_name=str(folder), seed=3).override({**changes, "policy.learn": learn})
    cfg.policy.eval.evaluator.eval_freq, cfg.log.video_every = 6, video_every
    envs = make_envs("CartPole-v1", 4, seed=3)
    evaluated = make_envs("CartPole-v1", 2, seed=4, backend=backend, max_episode_steps=20)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer, task, values = ReplayBuffer(1000, seed=3), Task(), []

    @contract(reads=("eval_value", "last_eval_iter", "eval_weights"), stage="record")
    def note(ctx):
        values.append((ctx.eval_value, ctx.last_eval_iter, ctx.eval_weights))

    evaluate = interaction_evaluator(cfg, policy.eval_mode, evaluated)
    with task.start(async_mode=async_mode, ctx=OnlineRLContext()):
        task.use(evaluate).use(eps_greedy_handler(cfg)).use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(data_pusher(cfg, buffer)).use(OffPolicyLearner(cfg, policy.learn_mode, buffer)).use(note)
        task.run(max_step=8)
    found = policy.state_dict(), buffer.state_dict(), evaluate.state_dict(), evaluated.state_dict(), values, task.ctx.env_step
    envs.close()
    evaluated.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("async_mode", "backend"), [(False, "local"), (True, "local"), (False, "process")])
def test_a_run_with_videos_is_the_run_without_bit_for_bit(async_mode, backend, tmp_path, digest):
    with_videos = digest(*run_of_dqn(tmp_path / "with", 1, async_mode, backend))

    assert with_videos == digest(*run_of_dqn(tmp_path / "without", 0, async_mode, backend))
    assert len(details(tmp_path / "with")) > 2
    assert not (tmp_path / "without").exists()


def test_the_configuration_says_how_often_it_films(tmp_path):
    run_of_dqn(tmp_path, 2, async_mode=False)

    assert [it["evaluation"] for it in details(tmp_path)] == [0, 2, 4]
    assert details(tmp_path)[1]["env_step"] > 0


def test_evaluations_are_counted_on_after_a_restart_and_old_states_begin_at_none(tmp_path):
    cfg = config(eval_freq=1)
    states = [None, {"last_env_step": 0}]
    for state in states:
        evaluate, _ = evaluator(cfg)
        evaluate.load_state_dict(state or {"last_env_step": 0, "evaluations": 5})
        for train_iter in range(3):
            evaluate(OnlineRLContext(train_iter=train_iter, last_eval_iter=train_iter - 1))
        assert evaluate.state_dict()["evaluations"] == (3 if state else 8)


def test_a_film_that_fails_costs_a_warning_and_not_the_run(tmp_path):
    with pytest.warns(UserWarning, match="evaluation 0 has no video, the run continues without it: ZeroDivisionError"):
        values = filmed(tmp_path, VideoRecorder(tmp_path, lambda: 1 / 0, every=1), False, 0, "local")

    assert len(values) > 3
    assert details(tmp_path) == []


def test_a_run_that_breaks_does_not_wait_for_its_film_and_leaves_nothing_of_it(tmp_path):
    is_filmed = threading.Event()

    class Endless(Paid):
        length = None

        def render(self):
            is_filmed.set()
            time.sleep(0.001)
            return super().render()

    def act(ctx):
        assert is_filmed.wait(30)
        raise RuntimeError("the learner broke")

    with pytest.raises(RuntimeError, match="the learner broke"):
        filmed(tmp_path, VideoRecorder(tmp_path, Endless, every=1), True, 1, "local", act)
    assert [child.name() for child in psutil.Process().children() if "ffmpeg" in child.name()] == []
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


class Rendered(Paid):
    """An environment with masks of its actions, which is filmed if it is made for it."""

    metadata = {"render_modes": ["rgb_array"]}
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, **kwargs):
        return super().reset(**kwargs)[0], {"action_mask": np.array([0, 1, 0], np.int8)}

    def step(self, action):
        *results, _ = super().step([action])
        return *results, {"action_mask": np.array([0, 1, 0], np.int8)}


def no_mode():
    return gymnasium.make("CartPole-v1")


def any_settings(**settings):
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (Rendered, {"action_mask": True}),
        (Rendered, {"action_mask": True, "workers": 2}),
        (Rendered, {"action_mask": True, "log_info": ("nothing",), "max_episode_steps": 4}),
        ("CartPole-v1", {"wrappers": [lambda env: gymnasium.wrappers.TransformReward(env, float)], "max_episode_steps": 4}),
        (no_mode, {"max_episode_steps": 4}),
        (any_settings, {"max_episode_steps": 4}),
        (lambda: Rendered("rgb_array"), {"action_mask": True}),
    ],
)
def test_the_videos_are_of_environments_like_those_of_the_evaluation(make, settings, tmp_path):
    cfg = config(eval_freq=1)
    cfg.exp_name, cfg.log.video_every = str(tmp_path), 1
    envs = make_envs(make, 2, **settings)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    interaction_evaluator(cfg, policy.eval_mode, envs)(OnlineRLContext())

    assert [(it["length"], it["return"]) for it in details(tmp_path)] == [(4, 4.0)]


def test_the_videos_of_an_atari_game_have_its_preprocessing(tmp_path):
    pytest.importorskip("ale_py")
    cfg = config(eval_freq=1)
    cfg.exp_name, cfg.log.video_every = str(tmp_path), 1
    envs = make_envs("ALE/Pong-v5", 1, max_episode_steps=5)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    interaction_evaluator(cfg, policy.eval_mode, envs)(OnlineRLContext())

    assert [it["length"] for it in details(tmp_path)] == [5]


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.filterwarnings("ignore:the environments of interaction_evaluator have the wrapper")
def test_environments_that_tell_nothing_of_their_making_want_a_recorder(is_wrapped):
    cfg = config(eval_freq=1)
    cfg.log.video_every = 5
    envs = make_envs(lambda: Fixed(3))
    if is_wrapped:
        envs = gymnasium.wrappers.vector.NormalizeObservation(gymnasium.make_vec("CartPole-v1", vectorization_mode="sync"))
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)

    with pytest.raises(ValueError, match=r"video_every = 5 .* pass interaction_evaluator\(..., recorder=VideoRecorder\("):
        interaction_evaluator(cfg, policy.eval_mode, envs)


OBS, REWARD = gymnasium.wrappers.NormalizeObservation, gymnasium.wrappers.NormalizeReward


@pytest.mark.parametrize(
    ("wrappers", "words"),
    [
        ([OBS], ["collection and evaluation normalise differently.*policy.model.normalize_obs"]),
        ([REWARD], ["returns of episodes are sums of normalised rewards.*reward_normalizer"]),
        ([OBS, REWARD], ["normalised rewards", "normalise differently"]),
        ([gymnasium.wrappers.RecordEpisodeStatistics], []),
    ],
)
@pytest.mark.parametrize("is_vector", [False, True])
def test_wrappers_with_running_statistics_are_named(wrappers, words, is_vector, recwarn):
    cfg = config(eval_freq=1)
    if is_vector:
        envs = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
        for wrapper in wrappers:
            envs = getattr(gymnasium.wrappers.vector, wrapper.__name__)(envs)
    else:
        envs = make_envs("CartPole-v1", 2, wrappers=wrappers)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    cfg.log.video_every = 0
    recwarn.clear()
    interaction_evaluator(cfg, policy.eval_mode, envs)
    StepCollector(cfg, policy.collect_mode, envs)

    found = [str(one.message) for one in recwarn.list if "have the wrapper" in str(one.message)]
    assert len(found) == 2 * len(words)
    for text, word in zip(found, words * 2):
        assert re.search(word, text)
    assert all("stop_value" in text for text in found[: len(words)] if "rewards" in text)


@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag", "async"])
def test_a_signal_while_the_run_ends_does_not_lose_the_evaluation_of_the_final_weights(tmp_path, mode):
    envs = make_envs(Paid, 2)
    policy = Weight(PolicyConfig(seed=0), envs.single_observation_space, envs.single_action_space)

    @contract(reads=("train_iter",), writes=("train_iter",), uses=(policy.learn_mode,), stage="learn")
    def learn(ctx):
        policy.learn_mode.forward({})
        ctx.train_iter += 1

    class Interrupted:
        def __call__(self, ctx):
            pass

        def end_run(self, ctx):
            signal.raise_signal(signal.SIGTERM)

    contract(stage="evaluate")(interrupted := Interrupted())
    loop, found = Task(), []

    def run():
        with loop.start(ctx=OnlineRLContext(), **mode):
            loop.use(interrupted).use(interaction_evaluator(config(eval_freq=100), policy.eval_mode, envs)).use(learn)
            try:
                loop.run(max_step=3)
            finally:
                found.append((loop.ctx.last_eval_iter, str(loop.end_reason)))

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit):
            run()
    finally:
        signal.signal(signal.SIGTERM, before)
        envs.close()
    assert found == [(3, "SIGTERM was received")]


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_evaluation_in_progress_is_dropped_by_a_caught_error_also_in_a_resumed_run(kind):
    def run(state=None):
        envs = make_envs(Paid, 2)
        policy = Weight(PolicyConfig(seed=0), envs.single_observation_space, envs.single_action_space)
        loop, rows, states = Task(), [], []

        @contract(reads=("train_iter",), writes=("train_iter",), uses=(policy.learn_mode,), stage="learn")
        def learn(ctx):
            if ctx.total_step == 3 and not rows:
                raise kind("once")
            policy.learn_mode.forward({})
            ctx.train_iter += 1

        @contract(reads=("last_eval_value",), stage="record")
        def note(ctx):
            if ctx.total_step > 3:
                rows.append((ctx.total_step, ctx.last_eval_value))

        with loop.start(ctx=OnlineRLContext(), max_lag=1):
            loop.use(interaction_evaluator(config(eval_freq=4), policy.eval_mode, envs)).use(learn).use(note)
            if state is not None:
                loop.load_state_dict(state)
            loop.run(3, final=False)
            states.append(loop.state_dict())
            with pytest.raises(kind, match="once"):
                loop.run(3)
            loop.run(4)
        envs.close()
        return rows, states[0]

    rows, state = run()
    assert run(state)[0] == rows
    assert len(rows) == 4


def test_an_evaluation_of_a_state_is_written_at_the_end_also_by_a_task_that_has_come_further():
    envs = make_envs(Paid, 2)
    policy = Weight(PolicyConfig(seed=0), envs.single_observation_space, envs.single_action_space)
    loop = Task()

    @contract(reads=("train_iter",), writes=("train_iter",), uses=(policy.learn_mode,), stage="learn")
    def learn(ctx):
        policy.learn_mode.forward({})
        ctx.train_iter += 1

    with loop.start(ctx=OnlineRLContext(), max_lag=1):
        evaluator = interaction_evaluator(config(eval_freq=4), policy.eval_mode, envs)
        loop.use(evaluator).use(learn).run(3, final=False)
        state = loop.state_dict()
        loop.run(9, final=False)
        loop.load_state_dict(state)
        loop.run(3)
        assert evaluator.state_dict()["evaluations"] == 2  # of the first weights, and of the last ones
    envs.close()
