"""What algorithms are put together from: mixins, losses, and sections of configuration."""

from ding_lite.policy_parts.actor_critics import ActorCriticLearning, mean_stats
from ding_lite.policy_parts.box_actions import (
    BoundedActing,
    BoundedCollectConfig,
    BoundedConfig,
    BoundedLearnConfig,
    NoisyActing,
    NoisyCollectConfig,
    critic_regression,
)
from ding_lite.policy_parts.coefficients import EntropyCoeffSchedule, KLCoeffMixin, LearningRateSchedule
from ding_lite.policy_parts.epsilon_greedy import EpsilonGreedy, GreedyActing
from ding_lite.policy_parts.param_groups import PartwiseOptimizer
from ding_lite.policy_parts.postprocessing import compute_advantages
from ding_lite.policy_parts.recurrence import RecurrentActorCriticMixin, repeated_steps, restarts, states_in, time_major
from ding_lite.policy_parts.replay_configs import (
    EpsConfig,
    ExplorationConfig,
    HeadModelConfig,
    OffPolicyConfig,
    OffPolicyLearnConfig,
    PriorityConfig,
    ReplayConfig,
    ValueBasedConfig,
)
from ding_lite.policy_parts.replay_losses import bootstrap_discount, quantile_regression, weighted_loss
from ding_lite.policy_parts.run_configs import EnvConfig, LogConfig, OnPolicyRunConfig, RunConfig, pendulum
from ding_lite.policy_parts.target_network import TargetNetwork
from ding_lite.policy_parts.value_network import ValueNetworkMixin

__all__ = [
    "ActorCriticLearning",
    "BoundedActing",
    "BoundedCollectConfig",
    "BoundedConfig",
    "BoundedLearnConfig",
    "EntropyCoeffSchedule",
    "EnvConfig",
    "EpsConfig",
    "EpsilonGreedy",
    "ExplorationConfig",
    "GreedyActing",
    "HeadModelConfig",
    "KLCoeffMixin",
    "LearningRateSchedule",
    "LogConfig",
    "NoisyActing",
    "NoisyCollectConfig",
    "OffPolicyConfig",
    "OffPolicyLearnConfig",
    "OnPolicyRunConfig",
    "PartwiseOptimizer",
    "PriorityConfig",
    "RecurrentActorCriticMixin",
    "ReplayConfig",
    "RunConfig",
    "TargetNetwork",
    "ValueBasedConfig",
    "ValueNetworkMixin",
    "bootstrap_discount",
    "compute_advantages",
    "critic_regression",
    "mean_stats",
    "pendulum",
    "quantile_regression",
    "repeated_steps",
    "restarts",
    "states_in",
    "time_major",
    "weighted_loss",
]
