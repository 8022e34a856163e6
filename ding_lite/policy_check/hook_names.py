"""Checks of what a policy class defines: misspelt hooks, names of other libraries, attributes that hide a method."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ding_lite.basics.closures import function_of, names_in
from ding_lite.basics.messages import warn_caller
from ding_lite.basics.signatures import positional_names, signature_of
from ding_lite.policy_check.foreign_methods import ADVICE, HOOKS
from ding_lite.policy_check.idle_settings import reads_setting

_warned: weakref.WeakSet[type] = weakref.WeakSet()  # classes whose names have been checked


def require_methods(policy: object) -> None:
    """Check that no attribute of a policy hides a method, such as a network `self.actor`.

    Raises:
        TypeError: an attribute has the name of a method.
    """
    for name, value in vars(policy).items():
        if inspect.isfunction(getattr(type(policy), name, None)) and not inspect.isroutine(value):
            raise TypeError(
                f"{type(policy).__name__}.{name} is a method of policies, but self.{name} is set to a {type(value).__name__}: "
                "give the attribute another name."
            )


def require_declarations(policy: object, hooks: Iterable[str], foreign: Mapping[str, str]) -> None:
    """Check `learns_from` and `loss_takes`, and warn, once per class, of names that nothing calls: misspelt hooks, and hooks of
    other libraries.

    Args:
        policy: the policy.
        hooks: names of hooks and of class attributes that a policy may define.
        foreign: hooks of another library that have no counterpart, each with a sentence of advice.

    Raises:
        TypeError: the class replaces an internal method or property by one that is called in another way.
        ValueError: `learns_from` or `loss_takes` has a value that does not exist.
    """
    kind: Any = type(policy)
    for name in ("learns_from", "loss_takes"):
        given = getattr(policy, name)
        if given not in ("rollouts", "transitions"):
            raise ValueError(f'{kind.__name__}.{name} is {given!r:.80}: set it to "rollouts" or "transitions".')
    users = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in ("ding_lite", "builtins")]
    library = [base for base in kind.__mro__ if base not in users]
    known = {name for base in library for name in vars(base)}
    public = [name for name in hooks if not name.startswith("_")]
    for base in users:
        for name, value in vars(base).items():
            owner = next((it for it in library if name in vars(it)), None)
            if owner is not None and name not in public and not name.startswith("__"):
                _require_no_clash(base, name, value, owner)
    for base in (it for it in users if it not in _warned):
        _warned.add(base)
        for name, value in vars(base).items():
            is_method = name == "metrics" and inspect.isroutine(value)  # often a method of users
            if name in public or (name in known and not is_method):
                continue
            advice = _advice(name, value, public, foreign)
            if not advice or value is None or _is_used_in_module(base, name):
                continue
            if not any(_refers(function, name) for it in users for function in vars(it).values()):
                verb = "call" if callable(value) else "read"
                warn_caller(f"{base.__name__} defines {name!r}, which ding_lite does not {verb}: {advice}")


def _require_no_clash(base: type, name: str, value: Any, owner: type) -> None:
    """Check that a method of a user's class can take the place of the method or property of the same name of `owner`."""
    inner = vars(owner)[name]
    if isinstance(inner, (property, functools.cached_property)) and name != "metrics":
        replaced = "property" if inspect.isfunction(value) else ""
    elif inspect.isfunction(inner) and inspect.isfunction(value):
        replaced = "" if _can_replace(value, inner, name) else "method"
    else:
        replaced = ""
    if replaced:
        raise TypeError(
            f"{base.__name__}.{name} replaces the {replaced} {name} of {owner.__name__}, used internally in another way: "
            "give it another name."
        )


def _can_replace(value: Any, inner: Any, name: str) -> bool:
    """Whether a method can be called as the one that it replaces. `learn` is often another method."""
    own, given = signature_of(value), inspect.signature(inner).parameters.values()
    positional = [
        it.name for it in given if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD) and it.default is it.empty
    ]
    try:
        own.bind(*positional, **{it.name: None for it in given if it.kind is it.KEYWORD_ONLY and it.default is it.empty})
    except TypeError:
        return False
    return name != "learn" or positional_names(value, len(positional)) == positional or reads_setting(value, name)


def _advice(name: str, value: Any, hooks: Sequence[str], foreign: Mapping[str, str]) -> str:
    """What to write instead of a name of another library, or of a public name that is close to a hook; empty if unknown."""
    stem = name.removesuffix("_fn")
    meant = HOOKS.get(name) or HOOKS.get(stem)
    if meant is None and callable(function_of(value)):
        advice = ADVICE.get(name) or foreign.get(name)
        if advice is not None:
            return advice
    if meant is None and not name.startswith("_"):
        meant = _misspelt(stem, hooks)
    return f"did you mean {meant!r}?" if meant else ""


def _misspelt(name: str, hooks: Sequence[str]) -> str | None:
    """The hook that this name is close to, if there is one."""
    plain = name.replace("_", "").lower()
    same = [hook for hook in hooks if hook.replace("_", "") == plain]
    return next(iter(same or difflib.get_close_matches(name, hooks, n=1, cutoff=0.85)), None)


def _refers(function: Any, name: str) -> bool:
    """Whether the code of another function uses this name, as a helper's callers do."""
    code = getattr(inspect.unwrap(function_of(function)), "__code__", None)
    return code is not None and code.co_name != name and name in names_in(code)


def _is_used_in_module(kind: type, name: str) -> bool:
    """Whether the file that defines the class reads an attribute of this name, such as a function that a hook calls."""
    try:
        source = inspect.getsource(sys.modules[kind.__module__])
    except (OSError, TypeError, KeyError):  # a notebook
        return False
    return re.search(rf"(\.|getattr\(\w+, [\"']){name}\b", source) is not None
