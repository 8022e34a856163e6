"""Types of settings: values as their declared types, and as the plain data that config.json can hold."""

from __future__ import annotations

import enum
import inspect
import json
import math
import numbers
import os
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSequence, MutableSet, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import PurePath
from typing import Any, Literal, Union

_INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that JSON does not have, by the text that config.json has for them."""

_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
"""Values by their text as keys of config.json and on the command line."""

_LISTS = dict.fromkeys((list, tuple, Sequence, MutableSequence, Collection, Iterable), (list, tuple))
_SETS = dict.fromkeys((set, frozenset, AbstractSet, MutableSet), (set, frozenset, list, tuple))
_CONTAINERS: Mapping[Any, tuple[type, ...]] = {**_LISTS, **_SETS}
"""The classes of the values that are accepted for a declared class of lists or sets."""

_CONCRETE: Mapping[Any, type] = {MutableSequence: list, AbstractSet: frozenset, MutableSet: set}
"""What is made of a value of another class, for an abstract class."""


class ConfigError(ValueError, TypeError, AttributeError):
    """A key that does not exist, or a value of the wrong type or out of range."""


class Section:
    """Base of `Config`: a value that has settings itself. Here, because the conversions are below the configuration."""

    def to_dict(self) -> dict[str, Any]:
        """Plain nested data."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Any:
        """The section from a result of `to_dict`."""
        raise NotImplementedError


def plain_setting(value: Any) -> Any:
    """A setting as plain data, see `Config.to_dict`."""
    if isinstance(value, Section):
        return value.to_dict()
    if isinstance(value, enum.Enum):
        return plain_setting(value.value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain_setting(item) for item in value]
    if isinstance(value, AbstractSet):  # in an order that is the same in every program
        items = [plain_setting(item) for item in value]
        try:
            return sorted(items)
        except TypeError:  # of several types
            return sorted(items, key=repr)
    if isinstance(value, Mapping):
        return {plain_setting(key): plain_setting(item) for key, item in value.items()}
    return value


