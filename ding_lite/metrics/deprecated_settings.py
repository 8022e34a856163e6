"""Deprecated settings: conversion of earlier names of a metric's settings."""

from __future__ import annotations

import warnings
from typing import Any, Final

ABSENT: Final = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()
"""Marks a missing argument if None is valid."""


def current_settings(reduce: Any, settings: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The kind and the settings under their current names; the kind is None if it was not given.

    Earlier names are accepted with a warning: `reduce=None` for item_series, mean with `ema_coeff` for ema, and
    `clear_on_reduce`.

    Raises:
        ValueError: both a window and an `ema_coeff` are given.
    """
    given = dict(settings)
    kind: str | None = None if reduce is ABSENT else reduce
    if reduce is None:
        warn_deprecated("reduce=None", "reduce='item_series'")
        kind = "item_series"
    if "ema_coeff" in given:
        if given.get("window") is not None:
            raise ValueError(f"got both window={given['window']!r} and ema_coeff={given['ema_coeff']!r}: leave one out.")
        if kind == "mean":
            warn_deprecated("reduce='mean' with ema_coeff", "reduce='ema'")
        if kind in (None, "mean"):
            kind = "ema"
    for name in ("throughput_ema_coeff", "reduce_per_index_on_aggregate"):
        if name in given:
            warn_deprecated(name, "nothing instead")
            del given[name]
    if "clear_on_reduce" in given:
        clears = given.pop("clear_on_reduce")
        if clears is False and kind == "sum":
            warn_deprecated("reduce='sum' with clear_on_reduce=False", "reduce='lifetime_sum'")
            kind = "lifetime_sum"
        else:
            warn_deprecated("clear_on_reduce", "nothing instead: every metric except ema and lifetime_sum starts anew")
    return kind, given


def warn_deprecated(old: str, new: str, stacklevel: int = 5) -> None:
    """Warn the caller, `stacklevel` frames up, of a deprecated name."""
    warnings.warn(f"{old} is deprecated: write {new}.", DeprecationWarning, stacklevel=stacklevel)
