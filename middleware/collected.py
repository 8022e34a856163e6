"""Collected data: what was collected in an iteration, a rollout or whole episodes, for those who take or change either.

A user's middleware may put a list of transitions into ctx.trajectories, and one of episodes into ctx.episodes. This file is the
one place that turns such a list into a rollout or episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ding_lite.contexts import OnlineRLContext
from ding_lite.data import (
    Episodes,
    Order,
    Trajectories,
    Tree,
    episodes_from_list,
    map_leaves,
    rollout_from_list,
    stack_transitions,
    tree,
)

# EpisodeCollector writes ctx.trajectories too: None, so that whoever reads both is refused where no collector is.
COLLECTED_TERMS: Any = {"reads": ("trajectories",), "may_read": ("episodes",)}
"""The terms of a contract of who calls `collected_data`."""
REWRITE_TERMS: Any = {**COLLECTED_TERMS, "writes": ("trajectories",), "may_write": ("episodes",)}
"""The terms of a contract of who calls `rewrite`."""

_FIXES = {
    "pieces": "each step of all environments. Put it before what leaves some out, or mask their rewards instead",
    "none": (
        "the steps of each environment in their order, which transitions that do not come from ctx.trajectories lack. Change "
        "its transitions in place, t.reward = ..., or by with_leaves(t, reward=...), choose some, or put whole episodes into "
        "ctx.episodes"
    ),
}


def collected_data(
    ctx: OnlineRLContext, who: str, episodes_first: bool = False, wants: Order = "none"
) -> Trajectories | Episodes:
    """This iteration's rollout, or its whole episodes where these were collected instead; no episodes for an empty list.

    Args:
        who: asks.
        episodes_first: which it is where there are both.
        wants: how much it has to know of the order of a list of transitions, see `rollout_from_list`.

    Raises:
        RuntimeError: there is neither.
        TypeError, ValueError: something else stands there, or a list that is none of transitions or episodes, or of which less
            is known of the order.
    """
    found: list[tuple[Any, Callable[[], Trajectories | Episodes]]] = [
        (ctx.trajectories, lambda: rollout_of(ctx.trajectories, who, wants)),
        (getattr(ctx, "episodes", None), lambda: episodes_of(ctx.episodes, who)),
    ]
    for one, made in reversed(found) if episodes_first else found:
        if isinstance(one, (list, tuple)) and not one:
            return Episodes({}, [])
        if one is not None:
            return made()
    raise RuntimeError(
        f"{who} found neither ctx.trajectories nor ctx.episodes: put a collector such as StepCollector or EpisodeCollector "
        "before it, which collects in every iteration."
    )


def rollout_of(found: Any, who: str, wants: Order = "none") -> Trajectories:
    """What stands in ctx.trajectories, as a rollout; see `collected_data`."""
    _require_list(found, "ctx.trajectories", "transitions", who)
    rollout = found if isinstance(found, Trajectories) else rollout_from_list(found, f"{who}: ctx.trajectories")
    if {"whole": 0, "pieces": 1, "none": 2}[rollout.order] > {"whole": 0, "pieces": 1, "none": 2}[wants]:
        raise ValueError(
            f"{who} found a list of {len(rollout)} transitions in ctx.trajectories, and needs {_FIXES[rollout.order]}."
        )
    return rollout


def episodes_of(found: Any, who: str) -> Episodes:
    """What stands in ctx.episodes, as episodes; see `collected_data`."""
    _require_list(found, "ctx.episodes", "episodes", who)
    return found if isinstance(found, Episodes) else episodes_from_list(found, f"{who}: ctx.episodes")


def _require_list(found: Any, where: str, of: str, who: str) -> None:
    own, other = (Trajectories, Episodes) if of == "transitions" else (Episodes, Trajectories)
    if not isinstance(found, Sequence) or isinstance(found, (str, bytes, other)):
        raise TypeError(
            f"{who} found {found!r:.60}, a {type(found).__name__}, in {where}: put {own.__name__} there, or a list of {of}."
        )
    if not isinstance(found, own) and not len(found):
        raise ValueError(f"{who} found an empty list in {where}, and needs {_FIXES['pieces']}.")


def batch_of(found: Any) -> Any:
    """What stands in ctx.train_data, as a batch: of a rollout or episodes [T, B, ...], of a list of transitions [N, ...]."""
    if isinstance(found, (Trajectories, Episodes)):
        return own_batch(found)
    if isinstance(found, (list, tuple)) and found:
        return tree(stack_transitions(found, "ctx.train_data"))
    return found


def rewrite(ctx: OnlineRLContext, who: str, change: Callable[[Trajectories], Trajectories], wants: Order = "none") -> None:
    """Change what was collected: the rollout, or the episodes one after the other as a rollout of one environment.

    Args:
        who: asks.
        change: from a rollout to one of as many steps.
        wants: see `collected_data`.

    Raises:
        RuntimeError: nothing was collected.
        TypeError, ValueError: see `collected_data`.
    """
    found = collected_data(ctx, who, wants=wants)
    if isinstance(found, Trajectories):
        ctx.trajectories = change(found)
    elif len(found):
        changed = change(Trajectories(map_leaves(lambda leaf: leaf[:, None], found.rows())))
        ctx.episodes = Episodes(map_leaves(lambda leaf: leaf[:, 0], changed.columns), found.lengths)


def require_no_train_data(ctx: OnlineRLContext, who: str) -> None:
    """Refuse to change rewards of which a batch to learn from was made already.

    Raises:
        RuntimeError
    """
    if ctx.train_data is not None:
        raise RuntimeError(
            f"{who} found ctx.train_data, which was made of the rewards of before, so that others would change nothing: put it "
            "before gae_estimator, or before whatever else made ctx.train_data."
        )


def require_single_steps(found: Trajectories | Episodes, who: str, fix: str) -> None:
    """Refuse rewards that nstep_reward_enhancer has summed up, for who takes each for that of one step.

    Args:
        who: asks.
        fix: what to do, an imperative.

    Raises:
        RuntimeError
    """
    if "discount" in found.columns:
        raise RuntimeError(
            f"{who} found the column 'discount', which nstep_reward_enhancer adds: rewards are sums of several steps, and "
            f"would be summed up again. {fix}"
        )


def own_batch(found: Trajectories | Episodes) -> Tree:
    """Its batch, to which leaves can be added without changing what was collected."""
    return tree({**found.columns, **({} if found.valid is None else {"valid": found.valid})})


def copied_batch(found: Trajectories | Episodes) -> Tree:
    """Its batch in memory of its own, for another field: what is changed there in place stays out of what was collected."""
    return map_leaves(lambda leaf: leaf.clone() if hasattr(leaf, "clone") else leaf.copy(), own_batch(found))
