"""Helpers of tests that run the examples in this process."""

import functools
import importlib.util
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest

from ding_lite.config import RunConfig
from ding_lite.datasets import DatasetWriter
from ding_lite.envs import LocalVectorEnv
from ding_lite.policy import BCPolicy
from ding_lite.rollout import LocalWorker

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


_OTHER = {
    "custom_context",
    "dqn_async",
    "ppo_continuous",
    "ippo",
    "rock_paper_scissors",
    "dqn_atari",
    "ppo_atari",
    "sac_mujoco",  # the pipeline of sac.py
    "td3_mujoco",  # the pipeline of td3.py
    *("cql_continuous", "td3_bc", "iql", "awac"),  # the pipeline of cql.py
    "her_fetch",  # the learner of her.py
    "pbt",  # tests/distributed
}  # tested elsewhere
OFFLINE = frozenset({"bc", "cql", "cql_continuous", "td3_bc", "iql", "awac", "decision_transformer"})
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in _OTHER)
ASYNC_NAMES = [name for name in NAMES if name not in {"c51", "qrdqn", "ddpg", "a2c"}]
"""Those with middleware, or a state of the policy, that no other has."""
ALIKE = {
    *("c51", "qrdqn", "iqn", "dqn_async", "dqn_atari", "curriculum"),  # the middleware of dqn.py
    *("ddpg", "td3", "sac_mujoco", "td3_mujoco", "her_fetch"),  # those of sac.py or her.py
    *("a2c", "ppo_continuous", "ppo_lstm", "ppo_transformer", "ppo_atari"),  # those of ppo.py or ppo_mujoco.py
}
SMALL = {
    "env.collector_env_num": 4,
    "env.evaluator_env_num": 2,
    "env.n_evaluator_episode": 2,
    "env.max_episode_steps": 60,
    "env.stop_value": None,
    "policy.eval.evaluator.eval_freq": 5,
    "policy.collect.n_sample": 64,
    "policy.collect.n_episode": 4,
    "policy.learn.batch_size": 8,
    "policy.context_length": 4,
    "policy.model.size": 8,
    "policy.learn.update_per_collect": 3,
    "policy.learn.learning_starts": 8,
    "policy.learn.epoch_per_collect": 2,
    "policy.random_collect_size": 32,
}
ATARI = {
    "env.id": "ALE/Breakout-v5",  # which has lives
    "env.use_fire_reset": True,
    "env.collector_env_num": 2,
    "env.evaluator_env_num": 1,
    "env.max_episode_steps": 30,
    "policy.model.encoder_hidden_size_list": [16],
    "policy.model.conv_layers": [(4, 8, 8)],
    "policy.collect.n_sample": 16,
    "policy.other.replay_buffer_size": 100,
}
ITERATIONS = 6
CHANGING = {"policy.model.normalize_obs": True, "policy.learn.lr_schedule": [(0, 2e-3), (12, 1e-4)]}
"""Settings with a memory, or that depend on the gradient step."""
REPLAYING = {"policy.model.lstm_size": 6, "policy.learn.replay_proportion": 1.5, "policy.learn.replay_slots": 2}
"""IMPALA with a recurrent state and kept rollouts."""


def load_example(name: str) -> ModuleType:
    """The module of an example, fresh."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def config_of(module: ModuleType) -> RunConfig:
    """The configuration that an example starts from."""
    return getattr(module, "CONFIG", None) or module.main.__annotations__["cfg"]()


def override_known(cfg: RunConfig, values: Mapping[str, Any]) -> None:
    """Override those settings that this configuration has; not every algorithm has all of them."""

    def has(key: str) -> bool:
        section: Any = cfg
        for name in key.split("."):
            if not hasattr(section, name):
                return False
            section = getattr(section, name)
        return True

    cfg.override({key: value for key, value in values.items() if has(key)})


def small(name, folder, **settings):
    """The example's own configuration, with fewer environments, steps and iterations."""
    if name.endswith("_mujoco"):
        pytest.importorskip("mujoco")
    module = load_example(name)
    cfg = config_of(module)
    atari = ATARI if name.endswith("_atari") else {}
    override_known(cfg, {**SMALL, **atari, "exp_name": str(folder), "seed": 3, "max_step": ITERATIONS, **settings})
    cfg.log.every_s = cfg.log.show_every_s = 1e9
    if hasattr(cfg, "dataset"):
        cfg.dataset = dataset_of(cfg.env.id).name
    return module, cfg


@functools.cache
def dataset_of(env_id: str) -> Any:
    """The folder of a dataset of some episodes with random actions; it is removed when the process ends."""
    folder = tempfile.TemporaryDirectory()
    envs = LocalVectorEnv([functools.partial(gymnasium.make, env_id, max_episode_steps=30)] * 4, 0)
    policy = BCPolicy(None, envs.single_observation_space, envs.single_action_space)
    writer = DatasetWriter(folder.name)
    writer.begin(envs.single_observation_space, envs.single_action_space, {})
    writer.add(LocalWorker(envs, policy.collect_mode).collect(60, True).trajectories)
    writer.flush()
    writer.close()
    return folder


def spied(module):
    """A list of the environments, policies and buffers that the example makes from here on."""
    made = []

    def spy(make):
        def making(*args, **kwargs):
            made.append(make(*args, **kwargs))
            return made[-1]

        return making

    for name in ("make_envs", *(name for name in vars(module) if name.endswith(("Policy", "Buffer")))):
        setattr(module, name, spy(getattr(module, name)))
    return made
