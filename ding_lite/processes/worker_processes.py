"""Worker processes: a child process as its parent sees it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.util import Finalize
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ding_lite.basics.messages import add_note, name_of
from ding_lite.processes.channels import FAILURE, REQUEST, Message
from ding_lite.processes.children import Child
from ding_lite.processes.errors import WorkerDied, WorkerError, WorkerHangs, describe_exit, unpack

LOOK_EVERY_S = 0.25
"""Seconds between two looks at a worker that has not answered, at most."""

_STACK_WAIT_S = 0.2
_CLOSED = "was closed"


class WorkerProcess:
    """A child process that holds a dict of objects and runs functions on them, one request at a time.

    A request is a function, called there as `function(objects, *args)`. Functions, classes and closures of a script travel by
    value, those of a module by name. Large arrays, in either direction, go through shared memory: what arrives is a view of
    it, **valid until the next request** or, with a `depth` above 1, until the next result is taken. Whoever keeps it longer
    copies it, in the worker as in the parent.

    `objects["progress"]` is an int64 array, into which whatever runs there may write how far it has got, at any time; the
    parent sees it at once, and still sees it when the worker is dead. A worker has `timeout_s` seconds from one sign of life to
    the next, a sign being an answer or a change of one of these numbers.

    The worker dies when its parent does, whatever it is doing, and when this object is collected or the interpreter ends. It
    runs on one thread, ignores Ctrl-C, and never imports the script. One thread may submit while another waits for a result;
    otherwise any thread may use it, one at a time.

    Args:
        name: in messages, and in the list of processes.
        progress_size: how many numbers that array has.
        describe: says in words where the worker is, given these numbers: "environment 5, step 31 of its episode, action 1".
        timeout_s: seconds without progress after which a request is given up and the worker killed.
        start_timeout_s: the same until it is ready for its first request, for which it imports torch, and for requests that
            make objects.
        depth: requests that may be in flight at a time; the worker does them in order, and answers are taken in order.

    Raises:
        WorkerDied: the process could not be started.

    Example:
        >>> def add(objects, amount):
        ...     objects["total"] = objects.get("total", 0) + amount
        ...     return objects["total"]
        >>> with WorkerProcess("counter") as worker:
        ...     worker.call(add, 3), worker.call(add, 4)
        (3, 7)
    """

    def __init__(
        self,
        name: str,
        progress_size: int = 0,
        describe: Callable[[NDArray[np.int64]], str] | None = None,
        timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
        depth: int = 1,
    ) -> None:
        if progress_size < 0 or not timeout_s > 0 or not start_timeout_s > 0:
            raise ValueError(
                f"worker {name!r} wants progress_size >= 0 and timeout_s > 0, got progress_size={progress_size}, "
                f"timeout_s={timeout_s}, start_timeout_s={start_timeout_s}."
            )
        self.name, self.timeout_s, self.start_timeout_s = name, timeout_s, start_timeout_s
        self._look_every_s = min(LOOK_EVERY_S, timeout_s / 10, start_timeout_s / 10)
        self.exitcode: int | None = None
        """Once the process is gone: its exit status, or minus the number of the signal that killed it."""
        self._describe = describe
        self._number, self._depth = 0, depth
        self._flying: deque[tuple[int, int, bool]] = deque()  # (number, slot, is_start) of each request in flight
        self._read_slot = -1
        self._lock = threading.Lock()  # one thread may ask while another waits for an answer
        self._end = ""  # what became of it, once it is gone
        self._was_starting = False  # when it ended
        self._message: Message | None = None  # the answer to the first request, once it is there
        self._idle_s, self._looked_at, self._seen = 0.0, 0.0, b""
        self._stack_asked_at: float | None = None

        try:
            self._child = Child(name, progress_size)
        except (OSError, EOFError) as error:
            raise WorkerDied(
                f"{self} could not be started: {type(error).__name__}: {error}. If the fork server failed, stderr tells why."
            ) from error
        self.pid = self._child.pid
        """The number of the process, also when it is gone."""
        self.progress = self._child.status.progress
        """What the worker last wrote there, live. [progress_size] int64."""
        # Of multiprocessing, not of weakref: it runs before multiprocessing waits for its children at exit, which it does
        # without limit, and it does not run in a fork of this process.
        self._free = Finalize(self, Child.free, (self._child,), exitpriority=10)

    @property
    def is_alive(self) -> bool:
        """Whether there is a process that might answer."""
        return not self._end and self._child.process.is_alive()

    @property
    def is_starting(self) -> bool:
        """Whether it is not ready for requests yet, or makes objects; of one that is gone, whether it was."""
        if self._end:
            return self._was_starting
        return not self._child.status.started or (bool(self._flying) and self._flying[0][2])

    @property
    def is_finished(self) -> bool:
        """Whether `finish` or `close` was called, or it is gone."""
        return bool(self._end) or self._child.is_finished

    def fileno(self) -> int:
        """A descriptor that can be read from when the answer is there, or the process gone; for `select` and its like.

        Raises:
            RuntimeError: the worker is closed or dead.
        """
        self._require_alive()
        return self._child.channel.fileno()

    def submit(self, function: Callable[..., Any], *args: Any, is_start: bool = False) -> None:
        """Have the worker run `function(objects, *args)`; `result()` gives what it returns.

        Args:
            is_start: it belongs to the start, because it makes objects: its limit is `start_timeout_s`.

        Raises:
            RuntimeError: a request is in flight, or the worker is closed.
            WorkerDied: the process is gone.
            Exception: the request cannot be pickled; the worker is as before.
        """
        self._require_alive()
        if len(self._flying) >= self._depth:
            count = "a request is" if self._depth == 1 else f"{self._depth} requests are"
            raise RuntimeError(
                f"{self} was given {name_of(function)}() while {count} in flight: take its result() first, or use another "
                "worker."
            )
        with self._lock:
            self._require_alive()
            taken = {slot for _, slot, _ in tuple(self._flying)}
            if self._depth > 1:  # another thread may still read the answer that was taken last
                taken.add(self._read_slot)
            slot = next(slot for slot in range(self._depth + 1) if slot not in taken)
            try:
                self._child.channel.send(self._number + 1, REQUEST, (function, args), by_value=True, slot=slot)
            except ConnectionError:
                pass  # whoever waits for the answers finds out; a last one may be there
            except Exception as error:
                add_note(error, f"{name_of(function)}() and its arguments were to be sent to {self}, pickled by cloudpickle.")
                raise
            self._number += 1
            if not self._flying:
                self._rest()
            self._flying.append((self._number, slot, is_start))

    def result(self, is_stopping: Callable[[], bool] = lambda: False) -> Any:
        """What the first request in flight returned, once it has. Arrays in it are valid until the next request.

        Args:
            is_stopping: asked a few times a second; once it is true, the wait ends, and the request stays in flight.

        Raises:
            InterruptedError: `is_stopping()` is true.
            Exception: what the function raised, with the traceback there as its cause. The worker stays usable.
            WorkerError: the same, where the exception or the result cannot be pickled, or unpickled here, and for a SystemExit.
            WorkerDied: the process is gone.
            WorkerHangs: it made no progress for `timeout_s`, and is gone now.
            RuntimeError: no request is in flight, or the worker is closed.
        """
        self._require_alive()
        if not self._flying:
            raise RuntimeError(f"{self} has no request in flight: submit() one before result().")
        while self._message is None:
            if is_stopping():
                raise InterruptedError(f"{self} still works on its request, which nobody waits for any more.")
            self.poll(wait=True)
        message, self._message = self._message, None
        _, self._read_slot, _ = self._flying.popleft()
        self._rest()
        try:
            value = message.load()
        except Exception as error:
            raise WorkerError(
                f"{self} sent a result that cannot be loaded here: {type(error).__name__}: {error}. Return numbers, strings, "
                "arrays, and lists and dicts of them."
            ) from error
        if message.kind == FAILURE:
            raise unpack(value, str(self))
        return value

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """`submit` and `result`, where nothing is in flight."""
        if self._flying:
            raise RuntimeError(f"{self}.call({name_of(function)!r}) while a request is in flight: take its result() first.")
        self.submit(function, *args)
        return self.result()

    def finish(self) -> None:
        """Ask for nothing more: the worker does what is in flight, closes its objects and ends, while nobody waits for it."""
        if not self._end:
            self._child.finish()

    def close(self, timeout_s: float = 2.0) -> None:
        """End the process: it closes its objects, and is killed if that takes longer, or at once if a request is in flight.

        Args:
            timeout_s: how long that may take; after `finish`, since the last answer.
        """
        if self._end:
            return
        try:
            if not self._flying:
                since_s = time.monotonic() - self._looked_at if self._child.is_finished else 0.0
                self._child.end(max(0.0, timeout_s - since_s))
        finally:
            self._let_go(_CLOSED)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def __str__(self) -> str:
        return f"worker {self.name!r}"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self} cannot be sent to another process. Where a function was to be sent: it refers to the worker, as a global "
            "variable or out of its closure."
        )

    def poll(self, wait: bool = False) -> bool:
        """Whether the answer to the first request in flight is there. Called several times a second, it finds a hang in time,
        so that one thread is able to wait for many workers side by side.

        Args:
            wait: for a moment, if it is not there yet.

        Raises:
            WorkerDied, WorkerHangs, RuntimeError: as `result` does.
        """
        self._require_alive()
        if self._message is None:
            asked = self._stack_asked_at is not None
            try:
                message = self._child.receive((0.01 if asked else self._look_every_s) if wait else 0.0)
            except (EOFError, OSError) as error:
                self._has_died(error)
            if message is None:
                self._look()
                return False
            number, _, _ = self._flying[0]
            if message.number != number:
                self._has_died(WorkerError(f"it answered request {message.number}, asked was {number}"))
            self._message = message
        return True

    def _rest(self) -> None:
        """From now on it is expected to make progress."""
        self._idle_s, self._looked_at, self._stack_asked_at = 0.0, time.monotonic(), None

    def _look(self) -> None:
        """Count for how long it has made no progress. Too long: ask for its stack, and kill it when that is there."""
        status, now = self._child.status, time.monotonic()
        words = status.words.tobytes()
        if words != self._seen:
            self._seen = words
            self._rest()
            return
        # What nobody looked at is not counted: when Ctrl-Z stopped both processes for an hour, no time has passed.
        self._idle_s += min(now - self._looked_at, 2 * self._look_every_s)
        self._looked_at = now
        if self._idle_s < (self.start_timeout_s if self.is_starting else self.timeout_s):
            return
        if not status.started:
            self._hangs("")
        if self._stack_asked_at is None:
            self._stack_asked_at = now
            status.ask_for_stack(self.pid)
        elif (stack := status.stack()) or now >= self._stack_asked_at + _STACK_WAIT_S:
            self._hangs(stack)

    def _has_died(self, cause: Exception | None = None) -> NoReturn:
        place = self._place("it was at ")
        exitcode = self._child.exitcode(timeout_s=1.0)
        reason = f" ({cause})" if cause and not isinstance(cause, (EOFError, ConnectionError)) else ""
        self._let_go(f"{describe_exit(exitcode)}{reason}{place}.")
        raise WorkerDied(f"{self} {self._end}", exitcode) from cause

    def _hangs(self, stack: str) -> NoReturn:
        if self._child.status.started:
            place = self._place("at ", " ")
            option = "start_timeout_s" if self.is_starting else "timeout_s"
            limit_s = getattr(self, option)
            self._let_go(
                f"made no progress for {limit_s} s{place} and was killed: it hangs; or its work takes longer, then raise "
                f"{option}={limit_s}." + (f" This is where it was:\n{stack}" if stack else "")
            )
        else:
            self._let_go(
                f"did not start within {self.start_timeout_s} s, and was killed: it hangs (stderr may say more); or the "
                f"machine is slow, then raise start_timeout_s={self.start_timeout_s}."
            )
        raise WorkerHangs(f"{self} {self._end}", self.exitcode)

    def _place(self, lead: str, separator: str = "; ") -> str:
        """Where the worker is, as part of a sentence, or nothing where that is not known."""
        if not self._child.status.started:
            return f"{separator}{lead}its start (stderr may say more)"
        if self._describe is None:
            return ""
        try:
            return f"{separator}{lead}{self._describe(self.progress)}"
        except Exception as error:  # noqa: BLE001 (a message about something worse is being written)
            return f"{separator}{lead}{self.progress.tolist()} (describe() failed: {type(error).__name__}: {error})"

    def _let_go(self, end: str) -> None:
        """Kill the process if it is there, give everything back, and remember what became of it."""
        with self._lock:
            self._was_starting, self._end = self.is_starting, end
            self._flying.clear()
            self.progress = self.progress.copy()
            self.exitcode = self._free()
            del self._child

    def _require_alive(self) -> None:
        if self._end == _CLOSED:
            raise RuntimeError(f"{self} is closed: make another WorkerProcess.")
        if self._end:
            raise WorkerDied(f"{self} is dead, make another WorkerProcess: it {self._end}", self.exitcode)
