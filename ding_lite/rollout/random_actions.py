"""Random actions: actions sampled from the action space, and their log-probabilities."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from ding_lite.data.trees import map_leaves
from ding_lite.envs import action_masks
from ding_lite.envs.spaces import load_random_state, random_state, space_spec, subspaces, to_nested


class RandomActions:
    """Draws actions for all environments, as `env.action_space.sample()` does; with masks, uniform over the allowed ones.

    Args:
        env: any gymnasium vector environment; its own generator is not used.
        seed: random seed of the samples.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int) -> None:
        self._space, self._element = copy.deepcopy(env.action_space), env.single_action_space
        self._spec = space_spec(self._element)
        self._masks = action_masks(env.single_observation_space, self._element)
        self._space.seed(seed)

    def draw(self, obs: Any = None) -> Any:
        """An action for each environment, arrays [B, ...] with the nesting and dtypes of the space.

        Args:
            obs: observations [B, ...], which hold the masks, if there are any.
        """
        if self._masks is not None:
            return self._masks.draw(obs, self._space.np_random)
        drawn = to_nested(self._element, self._space.sample())
        return map_leaves(lambda leaf, spec: leaf.astype(spec.dtype, copy=False), drawn, self._spec)

    def log_prob(self, action: Any, obs: Any = None) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Log-probability or log-density [B] of these actions [B, ...], drawn for these observations."""
        if self._masks is not None:
            return self._masks.log_prob(obs).astype(np.float32)
        return np.asarray(log_prob_of_sample(self._element, action), np.float32)

    def state_dict(self) -> Any:
        """The state of its random generator."""
        return random_state(self._space)

    def load_state_dict(self, state: Any) -> None:
        """Restore a saved state."""
        load_random_state(self._space, state)


def log_prob_of_sample(space: gymnasium.Space[Any], element: Any) -> np.ndarray[Any, Any]:
    """Log-probability, or log-density, of these elements under `space.sample()`.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary, Box, or Dict and Tuple of these.
        element: arrays [B, ...], nested as the space is.

    Returns:
        [B] float64. The elements of a Box are uniform if bounded on both sides, exponential with mean 1 if bounded on one side,
        else standard normal. Integers are such numbers, rounded down from the lower bound, or up from the upper one.
    """
    parts = subspaces(space)
    if parts is not None:
        return functools.reduce(np.add, (log_prob_of_sample(part, element[name]) for name, part in parts.items()))
    element = np.asarray(element)
    count = len(element)
    if isinstance(space, spaces.Discrete):
        return np.full(count, -math.log(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return np.full(count, -np.log(space.nvec).sum())
    if isinstance(space, spaces.MultiBinary):
        return np.full(count, -math.log(2) * math.prod(space.shape))
    assert isinstance(space, spaces.Box)
    density: np.ndarray[Any, Any] = _box_log_density(space, element.astype(np.float64)).reshape(count, -1).sum(1)
    return density


_UNIT = math.log1p(-math.exp(-1))
"""Log-probability that an exponential number with mean 1 is less than 1."""


def _box_log_density(space: spaces.Box, element: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Log-density of each element, [B, *shape]; for integers, the log-probability."""
    below, above = space.bounded_below, space.bounded_above
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    is_whole = space.dtype is not None and space.dtype.kind in "iub"
    values = high - low + 1 if is_whole else high - low
    with np.errstate(invalid="ignore", divide="ignore"):  # in elements that are not selected
        uniform, rising, falling = -np.log(values), low - element, element - high
    uniform = np.where(low == high, 0.0, uniform)  # only one value
    if is_whole:
        rising, falling = rising + _UNIT, falling + _UNIT
    normal = _log_of_floored_normal(element) if is_whole else -0.5 * (element**2 + math.log(2 * math.pi))
    density: np.ndarray[Any, Any] = np.select([below & above, below, above], [uniform, rising, falling], normal)
    return density


def _log_of_floored_normal(element: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Log-probability that a standard normal number, rounded down, is this integer."""
    nearest = np.where(element >= 0, element, -element - 1)  # the same probability, on the side where logarithms are exact
    lower, upper = (torch.special.log_ndtr(torch.from_numpy(-(nearest + more))).numpy() for more in (0, 1))
    found: np.ndarray[Any, Any] = lower + np.log1p(-np.exp(upper - lower))
    return found
