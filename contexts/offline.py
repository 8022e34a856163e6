"""The context of offline RL: what one iteration of evaluating and learning from a dataset passes along."""

from __future__ import annotations

import dataclasses
from typing import Any

from ding_lite.engine import Context

_KEPT = {"kept": True}


@dataclasses.dataclass
class OfflineRLContext(Context):
    """One iteration of offline RL. Counters are kept from iteration to iteration, data is not."""

    total_step: int = 0
    """Iterations finished before this one. Carries over by itself."""

    train_epoch: int = 0
    """Passes over the dataset since the start. Not kept: its fetcher owns the count and writes it every iteration."""

    train_iter: int = dataclasses.field(default=0, metadata=_KEPT)
    """Gradient steps since the start. Kept. Written by trainer and multistep_trainer."""

    train_data: Any = dataclasses.field(default=None, metadata={"provider": "a middleware of your own that fetches batches"})
    """What to learn from, a tree [B, ...]."""

    train_output: Any = dataclasses.field(default=None, metadata={"provider": "a learner such as trainer"})
    """What learning gave to log, scalar tensors by name."""

    eval_value: float = -float("inf")
    """Mean return, or another measure, of this iteration's evaluation; minus infinity where there was none."""

    last_eval_iter: int = dataclasses.field(default=-1, metadata=_KEPT)
    """`train_iter` at the last evaluation; -1 before the first. Kept. Written by evaluators."""

    last_eval_value: float = dataclasses.field(default=-float("inf"), metadata=_KEPT)
    """What the last evaluation gave. Kept. Written by evaluators."""

    eval_weights: dict[str, Any] | None = None
    """The weights that were evaluated, tensors by name; None where there was no evaluation. Written by evaluators."""

    learn_metrics: list[dict[Any, Any]] = dataclasses.field(default_factory=list)
    """What was logged while learning: each middleware appends what its `MetricsLogger.reduce()` gave. Read by loggers."""

    eval_metrics: list[dict[Any, Any]] = dataclasses.field(default_factory=list)
    """What was logged of evaluations that have ended, likewise."""
