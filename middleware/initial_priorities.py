"""Initial priorities of new transitions, for prioritised replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Trajectories
from ding_lite.engine import contract
from ding_lite.middleware.collected import REWRITE_TERMS, rewrite


def priority_calculator(
    priority_calculation_fn: Callable[[Trajectories], Any], *, uses: Iterable[Any] = ()
) -> Callable[[OnlineRLContext], None]:
    """Set the initial priorities of new transitions, as a column `priority` for a PrioritizedReplayBuffer.

    Without it, new transitions get the largest priority so far.

    Reads:
        ctx.trajectories, or ctx.episodes if whole episodes were collected.
    Writes:
        the same field, with the column priority [T, B] float32.

    Args:
        priority_calculation_fn: function of ctx.trajectories, or of the episodes as a rollout of one environment. It returns an
            array, tensor or sequence of numbers, each finite and >= 0: [T, B], or [N] in the order of the transitions, which
            is environment by environment.
        uses: objects that the function shares with other middleware, such as a policy's learn_mode, for asynchronous mode.

    Raises:
        ValueError: in an iteration, priorities have the wrong length, are negative or not finite.
    """
    if not callable(priority_calculation_fn):
        kind = type(priority_calculation_fn).__name__
        raise TypeError(
            f"priority_calculator wants a function of ctx.trajectories, got {priority_calculation_fn!r:.80}, a {kind}."
        )

    def with_priorities(rollout: Trajectories) -> Trajectories:
        return rollout.with_columns(priority=_placed(priority_calculation_fn(rollout), rollout))

    @contract(**REWRITE_TERMS, uses=tuple(uses), stage="process")
    def calculate(ctx: OnlineRLContext) -> None:
        rewrite(ctx, "priority_calculator", with_priorities)

    return calculate


def _placed(given: Any, rollout: Trajectories) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Priorities as a column [T, B], 0 for steps that were only resets."""
    if isinstance(given, torch.Tensor):
        given = given.numpy(force=True)
    priority = np.asarray(given, np.float32)
    real = np.ones((rollout.num_steps, rollout.num_envs), np.bool_) if rollout.valid is None else rollout.valid
    if priority.shape == real.shape:
        priority = priority.T[real.T]
    if priority.shape != (len(rollout),):
        raise ValueError(
            f"priority_calculator: the function gave priorities of shape {priority.shape} for a rollout of {len(rollout)} "
            f"transitions: return {real.shape}, or ({len(rollout)},) in the order of the transitions."
        )
    wrong = np.flatnonzero(~(np.isfinite(priority) & (priority >= 0)))
    if len(wrong):
        raise ValueError(
            f"priority_calculator: the function gave the priority {priority[wrong[0]]} for transition {wrong[0]} of the "
            "rollout: priorities must be finite and >= 0."
        )
    column = np.zeros(real.shape, np.float32)
    column.T[real.T] = priority
    return column
