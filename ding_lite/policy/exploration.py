"""Exploration: which actions are random.

Room: ding_lite.policy, floor 3. Numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_AHEAD = 16  # steps drawn at once: per step, numpy's calls would cost more than the numbers


class EpsilonGreedy:
    """With probability eps, any of n actions instead of the greedy one.

    Args:
        num_actions: n.
        rng: its random numbers.
    """

    def __init__(self, num_actions: int, rng: np.random.Generator) -> None:
        self.num_actions, self.rng = num_actions, rng
        self._eps, self._drawn = -1.0, np.empty((0, 0))
        self._rows: list[tuple[Any, Any]] = []

    def mix(self, action: Any, eps: float) -> Any:
        """Actions [B] int64, some of them replaced."""
        if not self._rows or eps != self._eps or len(action) != self._drawn.shape[1]:
            self._eps = eps
            self._prepare(self.rng.random((_AHEAD, len(action))))
        is_random, any_action = self._rows.pop()
        return np.where(is_random, any_action, action)

    def _prepare(self, drawn: np.ndarray[Any, Any]) -> None:
        # One number says both whether and which: those below eps are uniform in [0, eps).
        self._drawn = drawn
        is_random = drawn < self._eps
        any_action = (np.where(is_random, drawn / self._eps, 0) * self.num_actions).astype(np.int64)
        self._rows = list(zip(is_random, np.minimum(any_action, self.num_actions - 1)))[::-1]

    def state_dict(self) -> dict[str, Any]:
        """What is drawn and not used yet."""
        return {"eps": self._eps, "drawn": self._drawn[len(self._drawn) - len(self._rows) :].tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._eps = float(state["eps"])
        drawn = state["drawn"]
        self._prepare(np.array(drawn, np.float64) if len(drawn) else np.empty((0, 0)))
