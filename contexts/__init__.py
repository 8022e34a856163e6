"""Contexts: the dataclasses that middleware share."""

from ding_lite.contexts.multi_agent import AgentsContext
from ding_lite.contexts.offline import OfflineRLContext
from ding_lite.contexts.online import OnlineRLContext

__all__ = ["AgentsContext", "OfflineRLContext", "OnlineRLContext"]
