"""Fetchers: from storage to what is learned from.

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

from collections.abc import Callable

from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import contract
from ding_lite.middleware.arguments import require


def offpolicy_data_fetcher(cfg: DQNConfig, buffer_: ReplayBuffer) -> Callable[[OnlineRLContext], None]:
    """Sample a batch of transitions, once there are enough of them.

    Writes:
        ctx.train_data: a tree [B, ...] of the buffer's leaves; None while there are too few.

    Args:
        cfg: uses policy.learn.batch_size and policy.learn.learning_starts, both in transitions.
        buffer_: sampled uniformly.

    Raises:
        ValueError: the buffer can never hold learning_starts transitions.
        TypeError: no replay buffer.
    """
    require("offpolicy_data_fetcher", buffer_, "sample", "a ReplayBuffer")
    batch_size = cfg.policy.learn.batch_size
    enough = max(1, cfg.policy.learn.learning_starts)
    capacity = getattr(buffer_, "capacity", enough)
    if enough > capacity:
        raise ValueError(
            f"policy.learn.learning_starts = {enough:,}, and the replay buffer holds {capacity:,} transitions: learning would "
            "never start. Lower the one or raise the other."
        )

    @contract(writes=("train_data",), uses=(buffer_,), stage="learn")
    def fetch(ctx: OnlineRLContext) -> None:
        ctx.train_data = buffer_.sample(batch_size) if len(buffer_) >= enough else None

    return fetch
