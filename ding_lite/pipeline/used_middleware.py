"""Used middleware: the single middleware of a pipeline, including those inside of others, with their predecessors."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from ding_lite.basics.messages import call_of, name_of
from ding_lite.basics.optional_attributes import attribute_behind
from ding_lite.basics.origins import is_method_of_ding_lite
from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.contracts import Contract, NestedContext, contract_of
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.generators import method_of

Scope = tuple[tuple[str, str], ...]
"""Where a middleware runs: () on the iteration's own context, (("parts", "learned"),) on ctx.parts["learned"]."""


@dataclasses.dataclass(eq=False)
class UsedMiddleware:
    """One single middleware, at the top of the pipeline or inside of another."""

    fn: Callable[..., Any]
    name: str
    """Name for messages, including the middleware around it."""
    used_at: str
    """file:line of its `task.use`, or empty."""
    contract: Contract | None
    """None for a function without a contract."""
    scope: Scope
    earlier: tuple[UsedMiddleware, ...]
    """Steps whose first half is done before its own begins."""
    is_around: bool = False
    """Whether it only runs others on the context of their scope."""

    @property
    def writes(self) -> tuple[str, ...]:
        """Every field that its first half may set."""
        return () if self.contract is None else (*self.contract.all_writes, *self.contract.may_write)

    @property
    def at(self) -> str:
        """Where the script used it, in brackets, or an empty string."""
        return f" (task.use at {self.used_at})" if self.used_at else ""

    @property
    def is_opaque(self) -> bool:
        """Whether it has no contract."""
        return self.contract is None

    @property
    def field_start(self) -> str:
        """Prefix of its fields in messages."""
        return "ctx." + "".join(f"{field}[{name!r}]." for field, name in self.scope)

    def where_to_move(self, other: UsedMiddleware) -> str:
        """Advice if this step needs another one that runs later or at the same time."""
        if self not in other.earlier:
            return f"{other.name}, which does, runs at the same time: put it before, as with task.serial()."
        return f"move {other.name}, which does, before it."

    def may_write_anything_for(self, scope: Scope) -> bool:
        """Whether it is a function without a contract on that scope's context, or on one around it."""
        return self.is_opaque and scope[: len(self.scope)] == self.scope


def middleware_of(pipeline: Sequence[Entry]) -> list[UsedMiddleware]:
    """Every single middleware of a pipeline, in the order of a sequential run.

    A middleware made of others lists them in `inner_middleware`. `side_by_side` says whether they run at the same time;
    `within`, if it exists, is the (field, name) of the context on which they run.
    """
    all_used: list[UsedMiddleware] = []
    for entry in pipeline:
        all_used += _middleware_of(entry.fn, entry.contract, (), tuple(all_used), entry.name, entry.used_at)
    return all_used


FOR_SCRIPTS = "begin_run", "note_error", "save_run"
"""Methods that middleware of a script may have too. Others of these names are none of the task's business."""


def methods_of(pipeline: Sequence[Entry], method: str) -> list[tuple[str, Callable[..., Any]]]:
    """The method of this name of each middleware that has it, also behind decorators, with the name of the middleware.

    If it is none of those in `FOR_SCRIPTS`, only that of middleware of this library.
    """
    found = []
    for entry in pipeline:
        is_one = attribute_behind(entry.fn, "inner_middleware") is None
        for used in (entry,) if is_one else middleware_of([entry]):
            call = method_of(used.fn, method)
            if call is not None and (method in FOR_SCRIPTS or is_method_of_ding_lite(call, method)):
                found.append((used.name, call))
    return found


def _middleware_of(
    fn: Callable[..., Any],
    contract: Contract | None,
    scope: Scope,
    earlier: tuple[UsedMiddleware, ...],
    name: str,
    used_at: str,
) -> list[UsedMiddleware]:
    inner: tuple[Callable[..., Any], ...] | None = attribute_behind(fn, "inner_middleware")
    if inner is None:
        return [UsedMiddleware(fn, name, used_at, contract, scope, earlier)]
    made: list[UsedMiddleware] = []
    within = attribute_behind(fn, "within")
    if within is not None:
        contract = Contract(reads=(within[0],)) if contract is None else contract
        around = dataclasses.replace(contract, uses=(), fills=(), draws=(), needs=(), provides=(), creates=())
        made.append(UsedMiddleware(fn, name, used_at, around, scope, earlier, is_around=True))
        scope = (*scope, within)
    side_by_side = attribute_behind(fn, "side_by_side", False)
    for one in inner:
        before = (*earlier, *made[: within is not None]) if side_by_side else (*earlier, *made)
        called = name if within is not None else f"{name_of(one)} in {name}"
        made += _middleware_of(one, contract_of(one), scope, before, called, used_at)
    return made


def maker_of(scope: Scope, earlier: Sequence[UsedMiddleware]) -> tuple[UsedMiddleware, NestedContext] | None:
    """The step that made the context of that scope, and its declaration; None if no step declares it."""
    if not scope:
        return None
    field, name = scope[-1]
    for used in reversed(earlier):
        for made in used.contract.creates if used.contract is not None and used.scope == scope[:-1] else ():
            if (made.field, made.name) == (field, name):
                return used, made
    return None


def context_classes_of(fn: Callable[..., Any]) -> tuple[type[Context], ...]:
    """The context classes in the annotation of a middleware's argument; () if there are none."""
    target: Any = fn if inspect.isfunction(fn) or inspect.ismethod(fn) else call_of(fn)
    try:
        hints = typing.get_type_hints(target)
        names = [name for name in inspect.signature(target).parameters if name != "self"]
    except (NameError, TypeError, ValueError, AttributeError):  # no annotation, or names that only type checkers know
        return ()
    hint = hints.get(names[0]) if names else None
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return tuple(one for one in options if isinstance(one, type) and issubclass(one, Context))
