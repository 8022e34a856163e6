"""Rollouts: policies acting in environments, to collect and to evaluate, and the metrics of these episodes and of a run."""

from ding_lite.rollout.collection import LocalWorker
from ding_lite.rollout.episode_statistics import EpisodeHistory, summarize_episodes
from ding_lite.rollout.evaluated_policies import log_prob_of
from ding_lite.rollout.evaluation import EpisodeUnit, play_episodes
from ding_lite.rollout.fitted_q import FittedQ, FittedQConfig
from ding_lite.rollout.multi_agent import AgentRollout as AgentRollout
from ding_lite.rollout.multi_agent import AgentWorker as AgentWorker
from ding_lite.rollout.multi_agent import MultiAgentRollout, MultiAgentWorker
from ding_lite.rollout.off_policy_metrics import (
    action_agreement,
    action_log_prob,
    doubly_robust_metric,
    fitted_q_evaluation_metric,
    importance_sampling_metric,
    negative_action_error,
)
from ding_lite.rollout.off_policy_metrics import action_error as action_error
from ding_lite.rollout.off_policy_metrics import doubly_robust as doubly_robust
from ding_lite.rollout.off_policy_metrics import fitted_q_evaluation as fitted_q_evaluation
from ding_lite.rollout.off_policy_metrics import importance_sampling as importance_sampling
from ding_lite.rollout.recorded_runs import record_run
from ding_lite.rollout.rollout_results import EpisodeRollout, Rollout
from ding_lite.rollout.run_evaluations import RunEvaluation, evaluate_run, play_run
from ding_lite.rollout.videos import EpisodeRecorder as EpisodeRecorder
from ding_lite.rollout.videos import VideoRecorder
from ding_lite.rollout.worker_agents import SplitAgentWorker as SplitAgentWorker
from ding_lite.rollout.worker_agents import SplitMultiAgentWorker, make_multi_agent_worker
from ding_lite.rollout.worker_agents import make_agent_worker as make_agent_worker
from ding_lite.rollout.worker_rollouts import SplitWorker, make_worker

__all__ = [
    "EpisodeHistory",
    "EpisodeRollout",
    "EpisodeUnit",
    "FittedQ",
    "FittedQConfig",
    "LocalWorker",
    "MultiAgentRollout",
    "MultiAgentWorker",
    "Rollout",
    "RunEvaluation",
    "SplitMultiAgentWorker",
    "SplitWorker",
    "VideoRecorder",
    "action_agreement",
    "action_log_prob",
    "doubly_robust_metric",
    "evaluate_run",
    "fitted_q_evaluation_metric",
    "importance_sampling_metric",
    "log_prob_of",
    "make_multi_agent_worker",
    "make_worker",
    "negative_action_error",
    "play_episodes",
    "play_run",
    "record_run",
    "summarize_episodes",
]
