"""The context of multi-agent RL, which holds a context for each policy."""

from __future__ import annotations

import dataclasses

from ding_lite.contexts.online import OnlineRLContext

_COLLECTOR = {"provider": "a collector such as MultiAgentCollector"}


@dataclasses.dataclass
class MultiAgentContext(OnlineRLContext):
    """One iteration in which several policies act together, and each learns from the data of its own agents.

    `env_step` and `env_episode` count steps and episodes of environments, not of agents; `train_iter` counts the gradient steps
    of all policies.
    """

    parts: dict[str, OnlineRLContext] | None = dataclasses.field(default=None, metadata=_COLLECTOR)
    """The context of each policy in this iteration, by name: trajectories, train_data, train_output and so on. None before
    collection. Written by MultiAgentCollector; the fields inside are written by middleware wrapped in `for_policy`."""


AgentsContext = MultiAgentContext  # its name in earlier versions
