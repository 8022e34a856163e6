"""Helpers of tests that run the examples in this process."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ding_lite.config import RunConfig

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


_OTHER = {"custom_context", "dqn_async", "ppo_continuous", "ippo", "rock_paper_scissors"}  # tested elsewhere
_OTHER |= {"sac_mujoco", "td3_mujoco"}  # the pipelines of sac.py and td3.py
ASYNC_NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in _OTHER)
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
    "policy.learn.update_per_collect": 3,
    "policy.learn.learning_starts": 8,
    "policy.learn.epoch_per_collect": 2,
    "policy.random_collect_size": 32,
}
ITERATIONS = 6
CHANGING = {"policy.model.normalize_obs": True, "policy.learn.lr_schedule": [(0, 2e-3), (12, 1e-4)]}
"""Settings with a memory, or that depend on the gradient step."""


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
    override_known(cfg, {**SMALL, "exp_name": str(folder), "seed": 3, "max_step": ITERATIONS, **settings})
    cfg.log.every_s = cfg.log.show_every_s = 1e9
    return module, cfg


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
