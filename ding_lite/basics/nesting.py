"""Nesting: nested dicts from paths of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def unflatten(leaves: Mapping[tuple[Any, ...], Any]) -> Any:
    """Nested dicts from values by path; a single value with an empty path is returned itself.

    Example:
        >>> unflatten({("a", "b"): 1, ("a", "c"): 2, ("d",): 3})
        {'a': {'b': 1, 'c': 2}, 'd': 3}
    """
    if tuple(leaves) == ((),):
        return leaves[()]
    structure: dict[str, Any] = {}
    for path, leaf in leaves.items():
        inner = structure
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = leaf
    return structure
