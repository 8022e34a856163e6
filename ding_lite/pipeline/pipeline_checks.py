"""Checks before a run, of a middleware and of a pipeline; each problem is reported with its fix."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from ding_lite.basics.messages import call_of, describe_call, did_you_mean, name_of
from ding_lite.basics.optional_attributes import attribute_behind
from ding_lite.basics.signatures import signature_of
from ding_lite.pipeline.contexts import Context, declared_fields, fields_at_start, foreign_field_advice, kept_fields
from ding_lite.pipeline.contracts import Contract
from ding_lite.pipeline.data_flow import (
    flow_problems,
    lacking_problems,
    owner_problems,
    repetition_problems,
    settings_problems,
    sharing_problems,
)
from ding_lite.pipeline.end_readers import reads_at_end, too_late
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.generators import may_yield
from ding_lite.pipeline.properties import expand_reads, fields_behind, is_property
from ding_lite.pipeline.used_middleware import Scope, UsedMiddleware, context_classes_of, maker_of, middleware_of


class PipelineError(ValueError):
    """A pipeline that cannot work; each line of the message is one problem and its fix."""


def require_middleware(fn: object, call: str = "task.use") -> None:
    """Refuse objects that cannot be middleware; `call` is the function named in the message.

    Raises:
        TypeError: `fn` is not callable, is a class or an async function, or does not take exactly one argument.
    """
    if not callable(fn):
        fix = "If a factory made it, end the factory with `return` and the inner function."
        if isinstance(fn, (list, tuple)) and any(map(callable, fn)):
            fix = f"Pass the functions one by one: `for fn in it: {call}(fn)`." if call == "task.use" else f"Write {call}(*it)."
        raise TypeError(f"{call}() wants a function of the context, got {fn!r:.200} of type {type(fn).__name__}. {fix}")
    if inspect.isclass(fn):
        raise TypeError(f"{call}({fn.__name__}) got the class itself: make an object of it, {call}({fn.__name__}(...)).")
    if any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in (fn, call_of(fn))):
        raise TypeError(f"{call}({name_of(fn)}) got an async function, which would not be awaited: write a plain function.")
    try:
        signature = signature_of(fn)
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
    """Refuse a pipeline that reads missing fields or draws from empty objects.

    Each field in a contract must be declared by the context. Each field that is read must be kept, have a start value other
    than None, or be written by an earlier middleware. Each object that is drawn from must hold something or be filled by an
    earlier middleware, but not twice by the same one. Each required setting must be set before. Middleware that run at the same
    time must not touch what another of them changes. A middleware without a contract counts as writing every field and filling
    every object. Middleware inside of others are checked one by one.
    A value that is lost, because it is set again before any middleware has read it, gives a warning; so does one that no
    middleware reads, if the field's metadata names a "consumer", a change of a value after its last reader, and a value that a
    second half sets after a logger or saver has read it.

    Raises:
        PipelineError: all problems, one per line, each with its line of the script.
    """
    all_used = middleware_of(pipeline)
    problems = _forgotten_context(ctx, all_used) or [
        (used, problem) for check in _CHECKS for used, problem in check(ctx, all_used)
    ]
    blamed = {id(used) for used, _ in problems}
    problems += [found for found in _side_by_side_problems(all_used) if id(found[0]) not in blamed]
    if problems:
        place = {id(used): number for number, used in enumerate(all_used)}
        problems.sort(key=lambda found: place[id(found[0])])
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"  {problem}{used.at}" for used, problem in problems]
        raise PipelineError("\n".join([f"this pipeline cannot run, it has {count}:", *lines]))
    for check in (_lost_values, _unread_values, _late_changes, _unseen_values):
        for text in check(ctx, all_used):
            warnings.warn(text, stacklevel=3)


def _lost_values(ctx: Context, all_used: Sequence[UsedMiddleware]) -> Iterator[str]:
    """Each middleware that sets a field anew which an earlier one has set, and none has read since, where a later one reads it.

    What contracts do not say counts as reading: of functions without one, and of middleware on a context inside a field.
    """
    cls, kept = type(ctx), kept_fields(ctx)
    for place, used in enumerate(all_used):
        for name in _sets(used) if not used.is_around else ():
            if name in kept or is_property(cls, name) or _may_look_at(cls, used, name):
                continue
            before = [other for other in used.earlier if name in _sets(other) or _may_look_at(cls, other, name, at_end=False)]
            if before and not _may_look_at(cls, before[-1], name) and _is_read(ctx, all_used, place, name, before[-1]):
                first = before[-1]
                yield (
                    f"{first.name}{first.at} sets ctx.{name}, and {used.name}{used.at} sets it anew before any middleware has "
                    "read it, so that the first value is lost: put what reads it between the two, or give each a field of its "
                    "own; where it is not always set, name it in may_write instead."
                )
                break


def _unread_values(ctx: Context, all_used: Sequence[UsedMiddleware]) -> Iterator[str]:
    """Each middleware that sets a field with a "consumer" in its metadata last, if no middleware behind it may read the field.

    A middleware that sets the field "result" of the metadata too has consumed the value itself.
    """
    cls = type(ctx)
    for field in dataclasses.fields(ctx):
        consumer = field.metadata.get("consumer")
        places = [place for place, used in enumerate(all_used) if field.name in _sets(used)]
        if consumer is None or not places:
            continue
        last = all_used[places[-1]]
        if field.metadata.get("result") in last.writes:
            continue
        if not _may_look_later(cls, all_used, last, field.name):
            yield (
                f"{last.name}{last.at} sets ctx.{field.name}, and no middleware behind it reads it, so that nothing is done "
                f"with it: add {consumer} behind it."
            )


def _late_changes(ctx: Context, all_used: Sequence[UsedMiddleware]) -> Iterator[str]:
    """Each middleware that changes a field of this iteration after the last one that reads it."""
    cls, kept = type(ctx), kept_fields(ctx)
    for used in all_used:
        terms = used.contract
        if terms is None or used.is_around:
            continue
        for name in _sets(used):
            if name not in terms.reads or name in kept or is_property(cls, name):
                continue
            readers = [it for it in used.earlier if it.contract and not it.scope and name in it.contract.reads]
            readers = [it for it in readers if name not in _sets(it)]
            if readers and not _may_look_later(cls, all_used, used, name):
                last = readers[-1]
                yield (
                    f"{used.name}{used.at} changes ctx.{name}, and no middleware behind it reads it: {last.name}{last.at} has "
                    f"read it before. If the change is for {last.name}, put {used.name} before {last.name}. If it is for you, "
                    "in task.ctx, or frees memory, name the field in may_write instead of writes."
                )


def _unseen_values(ctx: Context, all_used: Sequence[UsedMiddleware]) -> Iterator[str]:
    """Each middleware whose second half sets a field of this iteration after the second half of one that reads fields there."""
    cls, kept = type(ctx), kept_fields(ctx)
    for place, used in enumerate(all_used):
        if used.contract is None or used.is_around or used.scope:
            continue
        behind = [other for other in all_used[place + 1 :] if other.contract and not other.scope and reads_at_end(other.fn)]
        for name in used.contract.writes_after:
            readers = [other for other in behind if _may_look_at(cls, other, name)]
            if readers and name not in kept and not is_property(cls, name):
                yield too_late(used, name, readers)
                break


def _may_look_later(cls: type[Context], all_used: Sequence[UsedMiddleware], used: UsedMiddleware, name: str) -> bool:
    """Whether a middleware may read a field after `used` has set it."""
    behind = [other for other in all_used if other is not used and other not in used.earlier]
    at_end = [other for other in used.earlier if _looks_at_end(other)]
    return any(_may_look_at(cls, other, name) for other in (*behind, *at_end))


def _looks_at_end(used: UsedMiddleware) -> bool:
    """Whether a middleware may read fields after the first halves of all others."""
    terms = used.contract
    return terms is None or reads_at_end(used.fn) or bool(terms.reads_after) or may_yield(used.fn)


def _is_read(ctx: Context, all_used: Sequence[UsedMiddleware], place: int, name: str, first: UsedMiddleware) -> bool:
    """Whether a middleware reads the field behind that place, or at the end of the iteration.

    Optional reads count only if the field's metadata names, as "copied_to", the field into which learners copy what they write,
    and `first` does not write this field.
    """
    known = [(used, used.contract, number > place) for number, used in enumerate(all_used) if used.contract and not used.scope]
    late = [(terms, is_behind or reads_at_end(used.fn)) for used, terms, is_behind in known]
    if any(name in terms.reads_after or (name in terms.reads and is_late) for terms, is_late in late):
        return True
    copied_to = {f.name: f.metadata.get("copied_to") for f in dataclasses.fields(ctx)}.get(name)
    if copied_to is None or copied_to in first.writes:
        return False
    return any(name in terms.may_read and is_late for terms, is_late in late)


def _sets(used: UsedMiddleware) -> tuple[str, ...]:
    """The fields of the outermost context that it always sets."""
    return () if used.contract is None or used.scope else used.contract.all_writes


def _may_look_at(cls: type[Context], used: UsedMiddleware, name: str, at_end: bool = True) -> bool:
    """Whether a middleware may read a field of the outermost context in any step, or with at_end=False, in its first half."""
    if used.contract is None or used.is_around or used.scope:
        return True
    if not at_end and reads_at_end(used.fn):
        return False
    after = used.contract.reads_after if at_end else ()
    return name in expand_reads(cls, (*used.contract.reads, *used.contract.may_read, *after))


def _side_by_side_problems(all_used: Sequence[UsedMiddleware]) -> Iterator[tuple[UsedMiddleware, str]]:
    """Each step that touches what another step changes at the same time."""
    for index, used in enumerate(all_used):
        for other in all_used[:index]:
            if used.contract is None or other.contract is None or other in used.earlier:
                continue
            what = _in_common(_in_its_field(other), _in_its_field(used))
            if what:
                yield (
                    used,
                    f"{other.name} {what}, and the two run at the same time, so the result depends on which is faster: "
                    "run them one after the other, with task.serial().",
                )


def _in_its_field(used: UsedMiddleware) -> UsedMiddleware:
    """The step; of one around others, without the field with their context, and without what it may only append to."""
    within = attribute_behind(used.fn, "within") if used.is_around else None
    if within is None or used.contract is None:
        return used
    terms = used.contract
    writes, late = (tuple(it for it in names if it != within[0]) for names in (terms.writes, terms.writes_late))
    own = dataclasses.replace(terms, may_read=(), may_write=(), writes=writes, writes_late=late)
    return dataclasses.replace(used, contract=own)


def _in_common(one: UsedMiddleware, other: UsedMiddleware) -> str:
    """A description of fields or objects in which two steps conflict, or an empty string."""
    assert one.contract is not None
    assert other.contract is not None
    shared = next((it for it in one.contract.uses if any(it is thing for thing in other.contract.uses)), None)
    if shared is not None:
        return f"uses the {type(shared).__name__} that {other.name} uses"
    if one.scope != other.scope:
        return ""
    start = one.field_start
    both = [name for name in one.writes if name in other.writes]
    if both:
        return f"writes {start}{both[0]}, which {other.name} writes"
    for first, second, verbs in ((one, other, ("writes", "reads")), (other, one, ("reads", "writes"))):
        assert second.contract is not None
        read = [name for name in first.writes if name in (*second.contract.reads, *second.contract.may_read)]
        if read:
            return f"{verbs[0]} {start}{read[0]}, which {other.name} {verbs[1]}"
    return ""


def _object_problems(_: Context, all_used: Sequence[UsedMiddleware]) -> Iterator[tuple[UsedMiddleware, str]]:
    yield from sharing_problems(all_used)
    yield from owner_problems(all_used)


def _field_problems(ctx: Context, all_used: Sequence[UsedMiddleware]) -> Iterator[tuple[UsedMiddleware, str]]:
    outside = _Inside(ctx, fields_at_start(ctx))
    for used in all_used:
        if used.contract is None:
            continue
        inside, problem = _context_of(used, outside)
        if problem:
            yield used, problem
        if inside is None:
            continue
        known = declared_fields(inside.context)
        for name, verb in _touched(used.contract).items():
            if name not in known:
                yield used, _undeclared(used, verb, inside.context, name)
        for name in filter(partial(is_property, type(inside.context)), _named(used.contract)):
            try:
                fields_behind(type(inside.context), name)
            except TypeError as error:
                yield used, f"{used.name} names {used.field_start}{name}, and {error}"
        for name in dict.fromkeys((*used.contract.reads, *used.contract.reads_after)):
            if name in known and name not in inside.ready and not _is_written(used, name, all_used):
                yield used, _unwritten(used, inside.context, name, all_used)


def _named(terms: Contract) -> tuple[str, ...]:
    """Every field that a contract names."""
    optional = (*terms.may_read, *terms.may_write)
    return tuple(dict.fromkeys((*terms.reads, *terms.reads_after, *terms.all_writes, *terms.writes_after, *optional)))


def _touched(terms: Contract) -> dict[str, str]:
    """Each field that must be declared, with "reads" or "writes"."""
    reads = dict.fromkeys((*terms.reads, *terms.reads_after), "reads")
    return {**reads, **dict.fromkeys((*terms.all_writes, *terms.writes_after), "writes")}


@dataclasses.dataclass
class _Inside:
    """The known facts about the context on which a step runs."""

    context: Context
    ready: frozenset[str]
    """Fields that have a value before any middleware runs on it."""


def _context_of(used: UsedMiddleware, outermost: _Inside) -> tuple[_Inside | None, str]:
    """The known context of a step, or None; and the problem with it."""
    scope, earlier, ctx = used.scope, used.earlier, outermost.context
    if not scope:
        return outermost, ""
    field, name = scope[-1]
    found = maker_of(scope, earlier)
    if found is not None:
        made: Context = found[1].context()
        return _Inside(made, fields_at_start(made) | frozenset(found[1].writes)), ""
    given = getattr(ctx, field, None) if len(scope) == 1 and field in declared_fields(ctx) else None
    if isinstance(given, Mapping) and isinstance(given.get(name), Context):
        return _Inside(given[name], fields_at_start(given[name])), ""
    outside = [other for other in earlier if not other.is_around]
    if any(other.may_write_anything_for(scope[:-1]) for other in outside):
        return None, ""
    makers = [other for other in outside if other.scope == scope[:-1] and field in other.writes]
    known = [made.name for other in makers if other.contract for made in other.contract.creates if made.field == field]
    if not known or any(other.contract and not other.contract.creates for other in makers):
        return None, ""  # no step writes it, which is reported there; or the names inside are unknown
    hint = did_you_mean(name, known)
    return None, f"{used.name} finds no {name!r} in ctx.{field}{hint} {makers[-1].name} makes {', '.join(known)}."


def _is_written(used: UsedMiddleware, name: str, all_used: Sequence[UsedMiddleware]) -> bool:
    """Whether a middleware writes the field before the step of this one that reads it."""
    if any(_may_write(other, name, used.scope) for other in used.earlier):
        return True
    if used.contract is None or name in used.contract.reads:
        return False
    # Second halves run in reverse: each sees the writes of all first halves, and of the second halves of later middleware.
    if any(_may_write(other, name, used.scope) for other in all_used):
        return True
    behind = all_used[all_used.index(used) + 1 :]
    return any(other.contract and other.scope == used.scope and name in other.contract.writes_after for other in behind)


def _may_write(used: UsedMiddleware, name: str, scope: Scope) -> bool:
    """Whether a first half may set that field of that scope's context."""
    return used.may_write_anything_for(scope) or (used.scope == scope and name in used.writes)


