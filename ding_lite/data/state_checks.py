"""State checks: checks of saved states before they are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any

import numpy as np
import torch

from ding_lite.basics import unflatten
from ding_lite.basics.messages import with_article
from ding_lite.data.column_arrays import as_array, to_objects
from ding_lite.data.random_generators import require_generator_state
from ding_lite.data.trees import flatten

_LARGEST_COUNT = 2**62  # a counter that continues from here stays an integer of 64 bits


def require_state(state: Any, kind: str, keys: Iterable[str], optional: Iterable[str] = ()) -> None:
    """Raise an error if this is not a mapping with these keys.

    Args:
        state: argument of `load_state_dict`.
        kind: name of the object that loads the state.
        keys: required keys.
        optional: optional keys.

    Raises:
        TypeError: not a mapping.
        ValueError: a key is missing or unknown.
    """
    if isinstance(state, (str, PathLike)):
        path = fspath(state)
        raise TypeError(
            f"load_state_dict({path!r}) of {with_article(kind)} wants a state, got a path: read the file first, "
            f"load_state_dict(load_checkpoint({path!r})), with load_checkpoint from ding_lite.engine."
        )
    if not isinstance(state, Mapping):
        raise TypeError(
            f"load_state_dict() of {with_article(kind)} wants the dict from state_dict(), got a {type(state).__name__}."
        )
    if missing := set(keys) - set(state):
        raise ValueError(
            f"this is not the state of {with_article(kind)}: the keys {sorted(missing)} are missing, it has "
            f"{sorted(map(str, state))}. Load it into the class that saved it."
        )
    if unknown := set(map(str, state)) - {*keys, *optional}:
        raise ValueError(
            f"this is not the state of {with_article(kind)}: the keys {sorted(unknown)} are unknown. Load it into the "
            "class that saved it."
        )


def state_error(kind: str, key: str, found: object, expected: str) -> ValueError:
    """The error for an invalid entry of a state of this kind of object.

    Args:
        kind: name of the object that loads the state.
        key: key of the entry.
        found: its value.
        expected: a valid value, in words such as "an integer >= 0".
    """
    return ValueError(
        f"this state of {with_article(kind)} has {key} = {found!r:.60}, expected {expected}. Nothing was loaded. Load "
        "a checkpoint made by state_dict(), without changes."
    )


def require_integer(state: Mapping[str, Any], key: str, kind: str, least: int, most: int = _LARGEST_COUNT) -> int:
    """The integer under this key; raises an error if it is not an integer, below `least` or above `most`."""
    number = state[key]
    is_whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    if not is_whole or not least <= number <= most:
        upper = "2**62" if most == _LARGEST_COUNT else most
        raise state_error(kind, key, number, f"an integer from {least} to {upper}")
    return int(number)


def require_generator(saved: Any, kind: str, rng: np.random.Generator) -> None:
    """Raise an error if this is not a state of a random generator like `rng`."""
    try:
        require_generator_state("rng", saved, rng.bit_generator)
    except ValueError as error:
        raise state_error(kind, "rng", saved, f"the state of a {type(rng.bit_generator).__name__} of numpy") from error


def restored_columns(saved: Any, shapes: Any, size: int, kind: str) -> Any:
    """Saved columns as nested arrays [size, ...] by name.

    Args:
        saved: tensors, and flat lists of objects, by name.
        shapes: [[path, shape of one row], ...] for the lists.
        size: number of rows.
        kind: name of the object that loads the state.

    Raises:
        ValueError: a leaf is not a tensor or list, or does not have `size` rows; or the shapes are not of this form.
    """
    if not isinstance(saved, Mapping):
        raise state_error(kind, "columns", saved, "tensors and lists by name")
    columns: dict[tuple[str, ...], Any] = dict(flatten(saved))
    if not columns:
        raise state_error(kind, "columns", saved, "at least one column")
    if not isinstance(shapes, (list, tuple)) or not all(map(_is_path_with_shape, shapes)):
        raise state_error(kind, "shapes", shapes, "a list with [path, shape] of each column of objects")
    of_lists = {tuple(path): tuple(shape) for path, shape in shapes}
    for path, leaf in columns.items():
        name = "/".join(("columns", *map(str, path)))
        if isinstance(leaf, (torch.Tensor, np.ndarray)):
            columns[path] = as_array(leaf)
        elif isinstance(leaf, list) and path in of_lists:
            shape = (size, *of_lists[path])
            if len(leaf) != np.prod(shape):
                raise state_error(kind, name, f"{len(leaf)} objects", f"{np.prod(shape)} for {size} rows of shape {shape[1:]}")
            columns[path] = to_objects(leaf).reshape(shape)
        else:
            raise state_error(kind, name, leaf, "a tensor, or a list of objects with its shape in `shapes`")
        if columns[path].shape[:1] != (size,):
            raise state_error(kind, name, columns[path].shape, f"{size} rows")
    return unflatten(columns)


def _is_path_with_shape(entry: Any) -> bool:
    """Whether this is [names, sizes], the path of a column and the shape of one row."""
    if not isinstance(entry, (list, tuple)) or [isinstance(part, (list, tuple)) for part in entry] != [True, True]:
        return False
    path, shape = entry
    return all(isinstance(name, str) for name in path) and all(type(size) is int and size >= 0 for size in shape)
