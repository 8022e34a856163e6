"""Metrics: where a run's numbers go.

Room: ding_lite.metrics, floor 1. Imports the engine.
"""

from ding_lite.metrics.sinks import Console, JsonLines, Sink, readable_time

__all__ = ["Console", "JsonLines", "Sink", "readable_time"]
