"""Outputs: log the values that learners and other components return."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import torch

from ding_lite.metrics import MetricsLogger
from ding_lite.metrics.stats_base import unmasked


class Outputs:
    """Logs the values that one component returns.

    Args:
        metrics: logger for the values.
    """

    def __init__(self, metrics: MetricsLogger) -> None:
        self.metrics = metrics
        self._warned: set[tuple[str, ...]] = set()

    def log(
        self,
        outputs: Sequence[Mapping[str, Any]],
        before: tuple[str, ...] = (),
        num_steps: Sequence[Mapping[str, int]] = (),
    ) -> None:
        """Log the mean of each value by name, over the outputs that have it; a tensor of several numbers counts as its mean,
        and an empty one as no value. Masked numbers are left out.

        A value that is not numeric is left out. Such values, and names that are used for something else already, cause one
        warning per name.

        Args:
            outputs: one dict per gradient step; nested dicts give nested names.
            before: prefix of all names.
            num_steps: for each output, by name, the number of gradient steps that a value is the mean of, so that each gradient
                step has the same weight; see `TrainOutput.num_steps`.
        """
        counts = num_steps if len(num_steps) == len(outputs) else [{}] * len(outputs)
        is_weighted = any(counts)
        first = next(iter(outputs))
        alike = all(one.keys() == first.keys() for one in outputs)
        for name in first if alike else dict.fromkeys(name for one in outputs for name in one):
            values = [one[name] for one in outputs if alike or name in one]
            inner = [value for value in values if isinstance(value, Mapping)]
            if inner:
                if (other := next((it for it in values if it is not None and not isinstance(it, Mapping)), None)) is not None:
                    what = f"{other!r:.60} of type {type(other).__name__}"
                    self._warn((*before, name), f"it is {what}, and a dict in another gradient step: use two names.")
                weights = [count.get(name, 1) for one, count in zip(outputs, counts) if isinstance(one.get(name), Mapping)]
                nested = [dict.fromkeys(one, weight) for one, weight in zip(inner, weights)] if is_weighted else ()
                self.log(inner, (*before, name), nested)
                continue
            key = (*before, name)
            if not all(map(_is_number, values)):
                values = [*map(self._number, repeat(key), values)]
            if is_weighted:
                weights = [count.get(name, 1) for one, count in zip(outputs, counts) if name in one]
                values = [one for one, weight in zip(values, weights) for _ in range(weight)]
            try:
                if len(values) == 1 and values[0] is not None:  # the usual case, which `log_values` would take longer for
                    self.metrics.log_value(key, values[0])
                else:
                    self.metrics.log_values(key, [one for one in values if one is not None])
            except (TypeError, ValueError, RuntimeError) as error:
                self._warn(key, error)

    def _number(self, key: tuple[str, ...], value: Any) -> Any:
        """A value as one number, or None if it is not numeric."""
        if _is_complex(value):
            self._warn(key, f"{value!r:.60} of type {type(value).__name__} is complex: log its parts or its absolute value.")
            return None
        try:
            return value if _is_number(value) else _mean(value)
        except (TypeError, ValueError, RuntimeError):
            self._warn(key, f"{value!r:.60} of type {type(value).__name__} is neither a number nor an array of numbers.")
            return None

    def _warn(self, key: tuple[str, ...], reason: object) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(f"{key[-1]!r} of the output of learning is not logged: {reason}", stacklevel=4)


def append_metrics(ctx: Any, field: str, reduced: Sequence[dict[Any, Any]]) -> bool:
    """Append reduced metrics to a field of the context, if the context has this field; whether it has."""
    logged = getattr(ctx, field, None)
    if not isinstance(logged, list):
        return False
    logged += reduced
    return True


def _is_number(value: Any) -> bool:
    """Whether it is one real number."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, numbers.Real)


def _is_complex(value: Any) -> bool:
    """Whether a value has an imaginary part, which a conversion to real numbers would drop."""
    if isinstance(value, torch.Tensor):
        return value.is_complex()
    return isinstance(value, complex) or getattr(getattr(value, "dtype", None), "kind", "") == "c"


def _mean(value: Any) -> Any:
    value = unmasked(value)
    tensor = torch.as_tensor(value)  # raises for text and objects
    if tensor.dtype == torch.float32 and not hasattr(value, "dtype"):  # a list, whose numbers may need all their digits
        tensor = torch.as_tensor(value, dtype=torch.float64)
    if not tensor.numel():  # no value: NaN is left out of means
        return math.nan
    if tensor.is_complex():
        raise TypeError("a list of complex numbers")
    is_wide = tensor.dtype == torch.float64 or not tensor.is_floating_point()  # float32 holds integers up to 2 ** 24
    tensor = tensor.detach().to(torch.float64 if is_wide and tensor.device.type != "mps" else torch.float32)
    return (tensor / tensor.numel()).sum()  # the plain sum may overflow
