"""Spaces: conversion between elements of gymnasium spaces and arrays.

Elements of Dict and Tuple spaces are nested dicts everywhere in this library. The parts of a Tuple are named "0", "1", ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from ding_lite.data import LeafSpec, Spec, flatten
from ding_lite.data.random_generators import require_generator_state

_UNKNOWN = "_has_unknown_dtype"
_ATTRIBUTES = ("dtype", "start", "nvec", "low", "high")
"""Attributes that define a space and that may be missing in its text."""


class SpaceError(TypeError, ValueError):
    """A space that is not supported, or that does not fit."""


def space_spec(space: spaces.Space[Any]) -> Spec:
    """Shape and dtype of an element of this space, with the same nesting.

    Box of float64 is stored as float32, the dtype of networks.

    Raises:
        SpaceError: Text, Graph, Sequence and other spaces whose elements have no fixed shape.

    Example:
        >>> space_spec(spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)))))["1"].shape
        (2,)
    """
    if isinstance(space, spaces.Box):
        return LeafSpec(space.shape, np.dtype(np.float32) if space.dtype == np.float64 else space.dtype)
    if isinstance(space, spaces.Discrete):
        return LeafSpec((), np.dtype(np.int64))
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        return LeafSpec(space.shape, space.dtype)
    parts = subspaces(space)
    if parts is not None:
        return {name: space_spec(part) for name, part in parts.items()}
    raise SpaceError(
        f"{space} has no fixed layout: use Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these, "
        "for instance through a gymnasium.ObservationWrapper."
    )


def require_elements(space: spaces.Space[Any], who: str) -> None:
    """Raise an error if elements of a space, or of a part of it, hold no numbers.

    Args:
        space: the space.
        who: name of the space in messages, such as "environment 3, observation_space".

    Raises:
        SpaceError: naming the empty part.
    """
    parts = subspaces(space)
    for name, part in (parts or {}).items():
        require_elements(part, f"{who}[{name!r}]")
    if parts == {} or (space.shape is not None and 0 in space.shape):
        raise SpaceError(
            f"{who} is {space}, whose elements hold no numbers: remove this part, or if it is the whole space, use "
            "spaces.Box(0, 1, (1,)) with a constant number."
        )


def integer_bounds(space: spaces.Space[Any]) -> Any:
    """Minimum and maximum of Discrete, MultiDiscrete and MultiBinary, nested like the space; None for all others."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    parts = {name: bounds for name, part in (subspaces(space) or {}).items() if (bounds := integer_bounds(part)) is not None}
    return parts or None


def subspaces(space: spaces.Space[Any]) -> dict[str, spaces.Space[Any]] | None:
    """The parts of a Dict or Tuple space by name, None for any other.

    Raises:
        SpaceError: a name in a Dict is no string.
    """
    if isinstance(space, spaces.Dict):
        for name in space.spaces:
            if not isinstance(name, str):
                raise SpaceError(
                    f"a Dict space has a part with the name {name!r} of type {type(name).__name__}, expected strings: rename "
                    "it, spaces.Dict({str(name): part for name, part in parts.items()}), and the parts of its elements."
                )
        return dict(space.spaces)
    if isinstance(space, spaces.Tuple):
        return {str(position): part for position, part in enumerate(space.spaces)}
    return None


def to_nested(space: spaces.Space[Any], value: Any) -> Any:
    """An element, or a batch of them, as nested dicts; the reverse of `to_gymnasium`."""
    parts = subspaces(space)
    if parts is None:
        return value
    if isinstance(space, spaces.Tuple) and isinstance(value, Sequence):
        value = {str(position): part for position, part in enumerate(value)}
    if not isinstance(value, Mapping) or value.keys() != parts.keys():
        found = sorted(value) if isinstance(value, Mapping) else type(value).__name__
        raise SpaceError(f"an element of {space} must have the parts {sorted(parts)}, got {found}.")
    return {name: to_nested(part, value[name]) for name, part in parts.items()}


def to_gymnasium(space: spaces.Space[Any], nested: Any) -> Any:
    """Nested dicts in gymnasium's form: tuples for Tuple spaces."""
    parts = subspaces(space)
    if parts is None:
        return nested
    values = {name: to_gymnasium(part, nested[name]) for name, part in parts.items()}
    return tuple(values.values()) if isinstance(space, spaces.Tuple) else values


def is_scalar(space: spaces.Space[Any]) -> bool:
    """Whether its elements are single numbers, which are immutable."""
    return isinstance(space, spaces.Discrete)


def splitter(space: spaces.Space[Any]) -> Callable[[Any], list[Any]]:
    """A function that splits a nested batch [B, ...] of actions into a list of B actions in gymnasium's form.

    The function raises TypeError for floats instead of integers, and ValueError if parts have different numbers of rows.
    """
    parts = subspaces(space)
    if parts is None:
        whole = np.issubdtype(space.dtype, np.integer)

        def rows_of(batch: Any) -> list[Any]:
            if whole and batch.dtype.kind not in "iu":
                raise TypeError(f"actions of {space} must be integers, got an array of {batch.dtype}.")
            # For Discrete, numpy integers as from sample(), because contains() checks these fastest.
            return list(batch) if is_scalar(space) else list(batch.astype(space.dtype, copy=False))

        return rows_of
    split = {name: splitter(part) for name, part in parts.items()}

    def divide(batch: Any) -> list[Any]:
        columns = [split[name](batch[name]) for name in parts]
        if len({len(column) for column in columns}) > 1:
            counts = ", ".join(f"{name}: {len(column)}" for name, column in zip(parts, columns))
            raise ValueError(f"each part of the actions must have one row for each environment, got {counts}.")
        rows = zip(*columns)
        return list(rows) if isinstance(space, spaces.Tuple) else [dict(zip(parts, row)) for row in rows]

    return divide


