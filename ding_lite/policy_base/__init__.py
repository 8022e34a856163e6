"""Base of all policies: hooks, configuration, weights, state, and the modes that middleware receive.

Internal: its names may change in any version; `ding_lite.policy` has those for policies of your own.
"""

from ding_lite.policy_base.act_modes import ActMode, CollectMode, EvalMode
from ding_lite.policy_base.builders import build_policy
from ding_lite.policy_base.config_sections import (
    ActorCriticLearnConfig,
    ActorCriticModelConfig,
    CollectConfig,
    EvalConfig,
    EvaluatorConfig,
    LearnConfig,
    ModelConfig,
    MultiEpochLearnConfig,
    OnPolicyCollectConfig,
    OnPolicyConfig,
    OnPolicyLearnConfig,
    PolicyConfig,
    PolicyGradientConfig,
    live_from_next_step,
)
from ding_lite.policy_base.config_sections import EpochsLearnConfig as EpochsLearnConfig
from ding_lite.policy_base.config_sections import next_step as next_step
from ding_lite.policy_base.device_names import available_device
from ding_lite.policy_base.hooks import set_up_by_hooks
from ding_lite.policy_base.learn_modes import LearnMode
from ding_lite.policy_base.live_settings import FixedSettingError, live_changes, settings_of, values_of
from ding_lite.policy_base.nonfinite_steps import SKIPPED_FRACTION
from ding_lite.policy_base.optimizers import clip_gradients, configured_optimizer
from ding_lite.policy_base.policy import Policy
from ding_lite.policy_base.weights import WeightsSnapshot

__all__ = [
    "SKIPPED_FRACTION",
    "ActMode",
    "ActorCriticLearnConfig",
    "ActorCriticModelConfig",
    "CollectConfig",
    "CollectMode",
    "EvalConfig",
    "EvalMode",
    "EvaluatorConfig",
    "FixedSettingError",
    "LearnConfig",
    "LearnMode",
    "ModelConfig",
    "MultiEpochLearnConfig",
    "OnPolicyCollectConfig",
    "OnPolicyConfig",
    "OnPolicyLearnConfig",
    "Policy",
    "PolicyConfig",
    "PolicyGradientConfig",
    "WeightsSnapshot",
    "available_device",
    "build_policy",
    "clip_gradients",
    "configured_optimizer",
    "live_changes",
    "live_from_next_step",
    "set_up_by_hooks",
    "settings_of",
    "values_of",
]
