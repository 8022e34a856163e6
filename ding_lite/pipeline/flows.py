"""Flows: what goes from one middleware to another through objects and settings, and where nothing can come through."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ding_lite.basics.messages import name_of
from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.contracts import Contract
from ding_lite.pipeline.pipeline_steps import Scope, Step, maker_of

_DEPTH = 4  # of objects in objects, when two middleware are compared


def objects_named(contracts: Sequence[Contract]) -> dict[int, str]:
    """What to call the objects that are filled or drawn from, by id: their class, numbered where it has several of them."""
    things = {id(it): it for terms in contracts for it in (*terms.fills, *terms.draws)}
    kinds: dict[str, list[int]] = {}
    for key, thing in things.items():
        kinds.setdefault(type(thing).__name__, []).append(key)
    return {
        key: f"{kind} {number}" if len(keys) > 1 else kind
        for kind, keys in kinds.items()
        for number, key in enumerate(keys, start=1)
    }


def flow_problems(ctx: Context, steps: Sequence[Step]) -> Iterator[tuple[Step, str]]:
    """Each step that draws from what is empty and stays so, or fills what it filled before, and why."""
    known = [step for step in steps if step.terms is not None]
    names = objects_named([step.terms for step in known if step.terms is not None])
    for step in known:
        terms = step.terms
        assert terms is not None
        for thing in terms.draws:
            problem = _undrawable(step, thing, steps, names) if _is_empty(thing) else ""
            if problem:
                yield step, problem
        for thing in terms.fills:
            for other in steps[: steps.index(step)]:
                if other.terms and _has(other.terms.fills, thing) and (field := _same_again(other, step, steps)):
                    yield (
                        step,
                        (
                            f"{step.name} fills the {names[id(thing)]} with {step.field_start}{field} again, which {other.name}"
                            f"{other.at} has done before it, so that all of it would be there twice: leave one of them out."
                        ),
                    )
                    break


def _undrawable(step: Step, thing: Any, steps: Sequence[Step], names: Mapping[int, str]) -> str:
    """Why there is nothing to be drawn from an empty object, or an empty string."""
    fillers = [other for other in steps if other.terms and _has(other.terms.fills, thing)]
    if step in fillers or any(other.is_opaque or other in fillers for other in step.earlier):
        return ""
    start = f"{step.name} draws from the {names[id(thing)]}, which is empty"
    if fillers:
        return f"{start}, and no earlier middleware fills it: {step.where_to_move(fillers[0])}"
    if any(other.is_opaque or _may_fill(other, step, thing) for other in steps):
        return ""
    start += ", and no middleware fills it: "
    for other in steps:
        for idle in other.terms.fills if other.terms and other.scope == step.scope else ():
            is_drawn = any(one.terms and _has(one.terms.draws, idle) for one in steps)
            if not is_drawn and (isinstance(idle, type(thing)) or isinstance(thing, type(idle))):
                return f"{start}{other.name} fills another, the {names[id(idle)]}. Pass the same object to both."
    usual = step.terms.hints.get("draws") if step.terms else None
    if usual is None:
        return f"{start}add one that does before it, with fills=(...,) in its contract."
    found = maker_of(step.scope, step.earlier)
    return f"{start}add task.use({found[1].call.replace('...', usual) if found else usual}) before it."


def _may_fill(other: Step, step: Step, thing: Any) -> bool:
    """Whether another middleware uses the object and does not say what for."""
    terms = other.terms
    return terms is not None and other is not step and _has(terms.uses, thing) and not _has(terms.draws, thing)


def sharing_problems(steps: Sequence[Step]) -> Iterator[tuple[Step, str]]:
    """Each step that names an object as its alone which a step of another stage names as well."""
    for index, step in enumerate(steps):
        terms = step.terms
        for thing in terms.alone if terms else ():
            for other in steps[:index]:
                if terms and other.terms and other.terms.stage != terms.stage and _has(other.terms.alone, thing):
                    yield (
                        step,
                        f"{step.name} has the same {type(thing).__name__} as {other.name}{other.at}, so that each would go on "
                        "where the other has left it: make one for each of them.",
                    )


def owner_problems(steps: Sequence[Step]) -> Iterator[tuple[Step, str]]:
    """Each step that works on one made context with what belongs to another."""
    for step in steps:
        found = maker_of(step.scope, step.earlier)
        if found is None or step.terms is None or found[0].terms is None:
            continue
        uses, mine = step.terms.uses, found[1]
        if any(_has(uses, thing) for thing in mine.owns):
            continue
        for other in found[0].terms.makes:
            if other is not mine and any(_has(uses, thing) for thing in other.owns):
                call = other.call.replace("...", f"{name_of(step.fn)}(...)")
                yield (
                    step,
                    f"{step.name} uses what belongs to {other.name!r}, and works on the context of {mine.name!r}: give it what "
                    f"belongs to {mine.name!r}, or write {call}.",
                )
                break


def _is_empty(thing: Any) -> bool:
    return hasattr(type(thing), "__len__") and len(thing) == 0


def _has(things: Sequence[Any], thing: Any) -> bool:
    return any(one is thing for one in things)


def _same_again(first: Step, second: Step, steps: Sequence[Step]) -> str:
    """The field that two fillers that do the same read, where nothing writes it between them; or an empty string."""
    if first.scope != second.scope or not is_same_again(first.fn, second.fn):
        return ""
    terms = second.terms
    assert terms is not None
    fields = terms.reads or terms.may_read
    between = steps[steps.index(first) + 1 : steps.index(second)]
    if not fields or any(_renews(other, field, second.scope) for other in between for field in fields):
        return ""
    return fields[0]


def _renews(step: Step, field: str, scope: Scope) -> bool:
    """Whether a step may give a field of that scope's context another value."""
    if step.is_around:
        return False
    outer = step.scope == scope[: len(step.scope)] and step.scope != scope and scope[len(step.scope)][0] in step.writes
    return outer or step.may_write_anything_for(scope) or (step.scope == scope and field in step.writes)