def json_copy(value: Any, where: str) -> Any:
    """A copy of a value of no declared type, as it comes back from config.json: with lists instead of tuples.

    Args:
        value: any value.
        where: its name, for the message.

    Raises:
        ConfigError: config.json cannot hold it, or not its type.
    """
    if isinstance(value, (list, tuple)):
        return [json_copy(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(Any, key, where): json_copy(item, f"{where}[{key!r}]") for key, item in value.items()}
    is_endless = isinstance(value, float) and not math.isfinite(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and not (is_endless or isinstance(value, enum.Enum)):
        return int(value) if isinstance(value, int) else float(value)  # of a class of numpy, for example
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return str.__str__(value)
    raise ConfigError(
        f"{where} = {value!r:.60} is {_type_of(value)}{' that is not finite' if is_endless else ''}, which config.json "
        "cannot hold: use finite numbers, text, bools, None, and lists and dicts of them."
    )


def converted(hint: Any, value: Any, where: str) -> Any:
    """`value` as the declared type, or a ConfigError."""
    hint = getattr(hint, "__supertype__", hint)  # of a NewType
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    kind = origin or hint
    if hasattr(value, "item") and hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0:
        value = value.item()  # a numpy or torch scalar
    if hint in (Any, object):
        return _json_copy(value, where)
    if origin in (Union, types.UnionType):
        return _option(hint, value, where)
    if origin is Literal:
        if isinstance(value, bool) and {"on", "off"} <= set(arguments):  # YAML reads on and off as bools
            return "on" if value else "off"
        with suppress(ConfigError):  # what config.json cannot hold, such as bytes
            plain = json_copy(plain_setting(value), where)
            for it in arguments:
                its = plain_setting(it)
                if its == plain and isinstance(its, bool) == isinstance(plain, bool):
                    return it
    elif kind in _CONTAINERS and isinstance(value, _CONTAINERS[kind]):
        return _container(kind, hint, value, where)
    elif isinstance(kind, type) and issubclass(kind, Mapping) and not typing.is_typeddict(kind):
        if isinstance(value, (dict, kind)):
            return _mapping(kind, hint, value, where)
    elif isinstance(hint, type) and issubclass(hint, Section):
        if isinstance(value, hint):
            return value
        if isinstance(value, Mapping):
            return hint.from_dict(value)
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        member = _member(hint, value)
        if member is not None:
            _json_copy(plain_setting(member), where)
            return member
    elif isinstance(hint, type) and issubclass(hint, PurePath):
        if isinstance(value, (str, os.PathLike)):
            return value if isinstance(value, hint) else hint(value)
    elif hint is float:
        if isinstance(value, str) and value in _INFINITE:
            return _INFINITE[value]
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError as error:
                raise ConfigError(f"{where} = {value!r:.20}... is out of range: no float can hold it.") from error
    elif hint is int:
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return int(value)
    elif hint is str:
        if isinstance(value, (str, os.PathLike)):
            return str.__str__(os.fspath(value))  # of a member of an Enum, its text alone
    elif _is_instance(value, hint) and _is_instance(copied := _json_copy(value, where), hint):
        return copied
    raise _misfit(hint, value, where)


def _misfit(hint: Any, value: Any, where: str) -> ConfigError:
    is_named_tuple = isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")
    advice = ""
    if is_named_tuple or typing.is_typeddict(hint):
        advice = " NamedTuple and TypedDict are no types of settings: use a Config section or dict[str, ...]."
    return ConfigError(f"{where} = {value!r} is {_type_of(value)}, it is declared {_spelt(hint)}.{advice}")


def _option(hint: Any, value: Any, where: str) -> Any:
    """A value of one of several types.

    Raises:
        ConfigError: it has none of them; or it would have another one after it was read from config.json.
    """
    option, found = _first_option(hint, value, where)
    written = json.dumps(plain_setting(found))
    read = json.loads(written, parse_constant=lambda it: it if it in _INFINITE else math.nan)
    try:
        again, back = _first_option(hint, read, where)
    except ConfigError as error:
        if isinstance(found, Section):  # of a derived class, or with one inside, which is read as in a field of one type
            return found
        raise ConfigError(f"{where} = {value!r:.60} could not be read from config.json: {error}") from None
    # Within one option, it comes back as in a field of this type. Otherwise a tuple may come back as a list, as there. By repr,
    # because NaN, for which there is an error later, differs from itself.
    same = tuple(back) if isinstance(found, tuple) and isinstance(back, list) else back
    if again is not option and repr(same) != repr(found):
        raise ConfigError(
            f"{where} = {value!r:.60} comes back from config.json as {back!r:.60}, because it is declared {_spelt(hint)}: "
            f"declare it without {type(back).__name__}, or set it to {_type_of(back)}."
        )
    return found


def _first_option(hint: Any, value: Any, where: str) -> tuple[Any, Any]:
    """The type of the value, if that is among the options, or else the first one that fits; and the value as this type."""
    options = typing.get_args(hint)
    for option in (*(option for option in options if option is type(value)), *options):
        with suppress(ConfigError):
            return option, converted(option, value, where)
    for option in options:
        if option is not int and _is_instance(value, option):  # so that the error says what is wrong in it
            return option, converted(option, value, where)
    raise _misfit(hint, value, where)


def _json_copy(value: Any, where: str) -> Any:
    try:
        return json_copy(value, where)
    except ConfigError as error:
        raise ConfigError(
            f"{error} An Enum, a path, a set, an infinite number, and a section derived from Config need a field that is "
            "declared with their type."
        ) from None


def _is_instance(value: Any, hint: Any) -> bool:
    try:
        return isinstance(value, typing.get_origin(hint) or hint)
    except TypeError:  # a Literal, a TypedDict, or another type of which there are no instances
        return False


def _member(kind: type[enum.Enum], value: Any) -> enum.Enum | None:
    """The member itself, or the one with this value; None if there is none."""
    if isinstance(value, kind):
        return value
    plain = plain_setting(value)
    for member in kind:
        its = plain_setting(member.value)
        if type(its) is type(plain) and its == plain:
            return member
    if issubclass(kind, enum.Flag) and type(plain) is int:
        with suppress(ValueError):
            return kind(plain)  # several members
    return None


def _container(kind: Any, hint: Any, value: Any, where: str) -> Any:
    """A list, tuple or set, with items of the declared types."""
    hints = _item_hints(hint, value)
    if hints is None:
        raise ConfigError(f"{where} = {value!r} has {len(value)} values, it is declared {_spelt(hint)}.")
    items = [converted(item, element, f"{where}[{i}]") for i, (item, element) in enumerate(zip(hints, value))]
    own = next(base for base in (list, tuple, set, frozenset) if isinstance(value, base))
    try:
        return (own if issubclass(own, kind) else _CONCRETE.get(kind, kind))(items)
    except TypeError as error:
        raise ConfigError(f"{where} = {value!r}: {error}. Declare the type of the items: set[tuple[int, int]].") from error


def _mapping(kind: Any, hint: Any, value: Mapping[Any, Any], where: str) -> Mapping[Any, Any]:
    """A new mapping of the declared class, with keys and values of the declared types."""
    arguments = typing.get_args(hint)
    key_hint, item_hint = (*arguments, int)[:2] if arguments else (Any, Any)  # Counter[str] has whole numbers
    inner = {_key(key_hint, key, where): converted(item_hint, item, f"{where}[{key!r}]") for key, item in value.items()}
    if len(inner) < len(value):
        raise ConfigError(f"{where} = {value!r} has a key twice, as {_spelt(key_hint)} and as text.")
    if kind is dict or inspect.isabstract(kind):
        return inner
    try:
        return kind(inner)  # type: ignore[no-any-return]
    except TypeError as error:  # such as defaultdict
        raise ConfigError(
            f"{where} is declared {_spelt(hint)}, which cannot be made of what config.json has, a dict ({error}): declare it "
            "dict, or as a class that can, such as OrderedDict."
        ) from error


def _key(hint: Any, key: Any, where: str) -> Any:
    """A key of a mapping as the declared type. All keys of config.json are text, which is read here."""
    found = None
    for one in (key, *(_readings(key) if isinstance(key, str) else ())):
        with suppress(ConfigError):
            found = converted(hint, one, where)
            break
    else:
        raise ConfigError(f"{where} has the key {key!r} of type {type(key).__name__}, its keys are declared {_spelt(hint)}.")
    if not isinstance(key, str):
        with suppress(TypeError):  # keys of other types, such as tuples
            (text,) = json.loads(json.dumps({plain_setting(found): None}))
            if _key(hint, text, where) == found:
                return found
        raise ConfigError(
            f"{where} has the key {key!r} of type {type(key).__name__}, which comes back from config.json as text: declare its "
            "keys as str, int, float, bool or an Enum, such as dict[int, float]."
        )
    return found


def _readings(text: str) -> Iterator[Any]:
    """The values that a text may stand for as a key."""
    if text in _WORDS:
        yield _WORDS[text]
    for read in (int, float):
        with suppress(ValueError):
            yield read(text)


def _item_hints(hint: Any, value: list[Any] | tuple[Any, ...]) -> list[Any] | None:
    """The declared type of each item of a list or tuple, or None if the number of items is wrong."""
    arguments = typing.get_args(hint) or (Any, ...)
    if typing.get_origin(hint) is tuple and arguments[-1] is not Ellipsis:
        return list(arguments) if len(arguments) == len(value) else None
    return [arguments[0]] * len(value)


def _spelt(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def _type_of(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
