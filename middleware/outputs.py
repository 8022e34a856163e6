"""Outputs: what learners and others give to log, on its way into the metrics of an iteration."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ding_lite.metrics import MetricsLogger


def log_outputs(metrics: MetricsLogger, outputs: Sequence[Mapping[str, Any]], before: tuple[str, ...] = ()) -> None:
    """Log the mean of each number by its name, over the outputs that have it; of a tensor of several numbers, their mean.

    What is neither, and a name that stands for something else already, costs a warning.

    Args:
        metrics: takes them.
        outputs: what each gradient step gave; may hold dicts, whose names are joined to those that lead to them.
        before: names that lead to all of it.
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
            warnings.warn(f"{name!r} of what learning gave is not logged: {error}", stacklevel=2)


def append_metrics(ctx: Any, field: str, reduced: Sequence[dict[Any, Any]]) -> None:
    """Append to a field of the context that holds what was logged, where the context has such a field."""
    logged = getattr(ctx, field, None)
    if isinstance(logged, list):
        logged += reduced


def _is_number(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, torch.Tensor) else isinstance(value, numbers.Real)


def _mean(value: Any) -> Any:
    tensor = torch.as_tensor(value)  # raises where it is text, or an object
    tensor = tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().to(torch.float32)
    return (tensor / tensor.numel()).sum()  # the sum of all may be more than the type can hold
