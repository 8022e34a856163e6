"""Space records: gymnasium spaces as plain data, in the states of policies and in the descriptions of datasets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ding_lite.basics.messages import describe_error
from ding_lite.envs.spaces import SpaceError, has_unknown_dtype, subspaces, with_unknown_dtype

_BOUNDS = ("low", "high")
_MOST = 2**28
"""Numbers of a Box: a damaged record could ask for more than the memory has."""
_INTEGERS = ("Discrete", "MultiDiscrete")
_NOT_COMPARED = {"Discrete": ("dtype",), "MultiDiscrete": ("dtype",), "MultiBinary": ("n",)}
"""Entries that records of earlier versions do not have."""


class DamagedRecordError(SpaceError):
    """A record of a space that lacks an entry, or has one that no space has."""


def recorded_space(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """A space as plain data: its kind, and what defines its elements, such as shape, dtype and bounds, or its parts."""
    parts = _parts_of(space)
    if parts is not None:
        record: dict[str, Any] = {
            "kind": _kind_of(space),
            "parts": {name: recorded_space(part) for name, part in parts.items()},
        }
        if isinstance(space, spaces.Sequence):
            record["stack"] = bool(space.stack)
        return record
    if isinstance(space, spaces.Box):
        bounds = {name: _bound(getattr(space, name)) for name in _BOUNDS}
        return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        if isinstance(space, spaces.Discrete):
            record = {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
        else:
            record = {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return record if has_unknown_dtype(space) else {**record, "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        n = space.n if isinstance(space.n, int) else [int(size) for size in space.n]
        return {"kind": "MultiBinary", "shape": list(space.shape), "n": n}
    if isinstance(space, spaces.Text):
        lengths = {"min_length": int(space.min_length), "max_length": int(space.max_length)}
        return {"kind": "Text", **lengths, "characters": "".join(sorted(space.character_set))}
    return {"kind": type(space).__name__, "shape": list(space.shape or ())}


def space_from(record: Mapping[str, Any]) -> gymnasium.Space[Any]:
    """The space that `recorded_space` has recorded.

    Records of earlier versions do not say the dtype of Discrete and MultiDiscrete. It becomes int64, and `same_space` and
    `same_layout` take any integer dtype for the same.

    Raises:
        DamagedRecordError: a SpaceError; the record is damaged.
        SpaceError: it is a kind of space that cannot be recorded, or an array of more than 2**28 numbers.
    """
    try:
        made = _made(record)
    except SpaceError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, AssertionError, MemoryError) as error:
        raise DamagedRecordError(
            f"no space can be made from its record {record!r:.120} ({describe_error(error)}): take the spaces of the "
            "environment instead."
        ) from error
    if made is None:
        raise SpaceError(
            f"a space of kind {record['kind']!r} cannot be made from its record: take the spaces of the environment instead."
        )
    return made


def same_elements(one: gymnasium.Space[Any], other: gymnasium.Space[Any]) -> bool:
    """Whether two spaces are equal, apart from the dtypes of Discrete and MultiDiscrete."""
    return comparable(recorded_space(one)) == comparable(recorded_space(other))


def comparable(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the records of all versions say about a space: neither dtypes of integers nor the form of the size."""
    if "parts" in record:
        return {**record, "parts": {name: comparable(part) for name, part in record["parts"].items()}}
    left_out = _NOT_COMPARED.get(record["kind"], ())
    return {name: value for name, value in record.items() if name not in left_out}


def _made(record: Mapping[str, Any]) -> gymnasium.Space[Any] | None:
    kind = record["kind"]
    if "parts" in record:
        return _joined(record, {name: space_from(part) for name, part in record["parts"].items()})
    if kind == "Box":
        shape, dtype = tuple(record["shape"]), np.dtype(record["dtype"])
        if math.prod(shape) > _MOST:
            raise SpaceError(f"a Box of the shape {shape} cannot be made from its record, it has more than {_MOST:,} numbers.")
        low, high = (_full(record[name], shape, dtype) for name in _BOUNDS)
        made_dtype: Any = dtype  # dtype.type would lose the byte order
        return spaces.Box(low, high, shape, made_dtype)
    if kind in _INTEGERS:
        dtype = np.dtype(record.get("dtype", np.int64))
        # The oldest gymnasium has no dtype in Discrete.
        options: dict[str, Any] = {} if dtype == np.int64 else {"dtype": dtype}
        if kind == "Discrete":
            made: gymnasium.Space[Any] = spaces.Discrete(record["n"], start=record["start"], **options)
        else:
            made = spaces.MultiDiscrete(np.array(record["nvec"]), start=np.array(record["start"]), **options)
        return made if "dtype" in record else with_unknown_dtype(made)
    if kind == "MultiBinary":
        shape = record["shape"]
        return spaces.MultiBinary(record.get("n", shape[0] if len(shape) == 1 else shape))
    if kind == "Text" and "characters" in record:
        return spaces.Text(record["max_length"], min_length=record["min_length"], charset=record["characters"])
    return None


def _joined(record: Mapping[str, Any], parts: Mapping[str, gymnasium.Space[Any]]) -> gymnasium.Space[Any] | None:
    """The space of these parts."""
    kind, inner = record["kind"], tuple(parts.values())
    if kind == "Dict":  # as pairs: gymnasium sorts the names of a dict
        return spaces.Dict(list(parts.items()))
    if kind == "Graph":
        return spaces.Graph(parts["node"], parts.get("edge"))
    if kind == "Sequence":
        return spaces.Sequence(parts["feature"], stack=record["stack"])
    return {"Tuple": spaces.Tuple, "OneOf": spaces.OneOf}[kind](inner) if kind in ("Tuple", "OneOf") else None


def _parts_of(space: gymnasium.Space[Any]) -> dict[Any, gymnasium.Space[Any]] | None:
    """The spaces that a space consists of, by name; None if there are none."""
    if isinstance(space, spaces.Graph):
        return {"node": space.node_space, **({} if space.edge_space is None else {"edge": space.edge_space})}
    if isinstance(space, spaces.Sequence):
        return {"feature": space.feature_space}
    if isinstance(space, spaces.OneOf):
        return {str(position): part for position, part in enumerate(space.spaces)}
    return subspaces(space)


def _kind_of(space: gymnasium.Space[Any]) -> str:
    """The name of gymnasium's class, also of a space of a class derived from it."""
    kinds = (spaces.Dict, spaces.Tuple, spaces.Graph, spaces.Sequence, spaces.OneOf)
    return next(kind.__name__ for kind in kinds if isinstance(space, kind))


def _bound(array: np.ndarray[Any, Any]) -> Any:
    """An array of bounds as lists; a single number if all bounds are the same, as for images."""
    array = array.astype(np.uint8) if array.dtype.kind == "b" else array
    return array.flat[0].item() if array.size and (array == array.flat[0]).all() else array.tolist()


def _full(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The array of bounds that `_bound` has recorded."""
    array = np.asarray(bound, dtype)
    return np.broadcast_to(array, shape) if array.size else array.reshape(shape)
