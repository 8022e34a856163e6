"""Configurations of runs: typed and nested, set from Python, a file or the command line."""

from typing import TYPE_CHECKING

from ding_lite.basics import Config, ConfigError
from ding_lite.config.command_line import from_command_line
from ding_lite.config.rnd import RNDConfig
from ding_lite.policy import (
    A2CConfig,
    A2CPolicyConfig,
    C51Config,
    C51PolicyConfig,
    DDPGConfig,
    DDPGPolicyConfig,
    DQNConfig,
    DQNPolicyConfig,
    IMPALAConfig,
    IMPALAPolicyConfig,
    IQNConfig,
    IQNPolicyConfig,
    PPOConfig,
    PPOLSTMConfig,
    PPOMuJoCoConfig,
    PPOPolicyConfig,
    QRDQNConfig,
    QRDQNPolicyConfig,
    R2D2Config,
    R2D2PolicyConfig,
    RainbowConfig,
    RainbowPolicyConfig,
    REINFORCEConfig,
    REINFORCEPolicyConfig,
    SACConfig,
    SACMuJoCoConfig,
    SACPolicyConfig,
    TD3Config,
    TD3MuJoCoConfig,
    TD3PolicyConfig,
)
from ding_lite.run_configs import EnvConfig, LogConfig, OnPolicyRunConfig, RunConfig

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise allow any name
    from ding_lite.config.foreign_names import __getattr__ as __getattr__

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
    "PPOMuJoCoConfig",
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
    "SACMuJoCoConfig",
    "SACPolicyConfig",
    "TD3Config",
    "TD3MuJoCoConfig",
    "TD3PolicyConfig",
    "from_command_line",
]
