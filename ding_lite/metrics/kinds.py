"""Kinds of statistics by name."""

from __future__ import annotations

from ding_lite.metrics.averages import EmaStats, MeanStats
from ding_lite.metrics.extremes import MaxStats, MinStats
from ding_lite.metrics.series import ItemSeriesStats, ItemStats, PercentilesStats
from ding_lite.metrics.stats_base import StatsBase
from ding_lite.metrics.totals import LifetimeSumStats, SumStats

DEFAULT_STATS_CLS_LOOKUP: dict[str, type[StatsBase]] = {
    kind.stats_cls_identifier: kind
    for kind in (
        MeanStats,
        EmaStats,
        MinStats,
        MaxStats,
        SumStats,
        LifetimeSumStats,
        PercentilesStats,
        ItemStats,
        ItemSeriesStats,
    )
}
"""Kinds of statistics by their name in `reduce=`."""
