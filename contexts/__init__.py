"""Contexts: the dataclasses that flow through a pipeline.

Room: ding_lite.contexts, floor 2. Imports data and the engine.
"""

from ding_lite.contexts.agents import AgentsContext
from ding_lite.contexts.offline import OfflineRLContext
from ding_lite.contexts.online import OnlineRLContext

__all__ = ["AgentsContext", "OfflineRLContext", "OnlineRLContext"]
