"""Views: a context that refuses access to fields that the contract of the running middleware does not name.

A view is the same object with another class. While a middleware runs, its context has a subclass of its own class, in which
each field that may not be read is a descriptor that raises, and which checks each write. Allowed reads cost nothing.
There is such a class for each context class and each set of allowed fields. Steps take turns in using it, and another one is
made while it is in use on another thread.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from ding_lite.basics.blocks import block
from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.properties import is_property

_DICT: Any = Context.__dict__["__dict__"]  # accesses the fields of a view, because its own `__dict__` is a filtered copy
_CLASS: Any = object.__dict__["__class__"]
_MISSING: Any = object()

become: Callable[[object, type[Any]], None] = _CLASS.__set__
"""`become(ctx, cls)` sets the class of the context, which has the same layout. It runs twice per step."""


class ContractError(RuntimeError):
    """A middleware touched a field, or read an object, that its contract does not name.

    It is not an AttributeError, because hasattr() hides these.
    """


class RunningStep:
    """The running middleware, and the texts for messages.

    Args:
        who: name and place of the middleware.
        advice: function of "read" or "write", a field, and whether it is None now; it returns how to allow the access.
        checker: checker for middleware inside this one; `checker_of` returns it.
        note: called with the context, "read" or "write" and a field instead of raising; None to raise.
    """

    __slots__ = ("advice", "checker", "note", "who")

    def __init__(
        self,
        who: str,
        advice: Callable[[str, str, bool], str],
        checker: object = None,
        note: Callable[[Any, str, str], None] | None = None,
    ) -> None:
        self.who, self.advice, self.checker, self.note = who, advice, checker, note


class Reach:
    """The fields that one step of a middleware may touch on one context class. Shared by middleware with the same fields.

    Args:
        cls: the real class of the context.
        readable: fields that it may read.
        writable: fields that it may write.
        is_noted: whether other accesses are recorded instead of refused.
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

    def take(self, step: RunningStep) -> View:
        """A view for this step; the step must give it back."""
        try:
            view = self.free.pop()
        except IndexError:  # or another thread was faster
            view = View(self)
        view.step, view.owner = step, threading.get_ident()
        return view


class View:
    """A context class that refuses other accesses, and the step that uses it.

    Args:
        reach: the allowed fields.
    """

    __slots__ = ("cls", "owner", "reach", "refusal", "step", "written")

    def __init__(self, reach: Reach) -> None:
        self.reach = reach
        self.step: RunningStep | None = None
        """The step that uses it; None while it is free."""
        self.owner = 0
        """The thread of that step."""
        self.written: set[str] = set()
        """Fields that this step has written so far, and may read again."""
        self.refusal: ContractError | None = None
        """The error that this step got, in case it catches it."""
        self.cls = _view_class(self)

    def give_back(self) -> ContractError | None:
        """Release it for another step. Returns the error that this step got, if any."""
        refusal = self.refusal
        self.step = self.refusal = None
        if self.written:
            self.written.clear()
        self.reach.free.append(self)
        return refusal

    def hidden(self) -> frozenset[str]:
        """The fields that this step may not read, so far."""
        return self.reach.fields - self.reach.readable - self.written

    def refuse(self, ctx: Any, verb: str, name: str) -> None:
        """Raise an error for this access, or record it."""
        step = self.step
        if self.reach.is_noted:
            if step is not None and step.note is not None:  # None if a thread outlives the step
                step.note(ctx, verb, name)
                self.written.add(name)
            return
        place, through = _place(self.reach.cls)
        way = f", through the property ctx.{through}," if through else ""
        if step is None or self.owner != threading.get_ident():
            runs = "another middleware" if step is None else step.who
            text = (
                f"the thread {threading.current_thread().name!r} {verb}s ctx.{name}{way} at {place}, while {runs} runs, whose "
                "contract does not name it. A context belongs to the running middleware and its thread: read the value "
                "there, and pass it."
            )
        else:
            text = f"{step.who} {verb}s ctx.{name}{way} at {place}, and its contract does not name it. "
            text += step.advice(verb, name, field_value(ctx, name) is None)
        refusal = ContractError(text)
        if step is not None:
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
    """The checker of the middleware that runs on this context; None if nothing is checked."""
    view: View | None = getattr(type(ctx), "_view", None)
    return None if view is None or view.step is None else view.step.checker


def field_value(ctx: object, name: str) -> Any:
    """The value of a field, regardless of views, or None if it was never set."""
    value = _value(ctx, name)
    return None if value is _MISSING else value


@block
def seen_whole(ctx: object) -> Iterator[None]:
    """Within this block, the context has its real class."""
    view = type(ctx)
    become(ctx, real_class(ctx))
    try:
        yield
    finally:
        become(ctx, view)


def alias(ctx: Any) -> Any:
    """Another object with the same fields, for a thread with its own view; with slots, the same object."""
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
    if not reach.is_noted:  # recording hides nothing
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
    step, missing = view.step, sorted(view.hidden())
    assert step is not None
    if step.note is not None:
        for name in missing:
            step.note(self, "read", name)
    elif missing:
        raise ContractError(
            f"{step.who} copies or pickles the whole context, which reads every field, and its contract does not name "
            f"{', '.join(missing)}: copy only the fields that you need, by name."
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
    """The result of `vars(ctx)` for a view: a read-only copy."""

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
        """The existing item; refused if it would set one."""
        if name not in self:
            self[name] = default
        return self[name]

    def pop(self, name: str, *default: Any) -> Any:
        """Refuse it, as deleting the item."""
        del self[name]

    def __missing__(self, name: str) -> Any:
        if name in self._view.reach.fields and self._view.step is not None:
            self._view.refuse(self._ctx, "read", name)
        raise KeyError(name)


class _Refused:
    """The descriptor in a view for a field that may not be read, or only after this step has written it."""

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
