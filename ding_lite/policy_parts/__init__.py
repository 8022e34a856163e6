"""Building blocks of algorithms: mixins, losses, and sections of configuration.

Internal: its names may change in any version; `ding_lite.policy` has those for policies of your own.
"""

from ding_lite.policy_parts.actor_critics import ActorCriticLearning as ActorCriticLearning
from ding_lite.policy_parts.actor_critics import ActorCriticMixin, mean_stats
from ding_lite.policy_parts.advantage_weighting import AdvantageWeightedActing as AdvantageWeightedActing
from ding_lite.policy_parts.advantage_weighting import AdvantageWeightedMixin, advantage_weighted_loss, limited_share
from ding_lite.policy_parts.box_actions import FOR_RECORDED_ACTIONS as FOR_RECORDED_ACTIONS
from ding_lite.policy_parts.box_actions import (
    OFFLINE_POLICIES_FOR_DISCRETE_ACTIONS,
    BoxActionMixin,
    BoxCollectConfig,
    BoxLearnConfig,
    BoxPolicyConfig,
    GaussianNoiseCollectConfig,
    GaussianNoiseMixin,
    critic_regression,
)
from ding_lite.policy_parts.box_actions import BoxActing as BoxActing
from ding_lite.policy_parts.box_actions import BoxConfig as BoxConfig
from ding_lite.policy_parts.box_actions import GaussianNoiseActing as GaussianNoiseActing
from ding_lite.policy_parts.coefficient_schedules import (
    EntropyCoeffSchedule,
    KLCoeffMixin,
    LearningRateSchedule,
    LearningRateScheduleMixin,
    is_in_use,
)
from ding_lite.policy_parts.coefficient_schedules import ScheduledLearningRate as ScheduledLearningRate
from ding_lite.policy_parts.epsilon_greedy import FOR_RECORDED_BOX_ACTIONS as FOR_RECORDED_BOX_ACTIONS
from ding_lite.policy_parts.epsilon_greedy import OFFLINE_POLICIES_FOR_BOX_ACTIONS, EpsilonGreedy, EpsilonGreedyMixin
from ding_lite.policy_parts.epsilon_greedy import EpsilonGreedyActing as EpsilonGreedyActing
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
    EncoderHeadModelConfig,
    EpsConfig,
    EpsReplayConfig,
    OfflineModelConfig,
    OffPolicyConfig,
    OffPolicyLearnConfig,
    PriorityConfig,
    ReplayConfig,
    ValueBasedConfig,
)
from ding_lite.policy_parts.replay_configs import ExplorationConfig as ExplorationConfig
from ding_lite.policy_parts.replay_configs import HeadModelConfig as HeadModelConfig
from ding_lite.policy_parts.replay_configs import WideModelConfig as WideModelConfig
from ding_lite.policy_parts.replay_losses import bootstrap_discount, quantile_regression, row_weight, weighted_loss
from ding_lite.policy_parts.rollout_replay import RolloutReplay
from ding_lite.policy_parts.sample_batch import Postprocessing, SampleBatch
from ding_lite.policy_parts.target_network import TargetNetwork as TargetNetwork
from ding_lite.policy_parts.target_network import TargetNetworkMixin
from ding_lite.policy_parts.value_network import ValueNetworkMixin

__all__ = [
    "OFFLINE_POLICIES_FOR_BOX_ACTIONS",
    "OFFLINE_POLICIES_FOR_DISCRETE_ACTIONS",
    "ActorCriticMixin",
    "AdvantageWeightedMixin",
    "BoxActionMixin",
    "BoxCollectConfig",
    "BoxLearnConfig",
    "BoxPolicyConfig",
    "EncoderHeadModelConfig",
    "EntropyCoeffSchedule",
    "EpsConfig",
    "EpsReplayConfig",
    "EpsilonGreedy",
    "EpsilonGreedyMixin",
    "GaussianNoiseCollectConfig",
    "GaussianNoiseMixin",
    "KLCoeffMixin",
    "LearningRateSchedule",
    "LearningRateScheduleMixin",
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
    "TargetNetworkMixin",
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
