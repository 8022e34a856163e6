"""Rollouts: policies acting in environments, to collect and to evaluate."""

from ding_lite.rollout.agents import AgentRollout, AgentWorker
from ding_lite.rollout.evaluation import play_episodes
from ding_lite.rollout.recordings import EpisodeRollout, Rollout
from ding_lite.rollout.splits import SplitWorker, make_worker
from ding_lite.rollout.summaries import EpisodeHistory, summarize_episodes
from ding_lite.rollout.videos import EpisodeRecorder
from ding_lite.rollout.workers import LocalWorker

__all__ = [
    "AgentRollout",
    "AgentWorker",
    "EpisodeHistory",
    "EpisodeRecorder",
    "EpisodeRollout",
    "LocalWorker",
    "Rollout",
    "SplitWorker",
    "make_worker",
    "play_episodes",
    "summarize_episodes",
]
