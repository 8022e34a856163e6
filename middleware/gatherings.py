"""Gatherings: what was collected in an iteration, a rollout or whole episodes, for whoever takes or changes either.

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Episodes, Trajectories, map_leaves

# EpisodeCollector writes ctx.trajectories too: None, so that whoever reads both is refused where no collector is.
GATHERED: Any = {"reads": ("trajectories",), "may_read": ("episodes",)}
"""The terms of a contract of who calls `gathered`."""
REWRITTEN: Any = {**GATHERED, "writes": ("trajectories",), "may_write": ("episodes",)}
"""The terms of a contract of who calls `rewrite`."""


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


def rewrite(ctx: OnlineRLContext, who: str, change: Callable[[Trajectories], Trajectories]) -> None:
    """Change what was collected: the rollout, or the episodes one after the other as a rollout of one environment.

    Args:
        who: asks.
        change: from a rollout to one of as many steps.

    Raises:
        RuntimeError: nothing was collected.
    """
    found = gathered(ctx, who)
    if isinstance(found, Trajectories):
        ctx.trajectories = change(found)
    else:
        changed = change(Trajectories(map_leaves(lambda leaf: leaf[:, None], found.rows())))
        ctx.episodes = Episodes(map_leaves(lambda leaf: leaf[:, 0], changed.columns), found.lengths)
