"""The context: the data that the middleware of an iteration share."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import inspect
import numbers
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from ding_lite.basics.messages import describe_error, did_you_mean
from ding_lite.basics.optional_attributes import has_attribute

ContextType = TypeVar("ContextType", bound="Context")

_SHARED = frozenset({"_thread", "threading", "queue", "_queue", "concurrent.futures._base", "_io", "socket"})
"""Modules whose objects are made for sharing between threads, or represent resources outside of Python."""
SCALARS = frozenset({int, float, bool, complex, str, bytes, type(None)})
"""Immutable types."""


class UndeclaredFieldError(AttributeError, ValueError):
    """A field was set, read or kept that its context class does not declare."""


class _Plan:
    """The declarations of a context class, computed once per class."""

    __slots__ = (
        "declared",
        "defaults",
        "factories",
        "fields",
        "has_hook",
        "initial",
        "kept",
        "plain",
        "positional",
        "reaches",
        "values",
    )

    def __init__(self, cls: type[Context]) -> None:
        if "__annotations__" in cls.__dict__ and "__dataclass_fields__" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} declares fields, but is not a dataclass: put @dataclasses.dataclass above it.")
        fields = dataclasses.fields(cls)
        names = {f.name for f in fields}
        own_classes = cls.__mro__[: cls.__mro__.index(Context)]
        properties = {name for c in own_classes for name, value in vars(c).items() if isinstance(value, property)}
        _refuse_cached_properties(cls, own_classes)
        _refuse_near_misses(cls, fields)
        self.fields = frozenset(names)
        self.declared = self.fields | properties
        self.positional = tuple(f.name for f in fields if f.init and not f.kw_only)
        self.initial = frozenset(f.name for f in fields if f.init)
        self.defaults = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
        self.factories = {f.name: f.default_factory for f in fields if f.default_factory is not dataclasses.MISSING}
        self.has_hook = cls.__post_init__ is not Context.__post_init__
        inherited = {f for c in reversed(own_classes) for f in getattr(c, "__dataclass_fields__", {}).values()}
        names_kept = {f.name for f in inherited if f.metadata.get("kept")}
        self.kept = tuple(name for name in (f.name for f in fields) if name in names_kept)
        # A class with slots, InitVars or an __init__ of its own is renewed by calling it; any other by copying a dict.
        slotted = any(isinstance(getattr(cls, name, None), types.MemberDescriptorType) for name in names)
        generated_init = cls.__init__.__code__.co_filename == "<string>"
        init_vars = set(inspect.signature(cls.__init__).parameters) - names - {"self"}
        self.plain = generated_init and not slotted and not init_vars
        containers = (MutableMapping, MutableSequence, MutableSet)
        beside = {name: value for c in reversed(own_classes) for name, value in vars(c).items() if name not in names}
        self.values = {
            name: value
            for name, value in beside.items()
            if (isinstance(value, containers) or hasattr(type(value), "__array__")) and not name.startswith("__")
        }
        """Mutable class attributes that are not fields: lists, dicts, arrays and so on."""
        self.reaches: dict[Any, Any] = {}
        """Allowed fields on contexts of this class, by the terms of contracts."""


def _refuse_cached_properties(cls: type[Context], own_classes: Sequence[type[Any]]) -> None:
    for one in own_classes:
        for name, value in vars(one).items():
            if isinstance(value, functools.cached_property):
                raise TypeError(
                    f"{cls.__name__}.{name} is a functools.cached_property: its cached value is not a field, so it goes stale "
                    "when a field changes, and each lane would cache another value. Write @property, "
                    "or declare a field that a middleware sets."
                )


def _refuse_near_misses(cls: type[Context], fields: Sequence[dataclasses.Field[Any]]) -> None:
    """Raise an error if the metadata of a field has a flag that may be a misspelling of "kept"."""
    for field in fields:
        flags = [key for key, value in field.metadata.items() if isinstance(key, str) and isinstance(value, bool)]
        names = {key.lower().strip("_").removeprefix("is").removeprefix("was").strip("_"): key for key in flags}
        likely = [name for name in names if name.startswith("k")]
        near = [] if "kept" in flags else difflib.get_close_matches("kept", likely, n=1, cutoff=0.66)
        if near:
            raise TypeError(
                f"the field {cls.__name__}.{field.name} has {names[near[0]]!r} in its metadata, which has no effect: for a "
                'field that is kept from iteration to iteration, write field(..., metadata={"kept": True}).'
            )


class _Lineage:
    """Shared by all renewals of a context: how it was constructed, and which fields are kept."""

    __slots__ = ("__weakref__", "args", "calls", "cls", "factories", "given", "kept", "kwargs", "lanes", "start", "warned")

    def __init__(self, cls: type[Context], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.cls: type[Any] = cls
        self.args, self.kwargs = args, kwargs
        plan = _plan_of(cls)
        self.given = dict(zip(plan.positional, args))
        self.given.update((name, value) for name, value in kwargs.items() if name in plan.initial)
        self.start = {**plan.defaults, **self.given, "_lineage": self}
        self.factories = tuple((name, make) for name, make in plan.factories.items() if name not in self.given)
        self.kept: tuple[str, ...] = plan.kept
        self.calls: set[tuple[str, ...]] = set()
        self.warned: set[str] = set()
        self.lanes = weakref.WeakSet([self])
        """Lineages of the same context on other lanes, which must keep the same fields."""

    def with_own(self, own: Callable[[str, Any], Any], names: frozenset[str]) -> _Lineage:
        """The same for another lane, with each start value replaced by `own(field, value)`.

        Args:
            own: makes a copy if needed.
            names: fields that the lane touches; other values are only copied if a `__post_init__` may need them.
        """
        positional = (*_plan_of(self.cls).positional, *("" for _ in self.args))  # a custom __init__ may take more
        twin = _Lineage(
            self.cls,
            tuple(own(name, value) for name, value in zip(positional, self.args)),
            {name: own(name, value) for name, value in self.kwargs.items()},
        )
        twin.start.update((name, own(name, it)) for name, it in _plan_of(self.cls).defaults.items() if name not in twin.given)
        if not _plan_of(self.cls).has_hook:
            twin.factories = tuple((name, make) for name, make in twin.factories if name in names)
        twin.kept, twin.calls, twin.warned, twin.lanes = self.kept, self.calls, self.warned, self.lanes
        self.lanes.add(twin)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return _Lineage, (self.cls, self.args, self.kwargs), (None, {"kept": self.kept, "warned": self.warned})


@dataclasses.dataclass(eq=False)
class Context:
    """The data of one iteration: a dataclass with declared fields only, and a new instance in each iteration.

    Only fields named in `keep()` carry over to the next iteration, and `total_step` counts up. Every other field starts
    with the value passed to the constructor of the first instance, or with its default. Subclass it, decorate the
    subclass with `@dataclasses.dataclass`, and call `self.keep("name", ...)` in `__post_init__`. To keep a
    field in all subclasses too, use metadata: `dataclasses.field(metadata={"kept": True})`.

    Raises:
        UndeclaredFieldError: an undeclared attribute is set, read or kept.
        TypeError: `ctx["name"]`, a subclass with fields that is not decorated, or one with a `functools.cached_property`.

    Example:
        >>> @dataclasses.dataclass
        ... class Mine(Context):
        ...     seen: int = 0
        ...     batch: object = None
        ...     def __post_init__(self):
        ...         self.keep("seen")
        >>> ctx = Mine()
        >>> ctx.seen, ctx.batch = 3, "data"
        >>> ctx = ctx.renew()
        >>> ctx.total_step, ctx.seen, ctx.batch
        (1, 3, None)
    """

    total_step: int = dataclasses.field(default=0, kw_only=True)
    """Iterations finished before this one. Written by `renew`."""

    foreign_fields: ClassVar[Mapping[str, str]] = types.MappingProxyType({"has_attr": "write hasattr(ctx, name)."})
    """Fields and methods of other libraries' contexts, with what to write instead; those of base classes count too."""
    _plan: ClassVar[_Plan]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = object.__new__(cls)
        self.__dict__["_lineage"] = _Lineage(cls, args, kwargs)
        return self

    def __post_init__(self) -> None:
        """Does nothing; subclasses may call it with super()."""

    def keep(self, *names: str) -> None:
        """Carry these fields over to the next iteration, from now on.

        Meant for scalars that accumulate. A list, dict, array, tensor or module is kept too, with one warning.

        Raises:
            TypeError: a name is not a string.
            UndeclaredFieldError: a name that this class does not declare.
        """
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"keep() wants names of fields, got {name!r:.60}: write keep('env_step', 'train_iter').")
        lineage = _lineage_of(self)
        if names in lineage.calls:
            return
        for name in names:
            if name not in self._plan.fields:
                raise UndeclaredFieldError(
                    f"{type(self).__name__} cannot keep {name!r}, it has no such field{did_you_mean(name, self._plan.fields)}"
                )
            self._warn_if_heavy(name, self.__dict__.get(name))
        lineage.calls.add(names)
        kept = (*lineage.kept, *(name for name in dict.fromkeys(names) if name not in lineage.kept))
        for one in lineage.lanes:
            one.kept = kept

    def renew(self: ContextType) -> ContextType:
        """The context of the next iteration: kept fields carry over without copies, and `total_step` is one higher."""
        plan, old = self._plan, self.__dict__
        lineage: _Lineage = old["_lineage"]
        if not plan.plain:
            return self._renew_by_calling()
        new: ContextType = object.__new__(lineage.cls)
        values = lineage.start.copy()
        object.__setattr__(new, "__dict__", values)
        for name, make in lineage.factories:
            values[name] = make()
        if plan.has_hook:
            new.__post_init__()
        for name in lineage.kept:
            if name not in old:  # declared without a default, and not set so far
                continue
            value = old[name]
            if type(value) not in SCALARS:
                self._warn_if_heavy(name, value)
            values[name] = value
        values["total_step"] = old["total_step"] + 1
        return new

    def _renew_by_calling(self: ContextType) -> ContextType:
        lineage = _lineage_of(self)
        new: ContextType = object.__new__(lineage.cls)
        new.__dict__["_lineage"] = lineage
        new.__init__(*lineage.args, **lineage.kwargs)  # type: ignore[misc]
        for name in lineage.kept:
            if hasattr(self, name):
                self._warn_if_heavy(name, getattr(self, name))
                setattr(new, name, getattr(self, name))
        new.total_step = self.total_step + 1
        return new

    def _warn_if_heavy(self, name: str, value: object) -> None:
        containers = (MutableSequence, MutableMapping, MutableSet)
        scalar = isinstance(value, numbers.Number) or any(cls.__name__ == "generic" for cls in type(value).__mro__)  # numpy's
        array = has_attribute(value, "__array__") and not scalar
        warned = _lineage_of(self).warned
        if name in warned or not (isinstance(value, containers) or array or has_attribute(value, "state_dict")):
            return
        warned.add(name)
        warnings.warn(
            f"{type(self).__name__} keeps {name!r}, a {type(value).__name__}: it stays in memory for the whole run, and "
            "hides a dependency between iterations. Keep only numbers; let a middleware hold such an object, with a state_dict "
            "if a resumed run needs it.",
            stacklevel=3,
        )

    if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise allow any attribute

        def __setattr__(self, name, value):
            if name not in self._plan.declared:
                self._refuse(name, "set")
            object.__setattr__(self, name, value)

        def __getattr__(self, name):
            self._refuse(name, "read")

    def _refuse(self, name: str, verb: str) -> NoReturn:
        cls = type(self).__name__
        if name in self._plan.declared:
            raise UndeclaredFieldError(f"{cls}.{name} is declared, but was never set: give it a default.")
        advice = foreign_field_advice(type(self), name)
        if advice is not None:
            raise UndeclaredFieldError(f"cannot {verb} {cls}.{name}, the class declares no such field: {advice}")
        hint = _hint(name, frozenset(self._plan.declared))
        raise UndeclaredFieldError(f"cannot {verb} {cls}.{name}, the class declares no such field{hint} Declare it in {cls}.")

    def __getitem__(self, name: object) -> NoReturn:
        raise TypeError(f"a context has attributes, not items: write ctx.{name}.")

    def __setitem__(self, name: object, value: object) -> NoReturn:
        self.__getitem__(name)


