"""Lags: exactly how many iterations late each step sees a value, or the state of a leader.

Within an iteration a value is not late. From one iteration to the next, a step sees the exact value of a kept field if it
writes the field, or is on the lane of its last writer or a later one. A step that only reads the field on an earlier lane sees
the value of `1 + max_lag` iterations before, which is `max_lag` iterations later than in a synchronous run. So the collector
acts with weights that are exactly that old, however fast the threads are. `_connect_ends` in `plans.py` limits how many
iterations are in progress. A step that is ahead waits in `edges.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ding_lite.engine.middleware_steps import MiddlewareStep


def source_of(
    step: MiddlewareStep, writers: Sequence[MiddlewareStep], is_writer: bool, max_lag: int
) -> tuple[MiddlewareStep, int] | None:
    """The step that provides a value, and in which earlier iteration it does: 0 for the same one. None if no step writes it.

    Args:
        step: the step that needs the value.
        writers: the steps that write it, in sequential order.
        is_writer: whether `step` is one of them.
        max_lag: iterations, at least 0.
    """
    before = [writer for writer in writers if writer.position < step.position]
    if before or not writers:
        return (before[-1], 0) if before else None
    is_exact = is_writer or step.lane >= writers[-1].lane
    return writers[-1], 1 if is_exact else 1 + max_lag
