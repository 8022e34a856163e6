"""Gatherings: what was collected in an iteration, a rollout or whole episodes, for whoever takes either.

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

from typing import Any

from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Episodes, Trajectories

# EpisodeCollector writes ctx.trajectories too: None, so that whoever reads both is refused where no collector is.
GATHERED: Any = {"reads": ("trajectories",), "may_read": ("episodes",)}
"""The terms of a contract of who calls `gathered`."""


def gathered(ctx: OnlineRLContext, who: str, episodes_first: bool = False) -> Trajectories | Episodes:
    """This iteration's rollout, or its whole episodes where these were collected instead.

    Args:
        who: asks.
        episodes_first: which it is where there are both.

    Raises:
        RuntimeError: there is neither.
    """
    found = [ctx.trajectories, getattr(ctx, "episodes", None)]
    for one in reversed(found) if episodes_first else found:
        if one is not None:
            return one
    raise RuntimeError(
        f"{who} found neither ctx.trajectories nor ctx.episodes: put a collector such as StepCollector or EpisodeCollector "
        "before it, which collects in every iteration."
    )
