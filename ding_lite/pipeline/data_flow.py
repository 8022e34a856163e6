"""Data flow: checks of data that middleware pass to each other through objects and settings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from ding_lite.basics.closures import content_of
from ding_lite.basics.messages import name_of
from ding_lite.basics.optional_attributes import attribute_behind, attribute_of
from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.contracts import Contract
from ding_lite.pipeline.used_middleware import Scope, UsedMiddleware, maker_of

_DATA = frozenset({"trajectories", "episodes", "train_data", "parts"})
_DEPTH = 4  # levels of nested objects, when two middleware are compared


def objects_named(contracts: Sequence[Contract]) -> dict[int, str]:
    """Names of the objects that are filled or drawn from, by id: their class, numbered if there are several."""
    things = {id(it): it for terms in contracts for it in (*terms.fills, *terms.draws)}
    kinds: dict[str, list[int]] = {}
    for key, thing in things.items():
        kinds.setdefault(type(thing).__name__, []).append(key)
    return {
        key: f"{kind} {number}" if len(keys) > 1 else kind
        for kind, keys in kinds.items()
        for number, key in enumerate(keys, start=1)
    }


def flow_problems(_: Context, all_used: Sequence[UsedMiddleware]) -> Iterator[tuple[UsedMiddleware, str]]:
    """Each step that draws from an object that stays empty, or fills an object twice, and why."""
    known = [used for used in all_used if used.contract is not None]
    names = objects_named([used.contract for used in known if used.contract is not None])
    for used in known:
        terms = used.contract
        assert terms is not None
        for thing in terms.draws:
            problem = _undrawable(used, thing, all_used, names) if _is_empty(thing) else ""
            if problem:
                yield used, problem
        for thing in terms.fills:
            for other in all_used[: all_used.index(used)]:
                if other.contract and _has(other.contract.fills, thing) and (field := _same_again(other, used, all_used)):
                    yield (
                        used,
                        (
                            f"{used.name} fills the {names[id(thing)]} with {used.field_start}{field} again, which {other.name}"
                            f"{other.at} has done before it, so all data would be stored twice: leave one of them out."
                        ),
                    )
                    break


def repetition_problems(_: Context, all_used: Sequence[UsedMiddleware]) -> Iterator[tuple[UsedMiddleware, str]]:
    """Each learner that is used again, if no step between the two writes the data that it reads from the context."""
    for index, used in enumerate(all_used):
        if used.contract is None or not callable(attribute_behind(used.fn, "data_wanted")):
            continue
        first = next((at for at, it in enumerate(all_used[:index]) if it.fn is used.fn and it.scope == used.scope), None)
        read = _DATA.intersection(used.contract.reads)
        if first is None:
            continue
        between = all_used[first + 1 : index]
        if any(_renews(it, field, used.scope) for it in between for field in read):
            continue
        if any(
            it.is_opaque or _fills(it, thing) or _may_fill(it, used, thing) for it in between for thing in used.contract.draws
        ):
            continue
        what = f" on the same ctx.{min(read)}" if read else ""
        yield (
            used,
            f"{used.name} is the same object as {all_used[first].name}{all_used[first].at} before it, so that each iteration "
            f"would take its gradient steps twice{what}: leave one of them out. The number of gradient steps is a setting, "
            "such as policy.learn.update_per_collect or policy.learn.epoch_per_collect.",
        )


def _undrawable(used: UsedMiddleware, thing: Any, all_used: Sequence[UsedMiddleware], names: Mapping[int, str]) -> str:
    """Why an empty object stays empty until the step draws from it, or an empty string."""
    fillers = [other for other in all_used if _fills(other, thing)]
    if used in fillers or any(other.is_opaque or other in fillers for other in used.earlier):
        return ""
    start = f"{used.name} draws from the {names[id(thing)]}, which is empty"
    if fillers:
        return f"{start}, and no earlier middleware fills it: {used.where_to_move(fillers[0])}"
    if any(other.is_opaque or _may_fill(other, used, thing) for other in all_used):
        return ""
    start += ", and no middleware fills it: "
    for other in all_used:
        for idle in other.contract.fills if other.contract and other.scope == used.scope else ():
            is_drawn = any(one.contract and _has(one.contract.draws, idle) for one in all_used)
            if not is_drawn and (isinstance(idle, type(thing)) or isinstance(thing, type(idle))):
                return f"{start}{other.name} fills another, the {names[id(idle)]}. Pass the same object to both."
    usual = used.contract.hints.get("draws") if used.contract else None
    if usual is None:
        return f"{start}add one that does before it, with fills=(...,) in its contract."
    found = maker_of(used.scope, used.earlier)
    return f"{start}add task.use({found[1].call.replace('...', usual) if found else usual}) before it."


def _fills(used: UsedMiddleware, thing: Any) -> bool:
    """Whether a middleware says that it fills the object."""
    return used.contract is not None and _has(used.contract.fills, thing)


def _may_fill(other: UsedMiddleware, used: UsedMiddleware, thing: Any) -> bool:
    """Whether another middleware uses the object without `fills` or `draws`."""
    terms = other.contract
    return terms is not None and other is not used and _has(terms.uses, thing) and not _has(terms.draws, thing)


def sharing_problems(all_used: Sequence[UsedMiddleware]) -> Iterator[tuple[UsedMiddleware, str]]:
    """Each step with an object in `exclusive` that a step of another stage names as well."""
    for index, used in enumerate(all_used):
        terms = used.contract
        for thing in terms.exclusive if terms else ():
            for other in all_used[:index]:
                if terms and other.contract and other.contract.stage != terms.stage and _has(other.contract.exclusive, thing):
                    yield (
                        used,
                        f"{used.name} has the same {type(thing).__name__} as {other.name}{other.at}, so each would continue "
                        "where the other stopped: make one for each of them.",
                    )


def owner_problems(all_used: Sequence[UsedMiddleware]) -> Iterator[tuple[UsedMiddleware, str]]:
    """Each step that works on the context of one policy with objects of another."""
    for used in all_used:
        found = maker_of(used.scope, used.earlier)
        if found is None or used.contract is None or found[0].contract is None:
            continue
        uses, mine = used.contract.uses, found[1]
        if any(_has(uses, thing) for thing in mine.owns):
            continue
        for other in found[0].contract.creates:
            if other is not mine and any(_has(uses, thing) for thing in other.owns):
                call = other.call.replace("...", f"{name_of(used.fn)}(...)")
                yield (
                    used,
                    f"{used.name} uses an object of {other.name!r}, and works on the context of {mine.name!r}: give it the "
                    f"object of {mine.name!r}, or write {call}.",
                )
                break


def lacking_problems(ctx: Context, all_used: Sequence[UsedMiddleware]) -> Iterator[tuple[UsedMiddleware, str]]:
    """Each step that learns from data without what it needs, with the fix.

    A learner has a method `data_wanted`, such as that of `policy.learn_mode`. What gives it data has an attribute `data_lacks`:
    a dict with the fix for each thing that its data does not have. Where a user's middleware may add it, nothing is said.
    """
    for used in all_used:
        wanted = attribute_behind(used.fn, "data_wanted")
        if used.contract is None or not callable(wanted) or not _is_ours(used) or any(map(_may_add_columns, used.earlier)):
            continue
        drawn = used.contract.draws
        given = [it for it in used.earlier if it.contract and it.scope == used.scope and _gives(it, used.contract.reads, drawn)]
        if any(not attribute_behind(it.fn, "data_lacks") for it in given) or not given:
            continue
        lacks: list[Mapping[str, str]] = [attribute_behind(it.fn, "data_lacks", {}) for it in given]
        missing = [name for name in wanted() if all(name in it for it in lacks)]
        if missing:
            words = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
            yield (
                used,
                f"{used.name} learns from {words}, which the data that {given[-1].name}{given[-1].at} gives "
                f"does not have: {lacks[-1][missing[0]]}.",
            )


def _gives(other: UsedMiddleware, reads: Sequence[str], drawn: Sequence[Any]) -> bool:
    """Whether a step fills an object that is drawn from, or writes the training data that is read."""
    terms = other.contract
    return terms is not None and (
        any(_has(terms.fills, thing) for thing in drawn) or "train_data" in {*reads} & {*other.writes}
    )


def _may_add_columns(other: UsedMiddleware) -> bool:
    """Whether a step is a user's and may change data on its way to the learner."""
    if other.is_opaque:
        return True
    return not _is_ours(other) and (bool(other.scope) or not _DATA.isdisjoint(other.writes))


