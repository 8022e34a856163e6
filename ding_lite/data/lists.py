"""Lists: conversion of plain lists of transitions or episodes to rollouts and episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from ding_lite.basics import unflatten
from ding_lite.basics.messages import warn_caller
from ding_lite.data.column_arrays import as_array, rows_differ, stack_rows
from ding_lite.data.column_names import FLAGS, STATE_IN
from ding_lite.data.episodes import Episodes
from ding_lite.data.rollouts import Trajectories
from ding_lite.data.trees import (
    Tree,
    cast_numbers,
    flatten,
    holds_objects,
    is_episode,
    is_tree,
    limits_of,
    map_leaves,
    nested,
    place_of,
)

_NUMBERS = ("reward", *FLAGS)
"""Columns that always have numbers."""
_Place: TypeAlias = tuple[Any, int, int]
"""(rollout, environment, step) of a transition."""


def stack_transitions(transitions: Sequence[Tree | Mapping[str, Any]], who: str) -> dict[str, Any]:
    """Transitions as rows: arrays [N, ...] by leaf name, nested like the spaces. Copies.

    Args:
        transitions: trees, or mappings of numbers, arrays, tensors and objects, all with the same leaves; {} for none.
        who: the caller, for messages, such as "push()".

    Raises:
        TypeError: a transition is neither a tree nor a mapping; or its reward, or a flag, is no number, and others are.
        ValueError: the leaves or shapes of a transition differ from the first; or it has several steps.

    Example:
        >>> stack_transitions([{"obs": [0.0, 1.0], "reward": 1.0}, {"obs": [2.0, 3.0], "reward": 0.5}], "push()")["reward"]
        array([1. , 0.5])
    """
    rows = [_leaves_of(one, f"{who}: transition {place} of a list") for place, one in enumerate(transitions)]
    if not rows:
        return {}
    for place, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            had, has = (sorted("/".join(path) for path in leaves) for leaves in (rows[0], row))
            raise ValueError(
                f"{who}: transition {place} of a list has the leaves {has}, the first has {had}: give all of them the same "
                "leaves."
            )
    stacked = {path: _stacked(path, [row[path] for row in rows], who) for path in rows[0]}
    for flag in FLAGS:
        if (flag,) in stacked and stacked[flag,].ndim > 1:
            raise ValueError(
                f"{who}: {flag} has shape {stacked[flag,].shape[1:]} in each transition of a list, expected a single value. If "
                "these are episodes, write the list to ctx.episodes. If it is one batch, pass it without a list."
            )
    return unflatten(stacked)  # type: ignore[no-any-return]


def rollout_from_list(transitions: Sequence[Tree | Mapping[str, Any]], who: str) -> Trajectories:
    """A list of transitions as a rollout. Its `order` says what is known about the order of the steps.

    "whole": all transitions of one rollout, such as `list(ctx.trajectories)`. Their values may have been changed. Each stays in
    its place, [T, B], and rows that are only a reset stay too.
    "pieces": every transition comes from a rollout, such as `ctx.trajectories[:16]`. Each series of consecutive steps forms a
    column of the new rollout, [T, P] with P pieces; the order of the list does not matter. Shorter pieces begin later, and
    the rows before them are not `valid`. A piece ends like a rollout: its last step bootstraps from `next_obs`. Repeated steps
    form pieces that do not split others. If recurrent states were recorded, each piece begins in the first row, with the
    state of its first step. The rows after a shorter piece are then not `valid`, and its last step is marked as truncated.
    "none": at least one transition does not come from a rollout. The new rollout is [1, N].

    If all come from rollouts, the columns have the dtypes that they have there.

    Args:
        transitions: at least one, see `stack_transitions`.
        who: the caller, for messages.

    Raises:
        TypeError, ValueError: as for `stack_transitions`, or the list is empty.
    """
    if not len(transitions):
        raise ValueError(f"{who}: the list of transitions is empty, expected at least one.")
    rows = stack_transitions(transitions, who)
    known = _known_places(transitions)
    if known is None:
        made = Trajectories(map_leaves(lambda leaf: leaf[None], rows))
        made.order = "none"
        return made
    rows, rollout, again = _in_their_dtypes(rows, known, who), known[0][0], _occurrences(known)
    if len(known) == len(rollout) and not any(again) and all(place[0] is rollout for place in known):
        return _all_of(rollout, known, rows)
    return _pieces_of(known, again, rows)


def episodes_from_list(episodes: Sequence[Any], who: str) -> Episodes:
    """A list of episodes as Episodes. Copies.

    An element is cut where a step does not follow the one before, so that its parts are episodes. This is known of whole
    episodes of `ctx.episodes`, and of a list of transitions that all come from rollouts. In all others, a step follows if its
    obs is the next_obs of the one before. If the last step of an episode is neither terminated nor truncated, it is marked as
    truncated.

    Args:
        episodes: each a tree or mapping of arrays [T_i, ...], or a list of transitions.
        who: the caller, for messages.

    Raises:
        TypeError: an episode is not a tree, mapping or list; or as for `stack_transitions`.
        ValueError: the leaves of an episode differ from the first, it has no steps, or its leaves differ in length.
    """
    parts: list[dict[tuple[str, ...], Any]] = []
    lengths: list[int] = []
    compared = jumped = 0
    for number, one in enumerate(episodes):
        what = f"{who}: episode {number} of a list"
        part, places = _steps_of(one, what)
        of_leaves: set[tuple[int, ...]] = {getattr(leaf, "shape", ())[:1] for leaf in part.values()}
        if (parts and part.keys() != parts[0].keys()) or len(of_leaves) != 1 or of_leaves <= {(), (0,)}:
            shapes = {"/".join(path): getattr(leaf, "shape", ()) for path, leaf in part.items()}
            raise ValueError(
                f"{what} has leaves of the shapes {shapes}, expected the leaves "
                f"{sorted('/'.join(path) for path in (parts or [part])[0])}, all with the same number of rows, 1 or more."
            )
        for flag in FLAGS:
            if (flag,) in part and part[flag,].ndim > 1:
                raise ValueError(
                    f"{what} has {flag} of shape {part[flag,].shape}, expected one flag for each step, [T]. If it is a "
                    "rollout, write it to ctx.trajectories."
                )
        count = of_leaves.pop()[0]
        is_whole = is_episode(one, count)
        gaps = [] if is_whole else _jumps(part) if places is None else _gaps(places)
        if places is None and not is_whole:
            compared, jumped = compared + count - 1, jumped + len(gaps)
        parts.append(part)
        lengths += np.diff([0, *gaps, count]).tolist()
    if 1 < compared == jumped:
        warn_caller(
            f"{who}: no step in a list of episodes has the obs that was the next_obs of the step before, so each step is an "
            "episode of its own. If you have changed the observations, change obs and next_obs alike, or change those of whole "
            "episodes, episode.obs = ... or with_leaves(episode, obs=...)."
        )
    joined = {path: _concatenated(path, [part[path] for part in parts], who) for path in (parts[0] if parts else ())}
    limits = [limits_of(one) for one in episodes] or [None]
    return Episodes(unflatten(joined), lengths).with_limits(_shared(limits)).ended()


def _steps_of(episode: Any, what: str) -> tuple[dict[tuple[str, ...], Any], list[_Place] | None]:
    """The leaves [T, ...] of an episode by path; and the places of its steps, if these are transitions of rollouts."""
    if not isinstance(episode, Sequence) or isinstance(episode, str):
        return _leaves_of(episode, what), None
    rows, places = stack_transitions(episode, what), _known_places(episode)
    return dict(flatten(rows if places is None else _in_their_dtypes(rows, places, what))), places


def _known_places(transitions: Sequence[Any]) -> list[_Place] | None:
    """The places of these transitions; None if one of them, or its place in its rollout, is unknown."""
    places = [place_of(one) for one in transitions]
    known = [place for place in places if place is not None and place[0].order != "none"]
    return known if known and len(known) == len(places) else None


def _in_their_dtypes(rows: dict[str, Any], places: list[_Place], who: str) -> dict[str, Any]:
    """These transitions in the dtypes of the rollouts from which they come, as far as these have the same ones.

    Raises:
        TypeError, ValueError: a column of numbers has something else, or a number that its dtype cannot hold.
    """
    rollouts = {id(rollout): rollout for rollout, _, _ in places}.values()
    columns = [dict(flatten(rollout.columns)) for rollout in rollouts]

    def cast(path: tuple[str, ...], leaf: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        dtypes = {leaves[path].dtype if path in leaves else None for leaves in columns}
        dtype = dtypes.pop()
        if dtypes or dtype is None or dtype.kind not in "biufc" or leaf.dtype == dtype:
            return leaf
        name = f"{who}: {'/'.join(path)} of a list of transitions"
        if holds_objects(leaf):
            raise TypeError(f"{name} is {leaf.flat[0]!r:.60}, and {dtype} in the rollout: give numbers.")
        if path == ("reward",) and dtype.kind != "f" and leaf.dtype.kind == "f":
            return leaf.astype(np.float32)  # as reward models do
        return cast_numbers(leaf, dtype, f"{name} is {dtype} in the rollout")

    return unflatten({path: cast(path, leaf) for path, leaf in flatten(rows)})  # type: ignore[no-any-return]


def _gaps(places: list[_Place]) -> list[int]:
    """Where a step does not follow the one before."""
    return [after for after, (one, other) in enumerate(pairwise(places), 1) if not _follows(one, other)]


def _jumps(part: Mapping[tuple[str, ...], Any]) -> list[int]:
    """Where the observation of a step is not the next observation of the one before. Objects are not compared."""
    jumps: Any = False
    if ("discount",) not in part:  # else next_obs is that of several steps later
        for path, leaf in part.items():
            after = part.get(("next_obs", *path[1:]))
            if path[0] == "obs" and after is not None and after.shape == leaf.shape and not holds_objects(leaf):
                jumps = jumps | rows_differ(after[:-1], leaf[1:])
    return (np.flatnonzero(jumps) + 1).tolist()


def _leaves_of(one: Any, what: str) -> dict[tuple[str, ...], Any]:
    if not is_tree(one) and not isinstance(one, Mapping):
        raise TypeError(f"{what} is {one!r:.60} of type {type(one).__name__}, expected a tree, or a dict of leaves by name.")
    return {path: leaf if _is_object(leaf) else _as_array(path, leaf, what) for path, leaf in flatten(nested(one))}


def _as_array(path: tuple[str, ...], leaf: Any, what: str) -> np.ndarray[Any, Any]:
    try:
        return as_array(leaf)  # type: ignore[no-any-return]
    except ValueError:
        raise ValueError(
            f"{what} has {'/'.join(path)} = {leaf!r:.60}, whose rows differ in shape: give each row the same shape, or an "
            "array of objects, to_objects(rows)."
        ) from None


def _is_object(leaf: Any) -> bool:
    return not isinstance(leaf, (np.ndarray, np.generic, bool, int, float, list, tuple)) and not hasattr(leaf, "numpy")


def _stacked(path: tuple[str, ...], leaves: list[Any], who: str) -> np.ndarray[Any, Any]:
    has_numbers = [isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc" for leaf in leaves]
    if path[0] in _NUMBERS and any(has_numbers) and not all(has_numbers):
        place = has_numbers.index(not has_numbers[0])
        raise TypeError(
            f"{who}: {'/'.join(path)} of transition {place} of a list is {leaves[place]!r:.60}, and {leaves[0]!r:.60} in the "
            "first one: give numbers in each."
        )
    shapes = {leaf.shape for leaf in leaves} if all(has_numbers) else set()
    if len(shapes) > 1:
        raise ValueError(
            f"{who}: {'/'.join(path)} of a list of transitions has the shapes {sorted(shapes)}: give each the same shape."
        )
    return stack_rows(leaves)


def _concatenated(path: tuple[str, ...], leaves: list[Any], who: str) -> np.ndarray[Any, Any]:
    shapes = {leaf.shape[1:] for leaf in leaves}
    if len(shapes) > 1:
        raise ValueError(f"{who}: {'/'.join(path)} of a list of episodes has the shapes {sorted(shapes)}: give each the same.")
    return np.concatenate(leaves)


def _follows(one: _Place, other: _Place) -> bool:
    """Whether `other` is the next real step of the same environment in the same rollout."""
    (rollout, env, step), (its_rollout, its_env, its_step) = one, other
    if rollout is not its_rollout or env != its_env or its_step <= step:
        return False
    return its_step == step + 1 or (rollout.valid is not None and not rollout.valid[step + 1 : its_step, env].any())


def _occurrences(places: list[_Place]) -> list[int]:
    """For each place, the number of earlier occurrences in the list."""
    counts: Counter[tuple[int, int, int]] = Counter()
    found = []
    for rollout, env, step in places:
        found.append(counts[id(rollout), env, step])
        counts[id(rollout), env, step] += 1
    return found


def _all_of(rollout: Trajectories, places: list[_Place], rows: dict[str, Any]) -> Trajectories:
    """The rollout with these transitions, which are all of it. Rows that are only a reset have their old values."""
    row_at = np.zeros((rollout.num_steps, rollout.num_envs), np.int64)
    row_at[[step for _, _, step in places], [env for _, env, _ in places]] = np.arange(len(places))
    old = dict(flatten(rollout.columns))

    def placed(path: tuple[str, ...], leaf: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        made, was = leaf[row_at], old.get(path)
        if rollout.valid is not None and was is not None and (made.shape, made.dtype) == (was.shape, was.dtype):
            made[~rollout.valid] = was[~rollout.valid]
        return made

    made = Trajectories(unflatten({path: placed(path, leaf) for path, leaf in flatten(rows)}), rollout.valid)
    made.order, made.begins, made.limits = rollout.order, rollout.begins, rollout.limits
    made.has_scaled_rewards = rollout.has_scaled_rewards
    return made


def _pieces_of(places: list[_Place], again: list[int], rows: dict[str, Any]) -> Trajectories:
    """A rollout of these transitions, with a column for each series of consecutive steps."""
    rollouts = {id(rollout): number for number, (rollout, _, _) in enumerate(reversed(places))}  # the earlier, the larger
    order = sorted(range(len(places)), key=lambda row: (again[row], -rollouts[id(places[row][0])], *places[row][1:]))
    places = [places[row] for row in order]
    begins = [0, *_gaps(places), len(places)]
    has_states = any(name.startswith(STATE_IN) for name in rows)
    row_at, valid = _arranged(places, begins, from_first_row=has_states)
    row_at = np.array(order)[row_at]
    made = Trajectories(map_leaves(lambda leaf: leaf[row_at], rows), None if valid.all() else valid)
    if has_states:
        _truncate_short_pieces(made)
    made.order, made.limits = "pieces", _shared([rollout.limits for rollout, _, _ in places])
    return made


def _shared(limits: list[Any]) -> Mapping[str, Any]:
    """The limits, if they are the same ones everywhere; else none."""
    return limits[0] if limits[0] is not None and all(one is limits[0] for one in limits) else {}


def _arranged(
    places: list[_Place], begins: list[int], from_first_row: bool
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """For each place [T, P], its row or the nearest one, and whether the row is real.

    Args:
        places: sorted, so that the steps of a piece follow each other.
        begins: where each piece begins in `places`, and the number of places.
        from_first_row: whether all pieces begin in the first row; otherwise, all end in the last row.
    """
    steps = np.array([step for _, _, step in places])
    spans = [steps[stop - 1] - steps[start] + 1 for start, stop in pairwise(begins)]
    num_steps = max(spans)
    row_at = np.zeros((num_steps, len(spans)), np.int64)
    valid = np.zeros(row_at.shape, np.bool_)
    for piece, (start, stop) in enumerate(pairwise(begins)):
        own = steps[start:stop] - steps[start] + (0 if from_first_row else num_steps - spans[piece])
        valid[own, piece] = True
        row_at[:, piece] = np.clip(np.searchsorted(own, np.arange(num_steps), side="right") - 1, 0, None) + start
    return row_at, valid


def _truncate_short_pieces(rollout: Trajectories) -> None:
    """Mark the last step of each piece that has rows after it, so that nothing continues into them."""
    if rollout.valid is None or not rollout.columns.keys() >= set(FLAGS):
        return
    last = rollout.num_steps - 1 - rollout.valid[::-1].argmax(0)
    short = np.flatnonzero(last < rollout.num_steps - 1)
    terminated, truncated = (rollout.columns[flag] for flag in FLAGS)
    truncated[last[short], short] |= ~terminated[last[short], short]
