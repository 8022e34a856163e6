"""The older address of what policies are made of; import from `ding_lite.policy` instead."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ding_lite import policy, policy_base, policy_check, policy_parts, policy_state, run_configs
from ding_lite.envs import arrays

_RENAMED = {
    "BoundedActing": "BoxActionMixin",
    "BoundedCollectConfig": "BoxCollectConfig",
    "BoundedConfig": "BoxPolicyConfig",
    "BoundedLearnConfig": "BoxLearnConfig",
    "NoisyActing": "GaussianNoiseMixin",
    "NoisyCollectConfig": "GaussianNoiseCollectConfig",
    "PartwiseOptimizer": "ParamGroupsMixin",
    "Weights": "WeightsSnapshot",
    "pendulum": "pendulum_envs",
    "restarts": "episode_starts",
}
_ELSEWHERE: dict[str, ModuleType] = {
    "available_device": policy_base,
    "critic_regression": policy_parts,
    "like_before": policy_check,
    "map_columns": policy_check,
    "mean_stats": policy_parts,
    "optimizer_state": policy_state,
    "pendulum_envs": run_configs,
    "quantile_regression": policy_parts,
    "repeated_steps": policy_parts,
    "require_count": policy_state,
    "require_like": policy_state,
    "require_optimizer_state": policy_state,
    "require_part": policy_state,
    "require_range": policy_state,
    "state_like_before": policy_check,
    "states_in": policy_parts,
    "time_major": policy_parts,
    "to_arrays": arrays,
}

__all__ = sorted({*policy.__all__, *_RENAMED, *_ELSEWHERE})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED.get(name, name)
    return getattr(_ELSEWHERE.get(new, policy), new)
