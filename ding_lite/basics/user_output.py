"""Output for the user: shown if it can be written, and never a reason to end a run."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from ding_lite.basics.blocks import block

_GONE = (errno.EPIPE, errno.EIO)  # the reader has ended, or the terminal is closed


def tell(text: str) -> None:
    """Print a line to standard error if it can be written."""
    stream = sys.stderr
    print(text, file=EnduringStream(stream, lambda problem: _drop(stream, for_good=False)), flush=True)


def show(text: str) -> None:
    """Print a line to standard output if it can be written."""
    print(text, file=EnduringStream(sys.stdout), flush=True)


def drop_unwritable_output() -> None:
    """Write what the standard streams hold back, or drop it: otherwise Python tries again at exit, and changes the status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError, AttributeError, RuntimeError):
            _drop(stream, for_good=False)


@block
def without_closed_stderr() -> Iterator[None]:
    """Inside the block, a closed standard error is None, so that Python drops warnings instead of raising ValueError."""
    stream = sys.stderr
    if not is_closed(stream):
        yield
        return
    sys.stderr = None
    try:
        yield
    finally:
        if sys.stderr is None:  # else other code has opened another one
            sys.stderr = stream


def is_closed(stream: Any) -> bool:
    """Whether a stream was closed by its method `close`."""
    return getattr(stream, "closed", False) is True


class EnduringStream:
    """A stream that ignores errors of writing. Characters that its encoding lacks are written as escapes.

    Args:
        stream: the output; None if there is none, as standard output in a process that was started without one.
        on_failure: called with the problem when something is lost; not if the reader has ended or the terminal is closed.
    """

    def __init__(self, stream: TextIO | None, on_failure: Callable[[str], object] = lambda problem: None) -> None:
        self._stream, self._on_failure = stream, on_failure

    def write(self, text: str) -> None:
        self._endure(self._write, text)

    def flush(self) -> None:
        flush = getattr(self._stream, "flush", None)  # an object with `write` alone needs none
        if flush is not None:
            self._endure(flush)

    def _write(self, text: str) -> None:
        stream = self._stream
        if stream is None:
            self._on_failure("there is none")
            return
        try:
            stream.write(text)
        except UnicodeEncodeError as error:
            encoding = getattr(stream, "encoding", None) or error.encoding
            try:
                escaped = text.encode(encoding, "backslashreplace").decode(encoding)
            except LookupError:  # an encoding that Python does not know
                escaped = text.encode("ascii", "backslashreplace").decode("ascii")
            stream.write(escaped)

    def _endure(self, call: Callable[..., Any], *args: str) -> None:
        try:
            call(*args)
        except OSError as error:
            if error.errno in _GONE or isinstance(error, BrokenPipeError):
                _drop(self._stream, for_good=True)
            else:
                self._on_failure(error.strerror or str(error))
        except (ValueError, AttributeError, TypeError) as error:  # the stream is closed, or is only half a stream
            self._on_failure("it is closed" if is_closed(self._stream) else str(error))
        except RuntimeError as error:  # a signal has come while the stream was written to
            self._on_failure(str(error))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _drop(stream: Any, for_good: bool) -> None:
    """Drop what a stream could not write, and with `for_good` what is written to it later. Otherwise Python would try again at
    exit, fail, and end with status 120."""
    with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
        number = stream.fileno()
        inheritable, before = os.get_inheritable(number), os.dup(number)
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), number, inheritable)
            stream.flush()
        finally:
            if not for_good:
                os.dup2(before, number, inheritable)
            os.close(before)
