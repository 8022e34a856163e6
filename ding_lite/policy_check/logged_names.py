"""Logged names: checks that the values which hooks log have names of their own."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.data import flatten
from ding_lite.metrics import MetricsLogger
from ding_lite.metrics.reserved_names import LEARNING, require_own_names
from ding_lite.policy_check.hook_results import LOSSES, HookError


def require_own_stats(policy: object, loss: Tensor, given: Any) -> None:
    """Check that the names that `loss` returns to log are not those of other values.

    "loss" and "total_loss" are always the whole loss. If a parent class has set one of them, it may be an earlier value, which
    is replaced; but the class itself may not set it to something else.

    Args:
        policy: the policy.
        loss: the loss that its `loss` returned.
        given: everything that its `loss` returned.

    Raises:
        HookError: a name is used for something else.
    """
    hook, stats = f"loss of {type(policy).__name__}", given[1] if isinstance(given, tuple) else None
    if not isinstance(stats, Mapping):
        return
    require_free(f"{hook} returns", stats, LEARNING)
    other = [name for name in LOSSES if name in stats and not _are_same(stats[name], loss)]
    own = _names_set_in(getattr(type(policy), "loss", None)) if other else ()
    for name in other:
        if name in own:
            raise HookError(
                f"{hook} returns {name!r} to log with the value {_number(stats[name])}, but under this name ding_lite logs the "
                f"whole loss, here {_number(loss)}: use another name, such as 'my_{name}'."
            )


def require_single_stats(kind: str, outputs: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that no two hooks return different values under one name, because one of them would be lost.

    Args:
        kind: class of the policy.
        outputs: for each hook, what it returned to log.

    Raises:
        HookError: two hooks do; or a name is one of the library's.
    """
    for (first, one), (second, other) in itertools.combinations(outputs.items(), 2):
        for name in one:
            if name in other and not _are_same(one[name], other[name]):
                raise HookError(
                    f"{first} of {kind} returns {name!r} to log with the value {_number(one[name])}, and {second} of {kind} "
                    f"logs {_number(other[name])} under this name, so one of the two would be lost: use another name, such as "
                    f"'my_{name}', in {first}."
                )
    for hook, stats in outputs.items():
        require_free(f"{hook} of {kind} returns", stats, LEARNING)


def require_logged_names(logs: str, metrics: MetricsLogger, reserved: Iterable[str]) -> None:
    """Check that hooks have logged no name that the library uses itself, with `self.metrics`.

    Args:
        logs: which hook logs, for the message.
        metrics: the logger of the hooks.
        reserved: names of the library.

    Raises:
        HookError: a name is one of the library's.
    """
    require_free(logs, {"/".join(map(str, path)) for path, _ in flatten(metrics.peek())}, reserved)


def require_free(logs: str, names: Iterable[object], reserved: Iterable[str]) -> None:
    """`require_own_names` with a HookError."""
    try:
        require_own_names(logs, names, reserved)
    except ValueError as error:
        raise HookError(str(error)) from None


def _names_set_in(hook: Any) -> set[str]:
    """The keys of dicts that the code of a hook writes; none if its source is unknown, or if it is of the library."""
    hook = inspect.unwrap(hook)
    if is_of_ding_lite(getattr(hook, "__module__", None)):
        return set()
    try:
        code = ast.parse(textwrap.dedent(inspect.getsource(hook)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return set()
    return {name for node in ast.walk(code) for name in _keys_of(node)}


def _keys_of(node: ast.AST) -> Iterator[str]:
    """The constant keys that an expression or an assignment sets."""
    keys: list[Any] = []
    if isinstance(node, ast.Dict):
        keys = list(node.keys)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        keys = [node.slice]
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("dict", "update"):
        yield from (one.arg for one in node.keywords if one.arg is not None)
    yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def _are_same(one: Any, other: Any) -> bool:
    """Whether two values to log are equal, up to rounding; also if they cannot be compared."""
    first, second = _number(one), _number(other)
    if not (isinstance(first, float) and isinstance(second, float)):
        return True
    return math.isclose(first, second, rel_tol=1e-4, abs_tol=1e-7) or (math.isnan(first) and math.isnan(second))


def _number(value: Any) -> Any:
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        return value
