"""Views: a context that refuses what the contract of the middleware at work does not name.

A view is the same object under another class. While a middleware runs, its context has a subclass of its own class, in which
each field that may not be read is a descriptor that raises, and which checks each write. Reads that are allowed cost nothing.

Room: ding_lite.pipeline, floor 0. Standard library only.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.properties import is_property

_DICT: Any = Context.__dict__["__dict__"]  # how to reach the fields of a view, whose own `__dict__` is a filtered copy


class ContractError(RuntimeError):
    """A middleware touched a field of the context that its contract does not name. No AttributeError, which hasattr() hides."""


class Terms:
    """What one half of one middleware may touch, and what a message says where it touches more.

    Args:
        who: name and place of the middleware.
        readable: fields that it may read.
        writable: fields that it may write.
        advice: from "read" or "write" and a field to how to allow it.
        on_touch: called with "read" or "write" and a field instead of a refusal; None to refuse.
    """

    __slots__ = ("advice", "on_touch", "readable", "refusal", "who", "writable", "written")

    def __init__(
        self,
        who: str,
        readable: frozenset[str],
        writable: frozenset[str],
        advice: Callable[[str, str], str],
        on_touch: Callable[[str, str], None] | None = None,
    ) -> None:
        self.who, self.readable, self.writable = who, readable, writable
        self.advice, self.on_touch = advice, on_touch
        self.written: set[str] = set()
        """What this half has written so far, which it may read again."""
        self.refusal: ContractError | None = None
        """What this half was refused with, in case that it catches the error."""


def real_class(ctx: object) -> type[Any]:
    """The class of a context, also while it is a view."""
    cls = type(ctx)
    return getattr(cls, "_viewed", cls)


become = object.__setattr__
"""`become(ctx, "__class__", cls)` gives the context this class, which has the same layout. It runs twice a half."""


def field_value(ctx: object, name: str) -> Any:
    """The value of a field behind any view, or None where it was never set."""
    value = _value(ctx, name, real_class(ctx))
    return None if value is _MISSING else value


@contextmanager
def seen_whole(ctx: object) -> Iterator[None]:
    """For the time of the block the context is itself again, and not what a middleware sees of it."""
    view = type(ctx)
    become(ctx, "__class__", real_class(ctx))
    try:
        yield
    finally:
        become(ctx, "__class__", view)


def alias(ctx: Any) -> Any:
    """Another object with the same fields, for a thread that sees them through a view of its own; with slots, the same one."""
    cls = real_class(ctx)
    if any(isinstance(getattr(cls, name, None), types.MemberDescriptorType) for name in cls._plan.fields):
        return ctx
    twin = object.__new__(cls)
    _DICT.__set__(twin, _DICT.__get__(ctx))
    return twin


def view_class(cls: type[Context], terms: Terms, checker: object = None) -> type[Any]:
    """A subclass of this context class that refuses what these terms do not name.

    Args:
        cls: the real class of the context.
        terms: what is allowed.
        checker: whose checks apply to middleware inside this one; `checker_of` finds it.
    """
    fields = frozenset(field.name for field in dataclasses.fields(cls))
    methods = _methods(cls, terms, fields)
    if terms.on_touch is not None:  # it notes, and hides nothing
        methods = {name: it for name, it in methods.items() if name not in ("__dict__", "__repr__")}
    refused: dict[str, Any] = {name: _Refused(name, cls, terms) for name in fields - terms.readable - {"total_step"}}
    return type(cls.__name__, (cls,), {**methods, **refused, "_checker": checker})


def checker_of(ctx: object) -> Any:
    """The checker of the middleware that runs on this context; None where nothing is checked."""
    return getattr(type(ctx), "_checker", None)


def _methods(cls: type[Context], terms: Terms, fields: frozenset[str]) -> dict[str, Any]:
    writable = terms.writable

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if name in fields and name not in writable:
            _refuse(terms, "write", cls, name)
        cls.__setattr__(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        if name in fields and name not in writable:
            _refuse(terms, "write", cls, name)
        cls.__delattr__(self, name)

    def visible(self: Any) -> dict[str, Any]:
        values = _DICT.__get__(self)
        hidden = fields - terms.readable - terms.written - {"total_step"}
        return _Visible({name: it for name, it in values.items() if name not in hidden}, values, terms, cls)

    def __repr__(self: Any) -> str:
        shown = (f"{name}={value!r}" for name, value in visible(self).items() if name in fields)
        return f"{cls.__qualname__}({', '.join(shown)})"

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        missing = sorted(fields - terms.readable - terms.written - {"total_step"})
        if terms.on_touch is not None:
            for name in missing:
                terms.on_touch("read", name)
        elif missing:
            raise ContractError(
                f"{terms.who} copies or pickles the whole context, which reads every field, and its contract does not name "
                f"{', '.join(missing)}: take the fields that are needed by name."
            )
        view = type(self)
        become(self, "__class__", cls)
        try:
            reduced: Any = cls.__reduce_ex__(self, protocol)
            make, args, *state = reduced
            return (_called, (make, *args), *state)
        finally:
            become(self, "__class__", view)

    def __new__(_: Any, *args: Any, **kwargs: Any) -> Any:
        return cls(*args, **kwargs)

    return {
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_viewed": cls,
        "__setattr__": __setattr__,
        "__delattr__": __delattr__,
        "__dict__": property(visible),
        "__repr__": __repr__,
        "__reduce_ex__": __reduce_ex__,
        "__new__": __new__,
    }


_MISSING: Any = object()


def _value(ctx: object, name: str, cls: type[Any]) -> Any:
    slot = getattr(cls, name, None)
    if isinstance(slot, types.MemberDescriptorType):
        try:
            return slot.__get__(ctx, cls)
        except AttributeError:
            return _MISSING
    return _DICT.__get__(ctx).get(name, _MISSING)


def _called(make: Callable[..., Any], *args: Any) -> Any:
    """`make(*args)`, in a form that pickle does not compare with the class of the view."""
    return make(*args)


class _Visible(dict[str, Any]):
    """What `vars(ctx)` gives of a view: a copy, in which no field can be set. A cached property may keep its value there."""

    def __init__(self, seen: dict[str, Any], values: dict[str, Any], terms: Terms, cls: type[Context]) -> None:
        super().__init__(seen)
        self._values, self._terms, self._cls = values, terms, cls

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._cls._plan.fields:
            raise TypeError(f"vars(ctx)[{name!r}] = ... would set nothing: write ctx.{name} = ...")
        self._values[name] = value

    def __missing__(self, name: str) -> Any:
        if name in self._cls._plan.fields:
            _refuse(self._terms, "read", self._cls, name)
        raise KeyError(name)


class _Refused:
    """Stands in a view for a field that may not be read, or only after this half has written it."""

    __slots__ = ("_cls", "_name", "_terms")

    def __init__(self, name: str, cls: type[Context], terms: Terms) -> None:
        self._name, self._cls, self._terms = name, cls, terms

    def __get__(self, ctx: Any, owner: Any = None) -> Any:
        name, terms = self._name, self._terms
        if ctx is None:
            return getattr(self._cls, name)
        if name not in terms.written:
            _refuse(terms, "read", self._cls, name)
        value = _value(ctx, name, self._cls)
        if value is _MISSING:
            raise AttributeError(name)
        return value

    def __set__(self, ctx: Any, value: Any) -> None:
        terms, name = self._terms, self._name
        if name not in terms.writable:
            _refuse(terms, "write", self._cls, name)
        terms.written.add(name)
        slot = getattr(self._cls, name, None)
        if isinstance(slot, types.MemberDescriptorType):
            slot.__set__(ctx, value)
        else:
            _DICT.__get__(ctx)[name] = value

    def __delete__(self, ctx: Any) -> None:
        if self._name not in self._terms.writable:
            _refuse(self._terms, "write", self._cls, self._name)
        _DICT.__get__(ctx).pop(self._name, None)


def _refuse(terms: Terms, verb: str, cls: type[Context], name: str) -> None:
    if terms.on_touch is not None:
        terms.on_touch(verb, name)
        terms.written.add(name)
        return
    place, through = _place(cls)
    way = f", through the property ctx.{through}," if through else ""
    terms.refusal = ContractError(
        f"{terms.who} {verb}s ctx.{name}{way} at {place}, and its contract does not name it. {terms.advice(verb, name)}"
    )
    raise terms.refusal


def _place(cls: type[Context]) -> tuple[str, str | None]:
    """file:line of the access, and the property of the context that it went through, if it did."""
    frame: types.FrameType | None = sys._getframe(1)
    through = None
    while frame is not None:
        code = frame.f_code
        if code.co_filename == __file__:
            frame = frame.f_back
        elif code.co_varnames[:1] == ("self",) and isinstance(frame.f_locals.get("self"), cls):  # the context's own code
            through = code.co_name if is_property(cls, code.co_name) else through
            frame = frame.f_back
        else:
            return f"{code.co_filename}:{frame.f_lineno}", through
    return "an unknown place", through
