"""Metrics: where a run's numbers come together, and where they go.

Room: ding_lite.metrics, floor 1. Imports the basics.
"""

from ding_lite.metrics.bases import StatsBase
from ding_lite.metrics.consoles import Console, LiveConsole, make_console, readable_time
from ding_lite.metrics.files import Csv, JsonLines
from ding_lite.metrics.kinds import DEFAULT_STATS_CLS_LOOKUP
from ding_lite.metrics.loggers import MetricsLogger
from ding_lite.metrics.series import ItemSeriesStats, ItemStats, PercentilesStats
from ding_lite.metrics.services import TensorBoard, WeightsAndBiases
from ding_lite.metrics.sinks import Sink, SinkGroup
from ding_lite.metrics.systems import SystemUse
from ding_lite.metrics.totals import EmaStats, LifetimeSumStats, MaxStats, MeanStats, MinStats, SumStats

__all__ = [
    "DEFAULT_STATS_CLS_LOOKUP",
    "Console",
    "Csv",
    "EmaStats",
    "ItemSeriesStats",
    "ItemStats",
    "JsonLines",
    "LifetimeSumStats",
    "LiveConsole",
    "MaxStats",
    "MeanStats",
    "MetricsLogger",
    "MinStats",
    "PercentilesStats",
    "Sink",
    "SinkGroup",
    "StatsBase",
    "SumStats",
    "SystemUse",
    "TensorBoard",
    "WeightsAndBiases",
    "make_console",
    "readable_time",
]