def _is_ours(used: UsedMiddleware) -> bool:
    """Whether a middleware is of this library."""
    return is_of_ding_lite((used.fn if isinstance(used.fn, FunctionType) else type(used.fn)).__module__)


def _is_empty(thing: Any) -> bool:
    return hasattr(type(thing), "__len__") and len(thing) == 0


def _has(things: Sequence[Any], thing: Any) -> bool:
    return any(one is thing for one in things)


def _same_again(first: UsedMiddleware, second: UsedMiddleware, all_used: Sequence[UsedMiddleware]) -> str:
    """The field that two equal fillers read, if no step writes it between them; or an empty string."""
    if first.scope != second.scope or not is_same_again(first.fn, second.fn):
        return ""
    terms = second.contract
    assert terms is not None
    fields = terms.reads or terms.may_read
    between = all_used[all_used.index(first) + 1 : all_used.index(second)]
    if not fields or any(_renews(other, field, second.scope) for other in between for field in fields):
        return ""
    return fields[0]


def _renews(used: UsedMiddleware, field: str, scope: Scope) -> bool:
    """Whether a step may write a field of that scope's context."""
    if used.is_around:
        return False
    outer = used.scope == scope[: len(used.scope)] and used.scope != scope and scope[len(used.scope)][0] in used.writes
    return outer or used.may_write_anything_for(scope) or (used.scope == scope and field in used.writes)


