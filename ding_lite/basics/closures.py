"""Closures: the values that a function has from the functions around it. An empty cell is one that has not been set yet."""

from __future__ import annotations

from types import CellType, FunctionType
from typing import Any

_EMPTY = CellType()


def content_of(cell: CellType) -> Any:
    """The value in a cell; None if it is empty."""
    return None if cell == _EMPTY else cell.cell_contents


def closure_of(fn: FunctionType) -> list[tuple[str, Any]]:
    """The variables in the closure of a function, by name, without empty cells."""
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or ())
    return [(name, cell.cell_contents) for name, cell in cells if cell != _EMPTY]
