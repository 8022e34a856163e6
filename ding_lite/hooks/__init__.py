"""Hooks: what a policy is made of, and the faces that middleware receive."""

from ding_lite.hooks.act_modes import ActMode, CollectMode, EvalMode
from ding_lite.hooks.actor_critics import ActorCriticLearning, mean_stats
from ding_lite.hooks.bounded import (
    BoundedActing,
    BoundedCollectConfig,
    BoundedConfig,
    BoundedLearnConfig,
    NoisyActing,
    NoisyCollectConfig,
    critic_regression,
)
from ding_lite.hooks.builders import build_policy
from ding_lite.hooks.checks import HookError, LossError
from ding_lite.hooks.columns import ColumnError, map_columns
from ding_lite.hooks.configs import (
    ActorCriticLearnConfig,
    ActorCriticModelConfig,
    CollectConfig,
    EpochsLearnConfig,
    EvalConfig,
    EvaluatorConfig,
    LearnConfig,
    ModelConfig,
    OnPolicyCollectConfig,
    OnPolicyConfig,
    OnPolicyLearnConfig,
    PolicyConfig,
    PolicyGradientConfig,
)
from ding_lite.hooks.conversions import to_arrays
from ding_lite.hooks.exploration import EpsilonGreedy, GreedyActing
from ding_lite.hooks.identities import StateError
from ding_lite.hooks.learn_modes import LearnMode
from ding_lite.hooks.leaves import require_count, require_like, require_range
from ding_lite.hooks.loading import require_part
from ding_lite.hooks.mixins import EntropyCoeffSchedule, KLCoeffMixin, LearningRateSchedule, ValueNetworkMixin
from ding_lite.hooks.observations import ObservationError
from ding_lite.hooks.optimizer_states import optimizer_state, require_optimizer_state
from ding_lite.hooks.optimizers import PartwiseOptimizer
from ding_lite.hooks.policies import Policy
from ding_lite.hooks.postprocessing import compute_advantages
from ding_lite.hooks.recurrence import RecurrentActorCriticMixin, repeated_steps, restarts, states_in, time_major
from ding_lite.hooks.recurrent_states import like_before, state_like_before
from ding_lite.hooks.replay_configs import (
    EpsConfig,
    ExplorationConfig,
    HeadModelConfig,
    OffPolicyConfig,
    OffPolicyLearnConfig,
    PriorityConfig,
    ReplayConfig,
    ValueBasedConfig,
)
from ding_lite.hooks.replays import bootstrap_discount, quantile_regression, weighted_loss
from ding_lite.hooks.run_configs import EnvConfig, LogConfig, OnPolicyRunConfig, RunConfig, pendulum
from ding_lite.hooks.targets import TargetNetwork
from ding_lite.hooks.weights import Weights, available_device

__all__ = [
    "ActMode",
    "ActorCriticLearnConfig",
    "ActorCriticLearning",
    "ActorCriticModelConfig",
    "BoundedActing",
    "BoundedCollectConfig",
    "BoundedConfig",
    "BoundedLearnConfig",
    "CollectConfig",
    "CollectMode",
    "ColumnError",
    "EntropyCoeffSchedule",
    "EnvConfig",
    "EpochsLearnConfig",
    "EpsConfig",
    "EpsilonGreedy",
    "EvalConfig",
    "EvalMode",
    "EvaluatorConfig",
    "ExplorationConfig",
    "GreedyActing",
    "HeadModelConfig",
    "HookError",
    "KLCoeffMixin",
    "LearnConfig",
    "LearnMode",
    "LearningRateSchedule",
    "LogConfig",
    "LossError",
    "ModelConfig",
    "NoisyActing",
    "NoisyCollectConfig",
    "ObservationError",
    "OffPolicyConfig",
    "OffPolicyLearnConfig",
    "OnPolicyCollectConfig",
    "OnPolicyConfig",
    "OnPolicyLearnConfig",
    "OnPolicyRunConfig",
    "PartwiseOptimizer",
    "Policy",
    "PolicyConfig",
    "PolicyGradientConfig",
    "PriorityConfig",
    "RecurrentActorCriticMixin",
    "ReplayConfig",
    "RunConfig",
    "StateError",
    "TargetNetwork",
    "ValueBasedConfig",
    "ValueNetworkMixin",
    "Weights",
    "available_device",
    "bootstrap_discount",
    "build_policy",
    "compute_advantages",
    "critic_regression",
    "like_before",
    "map_columns",
    "mean_stats",
    "optimizer_state",
    "pendulum",
    "quantile_regression",
    "repeated_steps",
    "require_count",
    "require_like",
    "require_optimizer_state",
    "require_part",
    "require_range",
    "restarts",
    "state_like_before",
    "states_in",
    "time_major",
    "to_arrays",
    "weighted_loss",
]
