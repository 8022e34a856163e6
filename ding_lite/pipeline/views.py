"""Views: a context that refuses what the contract of the middleware at work does not name.

A view is the same object under another class. While a middleware runs, its context has a subclass of its own class, in which
each field that may not be read is a descriptor that raises, and which checks each write. Reads that are allowed cost nothing.
The classes are made once for each class of contexts and each set of fields that may be touched, and lent out step by step.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.properties import is_property

_DICT: Any = Context.__dict__["__dict__"]  # how to reach the fields of a view, whose own `__dict__` is a filtered copy
_CLASS: Any = object.__dict__["__class__"]
_MISSING: Any = object()

become: Callable[[object, type[Any]], None] = _CLASS.__set__
"""`become(ctx, cls)` gives the context this class, which has the same layout. It runs twice a step."""


class ContractError(RuntimeError):
    """A middleware touched a field of the context that its contract does not name. No AttributeError, which hasattr() hides."""


class Terms:
    """Who is at work, and what a message says where it touches more than it may.

    Args:
        who: name and place of the middleware.
        advice: from "read" or "write" and a field to how to allow it.
        checker: whose checks apply to middleware inside this one; `checker_of` finds it.
        note: called with the context, "read" or "write" and a field instead of a refusal; None to refuse.
    """

    __slots__ = ("advice", "checker", "note", "who")

    def __init__(
        self,
        who: str,
        advice: Callable[[str, str], str],
        checker: object = None,
        note: Callable[[Any, str, str], None] | None = None,
    ) -> None:
        self.who, self.advice, self.checker, self.note = who, advice, checker, note


class Reach:
    """What one step of a middleware may touch on one class of contexts. Every middleware that may touch the same shares it.

    Args:
        cls: the real class of the context.
        readable: fields that it may read.
        writable: fields that it may write.
        is_noted: whether what is touched beyond that is noted, so that nothing is hidden.
    """

    __slots__ = ("cls", "fields", "free", "is_noted", "only_read", "readable", "writable", "written")

    def __init__(self, cls: type[Context], readable: frozenset[str], writable: frozenset[str], is_noted: bool = False) -> None:
        self.cls, self.fields, self.is_noted = cls, cls._plan.fields, is_noted
        self.readable = (self.fields & readable) | {"total_step"}
        self.writable = self.fields & writable
        self.only_read = tuple(sorted((self.fields & readable) - writable))
        self.written = tuple(sorted(self.writable))
        self.free: list[View] = []
        """Views that no step uses at the moment."""

    def take(self, terms: Terms) -> View:
        """A view for this step, which gives it back."""
        try:
            view = self.free.pop()
        except IndexError:  # or another thread was faster
            view = View(self)
        view.terms, view.owner = terms, threading.get_ident()
        return view


class View:
    """A class of contexts that refuses what is beyond reach, and the step that it is lent to.

    Args:
        reach: what it allows.
    """

    __slots__ = ("cls", "owner", "reach", "refusal", "terms", "written")

    def __init__(self, reach: Reach) -> None:
        self.reach = reach
        self.terms: Terms | None = None
        """Of the step that uses it; None while it is free."""
        self.owner = 0
        """The thread of that step."""
        self.written: set[str] = set()
        """What this step has written so far, which it may read again."""
        self.refusal: ContractError | None = None
        """What this step was refused with, in case that it catches the error."""
        self.cls = _view_class(self)

    def give_back(self) -> ContractError | None:
        """Let another step use it. Returns what this one was refused with."""
        refusal = self.refusal
        self.terms = self.refusal = None
        if self.written:
            self.written.clear()
        self.reach.free.append(self)
        return refusal

    def hidden(self) -> frozenset[str]:
        """The fields that this step may not read, so far."""
        return self.reach.fields - self.reach.readable - self.written

    def refuse(self, ctx: Any, verb: str, name: str) -> None:
        """Raise an error for this access; or note it, where that is wanted."""
        terms = self.terms
        if self.reach.is_noted:
            if terms is not None and terms.note is not None:  # else a thread outlives the step
                terms.note(ctx, verb, name)
                self.written.add(name)
            return
        place, through = _place(self.reach.cls)
        way = f", through the property ctx.{through}," if through else ""
        if terms is None or self.owner != threading.get_ident():
            runs = "another middleware" if terms is None else terms.who
            text = (
                f"the thread {threading.current_thread().name!r} {verb}s ctx.{name}{way} at {place}, while {runs} runs, whose "
                "contract does not name it. A context belongs to the middleware that runs, on its own thread: take the value "
                "there, and pass it on."
            )
        else:
            text = f"{terms.who} {verb}s ctx.{name}{way} at {place}, and its contract does not name it. "
            text += terms.advice(verb, name)
        refusal = ContractError(text)
        if terms is not None:
            self.refusal = refusal
        raise refusal


def real_class(ctx: object) -> type[Any]:
    """The class of a context, also while it is a view."""
    return real_class_of(type(ctx))


def real_class_of(cls: type[Any]) -> type[Any]:
    """The class of contexts itself, or the one that it is a view of."""
    view: View | None = getattr(cls, "_view", None)
    return cls if view is None else view.reach.cls


def checker_of(ctx: object) -> Any:
    """The checker of the middleware that runs on this context; None where nothing is checked."""
    view: View | None = getattr(type(ctx), "_view", None)
    return None if view is None or view.terms is None else view.terms.checker


def field_value(ctx: object, name: str) -> Any:
    """The value of a field behind any view, or None where it was never set."""
    value = _value(ctx, name)
    return None if value is _MISSING else value


@contextmanager
def seen_whole(ctx: object) -> Iterator[None]:
    """For the time of the block the context is itself again, and not what a middleware sees of it."""
    view = type(ctx)
    become(ctx, real_class(ctx))
    try:
        yield
    finally:
        become(ctx, view)


def alias(ctx: Any) -> Any:
    """Another object with the same fields, for a thread that sees them through a view of its own; with slots, the same one."""
    cls = real_class(ctx)
    if any(isinstance(getattr(cls, name, None), types.MemberDescriptorType) for name in cls._plan.fields):
        return ctx
    twin = object.__new__(cls)
    _DICT.__set__(twin, _DICT.__get__(ctx))
    return twin


def _view_class(view: View) -> type[Any]:
    """A subclass of the context's class that refuses what is beyond the reach of this view."""
    reach = view.reach
    cls = reach.cls
    methods: dict[str, Any] = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_view": view,
        "__setattr__": _set_of(view),
        "__delattr__": _delete,
        "__reduce_ex__": _reduce,
        "__new__": _new,
    }
    if not reach.is_noted:  # what notes hides nothing
        methods.update({"__dict__": property(_visible), "__repr__": _show})
    refused = {name: _Refused(name, view) for name in reach.fields - reach.readable}
    return type(cls.__name__, (cls,), {**methods, **refused})


