"""Lost entries: what a class of the script saves in `state_dict`, and its `load_state_dict` does not restore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ding_lite.basics.comparisons import same_values
from ding_lite.basics.optional_attributes import attribute_of, has_attribute
from ding_lite.basics.origins import is_of_ding_lite, is_of_script
from ding_lite.engine.run_parts import has_state, network_holder

_MOST_BYTES = 2**30  # of an object that says its size, because `state_dict` may copy it

Place = tuple[Any, ...]
"""The keys and indices that lead to a value in a state."""


def lost_entries(parts: Mapping[str, Any], states: Mapping[str, Any]) -> Iterator[str]:
    """A warning for each object of a class of the script whose state is another one than the one that it has just loaded.

    Entries that differ between two calls of `state_dict`, such as times, are left out, and those of the library's base class.

    Args:
        parts: the objects by name, and objects that are attached to them.
        states: the state of each that it has loaded; of some there may be none.
    """
    for name, part in parts.items():
        if name not in states:
            continue
        holder = network_holder(part)
        for thing, saved in ((holder, states[name]), *_attached(holder, states[name])):
            if is_of_script(type(thing).__module__) and isinstance(saved, Mapping):
                try:
                    found = _difference(thing, saved)
                except Exception:  # noqa: BLE001  a warning is not worth an error
                    continue
                if found is not None:
                    place, now, then = found
                    shown = f"{place[0]}{''.join(f'[{key!r}]' for key in place[1:])}"
                    yield (
                        f"{type(thing).__name__}.state_dict() gives {shown} = {now!r:.80} after loading, and the saved state "
                        f"has {then!r:.80}: its load_state_dict does not restore it, so the resumed run may differ. Set it "
                        "there, or leave it out of state_dict()."
                    )


def _attached(holder: Any, saved: Any) -> list[tuple[Any, Any]]:
    """The objects that are attached to a policy, each with its state."""
    states = saved.get("attached") if isinstance(saved, Mapping) else None
    things = attribute_of(holder, "attachments", {})
    return [(it, states[name]) for name, it in things.items() if name in states] if isinstance(states, Mapping) else []


def _difference(thing: Any, saved: Mapping[Any, Any]) -> tuple[Place, Any, Any] | None:
    """The place of the first entry that was not restored, its value now, and the saved one."""
    size = attribute_of(thing, "nbytes")
    kinds = [base for base in type(thing).__mro__ if "state_dict" in vars(base)]
    if not has_state(thing) or (isinstance(size, int) and size > _MOST_BYTES):
        return None
    if not kinds or not is_of_script(kinds[0].__module__):  # an inherited one loads all that it saves
        return None
    ours: Any = next((base for base in kinds if not is_of_script(base.__module__)), None)
    left_out = ours.state_dict(thing) if ours is not None and is_of_ding_lite(ours.__module__) else {}
    now, again = thing.state_dict(), thing.state_dict()
    if not isinstance(now, Mapping):
        return None
    for key, then in saved.items():
        if key not in left_out and key in now:
            place = next(_differences(now[key], then, (key,)), None)
            if place is not None and next(_differences(again.get(key), now[key], (key,)), None) is None:
                return place
    return None


def _differences(now: Any, then: Any, place: Place) -> Iterator[tuple[Place, Any, Any]]:
    if isinstance(now, Mapping) and isinstance(then, Mapping):
        for key, value in then.items():
            yield from _differences(now.get(key), value, (*place, key))
    elif isinstance(now, (list, tuple)) and isinstance(then, (list, tuple)):
        if len(now) != len(then):
            yield place, now, then
        else:
            for index, (one, other) in enumerate(zip(now, then)):
                yield from _differences(one, other, (*place, index))
    elif not _are_equal(now, then):
        yield place, now, then


def _are_equal(now: Any, then: Any) -> bool:
    """Whether two values are equal or, unless they are arrays, whose text may be shortened, have the same text."""
    has_array = any(has_attribute(it, "__array__") for it in (now, then))
    return same_values(now, then) or (not has_array and repr(now) == repr(then))
