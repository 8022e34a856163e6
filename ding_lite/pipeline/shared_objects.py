"""Shared objects: those that middleware of several lanes hold, and that a contract does not name."""

from __future__ import annotations

import functools
import itertools
import logging
import warnings
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ding_lite.basics.attribute_reads import names_of
from ding_lite.basics.messages import with_article
from ding_lite.basics.optional_attributes import attribute_of, has_attribute
from ding_lite.basics.origins import is_of_script
from ding_lite.pipeline.code_in_use import advice_on_order, are_unordered, code_in_use
from ding_lite.pipeline.contexts import is_scalar
from ding_lite.pipeline.contracts import Contract, leader_of, line_to_add, state_groups
from ding_lite.pipeline.entries import Entry, take_turns
from ding_lite.pipeline.fingerprints import Print, changed, fingerprint
from ding_lite.pipeline.held_objects import NO_STATE, Held, advances, objects_in_use, objects_reached
from ding_lite.pipeline.shared_memory import arrays_in, is_array, objects_with_shared_memory
from ding_lite.pipeline.shared_variables import shared_variables
from ding_lite.pipeline.value_kinds import HashedBytes, is_random_generator, parts_with_defaults

_DATA = (list, dict, set, deque, bytearray)
_LENGTH = ".__len__()"
_MOST_INSIDE = 5_000  # objects that are looked at
_ACTING = " If it only acts, let it hold the mode, such as policy.eval_mode, and name that instead."


Reached = Mapping[int, Sequence[Held]]
"""The objects that each middleware with a contract reaches, by the id of its function."""


def reached_by(pipeline: Sequence[Entry]) -> Reached:
    """The objects that each middleware of a pipeline reaches, also through code of the script that runs where it uses an
    object; the search takes most of the time of these checks."""
    known = [entry for entry in pipeline if entry.contract is not None]
    return {
        id(entry.fn): [
            *objects_reached(entry.fn),
            *(held for code in code_in_use(entry, pipeline) for held in objects_in_use(code)),
        ]
        for entry in known
    }


def _itself(held: Iterable[Held]) -> list[Held]:
    """What a middleware reaches itself."""
    return [it for it in held if it.use is None]


def sharing_advice(pipeline: Sequence[Entry], found: Reached) -> Iterator[str]:
    """Advice for all that middleware of two lanes share and that can be found before the run."""
    yield from unnamed_objects(pipeline, found)
    yield from objects_inside_others(pipeline)
    yield from shared_iterators(pipeline, found)
    yield from shared_memory(pipeline, found)
    yield from shared_variables(pipeline)


def unnamed_objects(pipeline: Sequence[Entry], found: Reached) -> Iterator[str]:
    """Advice for each middleware that reaches an object named by a contract on another lane, but not by its own.

    An object and those in its `shares_state_with` count as one: a contract that names one of them names all. Code that reads
    settings of the object alone, or attributes that its contract names, as in `policy.eval_mode`, does not count; nor do
    objects in a list or dict of which the contract names some.

    Args:
        pipeline: the middleware.
        found: what they reach, from `reached_by`.
    """
    groups = _groups_of(pipeline)
    for entry in pipeline:
        terms, told = entry.contract, set[int]()
        reached = [] if terms is None else _itself(found[id(entry.fn)])
        chosen = {held.container for held in reached if terms is not None and _is_any(terms.uses, (held.thing,))}
        for held in reached:
            thing = held.thing
            same, leader = groups.get(id(thing), (thing,)), leader_of(thing)
            named = same if leader is None else (*same, *groups.get(id(leader), (leader,)))
            if terms is None or id(same[0]) in told or _is_any(terms.uses, named) or _reads_named_alone(held, terms.uses):
                continue
            if held.container is not None and held.container in chosen:  # it takes others from the same list or dict
                continue
            others = (it for it in pipeline if it.contract is not None and it.contract.lane != terms.lane)
            other = next((it for it in others if it.contract is not None and _is_any(it.contract.uses, named)), None)
            if other is not None:
                told.add(id(same[0]))
                has_it = other.contract is not None and _is_any(other.contract.uses, same)
                what = "that" if has_it else f"of the {type(leader).__name__} that"
                yield (
                    f"{entry.name} ({entry.location}) holds {held.shown}, {with_article(type(thing).__name__)} {what} "
                    f"{other.name} uses, "
                    "and its contract does not name it. Nothing orders the two, so if it touches it, add it: "
                    f"{line_to_add(entry.fn, uses=[_as_code(held.name)])}.{_other_ways(held)}"
                )