@functools.lru_cache(maxsize=256)
def _hint(name: str, declared: frozenset[str]) -> str:
    """Cached, because hasattr() in a loop needs it each time, and a fuzzy search takes a fraction of a ms."""
    return did_you_mean(name, declared)


def _lineage_of(ctx: Context) -> _Lineage:
    lineage: _Lineage = ctx.__dict__["_lineage"]
    return lineage


def _plan_of(cls: type[Context]) -> _Plan:
    if "_plan" not in cls.__dict__:
        cls._plan = _Plan(cls)
    return cls._plan


def fields_at_start(ctx: Context) -> frozenset[str]:
    """The fields and properties that start every iteration with a value: kept, computed, or not None."""
    plan, fresh = ctx._plan, ctx.renew()
    filled = {name for name in plan.fields if getattr(fresh, name, None) is not None}
    return frozenset(filled | (plan.declared - plan.fields) | {"total_step", *kept_fields(ctx)})


def same_iteration(ctx: ContextType) -> ContextType:
    """A new context of the same iteration: kept fields carry over, all others have their start values."""
    fresh = ctx.renew()
    fresh.total_step = ctx.total_step
    return fresh


def foreign_field_advice(cls: type[Context], name: str) -> str | None:
    """What to write instead of a field of another library's context; None if the name is unknown."""
    tables = (vars(base).get("foreign_fields", {}) for base in cls.__mro__)
    return next((table[name] for table in tables if name in table), None)


