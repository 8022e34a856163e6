"""Random generators: checks of saved states of numpy's generators."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

_MOST = {"has_uint32": 1, "uinteger": 2**32 - 1}  # all others have 128 bits
_ODD = "inc"  # numpy accepts an even increment, but with a shorter period


def require_generator_state(where: str, saved: Any, generator: np.random.BitGenerator) -> None:
    """Raise an error if `saved` is not a state of a generator like this one.

    Args:
        where: name of the state in messages, such as "state['rng']".
        saved: the state to check.
        generator: a generator of the expected class; it is not changed.

    Raises:
        ValueError: an entry is invalid; the message names its key.

    Example:
        >>> generator = np.random.default_rng(0).bit_generator
        >>> require_generator_state("state['rng']", {**generator.state, "uinteger": -1}, generator)
        Traceback (most recent call last):
            ...
        ValueError: state['rng']['uinteger'] is -1, expected an integer from 0 to 4294967295.
    """
    _require_like(where, generator.state, saved)
    trial = copy.deepcopy(generator)
    try:
        trial.state = saved
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise ValueError(f"{where} is not the state of a {type(trial).__name__} of numpy: {error}.") from None
    if not _equal(trial.state, saved):  # numpy cuts off what is too large
        raise ValueError(f"{where} is {saved!r:.200}, which is not a possible state of a {type(trial).__name__} of numpy.")


def _require_like(where: str, current: Any, given: Any, name: str = "") -> None:
    if isinstance(current, Mapping):
        if not isinstance(given, Mapping):
            raise ValueError(f"{where} is {given!r:.80}, expected a dict with {[*current]}.")
        for key in current:
            if key not in given:
                raise ValueError(f"{where} has no {key!r}, only {sorted(map(str, given))}.")
            _require_like(f"{where}[{key!r}]", current[key], given[key], key)
    elif isinstance(current, str):
        if given != current:
            raise ValueError(f"{where} is {given!r:.80}, expected {current!r}.")
    elif isinstance(current, np.ndarray):
        if not isinstance(given, np.ndarray) or (given.shape, given.dtype) != (current.shape, current.dtype):
            raise ValueError(f"{where} is {given!r:.80}, expected an array {[*current.shape]} of {current.dtype}.")
    else:
        most = _MOST.get(name, 2**128 - 1)
        if not isinstance(given, (int, np.integer)) or isinstance(given, bool) or not 0 <= given <= most:
            raise ValueError(f"{where} is {given!r:.80}, expected an integer from 0 to {most}.")
        if name == _ODD and given % 2 == 0:
            raise ValueError(f"{where} is {given!r:.80}, expected an odd number.")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return all(_equal(part, other[name]) for name, part in one.items())
    return bool(np.array_equal(one, other))
