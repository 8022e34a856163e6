"""Configurations of runs: typed and nested, set from Python, a file or the command line."""

from typing import TYPE_CHECKING

from ding_lite.basics import Config, ConfigError
from ding_lite.config.command_line import from_command_line
from ding_lite.config.gail import GAILConfig
from ding_lite.config.icm import ICMConfig
from ding_lite.config.rnd import RNDConfig
from ding_lite.config.sqil import SQILConfig
from ding_lite.policy import (
    A2CConfig,
    A2CPolicyConfig,
    C51Config,
    C51PolicyConfig,
    DDPGConfig,
    DDPGPolicyConfig,
    DQNAtariConfig,
    DQNConfig,
    DQNPolicyConfig,
    IMPALAConfig,
    IMPALAPolicyConfig,
    IQNConfig,
    IQNPolicyConfig,
    PPOAtariConfig,
    PPOConfig,
    PPOLSTMConfig,
    PPOMuJoCoConfig,
    PPOPolicyConfig,
    PPOTransformerConfig,
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
from ding_lite.run_configs import AtariEnvConfig, EnvConfig, LogConfig, OfflineRunConfig, OnPolicyRunConfig, RunConfig

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise allow any name
    from ding_lite.config.foreign_names import __getattr__ as __getattr__

__all__ = [
    "A2CConfig",
    "A2CPolicyConfig",
    "AtariEnvConfig",
    "C51Config",
    "C51PolicyConfig",
    "Config",
    "ConfigError",
    "DDPGConfig",
    "DDPGPolicyConfig",
    "DQNAtariConfig",
    "DQNConfig",
    "DQNPolicyConfig",
    "EnvConfig",
    "GAILConfig",
    "ICMConfig",
    "IMPALAConfig",
    "IMPALAPolicyConfig",
    "IQNConfig",
    "IQNPolicyConfig",
    "LogConfig",
    "OfflineRunConfig",
    "OnPolicyRunConfig",
    "PPOAtariConfig",
    "PPOConfig",
    "PPOLSTMConfig",
    "PPOMuJoCoConfig",
    "PPOPolicyConfig",
    "PPOTransformerConfig",
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
    "SQILConfig",
    "TD3Config",
    "TD3MuJoCoConfig",
    "TD3PolicyConfig",
    "from_command_line",
]
