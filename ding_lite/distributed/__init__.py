"""Several runs beside each other: members, populations, and trainables for Ray Tune. Ray is imported when it is needed."""

from ding_lite.distributed.exploring import Choices, Range, explored
from ding_lite.distributed.members import Member, Pipeline, reset_config
from ding_lite.distributed.populations import Population, PopulationError, Score, member_configs
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
