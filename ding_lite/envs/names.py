"""Names of environments, their time limits, and the returns at which gymnasium considers them solved."""

from __future__ import annotations

import numbers
from typing import Any

_LIMITS = ("_max_episode_steps", "max_episode_steps", "max_cycles")
"""Attributes with a time limit, of gymnasium's wrapper, of environments, and of those of PettingZoo."""


def name_of_envs(env: Any) -> str:
    """The gymnasium id of these environments, PettingZoo's name, or the class name of one of them."""
    given = getattr(env, "env_name", None)
    return name_of_env(_one_of(env)) if given is None else str(given)


def name_of_env(env: Any) -> str:
    """The gymnasium id of this environment, PettingZoo's name, or its class name."""
    bare, spec = getattr(env, "unwrapped", env), getattr(env, "spec", None)
    if spec is not None:
        return str(spec.id)
    return str((getattr(bare, "metadata", None) or {}).get("name") or type(bare).__name__)


def made_as(env: Any) -> dict[str, Any]:
    """The name of this environment, and the steps after which its episodes are truncated, None for no limit."""
    name, limits = name_of_env(env), list[int]()
    while env is not None:  # through its wrappers
        own = getattr(env, "__dict__", {})
        limits += [int(own[key]) for key in _LIMITS if isinstance(own.get(key), numbers.Integral)]
        env = own.get("env")
    return {"name": name, "max_episode_steps": min(limits, default=None)}


def threshold_of_envs(env: Any) -> float | None:
    """The mean return at which gymnasium considers these environments solved; None if it defines none."""
    threshold = getattr(getattr(_one_of(env), "spec", None), "reward_threshold", None)
    return None if threshold is None else float(threshold)


def _one_of(env: Any) -> Any:
    """One of these environments; or the vector itself, if it has a spec or does not expose its environments."""
    if getattr(env, "spec", None) is not None:
        return env
    envs = getattr(getattr(env, "unwrapped", env), "envs", None)
    return envs[0] if envs else env