def _groups_of(pipeline: Sequence[Entry]) -> dict[int, tuple[Any, ...]]:
    return state_groups([thing for entry in pipeline if entry.contract is not None for thing in entry.contract.uses])


def _as_code(name: str) -> str:
    """The name of an object as it is named in a contract, where the script has a name for it."""
    return "the object" if name == "self" or " " in name else name


def _other_ways(held: Held) -> str:
    """What a middleware may do that need not wait for the other one."""
    ways = _ACTING if has_attribute(held.thing, "eval_mode") else ""
    setting = next((name for name in ("cfg", "num_envs") if has_attribute(held.thing, name)), None)
    if setting is not None and held.attributes() is None:
        ways += (
            f" If it only reads settings, take them outside of the function, `settings = {_as_code(held.name)}.{setting}`: "
            "that costs nothing."
        )
    return ways


def _reads_named_alone(held: Held, uses: Sequence[Any]) -> bool:
    """Whether a middleware does nothing with an object but read its settings, and attributes that its contract names."""
    attributes = held.attributes()
    return attributes is not None and all(_is_any(uses, (attribute_of(held.thing, it),)) for it in attributes)


def _is_any(uses: Sequence[Any], things: Sequence[Any]) -> bool:
    return any(use is thing for use in uses for thing in things)


def shared_iterators(pipeline: Sequence[Entry], found: Reached) -> Iterator[str]:
    """Advice for each iterator or random generator that middleware of two lanes reach, and neither contract names. Every use
    advances it."""
    known = [entry for entry in pipeline if entry.contract is not None]
    holders: dict[int, list[tuple[Entry, Held]]] = {}
    for entry in known:
        for held in found[id(entry.fn)]:
            if advances(held.thing) and held.places != ():
                holders.setdefault(id(held.thing), []).append((entry, held))
    for several in holders.values():
        pair = _pair_of_holders(several, known)
        if pair is None:
            continue
        (first, held), (second, other) = pair
        kind, item = ("a random generator", "numbers") if is_random_generator(held.thing) else ("an iterator", "item")
        if held.use is None and other.use is None:
            fix = f"add it to both, @contract(..., uses=({_as_code(held.name)},))"
            what = (
                f"{_who(first)} and {_who(second)} hold the same {type(held.thing).__name__}, {held.shown}, {kind}, and "
                "neither contract names it."
            )
        else:
            what, fix = f"{_reached_twice(pair)} It is {kind}, which every use advances.", _order_of_use(pair)
        yield (
            f"{what} Nothing orders the two, so which one gets which {item} depends on which is faster: {fix}, or give each "
            "its own."
        )


def shared_memory(pipeline: Sequence[Entry], found: Reached) -> Iterator[str]:
    """Advice for each array, network or optimizer that shares memory with another object that a contract on another lane
    names."""
    known = [entry for entry in pipeline if entry.contract is not None]
    groups = _groups_of(pipeline)
    holders = _holders_of_arrays(known, found, groups)
    if not holders:
        return
    named: dict[int, list[tuple[Entry, Any]]] = {}
    for entry in known:
        for use in entry.contract.uses if entry.contract is not None else ():
            group = groups.get(id(use), (use,))
            for thing in [it for it in group if is_array(it)] or [it for it in group if arrays_in(it)]:
                named.setdefault(id(thing), []).append((entry, thing))
    things = {id(it): it for it in [*(it[0][1].thing for it in holders.values()), *(it[0][1] for it in named.values())]}
    told = set[frozenset[int]]()
    for one, two in objects_with_shared_memory(things.values()):
        for mine, other in ((one, two), (two, one)):
            for entry, held in holders.get(id(mine), ()):
                user = next((it for it, _ in named.get(id(other), ()) if _are_beside(entry, it)), None)
                around = [frozenset((it, id(other))) for it in held.around]
                if user is None or frozenset((id(one), id(two))) in told or not told.isdisjoint(around):
                    continue
                told |= {frozenset((it, id(other))) for it in (id(mine), held.container) if it is not None}
                kinds = with_article(type(mine).__name__), with_article(type(other).__name__)
                yield (
                    f"{entry.name} ({entry.location}) holds {held.shown}, {kinds[0]} that shares memory with {kinds[1]} that "
                    f"{user.name} ({user.location}) uses. Nothing orders the two, because contracts name objects, not memory: "
                    f"if one of them changes it, name the same object in both, @contract(..., uses=({_as_code(held.name)},))."
                )


