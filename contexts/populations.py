"""The context of a population: the data that middleware share in a round."""

from __future__ import annotations

import dataclasses
from typing import Any

from ding_lite.engine import Context

_KEPT = {"kept": True}
_STEPPER = {"provider": "population_trainer"}


@dataclasses.dataclass
class PopulationContext(Context):
    """One round of a population. Counters are kept from round to round."""

    total_step: int = 0
    """Rounds finished before this one. Counted by the task."""

    env_step: int = dataclasses.field(default=0, metadata=_KEPT)
    """Environment steps since the start, summed over members. Kept. Written by population_trainer."""

    train_iter: int = dataclasses.field(default=0, metadata=_KEPT)
    """Gradient steps since the start, summed over members. Kept. Written by population_trainer."""

    scores: dict[str, Any] = dataclasses.field(default_factory=dict, metadata=_STEPPER)
    """The score of each member in this round, by its name (`ding_lite.distributed.Score`); without failed members, and without
    those that had no score in this round. Written by population_trainer."""

    member_results: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict, metadata=_STEPPER)
    """Counters and metrics of each member in this round; see `Member.advance`. Written by population_trainer."""

    decisions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """What was decided in this round, as in decisions.jsonl. Written by population_exploiter."""

    eval_value: float = -float("inf")
    """The best score of this round; minus infinity if there is none. With mode "min" it is negated. Written by
    population_trainer."""

    last_eval_value: float = dataclasses.field(default=-float("inf"), metadata=_KEPT)
    """The last best score. Kept. Written by population_trainer."""

    last_eval_iter: int = dataclasses.field(default=-1, metadata=_KEPT)
    """`train_iter` at the last scores. Kept. Written by population_trainer."""

    learn_metrics: list[dict[Any, Any]] = dataclasses.field(default_factory=list)
    """The settings of the members, as results of `MetricsLogger.reduce()`. Read by loggers."""

    eval_metrics: list[dict[Any, Any]] = dataclasses.field(default_factory=list)
    """Best and median score, and that of each member, in the same form."""
