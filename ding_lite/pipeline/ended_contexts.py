"""Ended contexts: a warning where an earlier iteration's context is read, which has only the values of its lane."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from typing import Any

from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.views import become, unannounced_subclass

_BEFORE, _CLASS = "_class_before_end", "_ended_class"


class EndedContexts:
    """Marks the contexts of the checked iterations when the next iteration of their lane begins, until the run ends."""

    def __init__(self) -> None:
        self._last: dict[int, deque[weakref.ref[Context]]] = {}
        self._marked: list[weakref.ref[Context]] = []

    def enter(self, guard: object, ctx: Context, later: int = 1) -> None:
        """This guard's middleware runs on this context now: the one before it has ended.

        Args:
            guard: of the middleware.
            ctx: of its iteration.
            later: the number of iterations after which a context has ended. A context inside a field is the same one on all
                lanes, and other lanes may be at work on it for as long as the run lets iterations overlap.
        """
        last = self._last.setdefault(id(guard), deque())
        if last and last[-1]() is ctx:
            return
        try:
            last.append(weakref.ref(ctx))
        except TypeError:  # its class has slots, and none for weak references
            return
        before = last.popleft()() if len(last) > later else None
        if before is not None and not hasattr(type(before), _BEFORE):
            become(before, _ended(type(before)))
            self._marked.append(weakref.ref(before))

    def release(self) -> None:
        """The run has ended: all contexts may be read."""
        for ref in self._marked:
            ctx = ref()
            if ctx is not None:
                become(ctx, getattr(type(ctx), _BEFORE))
        self._marked.clear()
        self._last.clear()


def _ended(cls: type[Any]) -> type[Any]:
    """The class of ended contexts of this class; made once, and kept by the class itself."""
    if _CLASS not in vars(cls):
        setattr(cls, _CLASS, _made(cls))
    return getattr(cls, _CLASS)  # type: ignore[no-any-return]


def _made(cls: type[Any]) -> type[Any]:
    fields = cls._plan.fields - {"total_step"}
    get: Any = cls.__getattribute__

    def __getattribute__(self: Any, name: str) -> Any:
        value = get(self, name)
        if name in fields:
            warnings.warn(
                f"ctx.{name} of iteration {get(self, 'total_step')} was read in a later iteration: where iterations overlap, "
                "that context holds only what its lane knew. Keep the value, not the context.",
                stacklevel=2,
            )
        return value

    return unannounced_subclass(cls, {"__getattribute__": __getattribute__, _BEFORE: cls})
