"""Deferrals: long work that a middleware begins in one iteration and takes the result of in a later one."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ding_lite.basics.messages import add_note, name_of

Result = TypeVar("Result")
DEFERRED_THREAD = "task.deferred"
"""What the names of threads begin with that run deferred work."""


class BrokenOff(RuntimeError):
    """The run ended before this work did."""


class Deferred(Generic[Result]):
    """Work that runs beside the iterations that follow, or has run already where nothing overlaps."""

    changes_by_itself = True
    """In a field of a context it changes, and no middleware has changed it."""

    def __init__(self, fn: Callable[..., Result], args: tuple[Any, ...]) -> None:
        self._fn, self._args = fn, args
        self._result: Result
        self._error: BaseException | None = None
        self.done = False
        """Whether the result is there."""
        self._settled = threading.Event()  # the result is there, or nobody takes it any more
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.outlasts = False
        """Whether it goes on when the run has ended in order, for an `end_run` that takes its result."""
        self.is_over = False
        """Whether the run that it belongs to has ended, so that nobody takes its result any more."""

    def run_here(self) -> Deferred[Result]:
        """Do the work now. What it raises leaves here."""
        self._result = self._fn(*self._args)
        self._settle()
        self._ended.set()
        return self

    def run_beside(self, prepare: Callable[[], None], fail: Callable[[BaseException], None]) -> Deferred[Result]:
        """Do the work on a thread of its own.

        Args:
            prepare: called on that thread first.
            fail: called with what the work raises before it is broken off.
        """

        def work() -> None:
            try:
                prepare()
                self._result = self._fn(*self._args)
            except BaseException as error:  # noqa: BLE001  raised by the run, and where the result is asked for
                self._error = error
                if not self.is_over:
                    add_note(error, f"in {name_of(self._fn)}, deferred by a middleware of the task")
                    fail(error)
            finally:
                self._settle()
                self._ended.set()

        target = contextvars.copy_context().run
        self._thread = threading.Thread(target=target, args=(work,), name=f"{DEFERRED_THREAD}.{name_of(self._fn)}", daemon=True)
        self._thread.start()
        return self

    def _settle(self) -> None:
        self.done = True
        self._settled.set()

    def break_off(self) -> None:
        """The run that it belongs to has ended: its result is not taken any more, and `result()` raises at once."""
        self.is_over = True
        self._settled.set()

    def join(self) -> None:
        """Wait until its thread has ended."""
        self._ended.wait()
        if self._thread is not None:
            self._thread.join()

    @property
    def has_ended(self) -> bool:
        """Whether the work is done, and its thread has nothing left to do."""
        return self._ended.is_set()

    def result(self) -> Result:
        """Wait for the result.

        Raises:
            BrokenOff: the run ended meanwhile.
            BaseException: what the work raised.
        """
        self._settled.wait()
        if self.is_over:
            raise BrokenOff(f"the run has ended, and with it {name_of(self._fn)}, which it deferred.")
        if self._error is not None:
            raise self._error
        return self._result
