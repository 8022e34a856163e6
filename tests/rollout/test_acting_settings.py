"""Settings to act with, on the command line and in Python: the return that a saved Decision Transformer is asked for."""

import json
import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from ding_lite.commands import main
from ding_lite.config import DecisionTransformerConfig
from ding_lite.contexts import OfflineRLContext
from ding_lite.datasets import OfflineDataset, open_dataset
from ding_lite.engine import Task
from ding_lite.envs import make_envs
from ding_lite.envs.episode_seeds import episode_seed
from ding_lite.middleware import CkptSaver, interaction_evaluator, offline_data_fetcher, trainer
from ding_lite.policy import DecisionTransformerPolicy, load_policy
from ding_lite.rollout import evaluate_run, play_run, record_run

SMALL = {"context_length": 3, "target_return": 5.0, "return_scale": 1.0, "model": {"size": 8, "layers": 1}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run whose policy has learned to fall to one side for a return of 0, and to the other for one of 10."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    action = np.arange(64) % 2
    ends = np.ones(64, bool)
    obs = np.zeros((64, 4), np.float32)
    rows = {"obs": obs, "next_obs": obs, "action": action, "reward": 10 * action.astype(np.float32)}
    dataset = open_dataset({**rows, "terminated": ends, "truncated": ~ends})
    cfg = DecisionTransformerConfig(exp_name=str(folder)).override({"policy": SMALL, "policy.learn.learning_rate": 0.02})
    cfg.override({"policy.eval.evaluator.eval_freq": 1000, "env.n_evaluator_episode": 2, "env.evaluator_env_num": 2})
    envs, task = make_envs("CartPole-v1", 2, seed=1), Task()
    policy = DecisionTransformerPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    with task.start(ctx=OfflineRLContext()):
        task.use(interaction_evaluator(cfg, policy.eval_mode, envs))
        task.use(offline_data_fetcher(cfg, dataset, policy.learn_mode)).use(trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, cfg.exp_name)).run(60)
    return folder


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy of that folder, which is the current one."""
    shutil.copytree(trained, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return "run"


def returns_by_hand(policy, target, seed, episodes):
    """Greedy episodes by gymnasium alone, asking for this return."""
    found = []
    for number in range(episodes):
        env = gymnasium.make("CartPole-v1")
        obs, _ = env.reset(seed=episode_seed(seed, number, 0))
        state, rewards, over = None, [], False
        while not over:
            action, state = policy.predict(obs, state, target_return=target, prev_reward_batch=[sum(rewards[-1:])])
            obs, reward, terminated, truncated, _ = env.step(action)
            rewards.append(float(reward))
            over = terminated or truncated
        found.append(sum(rewards))
    return tuple(found)


@pytest.mark.slow
def test_a_saved_policy_is_asked_for_another_return(run, capsys):
    policy = load_policy(run, "final")
    found = {}
    for target in (0, 10):
        found[target] = evaluate_run(run, 4, "final", seed=3, settings={"target_return": target})
        assert found[target].returns == returns_by_hand(policy, target, 3, 4)
    assert found[0].returns != found[10].returns
    assert evaluate_run(run, 4, "final", seed=3).returns == returns_by_hand(policy, 5.0, 3, 4)

    command = ["eval", run, "--which", "final", "--episodes", "4", "--seed", "3", "--out", "out.json"]
    assert main([*command, "--settings", "target_return=10"]) == 0
    assert "gradient steps, target_return=10" in capsys.readouterr().out
    (row,) = json.loads(Path("out.json").read_text())
    assert row["returns"] == list(found[10].returns)
    assert row["settings"] == {"target_return": 10}

    for target in (0, 10):
        ((episode, _),) = play_run(run, "final", video="a.mp4", seed=3, settings={"target_return": target})
        assert episode.return_ == found[target].returns[0]
    assert main(["play", run, "--which", "final", "--seed", "3", "--video", "a.mp4", "--settings", "target_return=10"]) == 0
    assert f"return {found[10].returns[0]:g} in" in capsys.readouterr().out


@pytest.mark.slow
def test_episodes_that_ask_for_a_return_are_recorded(run):
    record_run(run, "greedy", 40, "final", seed=3, deterministic=True, settings={"target_return": 10})
    dataset = OfflineDataset("greedy")
    assert dataset.rows()["action"][0] == 1
    assert dataset.sources[0]["settings"] == {"target_return": 10}
    command = ["collect", run, "--which", "final", "--seed", "3", "--greedy", "--append", "--out", "greedy", "--steps", "9"]
    assert main(command) == 0
    assert main([*command, "--settings", "target_return=10"]) == 2  # these episodes are there already


@pytest.mark.few
@pytest.mark.parametrize(
    ("commands", "words", "message"),
    [
        (
            ["eval", "play", "collect"],
            ["target_retrun=3"],
            "the setting 'target_retrun': did you mean 'target_return'?",
        ),
        (["play"], ["target_return=high"], "target_return = 'high': expected the return to ask for, a finite number."),
        (["collect"], ["target_return"], "'target_return' has no name or no value: write NAME=VALUE ..."),
        (["eval"], ["eps=0.1"], "DecisionTransformerPolicy does not use the setting 'eps'"),
    ],
)
def test_a_setting_that_the_policy_does_not_use_is_refused(run, commands, words, message, capsys):
    more = {"eval": [], "play": ["--video", "a.mp4"], "collect": ["--out", "data"]}
    for command in commands:
        capsys.readouterr()
        assert main([command, run, *more[command], "--which", "final", "--settings", *words]) == 2
        assert message in capsys.readouterr().err


def test_a_return_that_is_no_number_is_refused():
    policy = DecisionTransformerPolicy(SMALL, gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2))
    for wrong in (float("nan"), float("inf"), "5", torch.zeros(2)):
        with pytest.raises(ValueError, match="expected the return to ask for, a finite number"):
            policy.predict(np.zeros(2, np.float32), target_return=wrong)
