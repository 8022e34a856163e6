"""Ctrl-C and SIGTERM: the first signal ends the run after the iteration, the second one at once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn


class RunInterrupted(KeyboardInterrupt, SystemExit):
    """Ctrl-C ended a run after its last iteration: a KeyboardInterrupt that ends a script without a traceback, with exit
    status 130."""

    def __init__(self) -> None:
        super().__init__()
        self.code = 128 + signal.SIGINT


class Interrupts:
    """The signal that asked a run to end, if one did."""

    def __init__(self, finish: Callable[[str], None]) -> None:
        self._finish = finish
        self.received: int | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The first signal asks the run to finish, so that savers write the final state; the second raises at once."""
        if self.received is not None:
            _raise(number, KeyboardInterrupt())
        self.received = number
        name = signal.Signals(number).name
        with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
            print(f"{name}: this iteration finishes, then the run ends; once more to stop at once.", file=sys.stderr)
        self._finish(name)

    def raise_again(self) -> None:
        """Raise the error of the received signal, if any: RunInterrupted, or SystemExit(143) for SIGTERM."""
        if self.received is not None:
            _raise(self.received, RunInterrupted())


def _raise(number: int, interrupted: KeyboardInterrupt) -> NoReturn:
    raise interrupted if number == signal.SIGINT else SystemExit(128 + number)


@contextlib.contextmanager
def interruptible(finish: Callable[[str], None]) -> Iterator[Interrupts]:
    """Within this block, SIGINT and SIGTERM call `finish(name of the signal)`. Works only on the main thread, and does nothing
    on others.

    Handlers installed by the program are kept: a signal is handled only if it has its default handler.
    """
    interrupts = Interrupts(finish)
    before = {}
    if threading.current_thread() is threading.main_thread():
        defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        for number, default in defaults.items():
            if signal.getsignal(number) == default:
                before[number] = signal.signal(number, interrupts.handle)
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
