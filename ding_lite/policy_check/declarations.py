"""Declarations: checks of what a policy class defines, and of settings that nothing reads."""

from __future__ import annotations

import difflib
import inspect
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType
from typing import Any, Protocol

from torch import nn

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


class ConfiguredPolicy(Protocol):
    """The interface that `warn_of_idle_settings` needs from a policy."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration by short names."""

    @property
    def params(self) -> Sequence[nn.Parameter]:
        """The parameters that learn."""

    @property
    def has_own_weights(self) -> bool:
        """Whether `get_weights` is overridden."""


def warn_of_idle_settings(policy: ConfiguredPolicy) -> None:
    """Warn if `lr_schedule` has no effect on this class, or if nothing that it learns reaches the acting copies."""
    kind: Any = type(policy)
    if policy.config.get("lr_schedule") is not None and not hasattr(policy, "lr_schedule"):
        warnings.warn(
            f"learn.lr_schedule has no effect on a {kind.__name__}: derive a class with it, "
            f"{kind.__name__}.with_updates(mixins=[LearningRateSchedule]).",
            stacklevel=4,
        )
    if not policy.params and kind.learn_on_batch.__qualname__ != "Policy.learn_on_batch" and not policy.has_own_weights:
        warnings.warn(
            f"{kind.__name__} learns, but has neither networks nor get_weights and set_weights: define these. Otherwise the "
            "copies that collect and evaluate do not see what it learns, or see partly updated arrays.",
            stacklevel=4,
        )


def require_declarations(policy: object, hooks: Iterable[str]) -> None:
    """Check `learns_from` and `loss_takes`, and warn, once per class, of names that look like misspelt hooks.

    Args:
        policy: the policy.
        hooks: names of hooks and of class attributes that a policy may define.

    Raises:
        ValueError: `learns_from` or `loss_takes` has a value that does not exist.
    """
    kind: Any = type(policy)
    for name in ("learns_from", "loss_takes"):
        given = getattr(policy, name)
        if given not in ("rollouts", "transitions"):
            raise ValueError(f'{kind.__name__}.{name} is {given!r:.80}: set it to "rollouts" or "transitions".')
    users = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in ("ding_lite", "builtins")]
    known = {name for base in kind.__mro__ if base not in users for name in vars(base)}
    public = [name for name in hooks if not name.startswith("_")]
    for base in (it for it in users if it not in _warned):
        _warned.add(base)
        for name, value in vars(base).items():
            meant = None if name.startswith("_") or name in known else _misspelt(name, public)
            if meant is not None and not any(_refers(function, name) for it in users for function in vars(it).values()):
                warnings.warn(
                    f"{base.__name__} defines {name!r}, which nothing {'calls' if callable(value) else 'reads'}: did you mean "
                    f"{meant!r}?",
                    stacklevel=4,
                )


def _misspelt(name: str, hooks: Sequence[str]) -> str | None:
    """The hook that this name is close to, if there is one."""
    plain = name.replace("_", "").lower()
    same = [hook for hook in hooks if hook.replace("_", "") == plain]
    return next(iter(same or difflib.get_close_matches(name, hooks, n=1, cutoff=0.85)), None)


def _refers(function: Any, name: str) -> bool:
    """Whether the code of another function uses this name, as a helper's callers do."""
    code = getattr(inspect.unwrap(getattr(function, "fget", None) or getattr(function, "__func__", function)), "__code__", None)
    return code is not None and code.co_name != name and _uses(code, name)


def _uses(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(isinstance(part, CodeType) and _uses(part, name) for part in code.co_consts)
