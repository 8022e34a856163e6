"""Contexts: the dataclasses that middleware share."""

from ding_lite.contexts.multi_agent import AgentsContext as AgentsContext
from ding_lite.contexts.multi_agent import MultiAgentContext
from ding_lite.contexts.offline import OfflineRLContext
from ding_lite.contexts.online import OnlineRLContext
from ding_lite.contexts.populations import PopulationContext
from ding_lite.contexts.train_outputs import TrainOutput

__all__ = [
    "MultiAgentContext",
    "OfflineRLContext",
    "OnlineRLContext",
    "PopulationContext",
    "TrainOutput",
]
