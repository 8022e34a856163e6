"""Typed configuration: nested dataclasses that raise errors for unknown names and invalid values."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import enum
import functools
import math
import numbers
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ding_lite.basics.messages import did_you_mean
from ding_lite.basics.seed_checks import seed_of
from ding_lite.basics.setting_types import ConfigError, Section, converted, plain_setting

ConfigType = TypeVar("ConfigType", bound="Config")

_LARGEST = 2**63 - 1  # largest integer of torch and numpy


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
        ding_lite.basics.setting_types.ConfigError: Learn.batch_size = 0 is out of range: it is at least 1.
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
class Config(Section):
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
        ding_lite.basics.setting_types.ConfigError: learn.batchsize: Learn has no 'batchsize': did you mean 'batch_size'?
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
            section._fill_for(value, f"{cls.__name__}({name}=DERIVED_CLASS())")
            value = section
        if field.metadata.get("seed") and not (value is None and field.default is None):
            value = _seed(value, f"{cls.__name__}.{name}")
        value = converted(_hints(cls)[name], value, f"{cls.__name__}.{name}")
        _check_numbers(field.metadata, value, f"{cls.__name__}.{name}")
        object.__setattr__(self, name, value)

    def override(self: ConfigType, values: Mapping[str, Any]) -> ConfigType:
        """Set fields by dotted name (`{"policy.learn.batch_size": 32}`) or nested mapping, in the order in which they are
        declared, independent of the order in `values`; returns itself. Sections in `values` are copied.

        Raises:
            ConfigError: all problems in `values`, one per line. Nothing is set then.
        """
        problems = []
        places = {key: place for place, key in enumerate(_leaves(self))}
        for target in (self.trial(), self):
            for key, value in sorted(_flat(self, values), key=lambda pair: places.get(pair[0], -1)):
                try:
                    # A section is copied, because later values may change it.
                    target._set(key, copy.deepcopy(value) if isinstance(value, Config) else value)
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
        """The configuration from a result of `to_dict`; missing fields have their defaults, and sections their declared class.
        For a section of a derived class, make the configuration with it: `Main(env=AtariEnvConfig()).override(values)`."""
        config = cls()
        config._fill(values)
        return config

    def _fill(self, values: Mapping[str, Any]) -> None:
        """Set fields by name, in the order in which they are declared: setting one may change the default of a later one."""
        places = {field.name: place for place, field in enumerate(dataclasses.fields(self))}
        for name in sorted(values, key=lambda name: places.get(name, -1)):
            setattr(self, name, values[name])

    def restore(self, values: Mapping[str, Any]) -> None:
        """Set fields from a result of `to_dict` of such a configuration, with sections of the same classes. A field that has
        its value is not set: it stays a default, where it matters whether the user has set it."""
        places = {field.name: place for place, field in enumerate(dataclasses.fields(self))}
        for name in sorted(values, key=lambda name: places.get(name, -1)):
            own, value = getattr(self, name, None), values[name]
            if isinstance(own, Config) and isinstance(value, Mapping):
                own.restore(value)
            elif name not in places or plain_setting(own) != value:
                setattr(self, name, value)

    def _fill_for(self, values: Mapping[str, Any], owner: str) -> None:
        """`_fill`, with advice if the values may be those of a derived class.

        Args:
            values: values by name.
            owner: code that makes a configuration with a section of such a class.
        """
        try:
            self._fill(values)
        except ConfigError as error:
            if not values.keys() > {field.name for field in dataclasses.fields(self)}:
                raise
            advice = f"If these are the values of a class derived from {type(self).__name__}, write"
            raise ConfigError(f"{error} {advice} {owner}.override(values).") from None


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
