"""Metrics: what logging a value costs, for each kind, and aggregating those of many components.

The limit is a dict lookup and an addition to an object's attributes.

Room: benchmarks, floor 7.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from measure import compare, cpu_seconds, one_thread, report

from ding_lite.metrics import MetricsLogger

CALLS = 2000
KINDS: dict[str, dict[str, Any]] = {
    "mean": {},
    "mean, window=100": {"reduce": "mean", "window": 100},
    "ema": {"reduce": "ema", "ema_coeff": 0.01},
    "min": {"reduce": "min"},
    "max, window=100": {"reduce": "max", "window": 100},
    "sum": {"reduce": "sum"},
    "lifetime_sum with throughput": {"reduce": "lifetime_sum", "with_throughput": True},
    "percentiles, window=100": {"reduce": "percentiles", "window": 100},
    "item": {"reduce": "item"},
    "item_series, window=100": {"reduce": "item_series", "window": 100},
}
COMPONENTS, METRICS = 64, 50


class Bare:
    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0


def bare() -> None:
    known = {"loss": Bare()}
    for _ in range(CALLS):
        it = known["loss"]
        it.total += 0.5
        it.count += 1


def logging(key: Any, how: dict[str, Any]) -> Callable[[], None]:
    def ours() -> None:
        logger = MetricsLogger()
        for _ in range(CALLS):
            logger.log_value(key, 0.5, **how)

    return ours


def timing() -> None:
    logger = MetricsLogger()
    for _ in range(CALLS):
        with logger.log_time("block"):
            pass


def aggregating() -> float:
    """Milliseconds."""
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
    for what, how in KINDS.items():
        for key in ("loss", ("learn", "default", "loss")):
            named = {"kind": what, "key": "nested" if isinstance(key, tuple) else "flat"}
            spent = compare(
                "metrics", "us_per_log_value", {"limit": bare, "ours": logging(key, how)}, CALLS, microseconds=True, **named
            )
            report("metrics", "ours", "ns_per_log_value", spent["ours"] / CALLS * 1e9, **named, target="at most 400")
    spent = cpu_seconds({"ours": timing}, 40)["ours"]
    report("metrics", "ours", "ns_per_log_time", sorted(spent)[len(spent) // 2] / CALLS * 1e9, target="at most 700")
    report("metrics", "ours", "ms_per_aggregate", aggregating(), components=COMPONENTS, metrics=METRICS, target="at most 1")


if __name__ == "__main__":
    main()
