"""Blocks: context managers made from generators, which leave the errors that pass through them as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

Args = ParamSpec("Args")
Value = TypeVar("Value")


class Block(AbstractContextManager[Value]):
    """What `block` makes: an object for one `with` statement."""

    __slots__ = ("_generator",)

    def __init__(self, generator: Generator[Value, None, None]) -> None:
        self._generator = generator

    def __enter__(self) -> Value:
        for value in self._generator:
            return value
        raise RuntimeError("a block did not yield.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if error is None:
            for _ in self._generator:
                raise RuntimeError("a block yielded twice.")
            return None
        try:
            self._generator.throw(error)
        except StopIteration:  # it has handled the error
            return True
        except BaseException as raised:
            is_same = raised is error or (isinstance(error, StopIteration) and raised.__cause__ is error)  # Python wraps it
            if not is_same:
                raise
            BaseException.with_traceback(error, trace)  # not an assignment, which the class of the error may refuse
            return None
        raise RuntimeError("a block yielded twice.")


def block(fn: Callable[Args, Iterator[Value]]) -> Callable[Args, Block[Value]]:
    """Like `contextlib.contextmanager`, for blocks through which errors of a script pass.

    `contextlib` assigns the traceback of such an error. The class of the error may refuse that, such as a frozen dataclass,
    and the script would get another error than the one that was raised.

    Example:
        >>> @block
        ... def told(name):
        ...     print("begin", name)
        ...     yield
        ...     print("end", name)
        >>> with told("it"):
        ...     print("inside")
        begin it
        inside
        end it
    """

    @functools.wraps(fn)
    def made(*args: Args.args, **kwargs: Args.kwargs) -> Block[Value]:
        return Block(cast(Generator[Value, Any, None], fn(*args, **kwargs)))

    return made
