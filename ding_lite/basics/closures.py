"""Closures: the values that a function has from the functions around it, and the names in its code."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

from ding_lite.basics.optional_attributes import attribute_of

_EMPTY = CellType()
_OF_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})


def content_of(cell: CellType) -> Any:
    """The value in a cell; None if it is empty, because the variable has not been set yet."""
    return None if cell == _EMPTY else cell.cell_contents


def closure_of(fn: FunctionType) -> list[tuple[str, Any]]:
    """The variables in the closure of a function, by name, without empty cells."""
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or ())
    return [(name, cell.cell_contents) for name, cell in cells if cell != _EMPTY]


def function_of(member: Any) -> Any:
    """The function of a method, of a static or class method, or of the getter of a property; other objects unchanged."""
    return attribute_of(member, "fget") or attribute_of(member, "__func__", member)


def parts_of(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from parts_of(inner)


def names_in(code: CodeType) -> set[str]:
    """The names of global variables and attributes in a function and in those inside it."""
    return {name for part in parts_of(code) for name in part.co_names}


@functools.lru_cache(maxsize=4096)
def globals_in(code: CodeType) -> frozenset[str]:
    """The names of global variables that a function and those inside it read or set, without those of attributes.

    Example:
        >>> def fn(x):
        ...     return len(x.rows)
        >>> sorted(names_in(fn.__code__)), sorted(globals_in(fn.__code__))
        (['len', 'rows'], ['len'])
    """
    return frozenset(it.argval for part in parts_of(code) for it in dis.get_instructions(part) if it.opname in _OF_GLOBALS)


@functools.lru_cache(maxsize=4096)
def imports_in(code: CodeType) -> frozenset[str]:
    """The names of the modules that a function and those inside it import."""
    return frozenset(it.argval for part in parts_of(code) for it in dis.get_instructions(part) if it.opname == "IMPORT_NAME")


def globals_of(fn: FunctionType) -> dict[str, Any]:
    """The global variables that a function and those inside it read or set, by name. Attributes of these names do not count."""
    return {name: fn.__globals__[name] for name in sorted(globals_in(fn.__code__)) if name in fn.__globals__}
