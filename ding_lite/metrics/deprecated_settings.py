"""Settings of a metric: those of today, from those of earlier versions."""

from __future__ import annotations

import warnings
from typing import Any, Final

ABSENT: Final = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()
"""Not given, where None is something to give."""


def current_settings(reduce: Any, settings: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """A kind and its settings in today's spelling; the kind is None where none was given.

    Earlier spellings are taken, with a note: `reduce=None` for item_series, mean with `ema_coeff` for ema, `clear_on_reduce`.

    Raises:
        ValueError: a window and an `ema_coeff`.
    """
    given = dict(settings)
    kind: str | None = None if reduce is ABSENT else reduce
    if reduce is None:
        warn_deprecated("reduce=None", "reduce='item_series'")
        kind = "item_series"
    if "ema_coeff" in given:
        if given.get("window") is not None:
            raise ValueError(f"window={given['window']!r} excludes ema_coeff={given['ema_coeff']!r}: leave out one.")
        if kind == "mean":
            warn_deprecated("reduce='mean' with ema_coeff", "reduce='ema'")
        if kind in (None, "mean"):
            kind = "ema"
    for name in ("throughput_ema_coeff", "reduce_per_index_on_aggregate"):
        if name in given:
            warn_deprecated(name, "nothing in its place")
            del given[name]
    if "clear_on_reduce" in given:
        clears = given.pop("clear_on_reduce")
        if clears is False and kind == "sum":
            warn_deprecated("reduce='sum' with clear_on_reduce=False", "reduce='lifetime_sum'")
            kind = "lifetime_sum"
        else:
            warn_deprecated("clear_on_reduce", "nothing in its place: every metric but ema and lifetime_sum begins anew")
    return kind, given


def warn_deprecated(old: str, new: str, stacklevel: int = 5) -> None:
    """Warn the caller, so many frames up, that this is an old name: by default, from within `current_settings`."""
    warnings.warn(f"{old} is an earlier spelling: write {new}.", DeprecationWarning, stacklevel=stacklevel)
