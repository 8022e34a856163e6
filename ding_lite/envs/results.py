"""The checked results of one step of B environments, as arrays."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ding_lite.data import LeafSpec, Spec
from ding_lite.data.trees import map_leaves
from ding_lite.envs.env_data_checks import EnvDataError, is_number, require_finite, shown, to_element, to_leaf


class Results(NamedTuple):
    """The checked results of one step of B environments."""

    obs: Any
    """B observations of the space, which are not checked yet; or an array [B, ...] with the layout of the space, all finite."""

    reward: np.ndarray[Any, Any]
    """[B] float32."""

    terminated: np.ndarray[Any, Any] | None
    """[B] bool; None if no episode ended."""

    truncated: np.ndarray[Any, Any] | None
    """[B] bool; None if no episode ended."""

    infos: tuple[Any, ...]


_PARTS = "(obs, reward, terminated, truncated, info)"
_FALSE, _FLAGS = frozenset({False}), frozenset({False, True})


def checked(results: Sequence[Any], first: int = 0, is_first: bool = False) -> Results:
    """B results of `env.step` as arrays; `first` is the index of the first environment.

    Args:
        results: B tuples.
        first: index of the first environment.
        is_first: whether it is their first step, in which the types of flags are checked too.

    Raises:
        EnvDataError: a result does not have five parts, or a reward, flag or info is invalid.
    """
    try:
        obs, rewards, terminations, truncations, infos = zip(*results, strict=True)
    except (TypeError, ValueError):
        index, found = next((i, it) for i, it in enumerate(results) if not isinstance(it, (tuple, list)) or len(it) != 5)
        raise EnvDataError(
            f"environment {first + index} returned {shown(found, 80)} from step(), expected {_PARTS}.", first + index
        ) from None
    if set(map(type, infos)) != {dict}:
        _require_mappings(infos, first)
    reward = to_rewards(rewards, first)
    if is_first:
        require_flags(terminations, truncations, first)
    if none_true(terminations) and none_true(truncations):
        return Results(obs, reward, None, None, infos)
    if not are_flags(terminations + truncations):
        require_flags(terminations, truncations, first)
    return Results(obs, reward, np.array(terminations, np.bool_), np.array(truncations, np.bool_), infos)


def _require_mappings(infos: tuple[Any, ...], first: int) -> None:
    for index, info in enumerate(infos):
        if not isinstance(info, Mapping):
            raise EnvDataError(
                f"environment {first + index} returned the info {shown(info)} from step(), expected a dict.", first + index
            )


def to_rewards(rewards: tuple[Any, ...], first: int = 0) -> np.ndarray[Any, Any]:
    """B rewards as [B] float32.

    Raises:
        EnvDataError: a reward is not a number, or not finite in float32.
    """
    try:
        sum(rewards)  # raises for None and strings, which numpy would convert to numbers
        reward: np.ndarray[Any, Any] = np.array(rewards, np.float32)
    except Exception:  # noqa: BLE001  from any object; the wrong one is found below
        reward = np.empty(0, np.float32)
    if reward.shape != (len(rewards),) or not isfinite(sum(reward.tolist())):
        for index, one in enumerate(rewards):
            _require_reward(one, first + index)
    return reward


def _require_reward(reward: Any, env: int) -> None:
    if not (is_number(reward) or (isinstance(reward, numbers.Real) and not hasattr(reward, "shape"))):
        raise EnvDataError(f"environment {env} returned the reward {shown(reward)}, expected one number.", env)
    try:
        with np.errstate(over="ignore"):
            stored = np.float32(reward)
    except OverflowError:
        stored = np.float32(np.inf)
    if not np.isfinite(stored):
        is_known = isinstance(reward, numbers.Integral) or np.isfinite(float(reward))
        why = "which float32 cannot hold: scale it" if is_known else "which is not finite: correct the environment"
        raise EnvDataError(
            f"environment {env} returned the reward {shown(reward)}, {why}, or replace such values in a wrapper.", env
        )


def none_true(flags: tuple[Any, ...]) -> bool:
    """Whether all flags are False, in one pass. Invalid flags count as true, so that the caller checks them."""
    return _all_in(_FALSE, flags)


def are_flags(flags: tuple[Any, ...]) -> bool:
    """Whether all flags are True or False, in one pass. 1 and 0 count as flags."""
    return _all_in(_FLAGS, flags)


def require_flags(terminations: tuple[Any, ...], truncations: tuple[Any, ...], first: int = 0) -> None:
    """Raise an error for flags that are neither True nor False.

    Raises:
        EnvDataError: naming the first invalid flag.
    """
    for name, flags in (("terminated", terminations), ("truncated", truncations)):
        for index, flag in enumerate(flags):
            if not isinstance(flag, (bool, np.bool_)):
                raise EnvDataError(
                    f"environment {first + index} returned {name}={shown(flag)}, expected True or False.", first + index
                )


def write_obs(obs: Sequence[Any], out: Any, space: gymnasium.Space[Any], spec: Spec, first: int = 0) -> None:
    """Write B observations of this space into nested arrays [B, ...].

    Raises:
        EnvDataError: an observation is outside of its space, or not finite.
    """
    if isinstance(spec, LeafSpec):
        try:
            rows = np.array(obs)
        except Exception:  # noqa: BLE001  different shapes, or any objects
            rows = np.empty(0)
        if rows.shape == out.shape and rows.dtype == out.dtype:
            out[...] = rows
        else:  # one by one, to convert each, or to name the wrong one
            for index, one in enumerate(obs):
                out[index] = to_leaf(one, spec, f"environment {first + index}, obs", first + index)
    else:
        for index, one in enumerate(obs):
            nested = to_element(space, one, spec, f"environment {first + index}, obs", first + index)
            map_leaves(lambda column, leaf, row=index: column.__setitem__(row, leaf), out, nested)
    require_finite(out, "obs", first)


def _all_in(allowed: frozenset[bool], flags: tuple[Any, ...]) -> bool:
    try:
        return allowed.issuperset(flags)
    except TypeError:  # not hashable
        return False
