"""Where the names stand that a policy is written with."""

from ding_lite import hooks, policy

OLDER = {
    "ActMode",
    "ActorCriticLearnConfig",
    "ActorCriticMixin",
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
    "MultiEpochLearnConfig",
    "EpsConfig",
    "EpsilonGreedy",
    "EvalConfig",
    "EvalMode",
    "EvaluatorConfig",
    "EpsReplayConfig",
    "EpsilonGreedyMixin",
    "EncoderHeadModelConfig",
    "HookError",
    "KLCoeffMixin",
    "LearnConfig",
    "LearnMode",
    "LearningRateSchedule",
    "LogConfig",
    "NonFiniteError",
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
    "StateDictError",
    "TargetNetworkMixin",
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
}


def test_every_name_of_the_older_address_is_there():
    assert len(OLDER) == 75
    assert [name for name in OLDER | {*hooks.__all__} if not hasattr(hooks, name)] == []
    assert not hasattr(hooks, "another_name")
    assert set(policy.__all__) >= {
        "Policy",
        "TargetNetworkMixin",
        "ColumnError",
        "StateDictError",
        "compute_advantages",
        "RunConfig",
    }
    assert all(getattr(hooks, name) is getattr(policy, name) for name in set(hooks.__all__) & set(policy.__all__))


def test_the_older_address_keeps_older_names():
    assert hooks.Weights is policy.WeightsSnapshot
    assert hooks.BoundedActing is policy.BoxActionMixin
    assert hooks.restarts is policy.episode_starts
