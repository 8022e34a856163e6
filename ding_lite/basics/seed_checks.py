"""Seed checks: whether a value is a random seed, for configurations, environments, buffers and policies."""

from __future__ import annotations

import operator
from typing import Any

_LIMIT = 2**63
_RULE = "a seed is an integer, it is at least 0 and less than 2**63."


def seed_of(value: Any, where: str) -> int:
    """`value` as a random seed: an integer of Python or numpy, in [0, 2**63).

    Args:
        value: the value.
        where: start of the message, with `{}` for the value, such as "make_envs(seed={})".

    Raises:
        TypeError: not an integer; True and None are not allowed.
        ValueError: out of range.

    Example:
        >>> seed_of(7, "make_envs(seed={})")
        7
        >>> seed_of(-1, "make_envs(seed={})")
        Traceback (most recent call last):
            ...
        ValueError: make_envs(seed=-1) is out of range: a seed is an integer, it is at least 0 and less than 2**63.
    """
    lead = where.replace("{}", f"{value!r:.60}")
    if value is None:
        raise TypeError(f"{lead}: {_RULE} For a different seed each time, draw one: random.randrange(2**63).")
    try:
        if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
            raise TypeError("a truth value")
        seed = operator.index(value)
    except TypeError:
        raise TypeError(f"{lead} is a {type(value).__name__}: {_RULE}") from None
    if not 0 <= seed < _LIMIT:
        raise ValueError(f"{lead} is out of range: {_RULE}")
    return seed