def _set_of(view: View) -> Callable[[Any, str, Any], None]:
    cls, fields, writable = view.reach.cls, view.reach.fields, view.reach.writable
    is_plain = cls.__setattr__ is Context.__setattr__
    set_field = object.__setattr__ if is_plain else cls.__setattr__  # a field is declared, which is all that a context checks

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if name in writable:
            set_field(self, name, value)
            return
        if name in fields:
            view.refuse(self, "write", name)
        cls.__setattr__(self, name, value)

    return __setattr__


def _delete(self: Any, name: str) -> None:
    view: View = type(self)._view
    if name in view.reach.fields and name not in view.reach.writable:
        view.refuse(self, "write", name)
    view.reach.cls.__delattr__(self, name)


def _visible(self: Any) -> dict[str, Any]:
    view: View = type(self)._view
    values, hidden = _DICT.__get__(self), view.hidden()
    return _Visible({name: it for name, it in values.items() if name not in hidden}, self, view)


def _show(self: Any) -> str:
    view: View = type(self)._view
    shown = (f"{name}={value!r}" for name, value in _visible(self).items() if name in view.reach.fields)
    return f"{view.reach.cls.__qualname__}({', '.join(shown)})"


def _reduce(self: Any, protocol: Any) -> Any:
    view: View = type(self)._view
    terms, missing = view.terms, sorted(view.hidden())
    assert terms is not None
    if terms.note is not None:
        for name in missing:
            terms.note(self, "read", name)
    elif missing:
        raise ContractError(
            f"{terms.who} copies or pickles the whole context, which reads every field, and its contract does not name "
            f"{', '.join(missing)}: take the fields that are needed by name."
        )
    with seen_whole(self):
        reduced: Any = self.__reduce_ex__(protocol)
        make, args, *state = reduced
        return (_called, (make, *args), *state)


