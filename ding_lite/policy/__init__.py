"""Policies: one file per algorithm; and the names of `policy_base` and `policy_parts` for policies of your own."""

from typing import TYPE_CHECKING

from ding_lite.policy.a2c import A2CConfig, A2CPolicy, A2CPolicyConfig
from ding_lite.policy.awac import AWACConfig, AWACPolicy, AWACPolicyConfig
from ding_lite.policy.bc import BCConfig, BCPolicy, BCPolicyConfig
from ding_lite.policy.c51 import C51Config, C51Policy, C51PolicyConfig
from ding_lite.policy.cql import (
    CQLConfig,
    CQLPolicy,
    CQLPolicyConfig,
    DiscreteCQLConfig,
    DiscreteCQLPolicy,
    DiscreteCQLPolicyConfig,
)
from ding_lite.policy.ddpg import DDPGConfig, DDPGPolicy, DDPGPolicyConfig
from ding_lite.policy.decision_transformer import (
    DecisionTransformerConfig,
    DecisionTransformerMuJoCoConfig,
    DecisionTransformerPolicy,
    DecisionTransformerPolicyConfig,
)
from ding_lite.policy.dqn import DQNAtariConfig, DQNConfig, DQNPolicy, DQNPolicyConfig
from ding_lite.policy.exports import ExportError, GreedyActionModule, export_policy
from ding_lite.policy.exports import GreedyPolicy as GreedyPolicy
from ding_lite.policy.impala import IMPALAConfig, IMPALAPolicy, IMPALAPolicyConfig
from ding_lite.policy.iql import (
    DiscreteIQLConfig,
    DiscreteIQLPolicy,
    DiscreteIQLPolicyConfig,
    IQLConfig,
    IQLPolicy,
    IQLPolicyConfig,
)
from ding_lite.policy.iqn import IQNConfig, IQNPolicy, IQNPolicyConfig
from ding_lite.policy.ppo import (
    PPOAtariConfig,
    PPOConfig,
    PPOLSTMConfig,
    PPOMuJoCoConfig,
    PPOPolicy,
    PPOPolicyConfig,
    PPOTransformerConfig,
)
from ding_lite.policy.qrdqn import QRDQNConfig, QRDQNPolicy, QRDQNPolicyConfig
from ding_lite.policy.r2d2 import R2D2Config, R2D2Policy, R2D2PolicyConfig
from ding_lite.policy.rainbow import RainbowConfig, RainbowPolicy, RainbowPolicyConfig
from ding_lite.policy.reinforce import REINFORCEConfig, REINFORCEPolicy, REINFORCEPolicyConfig
from ding_lite.policy.sac import SACConfig, SACMuJoCoConfig, SACPolicy, SACPolicyConfig
from ding_lite.policy.saved_policies import load_policy
from ding_lite.policy.td3 import TD3Config, TD3MuJoCoConfig, TD3Policy, TD3PolicyConfig
from ding_lite.policy.td3_bc import TD3BCConfig, TD3BCPolicy, TD3BCPolicyConfig
from ding_lite.policy_base import (
    ActMode,
    ActorCriticLearnConfig,
    ActorCriticModelConfig,
    CollectConfig,
    CollectMode,
    EvalConfig,
    EvalMode,
    EvaluatorConfig,
    FixedSettingError,
    LearnConfig,
    LearnMode,
    ModelConfig,
    MultiEpochLearnConfig,
    OnPolicyCollectConfig,
    OnPolicyConfig,
    OnPolicyLearnConfig,
    Policy,
    PolicyConfig,
    PolicyGradientConfig,
    WeightsSnapshot,
    build_policy,
)
from ding_lite.policy_base import EpochsLearnConfig as EpochsLearnConfig
from ding_lite.policy_check import ColumnError, HookError, NonFiniteError, ObservationError
from ding_lite.policy_check import LossError as LossError
from ding_lite.policy_parts import ActorCriticLearning as ActorCriticLearning
from ding_lite.policy_parts import (
    ActorCriticMixin,
    AdvantageWeightedMixin,
    BoxActionMixin,
    BoxCollectConfig,
    BoxLearnConfig,
    BoxPolicyConfig,
    EncoderHeadModelConfig,
    EntropyCoeffSchedule,
    EpsConfig,
    EpsilonGreedy,
    EpsilonGreedyMixin,
    EpsReplayConfig,
    GaussianNoiseCollectConfig,
    GaussianNoiseMixin,
    KLCoeffMixin,
    LearningRateSchedule,
    LearningRateScheduleMixin,
    OfflineModelConfig,
    OffPolicyConfig,
    OffPolicyLearnConfig,
    ParamGroupsMixin,
    Postprocessing,
    PriorityConfig,
    RecurrentActorCriticMixin,
    RecurrentModelConfig,
    ReplayConfig,
    SampleBatch,
    TargetNetworkMixin,
    ValueBasedConfig,
    ValueNetworkMixin,
    advantage_weighted_loss,
    bootstrap_discount,
    compute_advantages,
    episode_starts,
    weighted_loss,
)
from ding_lite.policy_parts import AdvantageWeightedActing as AdvantageWeightedActing
from ding_lite.policy_parts import BoxActing as BoxActing
from ding_lite.policy_parts import BoxConfig as BoxConfig
from ding_lite.policy_parts import EpsilonGreedyActing as EpsilonGreedyActing
from ding_lite.policy_parts import ExplorationConfig as ExplorationConfig
from ding_lite.policy_parts import GaussianNoiseActing as GaussianNoiseActing
from ding_lite.policy_parts import GreedyActing as GreedyActing
from ding_lite.policy_parts import HeadModelConfig as HeadModelConfig
from ding_lite.policy_parts import ScheduledLearningRate as ScheduledLearningRate
from ding_lite.policy_parts import TargetNetwork as TargetNetwork
from ding_lite.policy_parts import WideModelConfig as WideModelConfig
from ding_lite.policy_state import StateDictError
from ding_lite.policy_state import StateError as StateError
from ding_lite.run_configs import EnvConfig, LogConfig, OfflineRunConfig, OnPolicyRunConfig, RunConfig

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise allow any name
    from ding_lite.policy.foreign_names import __getattr__ as __getattr__

