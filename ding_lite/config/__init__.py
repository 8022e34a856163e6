"""Configurations: typed, nested, complete; from Python, a file or the command line.

Room: ding_lite.config, floor 4. Imports policy and the engine.
"""

from ding_lite.config.algorithms import DQNConfig, PPOConfig
from ding_lite.config.commands import from_command_line
from ding_lite.config.runs import EnvConfig, LogConfig, RunConfig
from ding_lite.engine import Config, ConfigError
from ding_lite.policy import DQNPolicyConfig, PPOPolicyConfig

__all__ = [
    "Config",
    "ConfigError",
    "DQNConfig",
    "DQNPolicyConfig",
    "EnvConfig",
    "LogConfig",
    "PPOConfig",
    "PPOPolicyConfig",
    "RunConfig",
    "from_command_line",
]
