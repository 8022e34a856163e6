"""Attribute reads: which attributes of a variable the code of a function reads, and whether it does anything else with it."""

from __future__ import annotations

import dis
from types import CodeType


def attributes_read(code: CodeType, name: str) -> set[str] | None:
    """The attributes of a variable that a function and those inside it read; None if the variable itself goes elsewhere, such
    as to another function.

    Args:
        code: code of the function.
        name: name of the variable: an argument, a global one, or one of a function around it.

    Example:
        >>> def fn(x, y):
        ...     return x.shape[0] + x.sum() + len(y)
        >>> sorted(attributes_read(fn.__code__, "x")), attributes_read(fn.__code__, "y")
        (['shape', 'sum'], None)
    """
    found: set[str] = set()
    instructions = [it for it in dis.get_instructions(code) if it.opname not in ("PUSH_NULL", "CACHE")]
    for now, then in zip(instructions, [*instructions[1:], None], strict=True):
        names = now.argval if isinstance(now.argval, tuple) else (now.argval,)
        if name not in names or now.opname in ("COPY_FREE_VARS", "MAKE_CELL", "LOAD_CLOSURE", "LOAD_ATTR", "LOAD_METHOD"):
            continue
        if isinstance(now.argval, tuple) or then is None or then.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            return None
        found.add(then.argval)
    for constant in code.co_consts:
        inner = attributes_read(constant, name) if isinstance(constant, CodeType) else set()
        if inner is None:
            return None
        found |= inner
    return found
