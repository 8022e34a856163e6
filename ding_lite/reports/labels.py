"""Labels: names and numbers as text for readers."""

from __future__ import annotations

import math
from typing import Any

NOTHING = "-"
"""Text for a missing value."""

_NAMES = {
    "env_step": "environment steps",
    "env_episode": "episodes",
    "train_iter": "gradient steps",
    "train_epoch": "epochs",
    "total_step": "iterations",
    "time_s": "wall time",
    "evaluate/episode_return_mean": "mean return at evaluation",
    "evaluate/score": "score at evaluation",
    "collect/episode_return_mean": "mean return while collecting",
    "evaluate/episode_length_mean": "mean episode length at evaluation (steps)",
    "collect/episode_length_mean": "mean episode length while collecting (steps)",
    "system/cpu_cores": "processor (cores in use)",
    "system/memory_mb": "memory (MB)",
    "system/gpu_memory_mb": "GPU memory (MB)",
}


def label_of(metric: str) -> str:
    """The label of an axis: a description if the metric is known, else its name; with its unit if known.

    Example:
        >>> label_of("env_step"), label_of("time/learn"), label_of("learn/loss")
        ('environment steps', 'time/learn (s)', 'learn/loss')
    """
    if metric in _NAMES:
        return _NAMES[metric]
    if metric.startswith("time/") or metric.endswith("_s"):
        return f"{metric} (s)"
    if metric.endswith("_throughput"):
        return f"{metric} (1/s)"
    return f"{metric} (MB)" if metric.endswith("_mb") else metric


def time_unit(longest_s: float) -> tuple[float, str]:
    """The unit for times up to this one, as its number of seconds and its symbol."""
    if longest_s <= 180:
        return 1.0, "s"
    return (60.0, "min") if longest_s <= 3 * 3600 else (3600.0, "h")


def tick(value: float) -> str:
    """A number as the label of a tick.

    Example:
        >>> tick(25_000), tick(1_500_000), tick(0.25), tick(-0.0)
        ('25k', '1.5M', '0.25', '0')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}".replace("-", "\u2212")
    return f"{value + 0.0:.4g}".replace("-", "\u2212")


def readable(value: float | None) -> str:
    """A number as text for a table.

    Example:
        >>> readable(12_345), readable(487.25), readable(0.01234), readable(None)
        ('12,345', '487.2', '0.0123', '-')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.1f}".removesuffix(".0") if 100 <= abs(value) < 1e15 else f"{value:.3g}"


def format_value(value: Any) -> str:
    """The value of an option as in a configuration file; different values have different texts."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(format_value, value))}]"
    short = f"{value:g}" if isinstance(value, float) else ""
    return short if short and float(short) == value else str(value)
