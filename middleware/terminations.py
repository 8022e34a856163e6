"""Terminations: end a run at a limit of steps."""

from __future__ import annotations

import numbers
from collections.abc import Callable

from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import contract, current_task


def termination_checker(
    max_env_step: int | None = None, max_train_iter: int | None = None
) -> Callable[[OnlineRLContext], None]:
    """End the run with the iteration in which a limit is reached.

    Reads:
        ctx.env_step, ctx.train_iter, if they are limited.

    Args:
        max_env_step: environment steps.
        max_train_iter: gradient steps.

    Raises:
        ValueError: no limit is set, or a limit is not a number of at least 1.
    """
    limits = {name: limit for name, limit in (("env_step", max_env_step), ("train_iter", max_train_iter)) if limit is not None}
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, numbers.Real) or limit < 1:
            raise ValueError(f"termination_checker(max_{name}={limit!r}) wants a number of steps, at least 1.")
    if not limits:
        raise ValueError("termination_checker() without a limit never ends anything: set max_env_step or max_train_iter.")

    @contract(reads=tuple(limits), stage="record")
    def check(ctx: OnlineRLContext) -> None:
        task = current_task()
        for name, limit in limits.items():
            value = getattr(ctx, name)
            task.progress = min(value / limit, 1.0)
            if value >= limit:
                task.finish_because(f"termination_checker found {name} {value:,}, and max_{name} is {limit:,}")

    return check
