"""Parts of messages: names and places, the nearest valid name, notes on errors, the line to warn at, and safe printing."""

from __future__ import annotations

import contextvars
import difflib
import functools
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, TypeVar

from ding_lite.basics.optional_attributes import attribute_of, has_attribute
from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.basics.torch_modes import torch_modes, torch_modes_here

Result = TypeVar("Result")

_MOMENT = re.compile(r"\b(?:iteration|step|episode|attempt) \d+")


def warn_caller(text: str) -> None:
    """Warn at the line outside of ding_lite that has called it; on a thread of ding_lite, at the line of the warning."""
    frame: FrameType | None = sys._getframe(1)
    level = 2  # 1 is this function
    while frame is not None and is_of_ding_lite(str(frame.f_globals.get("__name__"))):
        frame, level = frame.f_back, level + 1
    is_thread = frame is None or frame.f_globals.get("__name__") == "threading"
    warnings.warn(text, stacklevel=2 if is_thread else level)


def with_article(noun: str) -> str:
    """The noun after "a", or after "an" if it begins with a vowel.

    Example:
        >>> with_article("episode replay buffer")
        'an episode replay buffer'
    """
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def name_of(fn: Callable[..., Any]) -> str:
    """The name that a script uses for `fn`: the class of an object, the factory of a closure, else the name of the function;
    for what `functools.wraps` has decorated, the name of that.

    A closure is named after the function that made it (`data_pusher(cfg, buffer_)` is `data_pusher`), unless that function
    is still running: then `fn` is a local function of the script, and has its own name.
    """
    if isinstance(fn, functools.partial):
        return name_of(fn.func)
    innermost = fn
    while (wrapped := attribute_of(innermost, "__wrapped__")) is not None:
        innermost = wrapped
    if innermost is not fn and not has_attribute(innermost, "__qualname__"):  # `functools.wraps` finds no name in an object
        return name_of(innermost)
    qualified = attribute_of(fn, "__qualname__")
    if qualified is None:
        return str(attribute_of(fn, "__name__", type(fn).__name__))
    parts = qualified.split(".")
    if len(parts) >= 3 and parts[-2] == "<locals>" and not _is_running(parts[-3], attribute_of(fn, "__module__")):
        return str(parts[-3])
    return str(attribute_of(fn, "__name__", parts[-1]))


def location_of(fn: Callable[..., Any]) -> str:
    """`file:line` of the definition of `fn` or of its class, or an empty string if unknown."""
    if isinstance(fn, functools.partial):
        return location_of(fn.func)
    given: str | None = attribute_of(fn, "__location__")  # set by objects that represent other functions
    if given is not None:
        return given
    code = attribute_of(fn, "__code__") or attribute_of(call_of(fn), "__code__")
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def call_of(fn: object) -> object:
    """The `__call__` that the class of `fn` defines, or None."""
    return next((vars(cls)["__call__"] for cls in type(fn).__mro__ if "__call__" in vars(cls)), None)


def describe_call(fn: Callable[..., Any]) -> str:
    """Name and place for error messages: `my_step (train.py:12)`."""
    place = location_of(fn)
    return f"{name_of(fn)} ({place})" if place else name_of(fn)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`": did you mean 'env_step'?"` for the nearest known name, `"."` if none is near."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f": did you mean {near[0]!r}?" if near else "."


def printable(text: str, keep: str = "") -> str:
    """The text with each control or unprintable character replaced by a question mark.

    For printed text with names of files, folders or metrics, which may come from untrusted sources.

    Args:
        text: any text.
        keep: characters to keep, such as a line break.

    Example:
        >>> printable("run\\x1b[2J")
        'run?[2J'
    """
    if text.isprintable():  # almost always
        return text
    return "".join(letter if letter.isprintable() or letter in keep else "?" for letter in text)


def words_of(error: BaseException) -> str:
    """`str(error)`, also for an error whose `__str__` raises one: then what Python prints in its place."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  it is code of the script, and must not hide the error
        return "<exception str() failed>"


def describe_error(error: BaseException) -> str:
    """Class and text of an error for messages.

    Example:
        >>> describe_error(KeyError("env_step"))
        "KeyError: 'env_step'"
    """
    return f"{type(error).__name__}: {words_of(error)}"


def add_note(error: BaseException, note: str, place: str | None = None) -> None:
    """`error.add_note(note)`, also for an error that is a frozen dataclass. On Python 3.10, tracebacks do not print it.

    One exception object may be raised and handled repeatedly. So there is one note per place: a later one replaces the
    earlier one.

    Args:
        error: gets the note.
        note: the text.
        place: origin of the note. None means the note itself, without numbers of iterations, steps and episodes.
    """
    place = _MOMENT.sub("", note) if place is None else place
    places: dict[str, str] = error.__dict__.setdefault("_note_of_place", {})
    before, places[place] = places.get(place), note
    notes = [*error.__dict__.get("__notes__", ())]
    if note not in notes:
        # not by add_note, which a frozen dataclass refuses, and Python 3.10 does not have
        error.__dict__["__notes__"] = [*(other for other in notes if other != before), note]


def require_extra(module: str, extra: str, wanted_by: str) -> None:
    """Raise an error that names the extra to install, unless `module` can be imported."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise ImportError(f"{wanted_by} needs {module}, which is not installed: pip install 'ding_lite[{extra}]'.")


def _is_running(function: str, module: str | None) -> bool:
    return (function, module) in _running_elsewhere.get() or (function, module) in _running_here()


def _running_here() -> set[tuple[str, str | None]]:
    """Name and module of each function that runs on this thread. Frames of other threads may vanish while they are read."""
    found = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.add((frame.f_code.co_name, frame.f_globals.get("__name__")))
        frame = frame.f_back
    return found


_running_elsewhere: contextvars.ContextVar[frozenset[tuple[str, str | None]]] = contextvars.ContextVar(
    "running elsewhere", default=frozenset()
)


class HelperContext:
    """Settings of a thread for a helper thread: context variables, modes of torch, and names of running functions."""

    def __init__(self) -> None:
        self._context, self._modes = contextvars.copy_context(), torch_modes_here()
        self._context.run(_running_elsewhere.set, _running_elsewhere.get() | _running_here())

    def run(self, fn: Callable[..., Result], *args: Any) -> Result:
        """Call `fn(*args)` on the helper thread, with these settings."""
        with torch_modes(self._modes):
            return self._context.run(fn, *args)
