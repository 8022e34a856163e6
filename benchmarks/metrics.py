"""Metrics: the cost of logging a value, for each kind, and of aggregating many components.

The limit is a dict lookup and an addition to an object's attributes.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from functools import partial
from timeit import Timer
from typing import Any

from measure import compare, cpu_seconds, one_thread, report

from ding_lite.metrics import MetricsLogger

CALLS = 2000
KINDS = {
    "mean": "",
    "mean, window=100": ", reduce='mean', window=100",
    "ema": ", reduce='ema', ema_coeff=0.01",
    "min": ", reduce='min'",
    "max, window=100": ", reduce='max', window=100",
    "sum": ", reduce='sum'",
    "lifetime_sum with throughput": ", reduce='lifetime_sum', with_throughput=True",
    "percentiles, window=100": ", reduce='percentiles', window=100",
    "item": ", reduce='item'",
    "item_series, window=100": ", reduce='item_series', window=100",
}
COMPONENTS, METRICS = 64, 50


class Bare:
    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0


def repeated(statement: str, **names: Any) -> Callable[[], object]:
    return partial(Timer(statement, globals=names).timeit, CALLS)


def aggregating() -> float:
    """Measure aggregation, in milliseconds."""
    reduced = []
    for component in range(COMPONENTS):
        logger = MetricsLogger()
        for metric in range(METRICS):
            for value in range(3):
                logger.log_value(
                    ("some", f"metric {metric}"), float(value + component), reduce=("mean", "sum", "max")[metric % 3]
                )
        reduced.append(pickle.loads(pickle.dumps(logger.reduce())))
    root = MetricsLogger(root=True)
    samples = cpu_seconds({"ours": lambda: root.aggregate(reduced, key="collect")}, 40)["ours"]
    return sorted(samples)[len(samples) // 2] * 1e3


def main() -> None:
    one_thread()
    bare = repeated("it = known['loss']; it.total += 0.5; it.count += 1", known={"loss": Bare()})
    for what, settings in KINDS.items():
        for key in ("loss", ("learn", "default", "loss")):
            named = {"kind": what, "key": "nested" if isinstance(key, tuple) else "flat"}
            ours = repeated(f"log({key!r}, 0.5{settings})", log=MetricsLogger().log_value)
            spent = compare("metrics", "us_per_log_value", {"limit": bare, "ours": ours}, CALLS, microseconds=True, **named)
            report("metrics", "ours", "ns_per_log_value", spent["ours"] / CALLS * 1e9, **named, target="at most 400")
    timed = repeated("with log_time('block'): pass", log_time=MetricsLogger().log_time)
    clock = repeated("now(); now()", now=time.perf_counter)
    spent = compare("metrics", "us_per_log_time", {"limit": clock, "ours": timed}, CALLS, microseconds=True)
    report("metrics", "ours", "ns_per_log_time", spent["ours"] / CALLS * 1e9, target="at most 700")
    report("metrics", "ours", "ms_per_aggregate", aggregating(), components=COMPONENTS, metrics=METRICS, target="at most 1")


if __name__ == "__main__":
    main()
