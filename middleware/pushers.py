"""Pushers: from the rollout into storage.

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

from collections.abc import Callable

from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import contract
from ding_lite.middleware.arguments import require


def data_pusher(cfg: RunConfig, buffer_: ReplayBuffer) -> Callable[[OnlineRLContext], None]:
    """Put this iteration's transitions into the replay buffer.

    Reads:
        ctx.trajectories.

    Args:
        cfg: nothing of it; in the seed's place.
        buffer_: takes them; the oldest make room.
    """
    require("data_pusher", buffer_, "push", "a ReplayBuffer")

    @contract(reads=("trajectories",), uses=(buffer_,), stage="process")
    def push(ctx: OnlineRLContext) -> None:
        assert ctx.trajectories is not None
        buffer_.push(ctx.trajectories)

    return push
