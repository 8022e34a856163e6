"""Building blocks of algorithms: mixins, losses, and sections of configuration.

Internal: its names may change in any version; `ding_lite.policy` has those for policies of your own.
"""

from ding_lite.policy_parts.actor_critics import ActorCriticLearning, mean_stats
from ding_lite.policy_parts.advantage_weighting import AdvantageWeightedActing, advantage_weighted_loss, limited_share
from ding_lite.policy_parts.box_actions import (
    FOR_RECORDED_ACTIONS,
    BoxActing,
    BoxCollectConfig,
    BoxLearnConfig,
    BoxPolicyConfig,
    GaussianNoiseActing,
    GaussianNoiseCollectConfig,
    critic_regression,
)
from ding_lite.policy_parts.box_actions import BoxConfig as BoxConfig
from ding_lite.policy_parts.coefficient_schedules import (
    EntropyCoeffSchedule,
    KLCoeffMixin,
    LearningRateSchedule,
    ScheduledLearningRate,
    is_in_use,
)
from ding_lite.policy_parts.epsilon_greedy import FOR_RECORDED_BOX_ACTIONS, EpsilonGreedy, EpsilonGreedyActing
from ding_lite.policy_parts.epsilon_greedy import GreedyActing as GreedyActing
from ding_lite.policy_parts.param_groups import ParamGroupsMixin
from ding_lite.policy_parts.postprocessing import compute_advantages
from ding_lite.policy_parts.recurrence import (
    RecurrentActorCriticMixin,
    RecurrentModelConfig,
    episode_starts,
    repeated_steps,
    states_in,
    time_major,
)
from ding_lite.policy_parts.replay_configs import (
    EpsConfig,
    ExplorationConfig,
    HeadModelConfig,
    OfflineModelConfig,
    OffPolicyConfig,
    OffPolicyLearnConfig,
    PriorityConfig,
    ReplayConfig,
    ValueBasedConfig,
)
from ding_lite.policy_parts.replay_configs import WideModelConfig as WideModelConfig
from ding_lite.policy_parts.replay_losses import bootstrap_discount, quantile_regression, row_weight, weighted_loss
from ding_lite.policy_parts.rollout_replay import RolloutReplay
from ding_lite.policy_parts.sample_batch import Postprocessing, SampleBatch
from ding_lite.policy_parts.target_network import TargetNetwork
from ding_lite.policy_parts.value_network import ValueNetworkMixin

__all__ = [
    "FOR_RECORDED_ACTIONS",
    "FOR_RECORDED_BOX_ACTIONS",
    "ActorCriticLearning",
    "AdvantageWeightedActing",
    "BoxActing",
    "BoxCollectConfig",
    "BoxLearnConfig",
    "BoxPolicyConfig",
    "EntropyCoeffSchedule",
    "EpsConfig",
    "EpsilonGreedy",
    "EpsilonGreedyActing",
    "ExplorationConfig",
    "GaussianNoiseActing",
    "GaussianNoiseCollectConfig",
    "HeadModelConfig",
    "KLCoeffMixin",
    "LearningRateSchedule",
    "OffPolicyConfig",
    "OffPolicyLearnConfig",
    "OfflineModelConfig",
    "ParamGroupsMixin",
    "Postprocessing",
    "PriorityConfig",
    "RecurrentActorCriticMixin",
    "RecurrentModelConfig",
    "ReplayConfig",
    "RolloutReplay",
    "SampleBatch",
    "ScheduledLearningRate",
    "TargetNetwork",
    "ValueBasedConfig",
    "ValueNetworkMixin",
    "advantage_weighted_loss",
    "bootstrap_discount",
    "compute_advantages",
    "critic_regression",
    "episode_starts",
    "is_in_use",
    "limited_share",
    "mean_stats",
    "quantile_regression",
    "repeated_steps",
    "row_weight",
    "states_in",
    "time_major",
    "weighted_loss",
]
