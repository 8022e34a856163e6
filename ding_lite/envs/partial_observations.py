"""Partial observations: partially observable versions of known tasks, which need recurrent policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

CARTPOLE_POSITIONS = "CartPoleNoVel-v1"
"""CartPole-v1 with positions only: [2] float32, the cart's position and the pole's angle."""


class PartialObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Removes all but these elements of a vector observation.

    Args:
        env: an environment with a Box [N] as observation space.
        index: indices of the elements, in this order.

    Example:
        >>> PartialObservation(CartPoleEnv(), (0, 2)).observation_space.shape
        (2,)
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: Sequence[int]) -> None:
        super().__init__(env)
        self._index, box = list(index), cast(spaces.Box, env.observation_space)
        low, high = box.low[self._index], box.high[self._index]
        self.observation_space = spaces.Box(low, high, dtype=cast(Any, box.dtype))

    def observation(self, observation: Any) -> Any:
        """These elements of it."""
        return np.asarray(observation)[self._index]


OnlyElements = PartialObservation  # its name in earlier versions


def cartpole_positions(**kwargs: Any) -> PartialObservation:
    """CartPole without velocities; with a time limit of 500 steps if made by `gymnasium.make`.

    Args:
        **kwargs: for `CartPoleEnv`.
    """
    return PartialObservation(CartPoleEnv(**kwargs), (0, 2))


gymnasium.register(
    CARTPOLE_POSITIONS,
    entry_point=f"{__name__}:{cartpole_positions.__name__}",
    reward_threshold=475.0,
    max_episode_steps=500,
)