def _are_of_one_package(*classes: type) -> bool:
    """Whether all classes come from one package, so that one may have been confused with another."""
    return len({cls.__module__.partition(".")[0] for cls in classes}) == 1


def _undeclared(used: UsedMiddleware, verb: str, ctx: Context, name: str) -> str:
    cls = type(ctx).__name__
    start = f"{used.name} {verb} {used.field_start}{name}, but {cls} declares no such field"
    meant = next((one for one in context_classes_of(used.fn) if name in _fields_of(one)), None)
    if meant is not None and not used.scope and (issubclass(meant, type(ctx)) or _are_of_one_package(meant, type(ctx))):
        return f"{start}, {meant.__name__} does: pass ctx={meant.__name__}() to task.start(), or a subclass of your own."
    advice = foreign_field_advice(type(ctx), name)
    if advice is not None:
        return f"{start}: {advice}"
    hint = did_you_mean(name, declared_fields(ctx))
    return f"{start}{hint} Add `{name}` with a default to {cls}."


def _unwritten(used: UsedMiddleware, ctx: Context, name: str, all_used: Sequence[UsedMiddleware]) -> str:
    start = f"{used.name} reads {used.field_start}{name}, but no earlier middleware writes it: "
    is_late = used.contract is not None and name not in used.contract.reads
    writers = [
        other
        for other in ([] if is_late else all_used)
        if other.scope == used.scope and other.contract and name in other.contract.all_writes
    ]
    for other in writers:
        if other.contract and name not in other.contract.reads:  # one that reads it cannot be the first
            return start + used.where_to_move(other)
    for other in used.earlier:
        for made in other.contract.creates if other.contract and other.scope == used.scope else ():
            if name in made.writes:
                call = made.call.replace("...", f"{name_of(used.fn)}(...)")
                return f"{start}{other.name} writes it in ctx.{made.field}[{made.name!r}]; write {call}."
    provider = {f.name: f.metadata.get("provider") for f in dataclasses.fields(ctx)}.get(name)
    if not provider:
        is_used_again = any(it.fn is used.fn and it is not used for it in writers)
        return f"{start}add one that does before {'its first place' if is_used_again else 'it'}, or give the field a default."
    found = maker_of(used.scope, used.earlier)
    return f"{start}add {provider} before it{f', inside {found[1].call}' if found else ''}."


