"""Typed configuration: nested dataclasses that raise errors for unknown names and invalid values."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import enum
import functools
import json
import math
import numbers
import operator
import os
import sys
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union

from ding_lite.basics.messages import did_you_mean
from ding_lite.basics.seed_checks import seed_of

ConfigType = TypeVar("ConfigType", bound="Config")

_LARGEST = 2**63 - 1  # largest integer of torch and numpy


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


def ranged_field(
    default: Any = dataclasses.MISSING,
    low: float | None = None,
    high: float | None = None,
    *,
    finite: bool = True,
    default_factory: Any = dataclasses.MISSING,
    least: int = 0,
) -> Any:
    """A dataclass field whose numbers must be in [low, high], also inside lists, tuples, sets and dicts.

    Args:
        default: default of the field.
        low, high: limits; None for no limit. Integers must always fit into 64 bits.
        finite: whether infinite numbers are an error.
        default_factory: function that returns the default, for lists.
        least: minimum number of values in a list, tuple, set or dict.

    Example:
        >>> @dataclasses.dataclass
        ... class Learn(Config):
        ...     batch_size: int = ranged_field(64, low=1)
        >>> Learn(batch_size=0)
        Traceback (most recent call last):
            ...
        ding_lite.basics.config_classes.ConfigError: Learn.batch_size = 0 is out of range: it is at least 1.
    """
    metadata = {"low": low, "high": high, "finite": finite, "least": least}
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


bounded = ranged_field  # its name in earlier versions


def seed_field(default: int | None) -> Any:
    """A dataclass field for a seed, see `seed_of`; it may be None if that is the default."""
    return dataclasses.field(default=default, metadata={"seed": True})


@dataclasses.dataclass
class Config:
    """Base of every configuration: a mutable dataclass, each field checked whenever it is set.

    Subclasses declare fields with a type, a default and a docstring. An int is accepted for a float, a path for a string, a
    list for a tuple or a set, and a mapping for another Config. An Enum is also set by the value of a member, and a path by its
    text. config.json can hold every value that is accepted.

    Raises:
        ConfigError: an unknown field, a value of the wrong type, one out of range, or one that config.json cannot hold.

    Example:
        >>> @dataclasses.dataclass
        ... class Learn(Config):
        ...     batch_size: int = 64
        >>> @dataclasses.dataclass
        ... class Main(Config):
        ...     learn: Learn = dataclasses.field(default_factory=Learn)
        >>> Main().override({"learn.batch_size": 32}).to_dict()
        {'learn': {'batch_size': 32}}
        >>> Main().override({"learn.batchsize": 32})
        Traceback (most recent call last):
            ...
        ding_lite.basics.config_classes.ConfigError: learn.batchsize: Learn has no 'batchsize': did you mean 'batch_size'?
    """

    foreign: ClassVar[Mapping[str, str]] = {}
    """Names of other libraries for settings of such a section, each with a sentence of advice."""

    di_engine: ClassVar[Mapping[str, str]] = {}
    """The same for names, most of DI-engine, that may also be names of a user's own settings."""

    live_settings: ClassVar[Mapping[str, str]] = {}
    """Settings of such a section that can be changed in a run, each with when the change takes effect."""

    fixed_settings: ClassVar[Mapping[str, str]] = {}
    """The others, each with the reason and what to do instead; "*" stands for all that no class names."""

    unused_settings: ClassVar[Mapping[str, str]] = {}
    """Settings by dotted name that have no effect in such a configuration, each with a sentence of advice."""

    def liveness(self, name: str) -> tuple[bool, str]:
        """Whether a setting of this section can be changed in a run; and when the change takes effect, or why it cannot.

        A section may override it for a setting that depends on the value of another one.
        """
        for key in (name, "*"):
            for base in type(self).__mro__:
                for is_live, table in ((True, "live_settings"), (False, "fixed_settings")):
                    found = vars(base).get(table, {})
                    if key in found:
                        return is_live, found[key]
        return False, f"{type(self).__name__} does not declare it as live: set it before the run."

    @classmethod
    def about(cls, name: str, *tables: str) -> str | None:
        """Advice about a name of other libraries, of this section or else of one inside it; None if the name is unknown.

        Args:
            name: the name.
            tables: where to look it up, "foreign" or "di_engine"; both if there are none.
        """
        found = (vars(base).get(table, {}) for base in cls.__mro__ for table in tables or ("foreign", "di_engine"))
        own = next((names[name] for names in found if name in names), None)
        kind: Any = cls  # for mypy, to which a type of dataclasses is no key
        for section in section_types(kind).values() if own is None else ():
            own = own or section.about(name, *tables)
        return own

    def __new__(cls: type[ConfigType], *args: Any, **kwargs: Any) -> ConfigType:
        for name in kwargs:
            _require_field(cls, name)
        return object.__new__(cls)

    if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise allow any name

        def __getattr__(self, name: str) -> Any:
            cls = type(self)
            if hasattr(cls, name):  # a property that raised an AttributeError itself
                return object.__getattribute__(self, name)
            description = cls.about(name)
            if description is not None:
                raise ConfigError(f"{cls.__name__} has no {name!r}: {description}")
            raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        cls: Any = type(self)
        _require_field(cls, name)
        field = cls.__dataclass_fields__[name]
        if isinstance(value, Mapping) and isinstance(section := _default_of(field), Config):
            section._fill(value)
            value = section
        if field.metadata.get("seed") and not (value is None and field.default is None):
            value = _seed(value, f"{cls.__name__}.{name}")
        value = _converted(_hints(cls)[name], value, f"{cls.__name__}.{name}")
        _check_numbers(field.metadata, value, f"{cls.__name__}.{name}")
        object.__setattr__(self, name, value)

    def override(self: ConfigType, values: Mapping[str, Any]) -> ConfigType:
        """Set fields by dotted name (`{"policy.learn.batch_size": 32}`) or nested mapping, in the order in which they are
        declared, independent of the order in `values`; returns itself.

        Raises:
            ConfigError: all problems in `values`, one per line. Nothing is set then.
        """
        problems = []
        trial = self.trial()
        places = {key: place for place, key in enumerate(_leaves(self))}
        for target in (trial, self):
            for key, value in sorted(_flat(self, values), key=lambda pair: places.get(pair[0], -1)):
                is_shared = target is trial and isinstance(value, Config)  # later values may change this section
                try:
                    target._set(key, value.trial() if is_shared else value)
                except ConfigError as error:
                    problems.append(f"{key}: {error}" + (_same_name(key, places) if " It has " in str(error) else ""))
            if problems:
                raise ConfigError("\n".join(problems))
        return self

    def trial(self: ConfigType) -> ConfigType:
        """A copy whose fields can be set without changing this configuration. Values other than sections are shared."""
        made = object.__new__(type(self))
        for name, value in vars(self).items():
            object.__setattr__(made, name, value.trial() if isinstance(value, Config) else value)
        return made

    def _set(self, key: str, value: Any) -> None:
        name, _, rest = key.partition(".")
        _require_field(type(self), name)
        if not rest:
            setattr(self, name, value)
            return
        section = getattr(self, name)
        if not isinstance(section, Config):
            raise ConfigError(f"{type(self).__name__}.{name} is a value, {section!r}: it has no {rest!r}.")
        section._set(rest, value)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested data: numbers, strings, lists and dicts. An Enum is its value, a path its text, a set a list."""
        return {f.name: plain_setting(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls: type[ConfigType], values: Mapping[str, Any]) -> ConfigType:
        """The configuration from a result of `to_dict`; missing fields have their defaults."""
        config = cls()
        config._fill(values)
        return config

    def _fill(self, values: Mapping[str, Any]) -> None:
        """Set fields by name, in the order in which they are declared: setting one may change the default of a later one."""
        places = {field.name: place for place, field in enumerate(dataclasses.fields(self))}
        for name in sorted(values, key=lambda name: places.get(name, -1)):
            setattr(self, name, values[name])


def all_values(cfg: Config, prefix: str = "") -> dict[str, Any]:
    """Copies of all values of a configuration by dotted name."""
    found: dict[str, Any] = {}
    for name in vars(cfg):
        value, place = getattr(cfg, name), f"{prefix}{name}"
        found |= all_values(value, f"{place}.") if isinstance(value, Config) else {place: copy.deepcopy(value)}
    return found


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return {field.name: _hint(cls, field) for field in dataclasses.fields(cls)}


def _hint(cls: Any, field: dataclasses.Field[Any]) -> Any:
    """The declared type of a field; that of its default if the annotation names a class that is local to a function."""
    owner = next(kind for kind in cls.__mro__ if field.name in vars(kind).get("__annotations__", {}))
    alone = types.SimpleNamespace(__annotations__={field.name: field.type})
    module = getattr(sys.modules.get(owner.__module__), "__dict__", {})
    try:
        # As in typing, a name is that of the module first, because a field may have the name of its type.
        return typing.get_type_hints(alone, dict(vars(owner)), module)[field.name]
    except NameError:
        default = _default_of(field)
        is_plain = field.default_factory is dataclasses.MISSING and not isinstance(default, (enum.Enum, PurePath))
        return Any if is_plain else type(default)


@functools.cache
def section_types(cls: Any) -> dict[str, type[Config]]:
    """The types of the sections of a configuration, by name."""
    return {name: hint for name, hint in _hints(cls).items() if isinstance(hint, type) and issubclass(hint, Config)}


def _require_field(cls: Any, name: str) -> None:
    if name not in _hints(cls):
        description = cls.about(name)
        if description is not None:
            raise ConfigError(f"{cls.__name__} has no {name!r}: {description}")
        if any(name in vars(kind).get("__annotations__", {}) for kind in cls.__mro__):
            raise ConfigError(
                f"{cls.__name__} declares {name!r}, but is no dataclass: write @dataclasses.dataclass above the class."
            )
        hint = did_you_mean(name, near_fields(cls, name))
        known = "" if "?" in hint else f" It has {', '.join(_hints(cls))}."
        raise ConfigError(f"{cls.__name__} has no {name!r}{hint}{known}")


def near_fields(cls: Any, name: str) -> list[str]:
    """The fields of a section of which a name may be a misspelling, or with which it has a similar word."""
    return [known for known in _hints(cls) if _is_near(name, known)]


def _is_near(name: str, known: str) -> bool:
    """Whether `name` may be a misspelling of `known`: similar letters, or a similar word in it."""

    def alike(one: str, other: str) -> float:
        return difflib.SequenceMatcher(None, one, other).ratio()

    if alike(name.replace("_", ""), known.replace("_", "")) >= 0.8:
        return True
    return any(alike(one, other) >= 0.75 for one in name.split("_") for other in known.split("_"))


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _leaves(config: Config, prefix: str = "") -> list[str]:
    """The dotted name of every field that is not a section, in order of declaration."""
    names = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        key = f"{prefix}{field.name}"
        names += _leaves(value, f"{key}.") if isinstance(value, Config) else [key]
    return names


def _same_name(key: str, known: Iterable[str]) -> str:
    """A sentence with the dotted names of settings with the same last name, for a setting that is in another section."""
    found = [other for other in known if other.rpartition(".")[2] == key.rpartition(".")[2]]
    return f" Did you mean {' or '.join(map(repr, found))}?" if found and key not in found else ""


def _flat(config: Config, values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """`values` as pairs of a dotted name and a value; a mapping is split if the configuration has a section there.

    Raises:
        ConfigError: a name is no string.
    """
    pairs: list[tuple[str, Any]] = []
    for key, value in values.items():
        if not isinstance(key, str):
            raise ConfigError(
                f"{prefix}{key!r:.60} names no setting of {type(config).__name__}: a name is a string, not of type "
                f"{type(key).__name__}."
            )
        section: Any = config
        for name in key.split("."):
            section = getattr(section, name, None)
        apart = isinstance(section, Config) and isinstance(value, Mapping)
        pairs += _flat(section, value, f"{prefix}{key}.") if apart else [(f"{prefix}{key}", value)]
    return pairs


def plain_setting(value: Any) -> Any:
    """A setting as plain data, see `Config.to_dict`."""
    if isinstance(value, Config):
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
        ConfigError: config.json cannot hold it.
    """
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [json_copy(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(Any, key, where): json_copy(item, f"{where}[{key!r}]") for key, item in value.items()}
    is_endless = isinstance(value, float) and not math.isfinite(value)
    if value is None or (isinstance(value, (bool, int, float, str)) and not is_endless):
        return value
    raise ConfigError(
        f"{where} = {value!r:.60} is a {type(value).__name__}{' that is not finite' if is_endless else ''}, which config.json "
        "cannot hold: use finite numbers, text, bools, None, and lists and dicts of them."
    )


def _seed(value: Any, where: str) -> int:
    try:
        return seed_of(value, f"{where} = {{}}")
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None


def _check_numbers(metadata: Mapping[str, Any], value: Any, where: str) -> None:
    if isinstance(value, (list, tuple, AbstractSet, Mapping)):
        if len(value) < metadata.get("least", 0):
            raise ConfigError(f"{where} = {value!r} has too few values: give it at least {metadata['least']}.")
        for place, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            _check_numbers(metadata, item, f"{where}[{place!r}]")
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        if value != value:
            raise ConfigError(f"{where} = {value!r} is not a number.")
        low, high, is_whole = metadata.get("low"), metadata.get("high"), isinstance(value, int)
        if high is None and is_whole and metadata:
            high = _LARGEST
        is_low, is_high = low is not None and value < low, high is not None and value > high
        is_endless = metadata.get("finite", False) and value in (math.inf, -math.inf)
        if is_low or is_high or is_endless:
            # of an integer, only the limit that it violates
            limits = [f"at least {_spelt_limit(low)}"] if low is not None and not (is_whole and is_high) else []
            limits += [f"at most {_spelt_limit(high)}"] if high is not None and not (is_whole and is_low) else []
            limits += [] if is_low or is_high else ["finite"]
            raise ConfigError(f"{where} = {value!r} is out of range: it is {' and '.join(limits)}.")


def _spelt_limit(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


def _converted(hint: Any, value: Any, where: str) -> Any:
    """`value` as the declared type, or a ConfigError."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    kind = origin or hint
    if hasattr(value, "item") and hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0:
        value = value.item()  # a numpy or torch scalar
    if hint in (Any, object):
        _json_copy(value, where)
        return value
    if origin in (Union, types.UnionType):
        own = [option for option in arguments if option is type(value)]
        for option in (*own, *arguments):
            with suppress(ConfigError):
                return _converted(option, value, where)
        for option in arguments:
            if option is not int and _is_instance(value, option):  # so that the error says what is wrong in it
                return _converted(option, value, where)
    elif origin is Literal:
        if isinstance(value, bool) and {"on", "off"} <= set(arguments):  # YAML reads on and off as bools
            return "on" if value else "off"
        if any(value == it and isinstance(value, bool) == isinstance(it, bool) for it in arguments):
            return value
    elif kind in _CONTAINERS and isinstance(value, _CONTAINERS[kind]):
        return _container(kind, hint, value, where)
    elif isinstance(kind, type) and issubclass(kind, Mapping) and _is_instance(value, kind):
        key_hint, item_hint = arguments if len(arguments) == 2 else (Any, Any)
        return _mapping(key_hint, item_hint, value, where)
    elif isinstance(hint, type) and issubclass(hint, Config):
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
            return os.fspath(value)
    elif _is_instance(value, hint) and _is_instance(_json_copy(value, where), hint):
        return value
    raise ConfigError(f"{where} = {value!r} is a {type(value).__name__}, it is declared {_spelt(hint)}.")


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
    items = [_converted(item, element, f"{where}[{i}]") for i, (item, element) in enumerate(zip(hints, value))]
    own = next(base for base in (list, tuple, set, frozenset) if isinstance(value, base))
    try:
        return (own if issubclass(own, kind) else _CONCRETE.get(kind, kind))(items)
    except TypeError as error:
        raise ConfigError(f"{where} = {value!r}: {error}. Declare the type of the items: set[tuple[int, int]].") from error


def _mapping(key_hint: Any, hint: Any, value: Mapping[Any, Any], where: str) -> Mapping[Any, Any]:
    """A mapping with keys and values of the declared types; the same one if it has them."""
    inner = {_key(key_hint, key, where): _converted(hint, item, f"{where}[{key!r}]") for key, item in value.items()}
    if len(inner) < len(value):
        raise ConfigError(f"{where} = {value!r} has a key twice, as {_spelt(key_hint)} and as text.")
    if all(map(operator.is_, inner, value)) and all(map(operator.is_, inner.values(), value.values())):
        return value
    if not isinstance(value, MutableMapping):
        return inner
    changed = copy.copy(value)
    changed.clear()
    changed.update(inner)
    return changed


def _key(hint: Any, key: Any, where: str) -> Any:
    """A key of a mapping as the declared type. All keys of config.json are text, which is read here."""
    found = None
    for one in (key, *(_readings(key) if isinstance(key, str) else ())):
        with suppress(ConfigError):
            found = _converted(hint, one, where)
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
