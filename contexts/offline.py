"""The context of offline RL: the data that middleware share in an iteration of evaluating and learning from a dataset."""

from __future__ import annotations

import dataclasses
from typing import Any

from ding_lite.contexts.foreign_names import FOREIGN_OFFLINE_FIELDS
from ding_lite.contexts.train_outputs import TrainOutput
from ding_lite.engine import Context

_KEPT = {"kept": True}
_FETCHER = {"provider": "offline_data_fetcher", "consumer": "a learner such as trainer", "result": "train_output"}
_LEARNER = {"provider": "a learner such as trainer", "copied_to": "learn_metrics"}


@dataclasses.dataclass
class OfflineRLContext(Context):
    """One iteration of offline RL. Counters are kept from iteration to iteration, data is not."""

    foreign_fields = FOREIGN_OFFLINE_FIELDS

    total_step: int = 0
    """Iterations finished before this one. Counted by the task."""

    train_epoch: int = 0
    """Passes over the dataset since the start. Not kept: offline_data_fetcher, or a fetcher of your own, counts it and writes
    it in every iteration."""

    train_iter: int = dataclasses.field(default=0, metadata=_KEPT)
    """Gradient steps since the start. Kept. Written by trainer and multistep_trainer."""

    train_data: Any = dataclasses.field(default=None, metadata=_FETCHER)
    """The training batch, a tree [B, ...]."""

    train_output: TrainOutput | None = dataclasses.field(default=None, metadata=_LEARNER)
    """Values of learning to log, scalar tensors by name."""

    eval_value: float = -float("inf")
    """Mean return, or another measure, of this iteration's evaluation; minus infinity if there was none."""

    last_eval_iter: int = dataclasses.field(default=-1, metadata=_KEPT)
    """`train_iter` at the last evaluation; -1 before the first. Kept. Written by evaluators."""

    last_eval_value: float = dataclasses.field(default=-float("inf"), metadata=_KEPT)
    """Value of the last evaluation. Kept. Written by evaluators."""

    eval_weights: dict[str, Any] | None = None
    """The weights that were evaluated, tensors by name; None if there was no evaluation. Written by evaluators."""

    learn_metrics: list[dict[Any, Any]] = dataclasses.field(default_factory=list)
    """Metrics of learning: each middleware appends the result of its `MetricsLogger.reduce()`. Read by loggers."""

    eval_metrics: list[dict[Any, Any]] = dataclasses.field(default_factory=list)
    """Metrics of completed evaluations, in the same form."""