def is_same_again(one: Any, other: Any, depth: int = _DEPTH) -> bool:
    """Whether two middleware are the same object, or come from the same factory with the same arguments."""
    if one is other:
        return True
    if type(one) is not type(other) or not depth:
        return False
    if isinstance(one, (str, bytes, int, float, complex)):
        return bool(one == other)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(is_same_again(*pair, depth - 1) for pair in zip(one, other))
    if inspect.isfunction(one):
        parts = zip(_captured(one), _captured(other))
        return one.__code__ is other.__code__ and all(is_same_again(*pair, depth - 1) for pair in parts)
    own, others = (_attributes(it) for it in (one, other))
    if not own or not others or own.keys() != others.keys():  # without attributes, a difference may be hidden
        return False
    return all(is_same_again(own[name], others[name], depth - 1) for name in own)


def _captured(fn: FunctionType) -> list[Any]:
    """The closure and the defaults of a function."""
    return [*map(content_of, fn.__closure__ or ()), *(fn.__defaults__ or ())]


def _attributes(it: Any) -> dict[str, Any] | None:
    """The attributes of an object, except its contract; None if they cannot be read."""
    held = attribute_of(it, "__dict__")
    return None if held is None else {name: value for name, value in held.items() if not isinstance(value, Contract)}


def settings_problems(ctx: Context, all_used: Sequence[UsedMiddleware]) -> Iterator[tuple[UsedMiddleware, str]]:
    """Each step that needs a setting that no earlier step sets, with advice."""
    if not any(used.contract and used.contract.needs for used in all_used):
        return
    fresh = ctx.renew()
    for used in all_used:
        for need in used.contract.needs if used.contract is not None else ():
            field, _, key = need.partition(".")
            start = getattr(fresh, field, None) if not used.scope else None
            is_given = isinstance(start, Mapping) and key in start
            if is_given or any(_provides(other, need, used) for other in used.earlier) or _comes_along(used, field):
                continue
            yield used, _unprovided(used, need, all_used)


def _provides(other: UsedMiddleware, need: str, used: UsedMiddleware) -> bool:
    if other.may_write_anything_for(used.scope):
        return True
    field = need.partition(".")[0]
    if other.contract is None or other.scope != used.scope or field not in other.writes:
        return False
    named = [setting for setting in other.contract.provides if setting.partition(".")[0] == field]
    return not named or need in named


def _comes_along(used: UsedMiddleware, field: str) -> bool:
    """Whether the field is set when the context of the step is created, or this is unknown."""
    if not used.scope:
        return False
    found = maker_of(used.scope, used.earlier)
    return found is None or field in found[1].writes


def _unprovided(used: UsedMiddleware, need: str, all_used: Sequence[UsedMiddleware]) -> str:
    field, _, key = need.partition(".")
    start = f"{used.name} needs {used.field_start}{field}[{key!r}], and no earlier middleware sets it: "
    for other in all_used:
        needs_it_too = other.contract is not None and need in other.contract.needs  # such as the same one, used twice
        if not needs_it_too and _provides(other, need, used) and not other.is_opaque:
            return start + used.where_to_move(other)
    hint = used.contract.hints.get(need) if used.contract is not None else None
    return start + (hint or f'add one that does before it, with provides=("{need}",) in its contract.')
