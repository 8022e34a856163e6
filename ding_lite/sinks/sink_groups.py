"""Sink groups: the interface of sinks, and a group whose errors do not stop a run."""

from __future__ import annotations

import contextlib
import copy
import math
import sys
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ding_lite.basics.messages import describe_error

_UNCHANGED = {float, str, bool, type(None)}
_PLAIN = {int, *_UNCHANGED}
_MOST = 1000  # numbers of one array in a row
_LARGEST = sys.float_info.max
_SHARE = 0.05  # of the time of a run that failures of one sink may take
_ALLOWED_S = 1.0  # and this once, since a failure may take a while on a busy machine although the sink is fast


class Sink(Protocol):
    """Takes rows of metrics, one at a time.

    A sink with the attribute `takes_images = True` also gets images, arrays uint8 [H, W, 3].
    """

    def write(self, row: Mapping[str, Any]) -> None:
        """Take one row. In a `SinkGroup`, an error does not stop the run."""

    def close(self) -> None:
        """Finish open files and connections. It may be called twice, and rows may follow if the task runs again."""


class SinkGroup:
    """Writes each row to several sinks. Their errors do not stop the run.

    A sink that raises an error loses that row, with a warning, and is tried again with the next row. Further errors warn only
    after a success. If its failures took more than 1 second, the sink is skipped until they are 5 percent of the time, so that
    an unreachable service hardly delays a run. Each sink gets a row of its own, of plain values, see `plain_row`. Values that
    no sink can take are left out, with one warning for each name.

    Args:
        sinks: the sinks, which get each row in this order.

    Raises:
        TypeError: a sink lacks a method.

    Example:
        >>> class Total:
        ...     def write(self, row):
        ...         self.total = self.total + row["n"] if hasattr(self, "total") else row["n"]
        ...     def close(self):
        ...         print(self.total)
        >>> group = SinkGroup([Total()])
        >>> group.write({"n": 1}), group.write({"n": 2})
        (None, None)
        >>> group.close()
        3
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = list(sinks)
        for sink in self.sinks:
            lacking = [name for name in ("write", "close") if not callable(getattr(sink, name, None))]
            if lacking:
                raise TypeError(
                    f"{sink!r:.80} of type {type(sink).__name__} is no sink, because it has no {' and no '.join(lacking)}(): a "
                    "sink has write(row) and close(), which may do nothing."
                )
        self._rows = 0
        self._left_out: set[str] = set()
        self._failing: set[int] = set()  # indices of failing sinks
        self._paid: dict[int, float] = {}  # by index, the time at which the failures will be 5 percent of the time

    def write(self, row: Mapping[str, Any]) -> None:
        """Write the row to each sink."""
        self._rows += 1
        values, images = plain_row(row), dict[str, Any]()
        takers = [getattr(sink, "takes_images", False) for sink in self.sinks]
        if len(values) < len(row):
            images = images_of(row)
            self._warn_of_left_out(row, {*values, *images} if any(takers) else values.keys())
        nested = {name: value for name, value in values.items() if type(value) in (list, dict)}
        for index, takes_images in enumerate(takers):
            own = {**values, **copy.deepcopy(nested)}  # which the sink may change
            self._write(index, {**own, **copy.deepcopy(images)} if takes_images else own)

    def close(self) -> None:
        """Close each sink, even if one raises an error."""
        for sink in self.sinks:
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001  the other sinks must be closed too
                warnings.warn(f"{sink!r} is not closed, its last rows may be missing: {_described(error)}.", stacklevel=2)

    def _write(self, index: int, values: Mapping[str, Any]) -> None:
        began = time.monotonic()
        paid = max(self._paid.get(index, began), began)
        if paid - began > _ALLOWED_S / _SHARE:
            return
        try:
            self.sinks[index].write(values)
            self._failing.discard(index)
        except Exception as error:  # noqa: BLE001  a sink may raise anything; training continues
            self._paid[index] = paid + (time.monotonic() - began) / _SHARE
            if index not in self._failing:
                # With the number, the text differs at each failure, because Python shows the same warning only once.
                warnings.warn(
                    f"row {self._rows} is not written to {self.sinks[index]!r}: {_described(error)}. "
                    "Training continues, and later rows are tried again.",
                    stacklevel=3,
                )
            self._failing.add(index)

    def _warn_of_left_out(self, row: Mapping[str, Any], taken: Any) -> None:
        for name in row.keys() - taken - self._left_out:
            self._left_out.add(name)
            warnings.warn(
                f"no sink takes {name!r}, a {type(row[name]).__name__}: log numbers, text, arrays of at most {_MOST} numbers, "
                "or lists and dicts of these.",
                stacklevel=3,
            )


def axis_of(row: Mapping[str, Any], step: str) -> str:
    """The column for the x-axis of curves: the step, or `train_iter` for rows without it."""
    return step if row.get(step) is not None else "train_iter"


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with values of int, float, str, bool, None, and lists and dicts of these. Other values are left out.

    Arrays and tensors on any device become numbers if they have no dimension, and lists if they hold at most 1,000 numbers and
    are not images. Integers too large for a float become infinite.

    Example:
        >>> import torch
        >>> plain_row({"loss": torch.tensor(0.5), "counts": torch.tensor([1, 2]), "model": torch.nn.Linear(1, 1)})
        {'loss': 0.5, 'counts': [1, 2]}
    """
    values = {}
    for name, value in row.items():
        kind = type(value)
        if kind in _UNCHANGED or (kind is int and -_LARGEST <= value <= _LARGEST):
            values[name] = value
            continue
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            values[name] = _plain(value)
    return values


def images_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The images in a row by name, as numpy arrays uint8 [H, W, 3]."""
    images = {name: value for name, value in row.items() if _is_image(value)}
    return {name: value.detach().cpu().numpy() if hasattr(value, "detach") else value for name, value in images.items()}


def _plain(value: Any) -> Any:
    if type(value) is int:
        return value if -_LARGEST <= value <= _LARGEST else math.copysign(math.inf, 1 if value > 0 else -1)
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [_plain(part) for part in value]
    if hasattr(value, "tolist") and not _is_image(value) and math.prod(getattr(value, "shape", ())) <= _MOST:
        return _plain(value.tolist())
    for kind in (int, float):
        if isinstance(value, kind):
            return _plain(kind(value))
    raise TypeError(f"{type(value).__name__} is not plain")


def _is_image(value: Any) -> bool:
    shape: Sequence[int] = getattr(value, "shape", ())
    return len(shape) == 3 and shape[2] == 3 and str(getattr(value, "dtype", "")).endswith("uint8")


def _described(error: Exception) -> str:
    return describe_error(error).rstrip(".")
