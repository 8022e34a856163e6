"""Checks of the data that environments return."""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from typing import Any

import gymnasium
import numpy as np

from ding_lite.basics.messages import describe_error
from ding_lite.data import LeafSpec, Spec
from ding_lite.envs.spaces import SpaceError, to_nested

_SMALL = 1 << 12


class EnvDataError(ValueError):
    """An environment returned data that its spaces do not allow, or numbers that are not finite.

    Args:
        message: the message, which names the environment.
        env: index of the environment, if a single one is affected.
    """

    def __init__(self, message: str, env: int | None = None) -> None:
        super().__init__(message)
        self.env = env
        self.is_next = False
        """Whether the data is the current observation, which comes from a reset after the end of an episode."""


def shown(value: Any, limit: int = 60) -> str:
    """`repr(value)`, shortened to `limit` characters; the name of the type if `repr` fails."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  user code, and integers with more digits than Python prints
        return f"<{type(value).__name__}, whose repr() raised {type(error).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def to_leaf(value: Any, leaf: LeafSpec, who: str, env: int | None = None) -> np.ndarray[Any, Any]:
    """`value` as an array of exactly this shape and dtype. Numbers do not change, except by rounding of floats.

    Args:
        value: a number, an array or a list.
        leaf: expected shape and dtype.
        who: name of the value in messages, such as "environment 3, obs".
        env: index of the environment.

    Raises:
        EnvDataError: the shape or kind of dtype is wrong, or the dtype cannot hold a value.
    """
    try:
        array = np.asarray(value)
    except Exception as error:
        raise EnvDataError(
            f"{who} is {shown(value)}, which numpy cannot convert to an array ({describe_error(error)}), expected "
            f"{leaf.shape} {leaf.dtype}: correct the environment.",
            env,
        ) from error
    if array.shape != leaf.shape:
        raise EnvDataError(
            f"{who} has shape {array.shape}, its space has {leaf.shape}: correct the space or the environment.", env
        )
    if array.dtype == leaf.dtype:
        return array
    if array.dtype == object or not (np.can_cast(array.dtype, leaf.dtype, "same_kind") or _are_integers(array, leaf)):
        raise EnvDataError(
            f"{who} has dtype {array.dtype}, its space has {leaf.dtype}: correct the space or the environment.", env
        )
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(leaf.dtype)
    exact = np.isfinite(cast) | ~np.isfinite(array) if leaf.dtype.kind == "f" else cast == array
    if not exact.all():
        worst = array[~exact].flat[0]
        raise EnvDataError(
            f"{who} is {worst}, which {leaf.dtype} cannot hold: correct the space's dtype or the environment.", env
        )
    return cast


def _are_integers(array: np.ndarray[Any, Any], leaf: LeafSpec) -> bool:
    return array.dtype.kind in "iub" and leaf.dtype.kind in "iuf"


def to_spec(value: Any, spec: Spec, who: str, env: int | None = None) -> Any:
    """`to_leaf` for every leaf of a nested element."""
    if isinstance(spec, LeafSpec):
        return to_leaf(value, spec, who, env)
    return {name: to_spec(value[name], inner, f"{who}[{name!r}]", env) for name, inner in spec.items()}


def to_element(space: gymnasium.Space[Any], value: Any, spec: Spec, who: str, env: int | None = None) -> Any:
    """An element of this gymnasium space, or a batch, as nested arrays of exactly this shape and dtype.

    Raises:
        EnvDataError: a part of its space is missing or wrong.
    """
    try:
        nested = to_nested(space, value)
    except SpaceError as error:
        raise EnvDataError(f"{who}: {error}", env) from None
    return to_spec(nested, spec, who, env)


def require_finite(batch: Any, what: str, first: int = 0) -> None:
    """Raise an error for NaN or infinity in a batch [B, ...], nested or not; `first` is the index of the first environment.

    Raises:
        EnvDataError: with the index of the first affected environment.
    """
    if type(batch) is dict:
        for name, inner in batch.items():
            require_finite(inner, f"{what}[{name!r}]", first)
        return
    if batch.dtype.kind != "f" or all_finite(batch.ravel()):
        return
    row = int(np.flatnonzero(~np.isfinite(batch).reshape(len(batch), -1).all(axis=1))[0])
    found = batch[row] if batch[row].size < 10 else "..."
    raise EnvDataError(
        f"environment {first + row} returned {what} {found}, which is not finite: correct the environment, or replace such "
        "values in a wrapper.",
        first + row,
    )


def all_finite(numbers: np.ndarray[Any, Any]) -> bool:
    """Whether no number of this one-dimensional array of floats is NaN or infinite."""
    if len(numbers) >= _SMALL or numbers.dtype.char not in "fd":
        return bool(np.isfinite(numbers).all())
    # For few numbers, one dot product is the fastest check; its small weights prevent an overflow.
    return isfinite(numbers.dot(_weights(len(numbers), numbers.dtype)))


def require_in_range(batch: Any, bounds: Any, what: str, first: int = 0) -> None:
    """Raise an error for integers of a batch [B, ...] outside of their space; `bounds` is a result of `integer_bounds`.

    Raises:
        EnvDataError: with the index of the first affected environment.
    """
    if bounds is None:
        return
    if type(bounds) is dict:
        for name, inner in bounds.items():
            require_in_range(batch[name], inner, f"{what}[{name!r}]", first)
        return
    low, high = bounds
    wrong = (batch < low) | (batch > high)
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        found = batch[row] if batch[row].size < 10 else "..."
        raise EnvDataError(
            f"environment {first + row} returned {what} {found}, its space allows {low} to {high}: correct the space or the "
            "environment.",
            first + row,
        )


@lru_cache(maxsize=64)
def _weights(size: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return np.full(size, 1e-20, dtype)


def is_number(value: Any) -> bool:
    """Whether it is a real number of Python or numpy.

    Example:
        >>> is_number(True), is_number(np.float32(2.5)), is_number("2"), is_number(np.zeros(1)), is_number(10**400)
        (True, True, False, False, False)
    """
    try:
        return np.shape(value) == () and np.asarray(value).dtype.kind in "biuf"
    except (TypeError, ValueError):  # lists of lists of different lengths, tensors of another device
        return False
