"""Measurements of functions in turn, under the same conditions; prints a JSON object per line."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


def one_thread() -> None:
    """Use one thread, as in a worker."""
    torch.set_num_threads(1)


def report(bench: str, what: str, metric: str, value: float, **params: Any) -> None:
    """Print one result."""
    row = {"bench": bench, "what": what, "metric": metric, "value": float(f"{value:.4g}"), "params": params}
    print(json.dumps(row), flush=True)


def cpu_seconds(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each function, called in turn `rounds` times after two warm-ups.

    CPU time, because other processes may use the machine; on an idle core it equals the wall time. Short calls and many rounds,
    because the speed of the machine changes over time.
    """
    samples: dict[str, list[float]] = {name: [] for name in functions}
    gc.collect()
    for turn in range(rounds + 2):
        for name, function in functions.items():
            begin = time.process_time()
            function()
            if turn >= 2:
                samples[name].append(time.process_time() - begin)
    return samples


def compare(
    bench: str,
    metric: str,
    functions: Mapping[str, Callable[[], object]],
    work: float,
    rounds: int = 40,
    microseconds: bool = False,
    **params: Any,
) -> dict[str, float]:
    """Measure functions in turn; report the median of each, and how ours compares with the limit, round by round.

    Args:
        functions: functions by name; "limit" and "ours" are compared.
        work: units of work per call.
        microseconds: report microseconds per unit instead of units per second.

    Returns:
        The median seconds of each.
    """
    samples = cpu_seconds(functions, rounds)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    for name, seconds in medians.items():
        report(bench, name, metric, seconds / work * 1e6 if microseconds else work / seconds, **params)
    for name in functions:
        if name.startswith("limit"):
            ratios = [limit / ours for limit, ours in zip(samples[name], samples["ours"])]
            report(bench, "ours", f"share_of_{name}".replace(" ", "_"), statistics.median(ratios), **params)
    return medians
