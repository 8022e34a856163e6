"""Saved runs: their policies in new environments, and what the files of a run say of it."""

import json
import sys

import gymnasium
import numpy as np
import pytest

from ding_lite import task
from ding_lite.basics import load_checkpoint, save_checkpoint
from ding_lite.commands import main
from ding_lite.config import BCConfig, DQNConfig, PPOConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import SpaceError, make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    offline_data_fetcher,
    online_logger,
    trainer,
)
from ding_lite.policy import BCPolicy, DQNPolicy, PPOPolicy, load_policy
from ding_lite.reports import ReportError, load_run
from ding_lite.rollout import evaluate_run, play_run, record_run

MODULE = """
import gymnasium
import numpy as np


class Line(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, size=3, render_mode=None):
        self.size, self.render_mode = size, render_mode
        self.observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = int(self.np_random.integers(-1, 2)), 0
        return np.array([self.at], np.float32), {}

    def step(self, action):
        self.at += 1 if action else -1
        self.steps += 1
        return np.array([self.at], np.float32), float(self.at), abs(self.at) >= self.size, self.steps >= 9, {}

    def render(self):
        return np.full((16, 16, 3), 100 + 10 * self.at, np.uint8)


def make_line(size=3):
    return Line(size)
"""


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """A module with an environment, as beside the script of a user."""
    (tmp_path / "saved_lines.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield __import__("saved_lines")
    sys.modules.pop("saved_lines", None)


def train_dqn(folder, env, policy_class=DQNPolicy, logged=False, evaluated=True, **kwargs):
    """Train for a moment; returns the policy."""
    cfg = DQNConfig(exp_name=str(folder)).override(
        {"env.n_evaluator_episode": 4, "policy.collect.n_sample": 8, "policy.learn.learning_starts": 8}
    )
    envs, evaluator_envs = make_envs(env, 2, **kwargs), make_envs(env, 2, seed=1, **kwargs)
    policy = policy_class(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer = ReplayBuffer(2000)
    with task.start(ctx=OnlineRLContext()):
        if evaluated:
            task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_envs))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(data_pusher(cfg, buffer))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
        if logged:
            task.use(online_logger(cfg, show_every_s=1e9))
        task.use(CkptSaver(policy, cfg.exp_name))
        task.run(max_step=2)
    return policy


def returns_by_hand(policy, make, seed, episodes):
    """Greedy episodes in one environment after the other, with gymnasium alone."""
    from ding_lite.envs.episode_seeds import episode_seed

    found = []
    for number in range(episodes):
        env = make()
        obs, _ = env.reset(seed=episode_seed(seed, number, 0))
        total, over = 0.0, False
        while not over:
            action, _ = policy.predict(obs)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + reward, terminated or truncated
        found.append(total)
    return tuple(found)


def test_an_evaluation_has_the_returns_of_episodes_played_by_hand(tmp_path):
    policy = train_dqn(tmp_path / "run", "CartPole-v1")
    found = evaluate_run(tmp_path / "run", 6, "final", seed=5)

    assert found.returns == returns_by_hand(policy, lambda: gymnasium.make("CartPole-v1"), 5, 6)
    assert found.lengths == tuple(map(int, found.returns))
    assert (found.algorithm, found.env, found.train_iter) == ("DQNPolicy", "CartPole-v1", policy.train_iter)
    assert found.mean == np.mean(found.returns)
    ordered = sorted(found.returns)
    assert found.iqm == pytest.approx((0.5 * ordered[1] + ordered[2] + ordered[3] + 0.5 * ordered[4]) / 3)
    assert found.interval[0] <= found.iqm <= found.interval[1]
    assert json.loads(json.dumps(found.to_dict()))["returns"] == list(found.returns)


