"""Steps: the single middleware of a pipeline, also those inside of others, each with what runs before it."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ding_lite.basics.messages import call_of, name_of
from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.contracts import Contract, Made, contract_of

Scope = tuple[tuple[str, str], ...]
"""Where a middleware runs: () on the iteration's own context, (("parts", "learned"),) on ctx.parts["learned"]."""


@dataclasses.dataclass(eq=False)
class Step:
    """One middleware that runs by itself, at the top of the pipeline or inside of another."""

    fn: Callable[..., Any]
    name: str
    """For messages; inside of another, together with that one."""
    used_at: str
    """file:line of the `task.use` that brought it, or empty."""
    terms: Contract | None
    """None for a plain function, of which nothing is known."""
    scope: Scope
    earlier: tuple[Step, ...]
    """Those whose first half is done when its own begins."""
    is_around: bool = False
    """Whether it only puts others into the context of their scope."""

    @property
    def writes(self) -> tuple[str, ...]:
        """Every field that its first half may set."""
        return () if self.terms is None else (*self.terms.all_writes, *self.terms.may_write)

    @property
    def at(self) -> str:
        """Where the script used it, in brackets, or an empty string."""
        return f" (task.use at {self.used_at})" if self.used_at else ""

    @property
    def is_opaque(self) -> bool:
        """Whether nothing is known of it."""
        return self.terms is None

    @property
    def field_start(self) -> str:
        """What stands before a field of its context in messages."""
        return "ctx." + "".join(f"{field}[{name!r}]." for field, name in self.scope)

    def where_to_move(self, other: Step) -> str:
        """Advice, where this one needs what the other does later or meanwhile."""
        if self not in other.earlier:
            return f"{other.name}, which does, runs at the same time: put it before, as with task.serial()."
        return f"move {other.name}, which does, before it."

    def may_write_anything_for(self, scope: Scope) -> bool:
        """Whether it is a plain function on that scope's context, or on one around it."""
        return self.is_opaque and scope[: len(self.scope)] == self.scope


class Used(Protocol):
    """What is asked of an entry of a pipeline: a middleware as the script used it."""

    @property
    def fn(self) -> Callable[..., Any]:
        """As the script handed it over."""

    @property
    def contract(self) -> Contract | None:
        """None for a plain function, of which nothing is known."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def used_at(self) -> str:
        """file:line of the script's `task.use`, or empty."""


def steps_of(pipeline: Sequence[Used]) -> list[Step]:
    """Every middleware of a pipeline that runs by itself, in the order of a sequential run.

    A middleware made of others has them in `inner_middleware`. `side_by_side` says whether they run at the same time;
    `within`, where it has one, is the (field, name) of the context on which they run.
    """
    steps: list[Step] = []
    for entry in pipeline:
        steps += _steps(entry.fn, entry.contract, (), tuple(steps), entry.name, entry.used_at)
    return steps


def _steps(
    fn: Callable[..., Any],
    terms: Contract | None,
    scope: Scope,
    earlier: tuple[Step, ...],
    name: str,
    used_at: str,
) -> list[Step]:
    inner: tuple[Callable[..., Any], ...] | None = getattr(fn, "inner_middleware", None)
    if inner is None:
        return [Step(fn, name, used_at, terms, scope, earlier)]
    made: list[Step] = []
    within = getattr(fn, "within", None)
    if within is not None:
        terms = Contract(reads=(within[0],)) if terms is None else terms
        around = dataclasses.replace(terms, uses=(), fills=(), draws=(), needs=(), provides=(), makes=())
        made.append(Step(fn, name, used_at, around, scope, earlier, is_around=True))
        scope = (*scope, within)
    side_by_side = getattr(fn, "side_by_side", False)
    for one in inner:
        before = (*earlier, *made[: within is not None]) if side_by_side else (*earlier, *made)
        called = name if within is not None else f"{name_of(one)} in {name}"
        made += _steps(one, contract_of(one), scope, before, called, used_at)
    return made


def maker_of(scope: Scope, earlier: Sequence[Step]) -> tuple[Step, Made] | None:
    """Who made the context of that scope in this iteration, and what it says of it; None where nobody says that."""
    if not scope:
        return None
    field, name = scope[-1]
    for step in reversed(earlier):
        for made in step.terms.makes if step.terms is not None and step.scope == scope[:-1] else ():
            if (made.field, made.name) == (field, name):
                return step, made
    return None


def context_classes_of(fn: Callable[..., Any]) -> tuple[type[Context], ...]:
    """The classes of context that a middleware says it takes, by the annotation of its argument; () where it says none."""
    target: Any = fn if inspect.isfunction(fn) or inspect.ismethod(fn) else call_of(fn)
    try:
        hints = typing.get_type_hints(target)
        names = [name for name in inspect.signature(target).parameters if name != "self"]
    except (NameError, TypeError, ValueError, AttributeError):  # names that are there for type checkers only, or none at all
        return ()
    hint = hints.get(names[0]) if names else None
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return tuple(one for one in options if isinstance(one, type) and issubclass(one, Context))