def declared_fields(ctx: Context) -> frozenset[str]:
    """Every field and property that the context's class declares."""
    return ctx._plan.declared


def settable_fields(ctx: Context) -> frozenset[str]:
    """The fields that middleware may write."""
    return ctx._plan.fields - {"total_step"}


def kept_fields(ctx: Context) -> tuple[str, ...]:
    """The fields that carry over, in the order in which they were kept; `total_step` is not among them."""
    return _lineage_of(ctx).kept


def keep_exactly(ctx: Context, names: Iterable[str]) -> None:
    """Carry these fields over from now on, and no others, until `keep` is called again."""
    lineage = _lineage_of(ctx)
    lineage.calls.clear()
    kept = tuple(dict.fromkeys(names))
    for one in lineage.lanes:
        one.kept = kept


def with_own_values(ctx: ContextType, names: frozenset[str], owner: str) -> ContextType:
    """A context with the same values for another lane: mutable values are deep copies, also in the start values.

    Args:
        ctx: of the first iteration.
        names: fields that the lane touches; the others are shared, because the lane does not see them.
        owner: the lane.

    Raises:
        ValueError: a value cannot be copied.
    """
    memo: dict[int, Any] = {}

    def own(name: str, value: Any) -> Any:
        if is_scalar(value) or name not in names:
            return value
        try:
            return copy.deepcopy(value, memo)
        except Exception as error:
            if type(value).__module__ in _SHARED:
                return value
            raise ValueError(
                f"{type(ctx).__name__}.{name} starts with a {type(value).__name__}, which cannot be copied "
                f"({describe_error(error)}), and where iterations overlap, each lane needs its own copy, here "
                f"{owner}. Pass the object to the middleware that need it, and name it in the uses of their contracts, "
                "instead of keeping it in the context."
            ) from error

    twin = copy.copy(ctx)
    twin.__dict__["_lineage"] = _lineage_of(ctx).with_own(own, names)
    for name in sorted(names):
        if hasattr(ctx, name):
            object.__setattr__(twin, name, own(name, getattr(ctx, name)))
    return twin


def family_of(ctx: Context) -> object:
    """An object that identifies a context with all its renewals and copies on other lanes."""
    return _lineage_of(ctx).lanes


def start_values(ctx: Context) -> dict[str, Any]:
    """The start values by field: arguments of the constructor, or defaults of the class."""
    return _lineage_of(ctx).start


def class_values(ctx: Context) -> dict[str, Any]:
    """Mutable class attributes of a context that are not fields: lists, dicts, arrays and so on."""
    return ctx._plan.values


def factories_of(ctx: Context) -> tuple[tuple[str, Callable[[], Any]], ...]:
    """The fields with a default_factory, each with its factory."""
    return _lineage_of(ctx).factories


def is_scalar(value: object) -> bool:
    """Whether a value is a number, a string or None."""
    return type(value) in SCALARS
