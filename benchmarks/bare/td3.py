"""TD3's learner: sample 256 of 100,000 transitions (17 numbers per observation, 6 per action), and one step of two critics and,
every second time, an actor with layers of 256 and 256; then, as often, move the targets of all.

The bare loop does the same in plain torch: both critics in one product per layer, one backward pass, fused Adam.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from bare.continuous import UPDATES, deterministic, learner
from torch import Tensor

from ding_lite.config import TD3Config
from ding_lite.policy import TD3Policy

__all__ = ["UPDATES", "bare", "ours"]


def ours(width: int = 256) -> Callable[[int], None]:
    """Through OffPolicyLearner."""
    return learner(TD3Config(), TD3Policy, width)


def bare(width: int = 256) -> Callable[[], None]:
    """A loop in torch."""

    def next_action(aim: Tensor) -> Tensor:
        aim = torch.tanh(aim)
        return (aim + (0.2 * torch.randn(aim.shape)).clamp_(-0.5, 0.5)).clamp_(-1, 1)

    return deterministic(width, 2, next_action, actor_every=2)
