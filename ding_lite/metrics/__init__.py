"""Metrics: where a run's numbers come together, and where they go.

Room: ding_lite.metrics, floor 1. Imports the engine.
"""

from ding_lite.metrics.kinds import (
    DEFAULT_STATS_CLS_LOOKUP,
    EmaStats,
    ItemSeriesStats,
    ItemStats,
    LifetimeSumStats,
    MaxStats,
    MeanStats,
    MinStats,
    PercentilesStats,
    StatsBase,
    SumStats,
)
from ding_lite.metrics.loggers import MetricsLogger
from ding_lite.metrics.sinks import Console, JsonLines, Sink, readable_time

__all__ = [
    "DEFAULT_STATS_CLS_LOOKUP",
    "Console",
    "EmaStats",
    "ItemSeriesStats",
    "ItemStats",
    "JsonLines",
    "LifetimeSumStats",
    "MaxStats",
    "MeanStats",
    "MetricsLogger",
    "MinStats",
    "PercentilesStats",
    "Sink",
    "StatsBase",
    "SumStats",
    "readable_time",
]
