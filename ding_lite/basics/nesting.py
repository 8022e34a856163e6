"""Nesting: dicts within dicts, from the names that lead to their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def unflatten(leaves: Mapping[tuple[Any, ...], Any]) -> Any:
    """Nested dicts from values under the names that lead to them; a single one under no name is itself.

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
