"""Collected data: read or change the rollout or the episodes of an iteration.

A middleware of the user may put a list of transitions into ctx.trajectories, and a list of episodes into ctx.episodes. Only
this file converts such a list to a rollout or to episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Episodes, RolloutOrder, Trajectories, Tree, tree
from ding_lite.data.lists import episodes_from_list, rollout_from_list, stack_transitions
from ding_lite.data.trees import has_leaf, map_leaves

# EpisodeCollector writes ctx.trajectories = None too. So reading both fields is refused in a pipeline without a collector.
COLLECTED_TERMS: Any = {"reads": ("trajectories",), "may_read": ("episodes",)}
"""Contract terms for a middleware that calls `collected_data`."""
REWRITE_TERMS: Any = {**COLLECTED_TERMS, "writes": ("trajectories",), "may_write": ("episodes",)}
"""Contract terms for a middleware that calls `rewrite`."""

_ORDERS: Sequence[RolloutOrder] = ("whole", "pieces", "none")
"""How much of the order of its steps a list of transitions has lost."""
_FIXES = {
    "pieces": "each step of all environments. Put it before the middleware that leaves some out, or mask their rewards instead",
    "none": (
        "the order of steps, which is unknown for transitions that do not come from ctx.trajectories. Change transitions of "
        "ctx.trajectories in place, t.reward = ..., or by with_leaves(t, reward=...), choose some of them, or put whole "
        "episodes into ctx.episodes, with ctx.trajectories = None"
    ),
}


def collected_data(
    ctx: OnlineRLContext, who: str, wants: RolloutOrder = "none", needs: Sequence[str] = ()
) -> Trajectories | Episodes:
    """This iteration's rollout, or its whole episodes if these were collected instead; empty episodes for an empty list.

    Args:
        who: the middleware that calls, for the message.
        wants: how much of the order of steps must be known, see `rollout_from_list`.
        needs: columns that the data must have.

    Raises:
        RuntimeError: there is neither a rollout nor episodes, or both.
        TypeError, ValueError: the field holds anything but transitions or episodes, too little is known about the order of
            steps, or a column is missing.
    """
    rollout, episodes = ctx.trajectories, getattr(ctx, "episodes", None)
    if rollout is not None and episodes is not None:
        raise RuntimeError(
            f"{who} found both ctx.trajectories and ctx.episodes: set ctx.trajectories = None to use the episodes, or "
            "ctx.episodes = None to use the transitions."
        )
    given = episodes if rollout is None else rollout
    if given is None:
        raise RuntimeError(
            f"{who} found neither ctx.trajectories nor ctx.episodes: put a collector such as StepCollector or EpisodeCollector "
            "before it, which collects in every iteration."
        )
    if isinstance(given, (list, tuple)) and not given:
        return Episodes({}, [])
    found = episodes_of(given, who) if rollout is None else rollout_of(given, who, wants)
    if len(found):
        require_columns(found, who, needs)
    return found


def require_columns(found: Trajectories | Episodes, who: str, names: Sequence[str]) -> None:
    """Check that the collected data has these columns.

    Raises:
        ValueError: naming those that are missing.
    """
    columns = found.column_names()
    if missing := [name for name in names if name not in columns]:
        raise ValueError(
            f"{who} needs the columns {', '.join(names)}, and the collected data has {', '.join(columns)}: add "
            f"{', '.join(missing)}."
        )


def rollout_of(found: Any, who: str, wants: RolloutOrder = "none") -> Trajectories:
    """The value of ctx.trajectories as a rollout; see `collected_data`."""
    if isinstance(found, Trajectories):
        rollout = found
    else:
        _require_list(found, "ctx.trajectories", "transitions", who)
        rollout = rollout_from_list(found, f"{who}: ctx.trajectories")
    if _ORDERS.index(rollout.order) > _ORDERS.index(wants):
        raise ValueError(
            f"{who} found a list of {len(rollout)} transitions in ctx.trajectories, and needs {_FIXES[rollout.order]}."
        )
    return rollout


def episodes_of(found: Any, who: str) -> Episodes:
    """The value of ctx.episodes as episodes, each with an end; see `collected_data`."""
    if isinstance(found, Episodes):
        return found.ended()
    _require_list(found, "ctx.episodes", "episodes", who)
    return episodes_from_list(found, f"{who}: ctx.episodes")


def _require_list(found: Any, where: str, of: str, who: str) -> None:
    own, other = (Trajectories, Episodes) if of == "transitions" else (Episodes, Trajectories)
    if not isinstance(found, Sequence) or isinstance(found, (str, bytes, other)):
        raise TypeError(
            f"{who} found {found!r:.60}, a {type(found).__name__}, in {where}: put {own.__name__} there, or a list of {of}."
        )
    if not len(found):
        raise ValueError(f"{who} found an empty list in {where}, and needs {_FIXES['pieces']}.")


def batch_of(found: Any) -> Any:
    """The value of ctx.train_data as a batch: [T, B, ...] for a rollout or episodes, [N, ...] for a list of transitions."""
    if isinstance(found, (Trajectories, Episodes)):
        return own_batch(found)
    if isinstance(found, (list, tuple)) and found:
        return tree(stack_transitions(found, "ctx.train_data"))
    return found


def rewrite(
    ctx: OnlineRLContext,
    who: str,
    change: Callable[[Trajectories], Trajectories],
    wants: RolloutOrder = "none",
    needs: Sequence[str] = (),
) -> None:
    """Change the collected data: the rollout, or all episodes in sequence as a rollout of one environment.

    Args:
        who: the middleware that calls, for the message.
        change: function from a rollout to another one with the same number of steps.
        wants, needs: see `collected_data`.

    Raises:
        RuntimeError: nothing was collected, or both a rollout and episodes.
        TypeError, ValueError: see `collected_data`.
    """
    found = collected_data(ctx, who, wants, needs)
    if isinstance(found, Trajectories):
        ctx.trajectories = change(found)
    elif len(found):
        rows = found.rows()
        changed = change(Trajectories(map_leaves(lambda leaf: leaf[:, None], rows)))
        made = Episodes(map_leaves(lambda leaf: leaf[:, 0], changed.columns), found.lengths)
        ctx.episodes = made.with_limits(found.limits)


def require_no_train_data(ctx: OnlineRLContext, who: str) -> None:
    """Refuse to change rewards from which ctx.train_data was already computed.

    Raises:
        RuntimeError
    """
    if ctx.train_data is not None:
        raise RuntimeError(
            f"{who} found ctx.train_data, which was computed from the old rewards, so new ones would have no effect: put it "
            "before the middleware that writes ctx.train_data, such as gae_estimator."
        )


def require_single_steps(columns: Tree | Mapping[str, Any], who: str, fix: str) -> None:
    """Refuse rewards that nstep_reward_enhancer has summed up, for a middleware that needs the reward of each single step.

    Args:
        columns: collected data or a batch.
        who: name of this middleware, for the message.
        fix: advice for the message, an imperative sentence.

    Raises:
        RuntimeError
    """
    if has_leaf(columns, "discount"):
        raise RuntimeError(
            f"{who} found the column 'discount', which nstep_reward_enhancer adds: rewards are sums of several steps, and "
            f"those of single steps are needed. {fix}"
        )


def own_batch(found: Trajectories | Episodes) -> Tree:
    """The batch as a new tree: adding leaves does not change the collected data."""
    return tree(_columns(found))


def copied_batch(found: Trajectories | Episodes) -> Tree:
    """The batch in new memory: changing it in place does not change the collected data."""
    return tree({name: map_leaves(_copy, column) for name, column in _columns(found).items()})


def _columns(found: Trajectories | Episodes) -> dict[str, Any]:
    return {**found.columns, **({} if found.valid is None else {"valid": found.valid})}


def _copy(leaf: Any) -> Any:
    return leaf.clone() if hasattr(leaf, "clone") else leaf.copy()
