"""Closures: the values that a function has from the functions around it, and the names in its code."""

from __future__ import annotations

from types import CellType, CodeType, FunctionType
from typing import Any

_EMPTY = CellType()


def content_of(cell: CellType) -> Any:
    """The value in a cell; None if it is empty, because the variable has not been set yet."""
    return None if cell == _EMPTY else cell.cell_contents


def closure_of(fn: FunctionType) -> list[tuple[str, Any]]:
    """The variables in the closure of a function, by name, without empty cells."""
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or ())
    return [(name, cell.cell_contents) for name, cell in cells if cell != _EMPTY]


def names_in(code: CodeType) -> set[str]:
    """The names of global variables and attributes in a function and in those inside it."""
    inner = (names_in(it) for it in code.co_consts if isinstance(it, CodeType))
    return set(code.co_names).union(*inner)
