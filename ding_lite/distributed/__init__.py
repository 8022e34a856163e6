"""Ray clusters, and several runs beside each other: populations, trainables for Ray Tune. Ray is imported when it is needed."""

from ding_lite.distributed.clusters import Resources, connect
from ding_lite.distributed.exploring import Choices, Range, explored
from ding_lite.distributed.members import Member, PipelineBuilder, reset_config
from ding_lite.distributed.populations import Population, PopulationError, Score, member_configs
from ding_lite.distributed.tune import as_trainable
from ding_lite.ranks import is_first_rank

__all__ = [
    "Choices",
    "Member",
    "PipelineBuilder",
    "Population",
    "PopulationError",
    "Range",
    "Resources",
    "Score",
    "as_trainable",
    "connect",
    "explored",
    "is_first_rank",
    "member_configs",
    "reset_config",
]
