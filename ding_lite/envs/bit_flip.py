"""Bit flip: an environment with goals, whose reward says nothing before the goal is reached."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

BIT_FLIP = "ding_lite/BitFlip-v0"
"""Id of the environment, for `make_envs`."""


class BitFlip(gymnasium.Env[dict[str, Any], int]):
    """n bits, of which each action flips one; the goal is a random string of bits.

    The reward is 0 when the bits are those of the goal, which ends the episode, and else -1. An episode is truncated after n
    steps; the goal can always be reached in these. Random actions almost never reach it for n of 15 or more. `is_success` in
    the info says whether the step reached the goal.

    Args:
        n_bits: n, at least 1.

    Raises:
        ValueError: n_bits < 1.

    Reference:
        Andrychowicz et al. (2017), https://arxiv.org/abs/1707.01495, section 3.1.

    Example:
        >>> env = BitFlip(2)
        >>> env.compute_reward(np.array([[0, 1], [1, 1]]), np.array([[1, 1], [1, 1]]), {}).tolist()
        [-1.0, 0.0]
    """

    def __init__(self, n_bits: int = 8) -> None:
        if n_bits < 1:
            raise ValueError(f"BitFlip(n_bits={n_bits}): expected at least 1 bit.")
        self.n_bits = n_bits
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space: Any = spaces.Dict({name: spaces.MultiBinary(n_bits) for name in names})
        self.action_space: Any = spaces.Discrete(n_bits)
        self._bits = self._goal = np.zeros(n_bits, np.int8)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode with random bits and another random goal."""
        super().reset(seed=seed)
        self._bits = self.np_random.integers(0, 2, self.n_bits, np.int8)
        flipped = self.np_random.integers(0, 2, self.n_bits, np.int8)
        flipped[self.np_random.integers(self.n_bits)] |= not flipped.any()
        self._goal = self._bits ^ flipped
        self._steps = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Flip a bit."""
        self._bits[action] ^= 1
        self._steps += 1
        obs, info = self._obs(), {"is_success": bool((self._bits == self._goal).all())}
        reward = float(self.compute_reward(self._bits, self._goal, info))
        return obs, reward, info["is_success"], self._steps >= self.n_bits, info

    def _obs(self) -> dict[str, Any]:
        return {"observation": self._bits.copy(), "achieved_goal": self._bits.copy(), "desired_goal": self._goal.copy()}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """The reward of goals [n] or [N, n]: 0 where they are the same, and else -1."""
        return np.all(achieved_goal == desired_goal, -1).astype(np.float32) - 1

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Whether goals [n] or [N, n] are the same."""
        return np.all(achieved_goal == desired_goal, -1)


gymnasium.register(BIT_FLIP, entry_point=f"{__name__}:{BitFlip.__name__}")
