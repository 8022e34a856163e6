"""Signatures: the arguments with which a function of a user is called, also below decorators."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

from ding_lite.basics.optional_attributes import attribute_of


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """The signature of the function that is called. `functools.wraps` shows that of the function inside instead, which may take
    other arguments: a decorator may add some, or keep some.

    Raises:
        ValueError: it has none, such as some builtins.
        TypeError: it is no callable.

    Example:
        >>> import functools
        >>> def step(ctx, *, rng): ...
        >>> @functools.wraps(step)
        ... def with_rng(ctx):
        ...     return step(ctx, rng=0)
        >>> signature_of(with_rng), inspect.signature(with_rng)
        (<Signature (ctx)>, <Signature (ctx, *, rng)>)
    """
    return inspect.signature(fn, follow_wrapped=False)


def passed_signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """The signature of the first function that names its arguments: a decorator with *args or **kwargs passes them on, so what
    it wraps says what they are. It may keep or add some, so it is no reason to refuse a call.

    Raises:
        ValueError, TypeError: see `signature_of`.
    """
    own = signature_of(fn)
    if not any(it.kind in (it.VAR_POSITIONAL, it.VAR_KEYWORD) for it in own.parameters.values()):
        return own
    inner = attribute_of(fn, "__wrapped__")
    if not callable(inner):
        return inspect.signature(fn)
    return passed_signature_of(MethodType(inner, fn.__self__) if isinstance(fn, MethodType) else inner)


def parameters_of(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters by name, of a decorator with *args or **kwargs also those of the function inside, in its order.

    Raises:
        ValueError, TypeError: see `signature_of`.
    """
    return {**passed_signature_of(fn).parameters, **signature_of(fn).parameters}


def positional_names(fn: Callable[..., Any], count: int) -> list[str]:
    """The names of the first arguments, as in the signature; "args[2]" for one without a name."""
    try:
        has_names = not any(it.kind is it.VAR_POSITIONAL for it in signature_of(fn).parameters.values())
        parameters = list((signature_of if has_names else passed_signature_of)(fn).parameters.values())
    except (ValueError, TypeError):  # some builtins have none
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{index}]" for index in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names + [f"args[{index}]" for index in range(len(names), count)]
