"""Fingerprints of values, to detect changes in place, and the location of their memory."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ding_lite.pipeline.contexts import SCALARS
from ding_lite.pipeline.value_kinds import MOST_PARTS, SHARED_BY_DESIGN, HashedBytes, kind_of

_ROOT = 0


class InnerValue(NamedTuple):
    """A value inside another value."""

    identity: int | None
    """Start of its memory; None if it is immutable."""
    end: int
    """End of its memory."""
    content: Any
    name: str
    """Name in the outer value: an attribute, ".x", or an item, "[0]"."""
    parent: int
    """Key of the outer value."""
    is_private: bool
    """Whether its name, or an outer one, begins with an underscore."""
    is_inner: bool
    """Whether it is inside a nested context, whose fields have their own owners."""


_part: Callable[[tuple[Any, ...]], InnerValue] = functools.partial(tuple.__new__, InnerValue)  # faster than the class itself
Print = dict[int, InnerValue]
"""A fingerprint. The key of a part is computed from its name and the key of the outer value."""

_Level = tuple[Iterator[tuple[str, Any]], int, bool, bool]
"""The remaining parts of a value, its key, and whether it is private or inner."""


class _Again(NamedTuple):
    """What counts of an object that is inside the value a second time."""

    first: int
    """Key of its first place."""


def fingerprint(
    value: Any, data_alone: bool = False, inside_of: Callable[[Any], Sequence[tuple[str, Any]] | None] | None = None
) -> Print:
    """What a value holds now: numbers and the bytes of arrays, through containers and attributes of objects.

    Args:
        value: any.
        data_alone: whether to look only into containers, arrays and torch modules, and not into other objects.
        inside_of: a function that returns the values inside an object, by name, also inside a function or a class. None stands
            for the usual ones, which `usual_parts` returns; an object without any is left out.
    """
    found: Print = {}
    held: dict[int, Any] = {}  # keeps all values alive, so that no address is reused
    places: dict[int, int] = {}
    levels: list[_Level] = [(iter([("", value)]), _ROOT, False, False)]
    while levels:
        inside, parent, is_private, is_inner = levels[-1]
        for name, inner in inside:
            if len(found) >= MOST_PARTS:
                return found
            key = hash((parent, name))
            mine = is_private or name.startswith("._")
            cls = type(inner)
            if cls in SCALARS or cls is HashedBytes:  # most of them
                found[key] = _part((None, 0, inner if cls is HashedBytes else repr(inner), name, parent, mine, is_inner))
                continue
            kind = kind_of(cls)
            if data_alone and not kind.is_data:
                found[key] = InnerValue(None, 0, "an object", name, parent, mine, is_inner)
                continue
            if kind.is_ignored:
                continue
            if id(inner) in held:
                found[key] = _part((None, 0, _Again(places[id(inner)]), name, parent, mine, is_inner))
                continue
            more = None if inside_of is None else inside_of(inner)
            if more is not None and not more:
                continue
            content, more = kind.look(inner, more)
            nested = is_inner or name.startswith(SHARED_BY_DESIGN)
            found[key] = _part((*content, name, parent, mine, nested))
            held[id(inner)] = inner
            places[id(inner)] = key
            if more:
                levels.append((iter(more), key, mine, nested))
                break
        else:
            levels.pop()
    return found


def changed(before: Print, now: Print, private: str = "arrays") -> str | None:
    """The path of the first change in place, such as ".rows[0]", or None; see `changes`."""
    return next(changes(before, now, private), None)


def changes(before: Print, now: Print, private: str = "arrays") -> Iterator[str]:
    """The path of each change in place, such as ".rows[0]"; those of what was added come first.

    Args:
        private: what counts of attributes that begin with an underscore, where a reader may fill a cache: "arrays" alone,
            "numbers" too, or "all", and what was added as well. With "arrays", and with "numbers but None", no attribute counts
            that was None, since a reader may fill it.
    """
    if private == "all":
        for key, part in now.items():
            if key not in before and part.parent in before and not isinstance(before[part.parent].content, _Again):
                yield way_to(now, key)
    insides: list[dict[int, dict[str, int]]] = []
    same: set[tuple[int, int, bool]] = set()
    for key, part in before.items():
        other = now.get(key)
        if other is None or (other.content == part.content and not _is_less_private(part, before)):
            continue
        if type(part.content) is _Again or type(other.content) is _Again:
            insides = insides or [_insides(before), _insides(now)]
            is_changed = _differ(before, now, key, insides, same, private)
        else:
            is_changed = _counts(part, other, part.name, part.is_private, private)
        if is_changed:
            yield way_to(before, key)


def _counts(part: InnerValue, other: InnerValue, name: str, is_private: bool, private: str) -> bool:
    """Whether a difference of content is a change, see `changes`."""
    if private in ("arrays", "numbers but None") and part.content == "None" and name.startswith("."):
        return False  # a cache that is filled at the first access
    if private == "all" or not is_private:
        return True
    is_number = private != "arrays" and part.identity is None and part.content != "None"
    return is_number or (part.identity == other.identity and isinstance(part.content, HashedBytes))


def _is_less_private(part: InnerValue, found: Print) -> bool:
    """Whether a part is the public second place of an object whose first place is private, where less counts."""
    if type(part.content) is not _Again or part.is_private:
        return False
    first = found.get(part.content.first)
    return first is not None and first.is_private


def _differ(
    before: Print,
    now: Print,
    key: int,
    insides: Sequence[dict[int, dict[str, int]]],
    same: set[tuple[int, int, bool]],
    private: str,
) -> bool:
    """Whether two values differ, of which one was or is a second place of another value.

    An object may also get its first place elsewhere, for example in a cache. So what is inside is compared, and not the place.

    Args:
        insides: the keys of the parts of each value, of `before` and of `now`.
        same: pairs of values that were compared; each is compared once, because values may refer to each other.
    """
    waiting = [(key, key, before[key].name, before[key].is_private)]
    while waiting:
        old_key, new_key, name, is_private = waiting.pop()
        old, new = _first_place(before, old_key), _first_place(now, new_key)
        if (old, new, is_private) in same or old not in before or new not in now:
            continue
        same.add((old, new, is_private))
        part, other = before[old], now[new]
        if part.content != other.content and _counts(part, other, name, is_private, private):
            return True
        inner, later = insides[0].get(old, {}), insides[1].get(new, {})
        if private == "all" and later.keys() - inner.keys():
            return True
        waiting += [(inner[it], later[it], it, is_private or it.startswith("._")) for it in inner.keys() & later.keys()]
    return False


def _first_place(found: Print, key: int) -> int:
    content = found[key].content
    return content.first if isinstance(content, _Again) else key


def _insides(found: Print) -> dict[int, dict[str, int]]:
    """The keys of the parts of each value, by name."""
    insides: dict[int, dict[str, int]] = {}
    for key, part in found.items():
        insides.setdefault(part.parent, {})[part.name] = key
    return insides


def way_to(found: Print, key: int) -> str:
    """The path of a part, as code."""
    names: list[str] = []
    while key in found:
        names.append(found[key].name)
        key = found[key].parent
    return "".join(reversed(names))


def with_what_is_inside(found: Print, keys: Iterable[int]) -> Print:
    """These parts and everything inside them."""
    taken = set(keys)
    chosen: Print = {}
    for key, part in found.items():  # outer parts come first
        if key in taken or part.parent in taken:
            taken.add(key)
            chosen[key] = part
    return chosen


def memory_of(found: Print) -> list[tuple[int, int, int]]:
    """(begin, end, key) of each mutable part, in order, without nested contexts."""
    spans = [(part.identity, part.end, key) for key, part in found.items() if part.identity is not None and not part.is_inner]
    return sorted(spans)


def overlapping(spans: Sequence[tuple[int, int, int]], others: Sequence[tuple[int, int, int]]) -> list[int]:
    """The keys of `spans` that overlap with one of `others`."""
    keys: list[int] = []
    reach, place = 0, 0  # how far those of `others` go that begin before the end of the span
    for begin, end, key in sorted(spans, key=operator.itemgetter(1)):
        while place < len(others) and others[place][0] < end:
            reach = max(reach, others[place][1])
            place += 1
        if reach > begin:
            keys.append(key)
    return keys
