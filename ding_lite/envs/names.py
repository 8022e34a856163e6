"""Names of environments, and the returns at which gymnasium considers them solved."""

from __future__ import annotations

from typing import Any


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
