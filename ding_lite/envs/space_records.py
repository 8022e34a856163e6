"""Space records: gymnasium spaces as plain data, in the states of policies and in the descriptions of datasets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ding_lite.envs.spaces import SpaceError, subspaces

_BOUNDS = ("low", "high")
_MOST = 2**28
"""Numbers of a Box: a damaged record could ask for more than the memory has."""


def recorded_space(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """A space as plain data: its kind, and shape, dtype and bounds, or its parts in order."""
    parts = subspaces(space)
    if parts is not None:
        kind = "Tuple" if isinstance(space, spaces.Tuple) else "Dict"
        return {"kind": kind, "parts": {str(name): recorded_space(part) for name, part in parts.items()}}
    if isinstance(space, spaces.Box):
        bounds = {name: _bound(getattr(space, name)) for name in _BOUNDS}
        return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    return {"kind": type(space).__name__, "shape": list(space.shape or ())}


def space_from(record: Mapping[str, Any]) -> gymnasium.Space[Any]:
    """The space that `recorded_space` has recorded.

    Raises:
        SpaceError: it is a kind of space that cannot be recorded, or an array of more than 2**28 numbers.
    """
    kind, parts = record["kind"], record.get("parts", {})
    if kind in ("Dict", "Tuple"):
        inner = [(name, space_from(part)) for name, part in parts.items()]  # as pairs: gymnasium sorts the names of a dict
        return spaces.Dict(inner) if kind == "Dict" else spaces.Tuple(tuple(part for _, part in inner))
    if kind == "Box":
        shape, dtype = tuple(record["shape"]), np.dtype(record["dtype"])
        if math.prod(shape) > _MOST:
            raise SpaceError(f"a Box of the shape {shape} cannot be made from its record, it has more than {_MOST:,} numbers.")
        low, high = (np.broadcast_to(np.asarray(record[name], dtype), shape) for name in _BOUNDS)
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(record["n"], start=record["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(record["nvec"]), start=np.array(record["start"]))
    if kind == "MultiBinary":
        return spaces.MultiBinary(record["shape"][0] if len(record["shape"]) == 1 else record["shape"])
    raise SpaceError(f"a space of kind {kind!r} cannot be made from its record: take the spaces of the environment instead.")


def _bound(array: np.ndarray[Any, Any]) -> Any:
    """An array of bounds as lists; a single number if all bounds are the same, as for images."""
    return array.flat[0].item() if array.size and (array == array.flat[0]).all() else array.tolist()