def _forgotten_context(ctx: Context, all_used: Sequence[UsedMiddleware]) -> list[tuple[UsedMiddleware, str]]:
    """One problem if the task runs on a plain Context, which has no fields."""
    if type(ctx) is not Context:
        return []
    top = [used for used in all_used if used.contract is not None and not used.scope]
    wanted = {name: (used, verb) for used in reversed(top) if used.contract for name, verb in _touched(used.contract).items()}
    missing = [name for used in top if used.contract for name in _touched(used.contract) if name not in declared_fields(ctx)]
    if not missing:
        return []
    used, verb = wanted[missing[0]]
    start = f"{used.name} {verb} ctx.{missing[0]}, but Context declares no such field: "
    votes = Counter(cls for one in top for cls in context_classes_of(one.fn) if wanted.keys() <= _fields_of(cls))
    if not votes:
        names = ", ".join(dict.fromkeys(missing))
        return [(used, f"{start}pass a context of your own to task.start(ctx=...), a dataclass that declares {names}.")]
    most = max(votes.values())
    classes = " or ".join(f"ctx={cls.__name__}()" for cls, count in votes.items() if count == most)
    return [(used, f"{start}pass {classes} to task.start().")]


def _fields_of(cls: type[Context]) -> set[str]:
    """The fields and properties of a class of contexts."""
    return {f.name for f in dataclasses.fields(cls)} | {name for name in dir(cls) if isinstance(getattr(cls, name), property)}


_CHECKS = (_field_problems, settings_problems, flow_problems, repetition_problems, lacking_problems, _object_problems)
