"""Recipes: how an environment is made, as plain data, so that another process can make it again."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import sys
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from types import FunctionType, ModuleType
from typing import Any

from gymnasium.envs.registration import EnvSpec

from ding_lite.basics.json_numbers import SPELT, json_number


class _NoRecipeError(Exception):
    """Another process cannot make the environment; the message says why."""


def recipe_of(factory: Callable[[], Any]) -> dict[str, Any] | str:
    """The calls of a factory as plain data, with the import paths of functions and classes; or a text that says why not.

    Example:
        >>> from functools import partial
        >>> recipe_of(partial(dict, size=3))
        {'call': {'import': 'builtins:dict'}, 'args': {'tuple': []}, 'kwargs': {'dict': {'size': 3}}}
        >>> recipe_of(lambda: None).startswith("it is made by '<lambda>'")
        True
    """
    try:
        return _described(factory)  # type: ignore[no-any-return]
    except _NoRecipeError as reason:
        return str(reason)


def made_from(recipe: Any) -> Any:
    """The object that a recipe describes. Imports the modules that it names, so it may execute any code."""
    if not isinstance(recipe, Mapping):
        return recipe
    ((kind, value), *_) = recipe.items()
    if kind == "import":
        module, _, path = value.partition(":")
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    if kind == "call":
        return functools.partial(made_from(value), *made_from(recipe["args"]), **made_from(recipe["kwargs"]))
    if kind == "spec":
        return EnvSpec(**made_from(value))
    if kind == "number":
        return SPELT[value]
    if kind == "dict":
        return {name: made_from(part) for name, part in value.items()}
    parts = [made_from(part) for part in value]
    return tuple(parts) if kind == "tuple" else parts


def _described(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such number
        return {"number": json_number(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, functools.partial):
        return {"call": _described(value.func), "args": _described(value.args), "kwargs": _described(value.keywords)}
    if isinstance(value, EnvSpec):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        if str(fields["entry_point"]).partition(":")[0] == "__main__":
            raise _NoRecipeError(f"{value.id} is registered with a class of __main__, which other programs cannot import")
        return {"spec": _described(fields)}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_described(part) for part in value]}
    if type(value) is dict and all(isinstance(name, str) for name in value):
        return {"dict": {name: _described(part) for name, part in value.items()}}
    return {"import": _import_path(value)}


def _import_path(value: Any) -> str:
    """The module and the name of a function or class."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise _NoRecipeError(f"it is made with {value!r:.80}, a {type(value).__name__}, which is not plain data")
    found: Any = None if module == "__main__" else sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is value:
        return f"{module}:{name}"
    place = _place_of_closure(value) if "<locals>" in name else None
    if place is None:
        raise _NoRecipeError(f"it is made by {name!r} of {module}, which other programs cannot import")
    return place


def _place_of_closure(value: Any) -> str | None:
    """Where a module offers a function that another function has made, such as PettingZoo's `parallel_env`; None if nowhere."""
    if isinstance(value, FunctionType) and value in _PLACES:  # the search takes long, and all environments have the same one
        return _PLACES[value]
    places = [
        f"{module}:{name}"
        for module, loaded in sys.modules.copy().items()
        if module not in ("__main__", "__mp_main__") and isinstance(loaded, ModuleType)
        for name, offered in vars(loaded).copy().items()
        if offered is value
    ]
    place = min(places, key=lambda place: (len(place), place), default=None)
    if place is not None and isinstance(value, FunctionType):
        _PLACES[value] = place
    return place


_PLACES: MutableMapping[FunctionType, str] = weakref.WeakKeyDictionary()
"""Places that `_place_of_closure` has found."""
