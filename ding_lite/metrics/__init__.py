"""Metrics: where a run's numbers come together, and where they go.

Room: ding_lite.metrics, floor 1. Imports the basics.
"""

from ding_lite.metrics.bases import StatsBase
from ding_lite.metrics.kinds import DEFAULT_STATS_CLS_LOOKUP
from ding_lite.metrics.loggers import MetricsLogger
from ding_lite.metrics.series import ItemSeriesStats, ItemStats, PercentilesStats
from ding_lite.metrics.sinks import Console, JsonLines, Sink, readable_time
from ding_lite.metrics.totals import EmaStats, LifetimeSumStats, MaxStats, MeanStats, MinStats, SumStats

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
