"""Checks of what environments return: wrong data is refused where it enters, by name.

Room: ding_lite.envs, floor 2. Imports data and the room's spaces.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from ding_lite.data import Leaf, Spec


class EnvDataError(ValueError):
    """An environment returned what its spaces do not allow, or something that is not finite."""


def to_leaf(value: Any, leaf: Leaf, who: str) -> np.ndarray[Any, Any]:
    """`value` with just this shape and dtype, without changing a number.

    Args:
        who: what the message calls it, such as "environment 3, obs".

    Raises:
        EnvDataError: another shape, a dtype of another kind, or a value that the dtype cannot hold.
    """
    array = np.asarray(value)
    if array.shape != leaf.shape:
        raise EnvDataError(f"{who} has shape {array.shape}, its space says {leaf.shape}: correct the space or the environment.")
    if array.dtype == leaf.dtype:
        return array
    if array.dtype == object or not (np.can_cast(array.dtype, leaf.dtype, "same_kind") or _are_integers(array, leaf)):
        raise EnvDataError(f"{who} has dtype {array.dtype}, its space says {leaf.dtype}: correct the space or the environment.")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(leaf.dtype)
    exact = np.isfinite(cast) | ~np.isfinite(array) if leaf.dtype.kind == "f" else cast == array
    if not exact.all():
        worst = array[~exact].flat[0]
        raise EnvDataError(f"{who} holds {worst}, which {leaf.dtype} cannot: correct the space's dtype or the environment.")
    return cast


def _are_integers(array: np.ndarray[Any, Any], leaf: Leaf) -> bool:
    return array.dtype.kind in "iub" and leaf.dtype.kind in "iuf"


def to_spec(value: Any, spec: Spec, who: str) -> Any:
    """`to_leaf` for every leaf of a nested element."""
    if isinstance(spec, Leaf):
        return to_leaf(value, spec, who)
    return {name: to_spec(value[name], inner, f"{who}[{name!r}]") for name, inner in spec.items()}


def require_finite(batch: Any, what: str) -> None:
    """Refuse NaN and infinities in a batch [B, ...], nested or not, naming the environment.

    Raises:
        EnvDataError: with the index of the first environment concerned.
    """
    if type(batch) is dict:
        for name, inner in batch.items():
            require_finite(inner, f"{what}[{name!r}]")
        return
    if batch.dtype.kind == "f":
        flat = batch.reshape(-1)
        # The sum of squares is one fast pass; only where it overflows or is not finite is a closer look needed.
        if isfinite(flat.dot(flat)):
            return
        rows = np.flatnonzero(~np.isfinite(batch).reshape(len(batch), -1).all(axis=1))
        if len(rows):
            value = batch[rows[0]]
            raise EnvDataError(
                f"environment {rows[0]} returned {what} {value if value.ndim == 0 or value.size < 10 else '...'}, which is not "
                "finite: correct the environment, or replace such values in a wrapper."
            )
