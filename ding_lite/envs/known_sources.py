"""Known sources: whether the functions and classes of gymnasium are those of a known version, and not patched."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import typing
from collections.abc import Iterable
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

_SOURCES = {
    "CartPoleEnv.step": ("b86ebe68", "36d99482"),
    "CartPoleEnv.reset": ("e484c869", "99a1ddf3", "22f743b6"),
    "MountainCarEnv.step": ("08593a78", "d542dda4"),
    "MountainCarEnv.reset": ("1d39aa22", "ae18951f"),
    "Continuous_MountainCarEnv.step": ("405213fb",),
    "Continuous_MountainCarEnv.reset": ("c9445296", "8324033d"),
    "PendulumEnv.step": ("a5f4d59f",),
    "PendulumEnv.reset": ("4a6addd9", "e1849434"),
    "PendulumEnv._get_obs": ("4599dafc",),
    "angle_normalize": ("9de9279f",),
    "AcrobotEnv.step": ("11db3a5b",),
    "AcrobotEnv.reset": ("d51b107e", "99a2c759", "8bbd7eaf"),
    "AcrobotEnv._dsdt": ("6213d5f3",),
    "AcrobotEnv._get_ob": ("4840d89c",),
    "AcrobotEnv._terminal": ("429e3096",),
    "rk4": ("3cefe74e",),
    "wrap": ("8061daec",),
    "bound": ("64047206",),
    "TimeLimit.step": ("0bfbc864",),
    "TimeLimit.reset": ("bb5cd22a",),
    "OrderEnforcing.step": ("5a866315",),
    "OrderEnforcing.reset": ("1aa721b0",),
    "PassiveEnvChecker.step": ("fb24abe7", "c1795d3e"),
    "PassiveEnvChecker.reset": ("c20759f1", "936258c3"),
    "Wrapper.step": ("3152fb2e",),
    "Wrapper.reset": ("9889fb3a",),
    "Env.reset": ("6ce0c3db", "05753646"),
}
"""Functions of gymnasium 1.1 to 1.4 that batched steps replace, or rely on: the beginning of the SHA-256 of their sources."""


def label_of(owner: Any, name: str) -> str:
    """Name of a function of a class or module, for messages."""
    return name if isinstance(owner, ModuleType) else f"{owner.__name__}.{name}"


def is_known(owner: Any, name: str) -> bool:
    """Whether a class or module of gymnasium has a function of this name, not patched, and with a known source."""
    function = vars(owner).get(name)
    if not _is_own(function, _module_of(owner)):
        return False
    return _hash_of(function.__code__) in _SOURCES.get(label_of(owner, name), ())


def patch_of(classes: Iterable[type]) -> str | None:
    """A method, property or base class that these classes of gymnasium have, but their modules do not define; None if none."""
    bases = {base: None for each in classes for base in each.__mro__ if base not in (object, typing.Generic)}
    for base in bases:
        module = _module_of(base)
        if not base.__module__.startswith("gymnasium."):
            return base.__name__
        for name, value in vars(base).items():
            if not all(_is_own(function, module) for function in _functions_of(value)):
                return f"{base.__name__}.{name}"
    return None


def _module_of(owner: Any) -> ModuleType | None:
    return owner if isinstance(owner, ModuleType) else sys.modules.get(owner.__module__)


def _functions_of(value: Any) -> tuple[Any, ...]:
    """The functions by which an attribute of a class does something; none for a plain value."""
    kind = type(value)
    if kind is FunctionType:
        return (value,)
    if kind is property:
        return tuple(one for one in (value.fget, value.fset, value.fdel) if one is not None)
    if kind in (classmethod, staticmethod):
        return (value.__func__,)
    if kind in (GetSetDescriptorType, MemberDescriptorType):  # such as __dict__ and __weakref__
        return ()
    return (value,) if callable(value) or hasattr(kind, "__get__") else ()


def _is_own(function: Any, module: ModuleType | None) -> bool:
    """Whether this is a function that the file of this module defines. Its name alone does not tell, because
    `functools.wraps` copies that, and `inspect.getsource` shows the source of the function that was wrapped."""
    return (
        module is not None
        and type(function) is FunctionType
        and "__wrapped__" not in vars(function)
        and function.__globals__ is vars(module)
        and function.__code__.co_filename == module.__file__
    )


@functools.lru_cache(maxsize=64)
def _hash_of(code: CodeType) -> str | None:
    """The beginning of the SHA-256 of the source of a function; None if no source is installed."""
    try:
        source = inspect.getsource(code)
    except (OSError, TypeError):
        return None
    return hashlib.sha256(source.encode()).hexdigest()[:8]
