"""Noisy actions: the greedy actions of a policy with normal noise, for datasets that show what nearby actions lead to."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from ding_lite.policy import Policy
from ding_lite.policy_base import EvalMode


class NoisyMode(EvalMode):
    """The mode that acts greedily, with normal noise on the actions; noisy actions are clipped to their bounds.

    Args:
        policy: a policy with actions in a Box of floats with finite bounds.
        sigma: standard deviation of the noise, for actions scaled to [-1, 1].
        seed: random seed of the noise.

    Raises:
        ValueError: sigma is no finite number above 0, or the policy has other actions.
    """

    def __init__(self, policy: Policy, sigma: float, seed: int) -> None:
        space = policy.action_space
        sigma = sigma.item() if isinstance(sigma, np.generic) else sigma
        is_number = isinstance(sigma, numbers.Real) and not isinstance(sigma, bool)
        if not is_number or not 0 < sigma <= sys.float_info.max:
            raise ValueError(f"noise_sigma = {sigma!r:.60}: expected a number above 0, or None for no noise.")
        if not (isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and space.is_bounded()):
            raise ValueError(
                f"noise_sigma is for actions in a Box of floats with finite bounds, and this {type(policy).__name__} has "
                f"{space}: leave it out."
            )
        super().__init__(policy)
        self._rng = np.random.default_rng([seed, 2])
        self._scale = float(sigma) * (space.high.astype(np.float64) / 2 - space.low.astype(np.float64) / 2)

    def forward(self, obs: Any, state: Sequence[Any] | None = None, **kwargs: Any) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Compute actions; see `ActMode.forward`."""
        action, state, outputs = super().forward(obs, state, **kwargs)
        noisy = action + self._scale * self._rng.standard_normal(action.shape)
        return self.env_action(noisy).astype(action.dtype), state, outputs
