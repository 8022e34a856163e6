"""Restoring: checks of saved states before they are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any

import numpy as np
import torch

from ding_lite.basics import unflatten
from ding_lite.data.column_arrays import as_array, to_objects
from ding_lite.data.random_generators import require_generator_state
from ding_lite.data.trees import flatten


def require_state(state: Any, kind: str, keys: Iterable[str], optional: Iterable[str] = ()) -> None:
    """Refuse anything but a state with these keys.

    Args:
        kind: name of the object that loads it.
        keys: required keys.
        optional: optional keys.

    Raises:
        TypeError: not a mapping.
        ValueError: a key is missing or unknown.
    """
    if isinstance(state, (str, PathLike)):
        path = fspath(state)
        raise TypeError(
            f"load_state_dict({path!r}) of a {kind} wants a state, got a path: read the file first, "
            f"load_state_dict(load_checkpoint({path!r})), with load_checkpoint from ding_lite.engine."
        )
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict() of a {kind} wants the dict that state_dict() gave, got a {type(state).__name__}.")
    if missing := set(keys) - set(state):
        raise ValueError(f"this is no state of a {kind}: it lacks {sorted(missing)}, it has {sorted(map(str, state))}.")
    if unknown := set(map(str, state)) - {*keys, *optional}:
        raise ValueError(f"this is no state of a {kind}, which has no {sorted(unknown)}: load it into the class that saved it.")


def state_error(kind: str, key: str, found: object, expected: str) -> ValueError:
    """The error for an impossible state of this kind of object."""
    return ValueError(
        f"this state of a {kind} has {key} = {found!r:.60}, and {expected}: nothing was loaded. Take a checkpoint that "
        "state_dict() made and that was not changed."
    )


def whole_number(state: Mapping[str, Any], key: str, kind: str, least: int, most: int | None = None) -> int:
    """The integer under this key, if it is within these limits."""
    number = state[key]
    is_whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    if not is_whole or number < least or (most is not None and number > most):
        raise state_error(
            kind, key, number, f"it is an integer, {least} or more" + ("" if most is None else f", at most {most}")
        )
    return int(number)


def require_generator(saved: Any, kind: str, rng: np.random.Generator) -> None:
    """Refuse anything but a state of such a random generator."""
    try:
        require_generator_state("rng", saved, rng.bit_generator)
    except ValueError as error:
        raise state_error(kind, "rng", saved, f"it is the state of a {type(rng.bit_generator).__name__} of numpy") from error


def restored_columns(saved: Any, shapes: Any, size: int, kind: str) -> Any:
    """Columns [size, ...] by name, nested, from tensors, and from flat lists of objects with their shapes.

    Args:
        shapes: [[path, shape of one row], ...] of the lists.

    Raises:
        ValueError: a leaf is neither, or does not have `size` rows.
    """
    if not isinstance(saved, Mapping):
        raise state_error(kind, "columns", saved, "they are tensors and lists by name")
    columns: dict[tuple[str, ...], Any] = dict(flatten(saved))
    if not columns:
        raise state_error(kind, "columns", saved, "there is at least one")
    of_lists = {tuple(path): tuple(shape) for path, shape in shapes}
    for path, leaf in columns.items():
        name = "/".join(("columns", *map(str, path)))
        if isinstance(leaf, (torch.Tensor, np.ndarray)):
            columns[path] = as_array(leaf)
        elif isinstance(leaf, list) and path in of_lists:
            shape = (size, *of_lists[path])
            if len(leaf) != np.prod(shape):
                raise state_error(kind, name, f"{len(leaf)} objects", f"{size} rows of {shape[1:]} are {np.prod(shape)}")
            columns[path] = to_objects(leaf).reshape(shape)
        else:
            raise state_error(kind, name, leaf, "it is a tensor, or a list of objects with its shape in `shapes`")
        if columns[path].shape[:1] != (size,):
            raise state_error(kind, name, columns[path].shape, f"it has {size} rows")
    return unflatten(columns)
