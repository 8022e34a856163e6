"""Observations: checks that observations fit the space of a policy that acts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import Tensor

from ding_lite.data import nested
from ding_lite.data.trees import is_tree
from ding_lite.envs.env_data_checks import all_finite
from ding_lite.envs.spaces import integer_bounds, space_spec, subspaces


class ObservationError(ValueError):
    """Observations that do not fit the space that a policy was made for."""


def misfit_of(policy: str, space: gymnasium.Space[Any], obs: Any) -> ObservationError | None:
    """The error about a batch of observations [B, ...] that does not fit its space; None if it fits.

    Args:
        policy: name of the policy, for the message.
        space: the observation space of the policy.
        obs: arrays or tensors, nested like the space.
    """
    found = next(_misfits(space, nested(obs) if is_tree(obs) or type(obs) is dict else obs, "obs", {}), None)
    return None if found is None else ObservationError(f"{policy} cannot act on these observations: {found}")


def may_be_wrong(spec: Any, obs: Any) -> bool:
    """Whether observations may have an error that a network does not notice: numbers that are not finite, floats in a space of
    integers, such as images that are scaled already, or integers that the dtype of the space cannot hold."""
    if type(obs) is np.ndarray:
        kind = obs.dtype.kind
        if kind == "f":
            return (hasattr(spec, "dtype") and spec.dtype.kind in "iu") or not all_finite(obs.ravel())
        return kind in "iu" and hasattr(spec, "dtype") and _is_out_of_dtype(obs, spec.dtype)
    if isinstance(obs, Tensor):
        if obs.is_floating_point():  # of tensors on a GPU, no number is looked at: this would wait for the GPU
            return (hasattr(spec, "dtype") and spec.dtype.kind in "iu") or (obs.is_cpu and bool(obs.sum().isnan()))
        return obs.is_cpu and not obs.is_complex() and may_be_wrong(spec, obs.numpy())
    leaves = nested(obs) if is_tree(obs) else obs
    if type(leaves) is dict and isinstance(spec, Mapping):
        return any(may_be_wrong(spec.get(name), leaf) for name, leaf in leaves.items())
    return False


def _is_out_of_dtype(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    """Whether an array of integers holds one that this dtype, if it is one of integers, cannot hold."""
    if array.dtype == dtype or dtype.kind not in "iu" or np.can_cast(array.dtype, dtype) or not array.size:
        return False
    bounds = np.iinfo(dtype)
    return bool(array.min() < bounds.min or array.max() > bounds.max)


def _misfits(space: gymnasium.Space[Any], obs: Any, where: str, lengths: dict[str, int]) -> Iterator[str]:
    parts = subspaces(space)
    if parts is None:
        yield from _of_leaf(space, obs, where, lengths)
        return
    if not isinstance(obs, Mapping):
        yield f"{where} is {describe_leaf(obs)}, expected a dict with the keys {[*parts]}."
        return
    for name, part in parts.items():
        if name not in obs:
            yield f"{where} lacks the key {name!r}, it has {sorted(map(str, obs))}: give all of {[*parts]}."
            return
        yield from _misfits(part, obs[name], f"{where}[{name!r}]", lengths)


def _of_leaf(space: gymnasium.Space[Any], obs: Any, where: str, lengths: dict[str, int]) -> Iterator[str]:
    spec: Any = space_spec(space)
    wanted = f"{spec.dtype} [B{''.join(f', {size}' for size in spec.shape)}]"
    if not isinstance(obs, (np.ndarray, Tensor)):
        yield f"{where} is {describe_leaf(obs)}, expected an array or a tensor {wanted}."
        return
    array = obs.detach().cpu().numpy() if isinstance(obs, Tensor) else obs
    if array.dtype.kind == "f" and (broken := np.argwhere(np.isnan(array))).size:
        found = f"{where}{broken[0].tolist()} is NaN, and so are {len(broken)} of {array.size} numbers"
        yield f"{found}. Look for the code that computes them: the environment, a wrapper, or a normalizer."
        return
    if array.shape[1:] != spec.shape or not array.ndim:
        yield f"{where} is {describe_leaf(obs)}, expected {wanted}.{_fix(array.shape, spec.shape, where)}"
        return
    is_kind = {"f": array.dtype == spec.dtype, "b": True, "i": True, "u": True}.get(array.dtype.kind, False)
    if not is_kind or (spec.dtype.kind == "f") != (array.dtype.kind == "f"):
        is_scaled = isinstance(space, spaces.Box) and spec.dtype.kind != "f" and array.dtype.kind == "f"
        fix = "give the integers of the environment, not scaled." if is_scaled else f"{where}.astype(np.{spec.dtype})."
        yield f"{where} is {describe_leaf(obs)}, expected {wanted}: {fix}"
        return
    if array.dtype.kind in "iu" and _is_out_of_dtype(array, spec.dtype):
        yield f"{where} holds {array.min()} to {array.max()}, expected {wanted}, which holds {_bounds(spec.dtype)}."
        return
    yield from out_of_range(space, array, where)
    if lengths and len(array) != next(iter(lengths.values())):
        first, count = next(iter(lengths.items()))
        yield f"{where} has {len(array)} rows, and {first} has {count}: give one row per environment."
    lengths.setdefault(where, len(array))


def _bounds(dtype: np.dtype[Any]) -> str:
    return f"{np.iinfo(dtype).min} to {np.iinfo(dtype).max}"


def _fix(shape: tuple[int, ...], wanted: tuple[int, ...], where: str) -> str:
    fix = f" To act on a single observation, make it a batch: {where}[None]." if shape == wanted else ""
    if len(shape) == len(wanted) and shape[1:] == wanted[1:]:
        fix += " Was the policy made with a vector environment's observation_space? Make it with its single_observation_space."
    return fix


def out_of_range(space: gymnasium.Space[Any], array: np.ndarray[Any, Any], where: str) -> Iterator[str]:
    """The first number of an array that is not in its discrete space, in words; nothing for other spaces."""
    if not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return
    low, high = map(np.asarray, integer_bounds(space))
    for place in np.argwhere((array < low) | (array > high))[:1].tolist():
        least, most = (int(np.broadcast_to(bound, array.shape)[tuple(place)]) for bound in (low, high))
        yield f"{where}{place} is {array[tuple(place)]}, and {space} has {least} to {most} there."


def describe_leaf(obs: Any) -> str:
    """A part of a batch for messages: `float32 [6, 4]`."""
    if isinstance(obs, (np.ndarray, Tensor)):
        return f"{str(obs.dtype).removeprefix('torch.')} {list(obs.shape)}"
    if isinstance(obs, Mapping):
        return f"a dict with the keys {sorted(map(str, obs))}"
    return f"{obs!r:.40}, a {type(obs).__name__}"