@pytest.mark.slow
def test_the_final_policy_of_an_offline_run_is_evaluated_and_recorded(tmp_path, capsys):
    obs, ends = np.random.default_rng(0).normal(size=(41, 4)).astype(np.float32), np.arange(40) % 10 == 9
    rows = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.arange(40) % 2, "reward": np.ones(40)}
    cfg, envs = BCConfig(exp_name=str(tmp_path / "bc")).override({"env.n_evaluator_episode": 2}), make_envs("CartPole-v1", 2)
    policy = BCPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    with task.start(ctx=OfflineRLContext()):
        task.use(interaction_evaluator(cfg, policy.eval_mode, envs))
        task.use(offline_data_fetcher(cfg, {**rows, "terminated": ends, "truncated": ends & False}, policy.learn_mode))
        task.use(trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, cfg.exp_name))
        task.run(max_step=3)
    found = evaluate_run(cfg.exp_name, episodes=2)
    assert (found.which, found.train_iter) == ("final", 3)
    assert main(["eval", cfg.exp_name, "--episodes", "2"]) == 0
    assert "BCPolicy on CartPole-v1, final after 3 gradient steps" in capsys.readouterr().out
    assert main(["eval", cfg.exp_name, "--episodes", "2", "--which", "best"]) == 0
    assert "BCPolicy on CartPole-v1, best after" in capsys.readouterr().out
    assert record_run(cfg.exp_name, tmp_path / "data", steps=5).sources[0]["which"] == "final"


def test_the_environments_are_made_with_the_settings_and_wrappers_of_the_evaluator(tmp_path):
    wrappers = [gymnasium.wrappers.FlattenObservation]
    train_dqn(tmp_path / "run", "FrozenLake-v1", wrappers=wrappers, is_slippery=False, max_episode_steps=7)
    found = evaluate_run(tmp_path / "run", 3)

    assert max(found.lengths) <= 7
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert "is_slippery" in json.dumps(record["environments"])
    assert [known["stage"] for known in record["environments"]] == ["evaluate", "collect"]


def test_an_environment_of_ones_own_is_made_from_its_module(lines, tmp_path):
    policy = train_dqn(tmp_path / "run", lines.make_line)
    assert evaluate_run(tmp_path / "run", 4, "final", seed=3).returns == returns_by_hand(policy, lines.make_line, 3, 4)


def test_a_run_without_evaluator_is_evaluated_in_the_environments_for_collection(lines, tmp_path):
    train_dqn(tmp_path / "run", lines.make_line, evaluated=False)
    assert evaluate_run(tmp_path / "run", 2, "final").env == "Line"


def test_a_dataset_in_place_of_a_run_is_named(tmp_path):
    (tmp_path / "dataset.json").write_text("{}")
    with pytest.raises(ReportError, match=r"is a dataset, not the folder of a run"):
        evaluate_run(tmp_path, 2)


def test_what_cannot_be_imported_is_named_with_the_option_that_names_it(lines, tmp_path, capsys):
    class Local(DQNPolicy):
        pass

    train_dqn(tmp_path / "run", lambda: lines.make_line(), Local)
    with pytest.raises(ReportError, match=r"Line cannot be made here, because .*<lambda>.*env=make_env.*--env module:function"):
        evaluate_run(tmp_path / "run", 2)

    assert main(["eval", str(tmp_path / "run"), "--env", "saved_lines:make_line", "--episodes", "2"]) == 2
    assert "--policy-class MODULE:NAME" in capsys.readouterr().err
    assert evaluate_run(tmp_path / "run", 2, env="saved_lines:make_line", policy_class=Local).algorithm == "Local"


