"""Policies: one file an algorithm, on the base with its hooks and faces, whose names stand here too."""

from ding_lite.hooks import (
    ActMode,
    CollectMode,
    ColumnError,
    EntropyCoeffSchedule,
    EpsConfig,
    EvalConfig,
    EvalMode,
    EvaluatorConfig,
    HookError,
    KLCoeffMixin,
    LearnConfig,
    LearningRateSchedule,
    LearnMode,
    LossError,
    ModelConfig,
    OffPolicyConfig,
    OnPolicyConfig,
    Policy,
    PolicyConfig,
    ValueNetworkMixin,
    Weights,
    build_policy,
    compute_advantages,
)
from ding_lite.policy.a2c import A2CPolicy, A2CPolicyConfig
from ding_lite.policy.c51 import C51Policy, C51PolicyConfig
from ding_lite.policy.ddpg import DDPGPolicy, DDPGPolicyConfig
from ding_lite.policy.dqn import DQNPolicy, DQNPolicyConfig
from ding_lite.policy.impala import IMPALAPolicy, IMPALAPolicyConfig
from ding_lite.policy.iqn import IQNPolicy, IQNPolicyConfig
from ding_lite.policy.ppo import PPOPolicy, PPOPolicyConfig
from ding_lite.policy.qrdqn import QRDQNPolicy, QRDQNPolicyConfig
from ding_lite.policy.r2d2 import R2D2Policy, R2D2PolicyConfig
from ding_lite.policy.rainbow import RainbowPolicy, RainbowPolicyConfig
from ding_lite.policy.reinforce import REINFORCEPolicy, REINFORCEPolicyConfig
from ding_lite.policy.sac import SACPolicy, SACPolicyConfig
from ding_lite.policy.td3 import TD3Policy, TD3PolicyConfig

__all__ = [
    "A2CPolicy",
    "A2CPolicyConfig",
    "ActMode",
    "C51Policy",
    "C51PolicyConfig",
    "CollectMode",
    "ColumnError",
    "DDPGPolicy",
    "DDPGPolicyConfig",
    "DQNPolicy",
    "DQNPolicyConfig",
    "EntropyCoeffSchedule",
    "EpsConfig",
    "EvalConfig",
    "EvalMode",
    "EvaluatorConfig",
    "HookError",
    "IMPALAPolicy",
    "IMPALAPolicyConfig",
    "IQNPolicy",
    "IQNPolicyConfig",
    "KLCoeffMixin",
    "LearnConfig",
    "LearnMode",
    "LearningRateSchedule",
    "LossError",
    "ModelConfig",
    "OffPolicyConfig",
    "OnPolicyConfig",
    "PPOPolicy",
    "PPOPolicyConfig",
    "Policy",
    "PolicyConfig",
    "QRDQNPolicy",
    "QRDQNPolicyConfig",
    "R2D2Policy",
    "R2D2PolicyConfig",
    "REINFORCEPolicy",
    "REINFORCEPolicyConfig",
    "RainbowPolicy",
    "RainbowPolicyConfig",
    "SACPolicy",
    "SACPolicyConfig",
    "TD3Policy",
    "TD3PolicyConfig",
    "ValueNetworkMixin",
    "Weights",
    "build_policy",
    "compute_advantages",
]
