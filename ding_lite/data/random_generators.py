"""Generators: checks of saved states of numpy's random generators."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

_MOST = {"has_uint32": 1, "uinteger": 2**32 - 1}  # all others have 128 bits
_ODD = "inc"  # numpy accepts an even increment, but its period is shorter


def require_generator_state(where: str, saved: Any, generator: np.random.BitGenerator) -> None:
    """Refuse anything but a state of such a generator, which itself is not changed.

    Args:
        where: place of the state, such as "state['rng']".

    Raises:
        ValueError: an entry does not fit; the message has its key.

    Example:
        >>> generator = np.random.default_rng(0).bit_generator
        >>> require_generator_state("state['rng']", {**generator.state, "uinteger": -1}, generator)
        Traceback (most recent call last):
            ...
        ValueError: state['rng']['uinteger'] is -1, and an integer of at least 0 is wanted, at most 4294967295.
    """
    _require_like(where, generator.state, saved)
    trial = copy.deepcopy(generator)
    try:
        trial.state = saved
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise ValueError(f"{where} is not the state of a {type(trial).__name__} of numpy: {error}.") from None
    if not _equal(trial.state, saved):  # numpy cuts off what is too large
        raise ValueError(f"{where} is {saved!r:.200}, and no {type(trial).__name__} of numpy can be in such a state.")


def _require_like(where: str, current: Any, given: Any, name: str = "") -> None:
    if isinstance(current, Mapping):
        if not isinstance(given, Mapping):
            raise ValueError(f"{where} is {given!r:.80}, and a dict with {[*current]} is wanted.")
        for key in current:
            if key not in given:
                raise ValueError(f"{where} lacks {key!r}, it has {sorted(map(str, given))}.")
            _require_like(f"{where}[{key!r}]", current[key], given[key], key)
    elif isinstance(current, str):
        if given != current:
            raise ValueError(f"{where} is {given!r:.80}, and {current!r} is wanted.")
    elif isinstance(current, np.ndarray):
        if not isinstance(given, np.ndarray) or (given.shape, given.dtype) != (current.shape, current.dtype):
            raise ValueError(f"{where} is {given!r:.80}, and an array {[*current.shape]} of {current.dtype} is wanted.")
    else:
        most = _MOST.get(name, 2**128 - 1)
        if not isinstance(given, (int, np.integer)) or isinstance(given, bool) or not 0 <= given <= most:
            raise ValueError(f"{where} is {given!r:.80}, and an integer of at least 0 is wanted, at most {most}.")
        if name == _ODD and given % 2 == 0:
            raise ValueError(f"{where} is {given!r:.80}, and an odd number is wanted.")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return all(_equal(part, other[name]) for name, part in one.items())
    return bool(np.array_equal(one, other))
