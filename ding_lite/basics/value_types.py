"""Types of values that a file does not keep: scalars and arrays of numpy, and two kinds of dicts."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ding_lite.basics.checkpoint_files import PLAIN_TYPES

_DICTS: dict[str, Any] = {"OrderedDict": OrderedDict, "Counter": Counter}
_ARRAY = "ndarray"
_SAME = {*PLAIN_TYPES, list, tuple, dict, *_DICTS.values()}


def types_of(state: Any, path: tuple[Any, ...] = ()) -> Iterator[dict[str, Any]]:
    """The place and the name of the type of each such value in a state, the outer ones first."""
    import numpy as np

    if isinstance(state, np.ndarray):
        yield {"path": list(path), "type": _ARRAY}
    elif isinstance(state, np.generic):
        yield {"path": list(path), "type": state.dtype.name}
    elif isinstance(state, Mapping):
        if type(state).__name__ in _DICTS and type(state) is _DICTS[type(state).__name__]:
            yield {"path": list(path), "type": type(state).__name__}
        for key, value in state.items():
            if type(value) not in PLAIN_TYPES:
                yield from types_of(value, (*path, key))
    elif isinstance(state, (list, tuple)):
        for position, value in enumerate(state):
            if type(value) not in PLAIN_TYPES:
                yield from types_of(value, (*path, position))


def with_types(state: Any, types: Sequence[Mapping[str, Any]]) -> Any:
    """A state from a file, with these types of values again.

    Raises:
        KeyError, IndexError, TypeError, ValueError: the types belong to another state.
    """
    for one in reversed(types):  # inner ones first
        state = _changed(state, one["path"], one["type"])
    return state


def _changed(state: Any, path: Sequence[Any], kind: str) -> Any:
    """The state with a value of this type at this place. Dicts and lists are changed in place, tuples are replaced."""
    import numpy as np

    if path:
        first, *rest = path
        inner = _changed(state[first], rest, kind)
        if isinstance(state, tuple):
            return (*state[:first], inner, *state[first + 1 :])
        state[first] = inner
        return state
    if kind == _ARRAY:
        return state.numpy()
    return _DICTS[kind](state) if kind in _DICTS else np.dtype(kind).type(state)


def require_kept_type(value: Any, where: str) -> None:
    """Raise an error if a file would give a value back with another type.

    Raises:
        TypeError: its type, or that of a value inside, is none of those that a file keeps.
    """
    import numpy as np
    import torch

    if type(value) not in (*_SAME, torch.Tensor, np.ndarray) and not isinstance(value, np.generic):
        raise TypeError(
            f"{where} is a {type(value).__name__}, which cannot be saved as such: use a number, a string, a list, a tuple, a "
            "dict, an array or a tensor."
        )
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise TypeError(f"{where} requires a gradient, which a file does not keep: keep tensor.detach().")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            require_kept_type(inner, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for position, inner in enumerate(value):
            require_kept_type(inner, f"{where}[{position}]")
