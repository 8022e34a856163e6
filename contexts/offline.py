"""The context of offline RL: what one iteration of evaluating and learning from a dataset passes along.

Room: ding_lite.contexts, floor 2. Imports the engine.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ding_lite.engine import Context


@dataclasses.dataclass
class OfflineRLContext(Context):
    """One iteration of offline RL. Counters are kept from iteration to iteration, data is not."""

    total_step: int = 0
    """Iterations finished before this one. Carries over by itself."""

    train_epoch: int = 0
    """Passes over the dataset since the start. Not kept: its fetcher owns the count and writes it every iteration."""

    train_iter: int = 0
    """Gradient steps since the start. Kept. Written by trainer and multistep_trainer."""

    train_data: Any = dataclasses.field(default=None, metadata={"provider": "a fetcher such as offline_data_fetcher"})
    """What to learn from, a tree [B, ...]."""

    train_output: Any = dataclasses.field(default=None, metadata={"provider": "a learner such as trainer"})
    """What learning gave to log, scalar tensors by name."""

    eval_value: float = -float("inf")
    """Mean return, or another measure, of this iteration's evaluation; minus infinity where there was none."""

    last_eval_iter: int = -1
    """`train_iter` at the last evaluation; -1 before the first. Kept. Written by evaluators."""

    last_eval_value: float = -float("inf")
    """What the last evaluation gave. Kept. Written by evaluators."""

    eval_weights: dict[str, Any] | None = None
    """The weights that were evaluated, tensors by name; None where there was no evaluation. Written by evaluators."""

    def __post_init__(self) -> None:
        self.keep("train_iter", "last_eval_iter", "last_eval_value")