def _holders_of_arrays(known: Sequence[Entry], found: Reached, groups: Container[int]) -> dict[int, list[tuple[Entry, Held]]]:
    """The middleware that reach each array, network or optimizer, by its id; not those of a group of objects that share their
    state, which `unnamed_objects` looks at, and not those that are only asked for settings."""
    holders: dict[int, list[tuple[Entry, Held]]] = {}
    for entry in known:
        for held in _itself(found[id(entry.fn)]):
            is_other = not isinstance(held.thing, (list, tuple, Mapping)) and id(held.thing) not in groups
            if is_array(held.thing) or (is_other and held.attributes() != set() and arrays_in(held.thing)):
                holders.setdefault(id(held.thing), []).append((entry, held))
    return holders


def _are_beside(one: Entry, other: Entry) -> bool:
    """Whether two middleware are on different lanes, and nothing that both name orders them."""
    return _lane_of(one) != _lane_of(other) and not take_turns(one, other)


def _pair_of_holders(
    several: Sequence[tuple[Entry, Held]], known: Sequence[Entry]
) -> tuple[tuple[Entry, Held], tuple[Entry, Held]] | None:
    """Two middleware that reach an object which nothing orders and nobody names; None if there are no such ones.

    First come two that hold it themselves. Where one reaches it through code of an object that it uses, it is enough that this
    one does not name it: the other one may.
    """
    thing = several[0][1].thing
    if not any(_knows(entry, thing) for entry in known):
        pair = _first_pair([it for it in several if it[1].use is None])
        if pair is not None:
            return pair
    if isinstance(thing, logging.Logger):
        return None
    named = [entry for entry in known if entry.contract is not None and _is_named(thing, entry.contract)]
    unnamed = [(entry, held) for entry, held in several if held.use is None or entry not in named]
    return _first_pair(unnamed, only_through_use=True)


def _who(entry: Entry) -> str:
    return f"{entry.name} ({entry.location})"


def _reached_twice(pair: tuple[tuple[Entry, Held], tuple[Entry, Held]]) -> str:
    """That one middleware holds something, and another one reaches it through code of an object that it uses."""
    (plain, held), (using, other) = sorted(pair, key=lambda it: it[1].use is not None)
    kind = "object" if other.use is None else other.use.kind
    return (
        f"{_who(plain)} holds {held.shown}, a {type(held.thing).__name__}, and so does the {kind} that {_who(using)} uses, as "
        f"{other.shown}."
    )


def _order_of_use(pair: tuple[tuple[Entry, Held], tuple[Entry, Held]]) -> str:
    """How to order two middleware of which one reaches something through code of an object that it uses."""
    (one, held), (other, also) = pair
    if held.use is not None:
        return advice_on_order(other, one, held.use)
    return "" if also.use is None else advice_on_order(one, other, also.use)


def objects_inside_others(pipeline: Sequence[Entry]) -> Iterator[str]:
    """Advice for each middleware that uses an object, such as an environment, with data inside that a contract on another lane
    names and its own does not."""
    for entry in pipeline:
        if entry.contract is None:
            continue
        elsewhere = {
            id(thing): (other, thing)
            for other in pipeline
            if other.contract is not None and other.contract.lane != entry.contract.lane
            for thing in other.contract.uses
            if isinstance(thing, _DATA) and not _is_named(thing, entry.contract)
        }
        for owner in entry.contract.uses if elsewhere else ():
            found = next((elsewhere[key] for key in objects_inside([owner], _inside) if key in elsewhere), None)
            if found is not None:
                other, thing = found
                yield (
                    f"{entry.name} ({entry.location}) uses a {type(owner).__name__} that holds a {type(thing).__name__}, which "
                    f"{other.name} ({other.location}) uses. Nothing orders the two, so if {other.name} changes it, name it in "
                    "both contracts."
                )


def objects_inside(things: Iterable[Any], inner_of: Callable[[Any], Iterable[Any]]) -> dict[int, Any]:
    """These objects and those inside them, by id, the nearest first. It goes no deeper once it has found 5,000.

    Args:
        things: the objects.
        inner_of: function of an object that returns the values in it. Numbers and strings are left out.
    """
    waiting = deque(things)
    seen = {id(one): one for one in waiting}
    while waiting and len(seen) < _MOST_INSIDE:
        for inner in inner_of(waiting.popleft()):
            if not is_scalar(inner) and id(inner) not in seen:
                seen[id(inner)] = inner
                waiting.append(inner)
    return seen


