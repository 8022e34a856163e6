"""Infos: numbers from the infos of environments, as means per episode."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from ding_lite.basics import did_you_mean


def as_float(value: Any) -> float | None:
    """A number, or the single element of an array or tensor, as a float; None for anything else.

    Integers too large for a float become infinite.

    Example:
        >>> import numpy as np
        >>> as_float(True), as_float(np.ones(1)), as_float(10**30), as_float(10**400), as_float("2"), as_float([2])
        (1.0, 1.0, 1e+30, inf, None, None)
    """
    if hasattr(value, "item") and math.prod(getattr(value, "shape", (0,))) == 1:
        value = value.item()
    if not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value == -abs(value) else math.inf


def own_info(info: Any, around: tuple[Any, ...] = ()) -> Any:
    """A copy that the environment cannot change: its dicts, lists, tuples and arrays are new, other objects are shared. So are
    parts that contain themselves.

    Example:
        >>> info = {"score": np.zeros(1), "agents": {"cat": {"lives": [3]}}}
        >>> copied = own_info(info)
        >>> info["score"][0], info["agents"]["cat"]["lives"][0] = 5, 2
        >>> copied
        {'score': array([0.]), 'agents': {'cat': {'lives': [3]}}}
    """
    if isinstance(info, Mapping) or type(info) in (list, tuple):
        if any(info is one for one in around):
            return info
        around = (*around, info)
        if isinstance(info, Mapping):
            return {name: own_info(value, around) for name, value in info.items()}
        return type(info)(own_info(value, around) for value in info)
    return info.copy() if isinstance(info, np.ndarray) else info


class InfoWithMeans(dict[str, Any]):
    """The info of an episode's last step with means over the episode, which may have the names of values of that step."""

    def __init__(self, of_step: Mapping[str, Any], means: Mapping[str, float]) -> None:
        super().__init__({**of_step, **means})
        self.of_step = of_step
        """The info as the environment returned it."""


def info_of_step(info: Any) -> Any:
    """The info that the environment returned, without the means that `MeanInfo` has added."""
    return info.of_step if type(info) is InfoWithMeans else info


class MeanInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the episode means of some numbers in the infos to the info of the last step.

    Loggers log every number in an episode's last info, so these means are logged under the same names. Steps without the
    number, and NaN, do not count. A name that is missing in the whole first episode causes one warning. Info columns of the
    same names have the values of each step, not the means.

    Args:
        env: the environment.
        names: names of the numbers.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], names: Sequence[str]) -> None:
        super().__init__(env)
        self._names = tuple(names)
        self._known: dict[str, Any] = {}
        self._odd: set[str] = set()
        self._is_first = True
        self._begin()

    def _begin(self) -> None:
        self._sums, self._counts = dict.fromkeys(self._names, 0.0), dict.fromkeys(self._names, 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._begin()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the environment."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        for name in self._names:
            value: Any = info.get(name)
            number = as_float(value)
            if number is None:
                self._warn_of_no_number(name, value)
            elif number == number:
                self._sums[name] += number
                self._counts[name] += 1
        if not (terminated or truncated):
            self._known.update(info if self._is_first else {})
            return obs, reward, terminated, truncated, info
        if self._is_first:
            self._warn_of_missing({**self._known, **info})
        means = {name: self._sums[name] / count for name, count in self._counts.items() if count}
        return obs, reward, terminated, truncated, InfoWithMeans(info, means)

    def _warn_of_no_number(self, name: str, value: Any) -> None:
        if value is not None and name not in self._odd:
            self._odd.add(name)
            warnings.warn(
                f"log_info names {name!r}, which is not a number in the infos of {self.env}, but {value!r:.60}: it is ignored.",
                stacklevel=3,
            )

    def _warn_of_missing(self, known: dict[str, Any]) -> None:
        self._is_first = False
        self._known = {}
        for name in self._names:
            if not self._counts[name] and name not in self._odd:
                warnings.warn(
                    f"log_info names {name!r}, which is in no info of the first episode of {self.env}"
                    f"{did_you_mean(name, known)} The infos have {', '.join(map(str, known)) or 'no keys'}.",
                    stacklevel=2,
                )