__all__ = [
    "A2CConfig",
    "A2CPolicy",
    "A2CPolicyConfig",
    "AWACConfig",
    "AWACPolicy",
    "AWACPolicyConfig",
    "ActMode",
    "ActorCriticLearnConfig",
    "ActorCriticMixin",
    "ActorCriticModelConfig",
    "AdvantageWeightedMixin",
    "BCConfig",
    "BCPolicy",
    "BCPolicyConfig",
    "BoxActionMixin",
    "BoxCollectConfig",
    "BoxLearnConfig",
    "BoxPolicyConfig",
    "C51Config",
    "C51Policy",
    "C51PolicyConfig",
    "CQLConfig",
    "CQLPolicy",
    "CQLPolicyConfig",
    "CollectConfig",
    "CollectMode",
    "ColumnError",
    "DDPGConfig",
    "DDPGPolicy",
    "DDPGPolicyConfig",
    "DQNAtariConfig",
    "DQNConfig",
    "DQNPolicy",
    "DQNPolicyConfig",
    "DecisionTransformerConfig",
    "DecisionTransformerMuJoCoConfig",
    "DecisionTransformerPolicy",
    "DecisionTransformerPolicyConfig",
    "DiscreteCQLConfig",
    "DiscreteCQLPolicy",
    "DiscreteCQLPolicyConfig",
    "DiscreteIQLConfig",
    "DiscreteIQLPolicy",
    "DiscreteIQLPolicyConfig",
    "EncoderHeadModelConfig",
    "EntropyCoeffSchedule",
    "EnvConfig",
    "EpsConfig",
    "EpsReplayConfig",
    "EpsilonGreedy",
    "EpsilonGreedyMixin",
    "EvalConfig",
    "EvalMode",
    "EvaluatorConfig",
    "ExportError",
    "FixedSettingError",
    "GaussianNoiseCollectConfig",
    "GaussianNoiseMixin",
    "GreedyActionModule",
    "HookError",
    "IMPALAConfig",
    "IMPALAPolicy",
    "IMPALAPolicyConfig",
    "IQLConfig",
    "IQLPolicy",
    "IQLPolicyConfig",
    "IQNConfig",
    "IQNPolicy",
    "IQNPolicyConfig",
    "KLCoeffMixin",
    "LearnConfig",
    "LearnMode",
    "LearningRateSchedule",
    "LearningRateScheduleMixin",
    "LogConfig",
    "ModelConfig",
    "MultiEpochLearnConfig",
    "NonFiniteError",
    "ObservationError",
    "OffPolicyConfig",
    "OffPolicyLearnConfig",
    "OfflineModelConfig",
    "OfflineRunConfig",
    "OnPolicyCollectConfig",
    "OnPolicyConfig",
    "OnPolicyLearnConfig",
    "OnPolicyRunConfig",
    "PPOAtariConfig",
    "PPOConfig",
    "PPOLSTMConfig",
    "PPOMuJoCoConfig",
    "PPOPolicy",
    "PPOPolicyConfig",
    "PPOTransformerConfig",
    "ParamGroupsMixin",
    "Policy",
    "PolicyConfig",
    "PolicyGradientConfig",
    "Postprocessing",
    "PriorityConfig",
    "QRDQNConfig",
    "QRDQNPolicy",
    "QRDQNPolicyConfig",
    "R2D2Config",
    "R2D2Policy",
    "R2D2PolicyConfig",
    "REINFORCEConfig",
    "REINFORCEPolicy",
    "REINFORCEPolicyConfig",
    "RainbowConfig",
    "RainbowPolicy",
    "RainbowPolicyConfig",
    "RecurrentActorCriticMixin",
    "RecurrentModelConfig",
    "ReplayConfig",
    "RunConfig",
    "SACConfig",
    "SACMuJoCoConfig",
    "SACPolicy",
    "SACPolicyConfig",
    "SampleBatch",
    "StateDictError",
    "TD3BCConfig",
    "TD3BCPolicy",
    "TD3BCPolicyConfig",
    "TD3Config",
    "TD3MuJoCoConfig",
    "TD3Policy",
    "TD3PolicyConfig",
    "TargetNetworkMixin",
    "ValueBasedConfig",
    "ValueNetworkMixin",
    "WeightsSnapshot",
    "advantage_weighted_loss",
    "bootstrap_discount",
    "build_policy",
    "compute_advantages",
    "episode_starts",
    "export_policy",
    "load_policy",
    "weighted_loss",
]
