"""The configuration of a run, and the lines that report its end."""

from ding_lite.runs.end_lines import end_line, result_line
from ding_lite.runs.env_configs import EnvConfig, pendulum_envs
from ding_lite.runs.run_configs import LogConfig, OnPolicyRunConfig, PendulumRunConfig, RunConfig

__all__ = [
    "EnvConfig",
    "LogConfig",
    "OnPolicyRunConfig",
    "PendulumRunConfig",
    "RunConfig",
    "end_line",
    "pendulum_envs",
    "result_line",
]
