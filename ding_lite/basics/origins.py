"""Origins: whether code is of ding_lite, of an installed library, or of the script."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

_INSTALLED = {"site-packages", "dist-packages"}


def package_of(module: str | None) -> str:
    """The top-level package of a module, by its name; that of Python's own functions if there is none, or no text, as in
    classes of Cython."""
    return (module if module and isinstance(module, str) else "builtins").partition(".")[0]


def module_of(thing: Any) -> str | None:
    """The name of the module of a function or class. `functools.wraps` gives a function the `__module__` of what it decorates;
    this is where the code of the function itself is."""
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__"))
    return getattr(thing, "__module__", None)


def is_of_ding_lite(module: str | None) -> bool:
    """Whether a module, by its name, belongs to this library; not one of `ding_lite_utils`, say."""
    return package_of(module) == "ding_lite"


def is_method_of_ding_lite(method: object, name: str) -> bool:
    """Whether a bound method of this name is one that a class of this library has, or that a class of a script overrides."""
    kinds = type(getattr(method, "__self__", None)).__mro__
    return any(name in vars(kind) and is_of_ding_lite(kind.__module__) for kind in kinds)


@functools.cache
def is_of_script(module: str | None) -> bool:
    """Whether a module belongs neither to Python nor to an installed library."""
    top = package_of(module)
    if top in sys.stdlib_module_names or is_of_ding_lite(module):
        return False
    return not is_installed(getattr(sys.modules.get(top), "__file__", None) or "")


def is_installed(file: str) -> bool:
    """Whether a file is of an installed package."""
    return not _INSTALLED.isdisjoint(Path(file).parts)


def without_library_decorators(fn: Any) -> Any:
    """A function without the decorators of libraries around it, such as `torch.no_grad()`; other objects unchanged."""
    while isinstance(fn, FunctionType) and "__wrapped__" in vars(fn) and not is_of_script(module_of(fn)):
        fn = vars(fn)["__wrapped__"]
    return fn