def _inside(value: Any) -> list[Any]:
    """Attributes and items, but not the numbers of modules and arrays."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, deque)):
        return list(value)
    if isinstance(value, NO_STATE) or has_attribute(value, "__array__") or has_attribute(value, "named_parameters"):
        return []
    return list(attribute_of(value, "__dict__", {}).values())


class Watched:
    """An object that middleware of two lanes hold and no contract names: harmless as long as it does not change.

    Args:
        things: the object; or two objects that share memory, which change together.
        holders: two middleware that hold it, and that nothing orders, each with how it holds it.
        ordered: the ids of objects that contracts name, whose changes inside it do not count.
    """

    def __init__(
        self, things: Sequence[Any], holders: tuple[tuple[Entry, Held], tuple[Entry, Held]], ordered: Container[int]
    ) -> None:
        self.things, self.holders, self._ordered = things, holders, ordered
        self._prints = self._look()
        self._is_reported = False

    def warn_if_changed(self) -> None:
        """Warn once if it has changed, and name its holders."""
        if self._is_reported:
            return
        earlier, self._prints = self._prints, self._look()
        places = [changed(before, now, "numbers") for before, now in zip(earlier, self._prints)]
        if None in places:  # what was added counts once it changes
            return
        self._is_reported = True
        where = (places[0] or "").removesuffix(_LENGTH) if len(places) == 1 else ""
        (first, held), (second, other) = self.holders
        at = f" (at {where})" if where else ""
        if held.use is None and other.use is None:
            if len(places) == 1:
                what = f"the same {type(self.things[0]).__name__}, {held.name}, which changes{at}"
                fix = f"add it to both, @contract(..., uses=({_as_code(held.name)},))"
            else:
                kinds = " and ".join(with_article(type(it).__name__) for it in self.things)
                what = f"{kinds} that share memory, {held.name} and {other.name}, which change"
                fix = f"add one of them, the same, to both, @contract(..., uses=({_as_code(held.name)},))"
            what = f"{_who(first)} and {_who(second)} hold {what}, and neither contract names it"
            fix += ". A decorator above a method cannot name its object: make such middleware in a factory"
        else:
            what, fix = f"{_reached_twice(self.holders)} It changes{at}", _order_of_use(self.holders)
        warnings.warn(
            f"where iterations overlap, {what}. Nothing orders the two, so the result depends on which is faster: {fix}.",
            stacklevel=2,
        )

    def _look(self) -> list[Print]:
        return [fingerprint(it, inside_of=self._inside) for it in self.things]

    def _inside(self, value: Any) -> Sequence[tuple[str, Any]] | None:
        """The values inside a value; None for the usual ones."""
        if id(value) in self._ordered:
            return ()
        return _parts_and_lengths(value) if is_of_script(type(value).__module__) else None


def _parts_and_lengths(value: Any) -> list[tuple[str, Any]]:
    """The values inside an object of the script, and the lengths of lists and sets in its attributes, because a private list
    may only grow. Not those of dicts, which may be caches, or of attributes that only classes of libraries set."""
    parts = parts_with_defaults(value)
    kind: Any = type(value)
    own = _names_of_script(kind)
    lists = [(name, it) for name, it in parts if isinstance(it, (list, set, deque)) and (own is None or name[1:] in own)]
    lengths = [(f"{name}{_LENGTH}", HashedBytes(len(it))) for name, it in lists]
    return [*parts, *lengths, *((f".{name}", it) for name, it in _descriptors_of(kind))]


def _descriptors_of(kind: type) -> list[tuple[str, Any]]:
    """The descriptors in the classes of an object that are of classes of the script, and so may hold data for it."""
    members = [member for base in kind.__mro__ if is_of_script(base.__module__) for member in vars(base).items()]
    return [(name, it) for name, it in members if is_of_script(type(it).__module__) and hasattr(type(it), "__get__")]


@functools.cache
def _names_of_script(kind: Any) -> frozenset[str] | None:
    """The attributes that the classes of the script set, of which one is derived from a library's; None for all."""
    script = [base for base in kind.__mro__ if is_of_script(base.__module__)]
    others = [base for base in kind.__mro__ if base not in script and base.__module__ != "builtins"]
    return frozenset(names_of(script)) if others else None


