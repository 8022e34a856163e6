"""Sizes of networks: an error that names the space with too many elements, instead of that of torch's allocator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ding_lite.basics.blocks import block
from ding_lite.envs.spaces import SpaceError, subspaces

_MANY = 10_000_000
"""Elements of a space; below, something else needs the memory."""
_NO_MEMORY = ("allocate memory", "out of memory", "calculation overflowed", "Unable to allocate", "exceeds the limit")


@block
def explained_size(policy: str, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> Iterator[None]:
    """Explain that there is no memory for networks, if a space has so many elements that this is the reason.

    Raises:
        SpaceError: the memory is not enough for weights of each element of a space.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_memory = isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY)
        found = [("observations", observation_space), ("actions", action_space)]
        what, space, many = max(((what, *largest_part(space)) for what, space in found), key=lambda it: it[2])
        if not is_memory or many < _MANY:
            raise
        fix = "return a few numbers that describe an observation" if what == "observations" else "choose from fewer actions"
        raise SpaceError(
            f"{policy} has no memory for networks with weights for each of the {many:,} elements of {what} {space}: {fix}, in "
            f"a gymnasium wrapper; or split it into several smaller parts, such as MultiDiscrete([n, n])."
        ) from error


def largest_part(space: gymnasium.Space[Any]) -> tuple[gymnasium.Space[Any], int]:
    """The part of a space with the most elements, and how many inputs or outputs of a network it has.

    Example:
        >>> largest_part(spaces.Dict({"kind": spaces.Discrete(7), "x": spaces.Box(-1.0, 1.0, (2,))}))
        (Discrete(7), 7)
    """
    parts = subspaces(space)
    if parts:
        return max(map(largest_part, parts.values()), key=lambda it: it[1])
    if isinstance(space, spaces.Discrete):
        return space, int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return space, sum(map(int, space.nvec.ravel()))
    return space, int(np.prod(space.shape or (1,), dtype=object))