def _new(view_cls: type[Any], *args: Any, **kwargs: Any) -> Any:
    view: View = view_cls._view
    return view.reach.cls(*args, **kwargs)


def _value(ctx: object, name: str) -> Any:
    values = _DICT.__get__(ctx)
    if name in values:
        return values[name]
    cls = real_class(ctx)
    slot = getattr(cls, name, None)
    if isinstance(slot, types.MemberDescriptorType):
        try:
            return slot.__get__(ctx, cls)
        except AttributeError:
            return _MISSING
    return _MISSING


def _called(make: Callable[..., Any], *args: Any) -> Any:
    """`make(*args)`, in a form that pickle does not compare with the class of the view."""
    return make(*args)


class _Visible(dict[str, Any]):
    """What `vars(ctx)` gives of a view: a copy, in which nothing can be set."""

    def __init__(self, seen: dict[str, Any], ctx: Any, view: View) -> None:
        super().__init__(seen)
        self._ctx, self._view = ctx, view

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._view.reach.fields:
            raise TypeError(f"vars(ctx)[{name!r}] = ... would set nothing: write ctx.{name} = ...")
        cls = self._view.reach.cls.__name__
        raise TypeError(f"vars(ctx)[{name!r}] = ... would be no field, and nothing passes it on: declare `{name}` in {cls}.")

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"del vars(ctx)[{name!r}] would delete nothing: write ctx.{name} = None, or give the field a default.")

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Refuse it as setting each of the items."""
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __ior__(self, other: Any) -> _Visible:  # type: ignore[override, misc]
        self.update(other)
        return self

    def setdefault(self, name: str, default: Any = None) -> Any:
        """What stands there; it is refused where that would set it."""
        if name not in self:
            self[name] = default
        return self[name]

    def pop(self, name: str, *default: Any) -> Any:
        """Refuse it, as deleting the item."""
        del self[name]

    def __missing__(self, name: str) -> Any:
        if name in self._view.reach.fields and self._view.terms is not None:
            self._view.refuse(self._ctx, "read", name)
        raise KeyError(name)


class _Refused:
    """Stands in a view for a field that may not be read, or only after this step has written it."""

    __slots__ = ("_name", "_view")

    def __init__(self, name: str, view: View) -> None:
        self._name, self._view = name, view

    def __get__(self, ctx: Any, owner: Any = None) -> Any:
        name, view = self._name, self._view
        if ctx is None:
            return getattr(view.reach.cls, name)
        if name not in view.written:
            view.refuse(ctx, "read", name)
        value = _value(ctx, name)
        if value is _MISSING:
            raise AttributeError(name)
        return value

    def __set__(self, ctx: Any, value: Any) -> None:
        name, view = self._name, self._view
        if name not in view.reach.writable:
            view.refuse(ctx, "write", name)
        view.written.add(name)
        slot = getattr(view.reach.cls, name, None)
        if isinstance(slot, types.MemberDescriptorType):
            slot.__set__(ctx, value)
        else:
            _DICT.__get__(ctx)[name] = value

    def __delete__(self, ctx: Any) -> None:
        name, view = self._name, self._view
        if name not in view.reach.writable:
            view.refuse(ctx, "write", name)
        _DICT.__get__(ctx).pop(name, None)


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
