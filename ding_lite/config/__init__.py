"""Configurations: typed, nested, complete; from Python, a file or the command line.

Room: ding_lite.config, floor 4. Imports policy and the engine.
"""

from ding_lite.config.algorithms import (
    A2CConfig,
    C51Config,
    DDPGConfig,
    DQNConfig,
    IMPALAConfig,
    IQNConfig,
    PPOConfig,
    PPOLSTMConfig,
    QRDQNConfig,
    R2D2Config,
    RainbowConfig,
    REINFORCEConfig,
    RNDConfig,
    SACConfig,
    TD3Config,
)
from ding_lite.config.commands import from_command_line
from ding_lite.config.runs import EnvConfig, LogConfig, OnPolicyRunConfig, RunConfig
from ding_lite.engine import Config, ConfigError
from ding_lite.policy import (
    A2CPolicyConfig,
    C51PolicyConfig,
    DDPGPolicyConfig,
    DQNPolicyConfig,
    IMPALAPolicyConfig,
    IQNPolicyConfig,
    PPOPolicyConfig,
    QRDQNPolicyConfig,
    R2D2PolicyConfig,
    RainbowPolicyConfig,
    REINFORCEPolicyConfig,
    SACPolicyConfig,
    TD3PolicyConfig,
)

__all__ = [
    "A2CConfig",
    "A2CPolicyConfig",
    "C51Config",
    "C51PolicyConfig",
    "Config",
    "ConfigError",
    "DDPGConfig",
    "DDPGPolicyConfig",
    "DQNConfig",
    "DQNPolicyConfig",
    "EnvConfig",
    "IMPALAConfig",
    "IMPALAPolicyConfig",
    "IQNConfig",
    "IQNPolicyConfig",
    "LogConfig",
    "OnPolicyRunConfig",
    "PPOConfig",
    "PPOLSTMConfig",
    "PPOPolicyConfig",
    "QRDQNConfig",
    "QRDQNPolicyConfig",
    "R2D2Config",
    "R2D2PolicyConfig",
    "REINFORCEConfig",
    "REINFORCEPolicyConfig",
    "RNDConfig",
    "RainbowConfig",
    "RainbowPolicyConfig",
    "RunConfig",
    "SACConfig",
    "SACPolicyConfig",
    "TD3Config",
    "TD3PolicyConfig",
    "from_command_line",
]
