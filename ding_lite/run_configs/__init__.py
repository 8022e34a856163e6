"""The configuration of a run, with sections for environments, logging and the policy.

Internal: its names may change in any version; `ding_lite.config` has those for users.
"""

from ding_lite.run_configs.env_configs import AtariEnvConfig, EnvConfig, OfflineEnvConfig, mujoco_envs, pendulum_envs
from ding_lite.run_configs.run_configs import (
    LogConfig,
    OfflinePendulumRunConfig,
    OfflineRunConfig,
    OnPolicyRunConfig,
    PendulumRunConfig,
    RunConfig,
)

__all__ = [
    "AtariEnvConfig",
    "EnvConfig",
    "LogConfig",
    "OfflineEnvConfig",
    "OfflinePendulumRunConfig",
    "OfflineRunConfig",
    "OnPolicyRunConfig",
    "PendulumRunConfig",
    "RunConfig",
    "mujoco_envs",
    "pendulum_envs",
]
