"""Train outputs: what learning returned to log in one iteration, of one type for every learner."""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, Mapping, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np


class TrainOutput(list[dict[str, Any]]):
    """One dict of values by name for each gradient step, in order; or a single dict if the learner returns means.

    By name, it gives the mean over the gradient steps that have this value; of a value that is no single number, such as the
    priority of each row, that of the last dict. Tensors and arrays of one element are single numbers too.

    Example:
        >>> output = TrainOutput([{"loss": 1.0}, {"loss": 3.0, "kl": 0.5}])
        >>> output["loss"], output["kl"], output[0], len(output)
        (2.0, 0.5, {'loss': 1.0}, 2)
    """

    num_steps: Sequence[Mapping[str, int]] = ()
    """For each dict, by name, the number of gradient steps that a value is the mean of; 1 where it is missing."""

    _logged: list[dict[str, Any]] | None = None

    @property
    def is_logged(self) -> bool:
        """Whether its values are in `ctx.learn_metrics`: a learner has set it, and nothing has changed since."""
        try:
            return self == self._logged  # Python compares only values that are not the same object
        except (RuntimeError, ValueError):  # another tensor or array of several numbers
            return False

    @is_logged.setter
    def is_logged(self, value: bool) -> None:
        self._logged = [*map(_copied, self)] if value else None

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set the dict at a position; or, by name, a value in the dict of each gradient step."""
        if not isinstance(key, str):
            super().__setitem__(key, value)
            return
        if not self:
            self.append({})
        for step in self:
            step[key] = value

    @overload
    def __getitem__(self, key: str) -> Any: ...

    @overload
    def __getitem__(self, key: SupportsIndex) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, key: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        values = [step[key] for step in self if key in step]
        if not values:
            raise KeyError(f"{key!r} is in no gradient step: there are {[*self.keys()]}")
        if len(values) == 1 or not all(map(_is_number, values)):
            return values[-1]
        values = [_to_average(value) for value in values]
        counts = [count.get(key, 1) for step, count in zip(self, self.num_steps) if key in step]
        if len(self.num_steps) != len(self) or max(counts) == 1:
            return sum(values[1:], start=values[0]) / len(values)
        return sum(value * count for value, count in zip(values, counts)) / sum(counts)

    def __contains__(self, key: object) -> bool:
        return any(key in step for step in self) if isinstance(key, str) else super().__contains__(key)

    def keys(self) -> KeysView[str]:
        """The names of the values, in the order in which they first occur."""
        return dict.fromkeys(name for step in self for name in step).keys()

    def items(self) -> ItemsView[str, Any]:
        """Each name with its value, see `TrainOutput`."""
        return {name: self[name] for name in self.keys()}.items()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of this name, or the default if no step has it."""
        try:
            return self[key]
        except KeyError:
            return default


def train_output_of(given: object) -> TrainOutput:
    """A context's `train_output` as that type, also where a learner of your own set a dict, several dicts or nothing."""
    steps = given if isinstance(given, (list, tuple)) else [given]
    output = TrainOutput(dict(step) for step in steps if isinstance(step, Mapping))
    output.num_steps = given.num_steps if isinstance(given, TrainOutput) and len(output) == len(given) else ()
    return output


def _copied(step: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with its own dicts, but the same values."""
    copied = dict(step)
    for name, value in step.items():
        if type(value) is dict:
            copied[name] = _copied(value)
    return copied


def _is_number(value: Any) -> bool:
    if hasattr(value, "numel"):
        return bool(value.numel() == 1)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.size == 1 and value.dtype.kind in "biuf"
    return isinstance(value, (int, float))


def _to_average(value: Any) -> Any:
    """The number in a form whose sum neither overflows nor is a truth value: numbers of numpy as those of Python."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.item()
    return value.float() if hasattr(value, "numel") and not value.is_floating_point() else value
