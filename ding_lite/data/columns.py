"""Columns: preallocated arrays, one for each leaf of a batch, with steps or rows in front.

Room: ding_lite.data, floor 1. Numpy; the room's trees.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ding_lite.data.trees import map_leaves


class Leaf(NamedTuple):
    """Shape and dtype of one element of a column."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


Spec: TypeAlias = "Leaf | Mapping[str, Any]"
"""What one element looks like: a Leaf, or nested mappings of Leaf for Dict and Tuple spaces."""


def allocate(spec: Spec, *lead: int) -> Any:
    """Uninitialised arrays [*lead, *shape], nested as the spec is.

    Example:
        >>> allocate({"x": Leaf((3,), np.dtype(np.float32))}, 5, 2)["x"].shape
        (5, 2, 3)
    """
    if isinstance(spec, Leaf):
        return np.empty((*lead, *spec.shape), spec.dtype)
    return {name: allocate(inner, *lead) for name, inner in spec.items()}


def spec_like(element: Any, lead: int = 1) -> Spec:
    """The spec of what stands behind the first `lead` dimensions of these arrays or tensors."""
    return map_leaves(lambda x: Leaf(tuple(x.shape[lead:]), np.asarray(x).dtype), element)  # type: ignore[no-any-return]


def spec_bytes(spec: Spec) -> int:
    """Bytes that one element takes."""
    if isinstance(spec, Leaf):
        return int(np.prod(spec.shape, dtype=np.int64)) * spec.dtype.itemsize
    return sum(spec_bytes(inner) for inner in spec.values())


def available_bytes() -> int | None:
    """Memory that can still be had on this machine, or None where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in names else None
