"""Metrics: loggers and statistics; also exports the sinks of `ding_lite.sinks`."""

from ding_lite.metrics.averages import EmaStats, MeanStats
from ding_lite.metrics.extremes import MaxStats, MinStats
from ding_lite.metrics.kinds import DEFAULT_STATS_CLS_LOOKUP
from ding_lite.metrics.metrics_loggers import MetricsLogger
from ding_lite.metrics.series import ItemSeriesStats, ItemStats, PercentilesStats
from ding_lite.metrics.stats_base import StatsBase
from ding_lite.metrics.totals import LifetimeSumStats, SumStats
from ding_lite.sinks import Console, Csv, JsonLines, LiveConsole, Sink, SinkGroup, TensorBoard, WeightsAndBiases, read_row

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
    "TensorBoard",
    "WeightsAndBiases",
    "read_row",
]