def watched_objects(pipeline: Sequence[Entry], found: Reached) -> dict[int, list[Watched]]:
    """Objects that middleware of two lanes reach and no contract names, by id of each function that reaches them.

    Args:
        pipeline: the middleware.
        found: what they reach, from `reached_by`.
    """
    known = [entry for entry in pipeline if entry.contract is not None]
    groups = _groups_of(pipeline)
    reached: dict[int, list[tuple[Entry, Held]]] = {}
    for entry in known:
        for held in found[id(entry.fn)]:
            if id(held.thing) not in groups and held.attributes() != set() and not advances(held.thing):
                reached.setdefault(id(held.thing), []).append((entry, held))
    pairs = {key: _pair_of_holders(several, known) for key, several in reached.items()}
    shared = {key: pair for key, pair in pairs.items() if pair is not None}
    named = {id(use) for entry in known if entry.contract is not None for use in entry.contract.uses} | groups.keys()
    watched: list[Watched] = []
    for key, pair in shared.items():
        if all(shared.keys() & {*held.around} for _, held in reached[key]):
            continue  # what holds it is watched
        watched.append(Watched([pair[0][1].thing], pair, named))
    plain = {key: [it for it in several if it[1].use is None] for key, several in reached.items() if key not in shared}
    watched += _watched_arrays(known, {key: several for key, several in plain.items() if several}, named)
    by_function: dict[int, list[Watched]] = {}
    for one in watched:
        for fn in {id(entry.fn) for entry, _ in one.holders}:
            by_function.setdefault(fn, []).append(one)
    return by_function


def _watched_arrays(
    known: Sequence[Entry], reached: Mapping[int, Sequence[tuple[Entry, Held]]], ordered: Container[int]
) -> Iterator[Watched]:
    """Arrays, networks and optimizers that share memory, of which each is reached by middleware of another lane, and that no
    contract names."""
    things = [several[0][1].thing for several in reached.values() if arrays_in(several[0][1].thing)]
    if len(things) < 2:
        return
    free = [it for it in things if not any(_knows(entry, it) for entry in known)]
    found: dict[frozenset[int], tuple[tuple[Entry, Held], tuple[Entry, Held]]] = {}
    for one, two in objects_with_shared_memory(free):
        pairs = ((mine, other) for mine in reached[id(one)] for other in reached[id(two)] if _are_beside(mine[0], other[0]))
        pair = next(pairs, None)
        if pair is not None:
            first, second = sorted(pair, key=lambda it: known.index(it[0]))
            found[frozenset((id(one), id(two)))] = first, second
    for pair in found.values():
        (_, held), (_, other) = pair
        outer = itertools.product((id(held.thing), *held.around), (id(other.thing), *other.around))
        if sum(frozenset(keys) in found for keys in outer) == 1:  # else what holds one of them is watched
            yield Watched([held.thing, other.thing], pair, ordered)


def _first_pair(
    holders: Sequence[tuple[Entry, Held]], only_through_use: bool = False
) -> tuple[tuple[Entry, Held], tuple[Entry, Held]] | None:
    """Two of the middleware that hold an object which nothing orders; None if there are no such ones.

    Args:
        holders: the middleware.
        only_through_use: whether one of them must reach it through code of an object that it uses.
    """
    for one, other in itertools.combinations(holders, 2):
        if only_through_use and one[1].use is None and other[1].use is None:
            continue
        if are_unordered(one[0], one[1].use, other[0], other[1].use):
            return one, other
    return None


def _lane_of(entry: Entry) -> str:
    return "" if entry.contract is None else entry.contract.lane


def _knows(entry: Entry, thing: Any) -> bool:
    """Whether the contract names the object, or one that holds it or that it holds, such as a mode of a policy."""
    terms = entry.contract
    if terms is None or isinstance(thing, logging.Logger) or _is_named(thing, terms):
        return True
    inside = {id(value) for value in attribute_of(thing, "__dict__", {}).values()}
    return any(
        id(use) in inside or any(value is thing for value in attribute_of(use, "__dict__", {}).values()) for use in terms.uses
    )


def _is_named(thing: Any, terms: Contract) -> bool:
    """Whether a contract names the object or its leader."""
    leader = leader_of(thing)
    return any(it is thing or (leader is not None and it is leader) for it in terms.uses)
