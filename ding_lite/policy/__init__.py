"""Policies: the base with its hooks and faces, and one file an algorithm.

Room: ding_lite.policy, floor 3. Imports nn, functional, envs, data and the engine.
"""

from ding_lite.policy.configs import EvalConfig, EvaluatorConfig, LearnConfig, ModelConfig, PolicyConfig
from ding_lite.policy.dqn import DQNPolicy, DQNPolicyConfig, EpsConfig
from ding_lite.policy.faces import ActMode, CollectMode, EvalMode, LearnMode
from ding_lite.policy.policies import LossError, Policy, Weights
from ding_lite.policy.ppo import PPOPolicy, PPOPolicyConfig

__all__ = [
    "ActMode",
    "CollectMode",
    "DQNPolicy",
    "DQNPolicyConfig",
    "EpsConfig",
    "EvalConfig",
    "EvalMode",
    "EvaluatorConfig",
    "LearnConfig",
    "LearnMode",
    "LossError",
    "ModelConfig",
    "PPOPolicy",
    "PPOPolicyConfig",
    "Policy",
    "PolicyConfig",
    "Weights",
]
