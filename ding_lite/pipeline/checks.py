"""The checks before anything runs: of one middleware, and of a whole pipeline, every problem with its fix.

Room: ding_lite.pipeline, floor 0. Standard library only.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ding_lite.basics.messages import call_of, describe_call, did_you_mean, name_of
from ding_lite.pipeline.contexts import Context, declared_fields, fields_at_start
from ding_lite.pipeline.contracts import Contract


class PipelineError(ValueError):
    """A pipeline that cannot work; each line of the message is one problem and its fix."""


@dataclasses.dataclass
class Entry:
    """One middleware of a pipeline."""

    fn: Callable[..., Any]
    """As the script handed it over."""

    call: Callable[..., Any]
    """As the engine calls it: with locks and wrappers around it."""

    name: str
    location: str
    """file:line of its definition, or empty."""

    contract: Contract | None
    """None for a plain function, of which nothing is known."""

    lock: AbstractContextManager[Any] | None = None
    """Held while each half runs."""


def require_middleware(fn: object, call: str = "task.use") -> None:
    """Refuse what can be no middleware; the message says that `call` was given it.

    Raises:
        TypeError: `fn` is not callable, is a class or an async function, or does not take exactly one argument.
    """
    if not callable(fn):
        raise TypeError(
            f"{call}() wants a function of the context, got {fn!r} of type {type(fn).__name__}. "
            "If a factory made it, end the factory with `return` and the inner function."
        )
    if inspect.isclass(fn):
        raise TypeError(f"{call}({fn.__name__}) got the class itself: make an object of it, {call}({fn.__name__}(...)).")
    if any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in (fn, call_of(fn))):
        raise TypeError(f"{call}({name_of(fn)}) got an async function, which nobody would await: write a plain function.")
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):  # some builtins have none
        return
    try:
        signature.bind(None)
    except TypeError:
        raise TypeError(
            f"{call}() wants a function of one argument, ctx, but {describe_call(fn)} takes {signature}. "
            f"If it is a factory, call it first: {call}(factory(...))."
        ) from None


def check_pipeline(ctx: Context, pipeline: Sequence[Entry]) -> None:
    """Refuse a pipeline that reads what is not there.

    Each field in a contract must be declared by the context. Each field read must be kept, start with a value that is not
    None, or be written by an earlier middleware; one without a contract counts as writing everything.

    Raises:
        PipelineError: all problems, one a line.
    """
    problems = list(_problems(ctx, pipeline))
    if problems:
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise PipelineError("\n".join([f"this pipeline cannot run, it has {count}:", *(f"  {line}" for line in problems)]))


def _problems(ctx: Context, pipeline: Sequence[Entry]) -> Iterator[str]:
    declared = declared_fields(ctx)
    ready = set(fields_at_start(ctx))
    first_halves = {name for entry in pipeline if (terms := entry.contract) for name in (*terms.all_writes, *terms.may_write)}
    opaque = any(entry.contract is None for entry in pipeline)
    opaque_before = False
    for position, entry in enumerate(pipeline):
        terms = entry.contract
        if terms is None:
            opaque_before = True
            continue
        touched = dict.fromkeys((*terms.reads, *terms.reads_after), "reads")
        touched.update(dict.fromkeys((*terms.all_writes, *terms.writes_after), "writes"))
        for name, verb in touched.items():
            if name not in declared:
                yield _undeclared(entry, verb, ctx, name)
        for name in terms.reads:
            if name in declared and name not in ready and not opaque_before:
                yield _unwritten(entry, ctx, name, pipeline[position + 1 :])
        # Second halves run in reverse: one sees what every first half wrote, and the second halves of those behind it.
        behind = {name for other in pipeline[position + 1 :] if other.contract for name in other.contract.writes_after}
        for name in terms.reads_after:
            if name in declared and name not in ready | first_halves | behind and not opaque:
                yield _unwritten(entry, ctx, name, ())
        ready.update(terms.all_writes, terms.may_write)


def _undeclared(entry: Entry, verb: str, ctx: Context, name: str) -> str:
    cls = type(ctx).__name__
    hint = did_you_mean(name, declared_fields(ctx))
    return f"{entry.name} {verb} ctx.{name}, but {cls} declares no such field{hint} Add `{name}` with a default to {cls}."


def _unwritten(entry: Entry, ctx: Context, name: str, later: Sequence[Entry]) -> str:
    start = f"{entry.name} reads ctx.{name}, but no earlier middleware writes it: "
    for other in later:
        if other.contract and name in other.contract.all_writes:
            return f"{start}move {other.name}, which does, before it."
    provider = {f.name: f.metadata.get("provider") for f in dataclasses.fields(ctx)}.get(name)
    return start + (f"add {provider} before it." if provider else "add one that does before it, or give the field a default.")
