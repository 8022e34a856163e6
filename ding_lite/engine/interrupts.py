"""Ctrl-C and SIGTERM: the first signal ends the run after the iteration, the second one at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from ding_lite.basics.blocks import block
from ding_lite.basics.user_output import drop_unwritable_output, tell


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
        self.before: dict[int, Any] = {}
        """The handlers that were replaced, by signal."""
        self.raise_next: BaseException | None = None
        """What the next signal raises at once: that of a watchdog."""

    @property
    def replaces_handlers(self) -> bool:
        """Whether SIGINT comes to this object."""
        return getattr(signal.getsignal(signal.SIGINT), "__self__", None) is self

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The first signal asks the run to finish, so that savers write the final state; the second raises at once."""
        if self.raise_next is not None:
            raise self.raise_next
        if self.received is not None:
            _raise(number, KeyboardInterrupt())
        self.received = number
        name = signal.Signals(number).name
        tell(f"{name}: this iteration finishes, then the run ends; once more to stop at once.")
        self._finish(name)

    def raise_again(self) -> None:
        """Raise the error of the received signal, if any: RunInterrupted, or SystemExit(143) for SIGTERM.

        A handler of the program or of a library is called before; it cannot change the exit status.
        """
        if self.received is None:
            return
        handler = self.before.get(self.received)
        if callable(handler) and handler is not signal.default_int_handler:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                handler(self.received, None)
        drop_unwritable_output()  # the reader of the output may have got the signal as well
        _raise(self.received, RunInterrupted())


def _raise(number: int, interrupted: KeyboardInterrupt) -> NoReturn:
    raise interrupted if number == signal.SIGINT else SystemExit(128 + number)


@block
def interruptible(finish: Callable[[str], None]) -> Iterator[Interrupts]:
    """Within this block, SIGINT and SIGTERM call `finish(name of the signal)`. Works only on the main thread, and does nothing
    on others.

    Handlers of the program or of a library, such as that of `ray.init`, are replaced too, because the run would not be saved
    otherwise; they are called after the run, and are in place again afterwards. Ignored signals stay ignored. A run inside
    another run leaves signals to the outer one.
    """
    interrupts = Interrupts(finish)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler not in (None, signal.SIG_IGN) and not isinstance(getattr(handler, "__self__", None), Interrupts):
                interrupts.before[number] = signal.signal(number, interrupts.handle)
    try:
        yield interrupts
    finally:
        for replaced, handler in interrupts.before.items():
            signal.signal(replaced, handler)
