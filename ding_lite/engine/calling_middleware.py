"""Calling middleware: which middleware runs in a frame or around it."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import FrameType
from typing import Any

from ding_lite.basics.messages import call_of
from ding_lite.basics.optional_attributes import attribute_of, has_attribute
from ding_lite.pipeline.entries import Entry


def middleware_around(entries: Iterable[Entry], frame: FrameType) -> str:
    """Name and place of the middleware that runs in this frame or around it, else of the function of the frame."""
    for entry in entries_around(entries, frame):
        return f"middleware {entry.name} ({entry.location})"
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


def entries_around(entries: Iterable[Entry], frame: FrameType) -> list[Entry]:
    """The middleware that runs in this frame or around it; several if they have the same code, and none if it is unknown."""
    codes = [(entry, code_of(entry.fn)) for entry in entries]
    here: FrameType | None = frame
    while here is not None:
        found = [entry for entry, code in codes if code is here.f_code and _is_of(entry.fn, here)]
        if found:
            return found
        here = here.f_back
    return []


def code_of(fn: Any) -> Any:
    """The code of a function, or of the `__call__` of an object, inside partials; None if it has none."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return attribute_of(fn, "__code__") or attribute_of(call_of(fn), "__code__")


def _is_of(fn: Any, frame: FrameType) -> bool:
    """Whether a frame with the code of `fn` belongs to the object of `fn`, if `fn` is an object or a bound method."""
    owner = attribute_of(fn, "__self__", None if has_attribute(fn, "__code__") or isinstance(fn, functools.partial) else fn)
    names = frame.f_code.co_varnames[:1]
    return owner is None or not names or frame.f_locals.get(names[0], owner) is owner
