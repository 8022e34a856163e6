"""Names of earlier versions: scripts that use them run as before."""

import importlib

import pytest

from ding_lite.config import RunConfig
from ding_lite.engine.renamed_middleware import with_new_names

OLD_NAMES = [
    ("contexts", "AgentsContext", "MultiAgentContext"),
    ("middleware", "AgentsCollector", "MultiAgentCollector"),
    ("middleware", "agents_evaluator", "multi_agent_evaluator"),
    ("middleware", "population_stepper", "population_trainer"),
    ("policy", "ActorCriticLearning", "ActorCriticMixin"),
    ("policy", "AdvantageWeightedActing", "AdvantageWeightedMixin"),
    ("policy", "BoxActing", "BoxActionMixin"),
    ("policy", "EpsilonGreedyActing", "EpsilonGreedyMixin"),
    ("policy", "EpochsLearnConfig", "MultiEpochLearnConfig"),
    ("policy", "ExplorationConfig", "EpsReplayConfig"),
    ("policy", "GaussianNoiseActing", "GaussianNoiseMixin"),
    ("policy", "GreedyPolicy", "GreedyActionModule"),
    ("policy", "HeadModelConfig", "EncoderHeadModelConfig"),
    ("policy", "LossError", "NonFiniteError"),
    ("policy", "ScheduledLearningRate", "LearningRateScheduleMixin"),
    ("policy", "StateError", "StateDictError"),
    ("policy", "TargetNetwork", "TargetNetworkMixin"),
    ("policy_base", "next_step", "live_from_next_step"),
    ("policy_check", "require_no_memory", "require_no_recurrent_state"),
    ("policy_parts", "FOR_RECORDED_ACTIONS", "OFFLINE_POLICIES_FOR_DISCRETE_ACTIONS"),
    ("policy_parts", "FOR_RECORDED_BOX_ACTIONS", "OFFLINE_POLICIES_FOR_BOX_ACTIONS"),
    ("basics", "RowsInPieces", "NumberedRows"),
    ("data", "Leaf", "LeafSpec"),
    ("engine", "BrokenOff", "WorkCancelled"),
    ("engine", "Made", "NestedContext"),
    ("engine", "Remainder", "PendingWork"),
    ("engine", "bounded", "ranged_field"),
    ("engine", "engaged", "run_inside"),
    ("data", "RolloutBuffer", "RolloutArrays"),
    ("data", "Within", "GoalSelection"),
    ("datasets", "Epochs", "EpochSampler"),
    ("engine", "interpreter_released", "waiting_for_process"),
    ("engine", "released", "waiting_for_process"),
    ("envs", "ChangingEnvs", "ChangeableEnvs"),
    ("envs", "rendering", "with_render_mode"),
    ("nn", "noise", "noisy_weights"),
    ("policy", "BoxConfig", "BoxPolicyConfig"),
    ("policy", "WideModelConfig", "OfflineModelConfig"),
    ("envs", "OnlyElements", "PartialObservation"),
    ("envs", "Episode", "EpisodeResult"),
    ("middleware", "part", "for_policy"),
    ("policy", "GreedyActing", "EpsilonGreedyMixin"),
    ("rollout", "EpisodeRecorder", "VideoRecorder"),
    ("rollout", "action_error", "negative_action_error"),
    ("nn", "ActionCritic", "QCritic"),
    ("rollout", "importance_sampling", "importance_sampling_metric"),
    ("rollout", "doubly_robust", "doubly_robust_metric"),
    ("rollout", "fitted_q_evaluation", "fitted_q_evaluation_metric"),
    ("envs", "AgentVectorEnv", "MultiAgentVectorEnv"),
    ("envs", "make_agent_envs", "make_multi_agent_envs"),
    ("rollout", "AgentRollout", "MultiAgentRollout"),
    ("rollout", "AgentWorker", "MultiAgentWorker"),
    ("rollout", "SplitAgentWorker", "SplitMultiAgentWorker"),
    ("rollout", "make_agent_worker", "make_multi_agent_worker"),
    ("envs", "ReplayError", "NotReproducibleError"),
    ("envs", "replay_error", "reproduce_env_error"),
    ("data", "Order", "RolloutOrder"),
]


@pytest.mark.parametrize(("room", "old", "new"), OLD_NAMES)
def test_an_old_name_is_the_same_object_at_the_same_address(room, old, new):
    module = importlib.import_module(f"ding_lite.{room}")

    assert getattr(module, old) is getattr(module, new)
    assert new in module.__all__
    assert old not in module.__all__, "lists of names, such as those of editors and help(), show the new one alone"


def test_states_of_runs_know_the_new_names_of_middleware():
    # States of the time of "part" have an earlier format, which is refused.
    names = {old: new for room, old, new in OLD_NAMES if room == "middleware" and old != "part"}
    changed = with_new_names({"pipeline": [*names], "without_state": []}, own_names=())

    assert changed["pipeline"] == [*names.values()]


def test_states_of_runs_know_the_new_names_of_environments():
    parts = {"AgentVectorEnv": {"run_seed": 1}, "AgentVectorEnv 2": {"run_seed": 2}}
    state = {"pipeline": [], "without_state": [], "parts": parts}

    assert [*with_new_names(state, own_names=())["parts"]] == ["MultiAgentVectorEnv", "MultiAgentVectorEnv 2"]
    assert with_new_names(state, own_names=["AgentVectorEnv"])["parts"] == parts, "a class of a script"


def test_tracing_is_for_compiled_steps_alone_and_can_still_be_imported():
    functional = importlib.import_module("ding_lite.functional")

    assert callable(functional.tracing)
    assert "tracing" not in functional.__all__


def test_a_run_still_gives_its_verdict():
    assert RunConfig.verdict is RunConfig.report_and_exit_code
