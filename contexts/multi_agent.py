"""The context of RL with several agents: an iteration of all of them, and one of each policy inside it."""

from __future__ import annotations

import dataclasses

from ding_lite.contexts.online import OnlineRLContext

_COLLECTOR = {"provider": "a collector such as AgentsCollector"}


@dataclasses.dataclass
class AgentsContext(OnlineRLContext):
    """One iteration in which several policies act together, and each learns from what its own agents did.

    `env_step` and `env_episode` count those of environments, in which all agents act; `train_iter` the gradient steps of all
    policies together.
    """

    parts: dict[str, OnlineRLContext] | None = dataclasses.field(default=None, metadata=_COLLECTOR)
    """For each policy, by name, a context of its own of this iteration: trajectories, train_data, train_output and so on. None
    before collection. Written by AgentsCollector; what stands in it, by middleware put around by `for_policy`."""