@pytest.mark.few
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["eval", "nowhere"], "there is no folder nowhere"),
        (["eval"], "no folder was given"),
        (["eval", "run", "--episodes", "0"], "at least 1 episode"),
        (["play", "run", "--video", "out.mp4", "--episodes", "0"], "at least 1 episode"),
        (["play", "run", "--video", "out.mp4", "--episodes", "-3"], "at least 1 episode"),
        (["eval", "run", "--which", "iteration_7"], "iteration_7.pt"),
        (["eval", "run", "--env", "Nope-v0"], "Nope"),
        (["eval", "run", "--env", "FrozenLake-v1"], "made for the spaces"),
        (["eval", "run", "--policy-class", "saved_lines:Line"], "no class of policies at 'saved_lines:Line'"),
        (["play", "run"], "there is no display"),
        (["play", "run", "--env", "saved_lines:make_line", "--video", "o.mp4"], "has no argument render_mode"),
    ],
)
def test_a_mistake_is_one_line_on_standard_error(lines, tmp_path, capsys, monkeypatch, argv, words):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    if len(argv) > 1 and argv[1] == "run":
        train_dqn(tmp_path / "run", lines.Line)
        capsys.readouterr()
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_the_command_prints_the_numbers_and_writes_them(lines, tmp_path, capsys):
    train_dqn(tmp_path / "run", lines.Line)
    capsys.readouterr()
    assert main(["eval", "run", "run", "--episodes", "5", "--seed", "3", "--out", "deep/out.json"]) == 0
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / "deep/out.json").read_text())

    assert len(rows) == 2
    assert rows[0]["returns"] == list(evaluate_run("run", 5, seed=3).returns)
    assert printed.count(f"mean {rows[0]['mean']:.6g}, ") == 2
    assert "5 episodes, seed 3" in printed
    assert "interquartile mean" in printed


def test_each_episode_is_filmed(lines, tmp_path):
    train_dqn(tmp_path / "run", lines.Line)
    shown = list(play_run(tmp_path / "run", video=tmp_path / "deep/film.mp4", episodes=2, seed=4))

    assert [path.name for _, path in shown] == ["film_1.mp4", "film_2.mp4"]
    assert all(path.read_bytes()[4:8] == b"ftyp" for _, path in shown)
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["film_1.mp4", "film_2.mp4"]


@pytest.mark.parametrize("settings", [{}, {"size": 2}])
def test_the_environment_of_a_video_has_its_settings(lines, tmp_path, settings):
    train_dqn(tmp_path / "run", lines.Line, env_config=settings)
    ((episode, _),) = play_run(tmp_path / "run", video=tmp_path / "film.mp4")
    assert episode.length <= 9
    assert json.loads((tmp_path / "run/run.json").read_text())["environments"][0]["recipe"] is not None


@pytest.mark.slow
def test_statistics_of_a_wrapper_are_warned_of(tmp_path):
    train_dqn(tmp_path / "run", "CartPole-v1", wrappers=[gymnasium.wrappers.NormalizeObservation])
    with pytest.warns(UserWarning, match="NormalizeObservation has a state that it built up in training"):
        evaluate_run(tmp_path / "run", 1)


