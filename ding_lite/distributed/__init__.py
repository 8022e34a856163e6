"""Several runs beside each other: members, populations, and trainables for Ray Tune. Ray is imported when it is needed."""

from typing import TYPE_CHECKING, Any

from ding_lite.distributed.exploring import Choices, Range, explored
from ding_lite.distributed.members import Member, Pipeline, reset_config
from ding_lite.distributed.populations import Population, PopulationError, Score, member_configs

if TYPE_CHECKING:
    from ding_lite.distributed.tune import as_trainable

__all__ = [
    "Choices",
    "Member",
    "Pipeline",
    "Population",
    "PopulationError",
    "Range",
    "Score",
    "as_trainable",
    "explored",
    "member_configs",
    "reset_config",
]


def __getattr__(name: str) -> Any:
    if name == "as_trainable":
        from ding_lite.distributed.tune import as_trainable

        return as_trainable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