def with_unknown_dtype(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The space, marked as one whose integer dtype is not known: in `same_space` and `same_layout`, any is the same."""
    setattr(space, _UNKNOWN, True)  # an attribute stays in copies and in other processes
    return space


def has_unknown_dtype(space: spaces.Space[Any]) -> bool:
    """Whether the space, which is Discrete or MultiDiscrete, has gone through `with_unknown_dtype`."""
    return bool(getattr(space, _UNKNOWN, False))


def same_layout(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Whether elements of both have the same layout; bounds may differ."""
    here, there = (dict(flatten(space_spec(space))) for space in (one, other))
    if here == there:
        return True
    if here.keys() != there.keys() or any(here[path].shape != there[path].shape for path in here):
        return False
    leaves = [dict(flatten(_leaf_spaces(space))) for space in (one, other)]
    return all(here[path].dtype == there[path].dtype or _same_integers(*(it[path] for it in leaves)) for path in here)


def same_space(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Whether two spaces are equal; an unknown dtype of one of them does not count."""
    if one == other:
        return True
    mine, others = subspaces(one), subspaces(other)
    if mine is None or others is None:
        return _same_integers(one, other)
    same_kind = isinstance(one, spaces.Tuple) == isinstance(other, spaces.Tuple)
    return same_kind and mine.keys() == others.keys() and all(same_space(part, others[name]) for name, part in mine.items())


def hidden_difference(one: spaces.Space[Any], other: spaces.Space[Any]) -> str:
    """For messages: the first difference of two spaces that does not show when they are printed, such as the dtype, or "".

    Example:
        >>> hidden_difference(spaces.MultiDiscrete([3]), spaces.MultiDiscrete([3], dtype=np.int32))
        ' (both print as MultiDiscrete([3]), but the dtype is int64 in the first and int32 in the second)'
    """
    mine, others = subspaces(one), subspaces(other)
    if mine is not None and others is not None:
        found = (hidden_difference(part, others[name]) for name, part in mine.items() if name in others)
        return next(filter(None, found), "")
    if one == other or str(one) != str(other):
        return ""
    for name in _ATTRIBUTES:
        here, there = (np.asarray(getattr(space, name, None)) for space in (one, other))
        if here.shape == there.shape and (here != there).any():
            index = np.unravel_index(int(np.argmax(here != there)), here.shape)
            place = f"[{', '.join(map(str, index))}]" if index else ""
            here, there = here[index], there[index]
            return f" (both print as {one}, but the {name}{place} is {here} in the first and {there} in the second)"
    return ""


def _leaf_spaces(space: spaces.Space[Any]) -> Any:
    """The parts without parts, nested like `space_spec`."""
    parts = subspaces(space)
    return space if parts is None else {name: _leaf_spaces(part) for name, part in parts.items()}


def _same_integers(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Whether one dtype is unknown, and the spaces differ in nothing else."""
    if not (has_unknown_dtype(one) or has_unknown_dtype(other)):
        return False
    if isinstance(one, spaces.Discrete) and isinstance(other, spaces.Discrete):
        return bool(one.n == other.n and one.start == other.start)
    if isinstance(one, spaces.MultiDiscrete) and isinstance(other, spaces.MultiDiscrete):
        return np.array_equal(one.nvec, other.nvec) and np.array_equal(one.start, other.start)
    return False


def column_limits(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
    """Minimum and maximum of each element of the columns obs, next_obs and action, nested like the spaces.

    Only for discrete parts: policies may sample actions beyond the bounds of a Box.

    Example:
        >>> column_limits(spaces.Box(-1.0, 1.0), spaces.Discrete(3, start=1))
        {'action': (1, 3)}
    """
    found = {name: integer_bounds(observation_space) for name in ("obs", "next_obs")}
    found["action"] = integer_bounds(action_space)
    return {name: limits for name, limits in found.items() if limits is not None}


def random_state(space: spaces.Space[Any]) -> dict[str, Any]:
    """The state of the generators of `space.sample()`, for every part, as plain data."""
    parts = subspaces(space)
    if parts is None:
        return dict(space.np_random.bit_generator.state)
    return {name: random_state(part) for name, part in parts.items()}


def load_random_state(space: spaces.Space[Any], state: Mapping[str, Any]) -> None:
    """Restore a saved state of the generators.

    Raises:
        ValueError: a state is not valid; the message names its key, and nothing is changed.
    """
    _require_random_state("the random state", space, state)
    _set_random_state(space, state)


def _require_random_state(where: str, space: spaces.Space[Any], state: Any) -> None:
    parts = subspaces(space)
    if parts is None:
        require_generator_state(where, state, space.np_random.bit_generator)
        return
    if not isinstance(state, Mapping) or set(parts) - set(state):
        raise ValueError(f"{where} is {state!r:.80}, expected a dict with {[*parts]}.")
    for name, part in parts.items():
        _require_random_state(f"{where}[{name!r}]", part, state[name])


def _set_random_state(space: spaces.Space[Any], state: Mapping[str, Any]) -> None:
    parts = subspaces(space)
    if parts is None:
        space.np_random.bit_generator.state = state
    else:
        for name, part in parts.items():
            _set_random_state(part, state[name])
