"""DDPG's learner: sample 256 of 100,000 transitions (17 numbers per observation, 6 per action), and one step of a critic and an
actor with layers of 256 and 256; then move the targets of both.

The bare loop does the same in plain torch: one backward pass, fused Adam.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from bare.continuous import UPDATES, deterministic, learner
from torch import Tensor

from ding_lite.config import DDPGConfig
from ding_lite.policy import DDPGPolicy

__all__ = ["UPDATES", "bare", "ours"]


def ours(width: int = 256) -> Callable[[int], None]:
    """Through OffPolicyLearner."""
    return learner(DDPGConfig(), DDPGPolicy, width)


def bare(width: int = 256) -> Callable[[], None]:
    """A loop in torch."""

    def next_action(aim: Tensor) -> Tensor:
        return torch.tanh(aim)

    return deterministic(width, 1, next_action, actor_every=1)
