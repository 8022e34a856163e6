"""Computed reads: whether code reads an attribute or an item whose name only shows when it runs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

from ding_lite.basics.closures import names_in


def reads_computed_names(fn: FunctionType) -> bool:
    """Whether a function may read attributes by `getattr` with a computed name, of anything but `self` and modules; or items
    of `config` by a computed key. Also true if this cannot be found out, because its source is unknown.

    Example:
        >>> def fn(section, n):
        ...     return getattr(section, "optimizer_" + n)
        >>> reads_computed_names(fn)
        True
    """
    names = names_in(fn.__code__) | {*fn.__code__.co_varnames, *fn.__code__.co_freevars}
    if names.isdisjoint({"getattr", "config"}):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, TypeError, SyntaxError, ValueError):  # no file, or a lambda inside of a longer expression
        return "getattr" in names
    return any(_is_computed(node, fn.__globals__) for node in ast.walk(tree))


def _is_computed(node: ast.AST, variables: Mapping[str, Any]) -> bool:
    if isinstance(node, ast.Subscript):
        return _name_of(node.value) == "config" and not isinstance(node.slice, (ast.Constant, ast.Slice))
    if not isinstance(node, ast.Call) or not node.args:
        return False
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr == "get":
        return _name_of(function.value) == "config" and not isinstance(node.args[0], ast.Constant)
    if not isinstance(function, ast.Name) or function.id != "getattr" or len(node.args) < 2:
        return False
    owner, name = node.args[:2]
    if isinstance(name, ast.Constant) or (isinstance(owner, ast.Name) and owner.id == "self"):
        return False
    return not isinstance(variables.get(_root_of(owner)), ModuleType)


def _name_of(node: ast.expr) -> str:
    """The last name of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _root_of(node: ast.expr) -> str:
    """The first name of `a.b.c`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return getattr(node, "id", "")
