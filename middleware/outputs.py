"""Outputs: log the values that learners and other components return."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ding_lite.metrics import MetricsLogger


def log_outputs(metrics: MetricsLogger, outputs: Sequence[Mapping[str, Any]], before: tuple[str, ...] = ()) -> None:
    """Log the mean of each value by name, over the outputs that have it; a tensor of several numbers counts as its mean.

    A value that is not numeric, and a name that is used for something else already, cause a warning.

    Args:
        metrics: logger for the values.
        outputs: one dict per gradient step; nested dicts give nested names.
        before: prefix of all names.
    """
    first = outputs[0]
    alike = all(one.keys() == first.keys() for one in outputs)
    for name in first if alike else dict.fromkeys(name for one in outputs for name in one):
        values = [one[name] for one in outputs if alike or name in one]
        inner = [value for value in values if isinstance(value, Mapping)]
        if inner:
            log_outputs(metrics, inner, (*before, name))
            continue
        try:
            metrics.log_values((*before, name), [value if _is_number(value) else _mean(value) for value in values])
        except (TypeError, ValueError, RuntimeError) as error:
            warnings.warn(f"{name!r} of the output of learning is not logged: {error}", stacklevel=2)


def append_metrics(ctx: Any, field: str, reduced: Sequence[dict[Any, Any]]) -> None:
    """Append reduced metrics to a field of the context, if the context has this field."""
    logged = getattr(ctx, field, None)
    if isinstance(logged, list):
        logged += reduced


def _is_number(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, torch.Tensor) else isinstance(value, numbers.Real)


def _mean(value: Any) -> Any:
    tensor = torch.as_tensor(value)  # raises for text and objects
    tensor = tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().to(torch.float32)
    return (tensor / tensor.numel()).sum()  # the plain sum may overflow