def is_same_again(one: Any, other: Any, depth: int = _DEPTH) -> bool:
    """Whether two middleware do the same: the same object, or made in the same way of the same."""
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
    if not own or not others or own.keys() != others.keys():  # without attributes, it may differ where nobody can see it
        return False
    return all(is_same_again(own[name], others[name], depth - 1) for name in own)


def _captured(fn: Callable[..., Any]) -> list[Any]:
    """What a function of a factory remembers: its closure and its defaults."""
    cells: Sequence[Any] = getattr(fn, "__closure__", None) or ()
    return [*(_content(cell) for cell in cells), *(getattr(fn, "__defaults__", None) or ())]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _attributes(it: Any) -> dict[str, Any] | None:
    """What an object of a Python class holds, but for its contract; None where that cannot be seen."""
    held = getattr(it, "__dict__", None)
    return None if held is None else {name: value for name, value in held.items() if not isinstance(value, Contract)}


def settings_problems(ctx: Context, steps: Sequence[Step]) -> Iterator[tuple[Step, str]]:
    """Each step that needs a setting which no earlier one sets, and what to do."""
    if not any(step.terms and step.terms.needs for step in steps):
        return
    fresh = ctx.renew()
    for step in steps:
        for need in step.terms.needs if step.terms is not None else ():
            field, _, key = need.partition(".")
            start = getattr(fresh, field, None) if not step.scope else None
            is_given = isinstance(start, Mapping) and key in start
            if is_given or any(_provides(other, need, step) for other in step.earlier) or _comes_along(step, field):
                continue
            yield step, _unprovided(step, need, steps)


def _provides(other: Step, need: str, step: Step) -> bool:
    if other.may_write_anything_for(step.scope):
        return True
    field = need.partition(".")[0]
    if other.terms is None or other.scope != step.scope or field not in other.writes:
        return False
    named = [setting for setting in other.terms.provides if setting.partition(".")[0] == field]
    return not named or need in named


def _comes_along(step: Step, field: str) -> bool:
    """Whether the field is filled where the context of the step is made, or nobody says."""
    if not step.scope:
        return False
    found = maker_of(step.scope, step.earlier)
    return found is None or field in found[1].writes


def _unprovided(step: Step, need: str, steps: Sequence[Step]) -> str:
    field, _, key = need.partition(".")
    start = f"{step.name} needs {step.field_start}{field}[{key!r}], and no earlier middleware sets it: "
    for other in steps:
        if other is not step and _provides(other, need, step) and not other.is_opaque:
            return start + step.where_to_move(other)
    hint = step.terms.hints.get(need) if step.terms is not None else None
    return start + (hint or f'add one that does before it, with provides=("{need}",) in its contract.')
