"""The presets for MuJoCo: what docs/mujoco.md says about them, and the lengths of their runs."""

import re
from pathlib import Path

import gymnasium
import pytest

from ding_lite.config import PPOMuJoCoConfig, SACMuJoCoConfig, TD3MuJoCoConfig
from ding_lite.policy import PPOPolicy, SACPolicy, TD3Policy

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs/mujoco.md").read_text(encoding="utf-8")
CONFIGS = {"SACMuJoCoConfig": SACMuJoCoConfig, "TD3MuJoCoConfig": TD3MuJoCoConfig, "PPOMuJoCoConfig": PPOMuJoCoConfig}
OBS = gymnasium.spaces.Box(-float("inf"), float("inf"), (11,))
ACTION = gymnasium.spaces.Box(-1.0, 1.0, (3,))


def rows():
    """(setting, name of the configuration, value) of each filled cell of the table."""
    head, *lines = re.findall(r"^\| (.*) \|$", PAGE[PAGE.index("| setting |") :].split("\n\n")[0], re.MULTILINE)
    names = re.findall(r"`(\w+)`", head)
    for line in lines[1:]:
        setting, *values = (cell.strip() for cell in line.split("|"))
        yield from ((setting.strip("`"), name, value) for name, value in zip(names, values, strict=True) if value)


def value_of(config, setting):
    for name in setting.split("."):
        config = getattr(config, name)
    return config


def test_the_settings_are_those_of_the_page():
    found = [(setting, name, str(value_of(CONFIGS[name](), setting))) for setting, name, _ in rows()]

    assert found == list(rows())
    assert {name for _, name, _ in found} == set(CONFIGS)


@pytest.mark.parametrize("config", CONFIGS.values())
def test_a_run_ends_at_the_threshold_of_gymnasium_and_evaluates_whole_rounds(config):
    env = config().env

    assert env.stop_value == gymnasium.spec(env.id).reward_threshold
    assert env.n_evaluator_episode == env.evaluator_env_num == 10


@pytest.mark.parametrize("config", [SACMuJoCoConfig, TD3MuJoCoConfig])
def test_replay_takes_a_gradient_step_for_each_of_a_million_environment_steps(config):
    cfg = config()
    after_random = (cfg.max_step - 1) * cfg.policy.collect.n_sample

    assert cfg.policy.random_collect_size + after_random == 1_000_000
    assert cfg.policy.learn.update_per_collect == cfg.policy.collect.n_sample == cfg.env.collector_env_num
    assert cfg.policy.learn.learning_starts == cfg.policy.random_collect_size


def test_the_learning_rate_of_ppo_reaches_0_at_the_end_of_the_run():
    cfg = PPOMuJoCoConfig()
    learn, n_sample = cfg.policy.learn, cfg.policy.collect.n_sample
    (start, rate), (end, last) = learn.lr_schedule

    assert cfg.max_step * n_sample == pytest.approx(1_000_000, rel=0.001)
    assert (start, rate, last) == (0, learn.learning_rate, 0)
    assert end == cfg.max_step * learn.epoch_per_collect * n_sample // learn.batch_size


@pytest.mark.parametrize(
    ("policy", "config"), [(SACPolicy, SACMuJoCoConfig), (TD3Policy, TD3MuJoCoConfig), (PPOPolicy, PPOMuJoCoConfig)]
)
def test_the_presets_make_their_policies(policy, config):
    made = policy(config().policy, OBS, ACTION)

    assert (made.model.normalizer is not None) == (policy is PPOPolicy)