def test_the_configuration_says_what_made_the_run_and_is_read_without_it(tmp_path):
    cfg = PPOConfig(exp_name=str(tmp_path / "run")).override({"policy.collect.n_sample": 8})
    envs = make_envs("CartPole-v1", 2)
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    with task.start(ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.use(online_logger(cfg, show_every_s=1e9))
        task.run(max_step=1)
    text = (tmp_path / "run/config.json").read_text()
    facts = json.loads(text, parse_constant=lambda word: pytest.fail(f"JSON has no {word}"))["run"]
    record = json.loads((tmp_path / "run/run.json").read_text())

    assert "Infinity" in facts["policies"][0]["observation_space"]["high"]
    assert facts["algorithm"] == "PPOPolicy"
    assert facts["id"] == record["id"]
    assert facts["policies"][0]["class"] == "ding_lite.policy.ppo:PPOPolicy"
    assert facts["policies"][0]["action_space"] == {"kind": "Discrete", "n": 2, "start": 0, "dtype": "int64"}
    assert [known["name"] for known in facts["environments"]] == ["CartPole-v1"]
    assert {"python", "ding_lite", "torch", "gymnasium", "numpy"} <= facts["versions"].keys()
    assert "python" in facts["command"]
    assert PPOConfig.from_dict(json.loads(text)) == cfg
    assert "run" not in load_run(tmp_path / "run").config


def test_exploring_wants_the_probability_of_random_actions(lines, tmp_path, capsys):
    train_dqn(tmp_path / "run", lines.Line)
    capsys.readouterr()
    assert main(["eval", "run", "--explore", "--episodes", "4"]) == 2
    assert "pass it, such as eps=0.05, on the command line --eps 0.05." in capsys.readouterr().err
    assert main(["eval", "run", "--explore", "--eps", "1.0", "--episodes", "4"]) == 0

    greedy, wild = evaluate_run("run", 8), evaluate_run("run", 8, deterministic=False, eps=1.0)
    assert greedy.returns != wild.returns
    assert evaluate_run("run", 8, deterministic=False, settings={"eps": 1.0}).returns == wild.returns
    assert main(["eval", "run", "--settings", "eps=1.0", "--episodes", "4"]) == 2
    assert "DQNPolicy explores by eps, which has no effect on greedy actions: leave it out" in capsys.readouterr().err


@pytest.mark.few
@pytest.mark.parametrize(
    "damage",
    [
        {"environments": None},
        {"environments": [1]},
        {"environments": [{}]},
        {"search_path": 5},
        {"environments": [{"stage": "evaluate", "name": "E", "recipe": None}]},
        {"environments": [{"stage": "evaluate", "name": "E", "recipe": None, "agents": ["a"]}]},
    ],
)
def test_a_damaged_record_is_named(lines, tmp_path, damage):
    train_dqn(tmp_path / "run", lines.Line)
    path = tmp_path / "run/run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    with pytest.raises(ReportError, match=r"run\.json is damaged|cannot be made here"):
        evaluate_run(tmp_path / "run", 1)


class SmallIntegers(gymnasium.Env):
    """Observations and actions are integers of a dtype other than int64."""

    observation_space = gymnasium.spaces.MultiDiscrete([4, 4], dtype=np.int32)
    action_space = gymnasium.spaces.MultiDiscrete([3, 2], dtype=np.int32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.integers(0, 4, 2, dtype=np.int32), {}

    def step(self, action):
        assert action.dtype == np.int32
        self.steps += 1
        return self.np_random.integers(0, 4, 2, dtype=np.int32), float(action[0]), False, self.steps >= 5, {}


def without_dtypes(state):
    """The state as an earlier version has saved it."""
    if not isinstance(state, dict):
        return state
    is_integer = state.get("kind") in ("Discrete", "MultiDiscrete")
    return {name: without_dtypes(value) for name, value in state.items() if not (is_integer and name == "dtype")}


@pytest.mark.parametrize("is_old", [False, True])
def test_a_policy_of_integers_of_another_dtype_acts_in_its_environment(tmp_path, is_old):
    envs = make_envs(SmallIntegers, 1)
    policy = PPOPolicy(PPOConfig().policy, envs.single_observation_space, envs.single_action_space)
    state = policy.state_dict()
    save_checkpoint(without_dtypes(state) if is_old else state, tmp_path / "ckpt" / "best.pt")

    action, _ = load_policy(tmp_path).predict(envs.single_observation_space.sample())
    assert action.dtype == (np.int64 if is_old else np.int32)
    assert evaluate_run(tmp_path, 3, env=SmallIntegers).lengths == (5, 5, 5)
    dataset = record_run(tmp_path, tmp_path / "data", 20, env=SmallIntegers)
    assert dataset.action_space == envs.single_action_space
    for space in (envs.single_action_space, load_policy(tmp_path).action_space):
        learner = BCPolicy(BCConfig().policy, envs.single_observation_space, space).learn_mode
        offline_data_fetcher(BCConfig(), dataset, learner)
    load_policy(tmp_path).load_state_dict(state)
    policy.load_state_dict(load_checkpoint(tmp_path / "ckpt" / "best.pt"))


def test_a_policy_of_another_integer_dtype_is_refused_and_the_dtypes_are_named(tmp_path):
    space = gymnasium.spaces.MultiDiscrete([3, 2])
    policy = PPOPolicy(PPOConfig().policy, SmallIntegers.observation_space, space)
    save_checkpoint(policy.state_dict(), tmp_path / "ckpt" / "best.pt")

    with pytest.raises(SpaceError, match=r"MultiDiscrete\(\[3 2\]\), but the dtype is int64 in the first and int32 in the sec"):
        evaluate_run(tmp_path, 1, env=SmallIntegers)
