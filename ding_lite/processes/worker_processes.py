"""Worker processes: the parent's interface to a child process."""

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

from ding_lite.basics.messages import add_note, describe_error, name_of
from ding_lite.processes.channels import FAILURE, REQUEST, Message
from ding_lite.processes.children import Child
from ding_lite.processes.errors import WorkerDied, WorkerError, WorkerHangs, describe_exit, unpack

LOOK_EVERY_S = 0.25
"""Maximum seconds between two checks of a worker that has not answered."""

_STACK_WAIT_S = 0.2
_CLOSED = "was closed"


class WorkerProcess:
    """A child process that holds a dict of objects and runs functions on them, one request at a time.

    A request is a function, called in the worker as `function(objects, *args)`. Functions, classes and closures of a script are
    sent by value, those of a module by name. Large arrays go through shared memory in both directions: a received array is a
    view of it, **valid until the next request** or, with a `depth` above 1, until the next result is taken. To keep it longer,
    copy it, in the worker as in the parent.

    `objects["progress"]` is an int64 array in shared memory, in which code in the worker may write its progress at any time.
    The parent can read it, also after the death of the worker. An answer and any change of this array are signs of life. A
    worker without a sign of life for `timeout_s` seconds is killed.

    The worker ends with its parent, even during a request, and when this object is collected or the interpreter exits. It
    runs on one thread, ignores Ctrl-C, and never imports the script. One thread may submit while another waits for a result;
    otherwise only one thread at a time may use this object.

    Args:
        name: name in messages and of the process.
        progress_size: size of that array.
        describe: function of that array that returns a description, such as "environment 5, step 31 of its episode, action 1".
        timeout_s: seconds without progress after which the worker is killed.
        start_timeout_s: the same until it is ready for its first request, which includes the import of torch, and for requests
            that create objects.
        depth: maximum number of requests in flight; the worker runs them in order, and results are taken in order.

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
        """After the end of the process, its exit status, or minus the number of the signal that killed it."""
        self._describe = describe
        self._number, self._depth = 0, depth
        self._flying: deque[tuple[int, int, bool]] = deque()  # (number, slot, is_start) of each request in flight
        self._read_slot = -1
        self._lock = threading.Lock()  # one thread may submit while another waits for an answer
        self._end = ""  # how it ended
        self._was_starting = False  # when it ended
        self._message: Message | None = None  # the answer to the first request, once received
        self._idle_s, self._looked_at, self._seen = 0.0, 0.0, b""
        self._stack_asked_at: float | None = None

        try:
            self._child = Child(name, progress_size)
        except (OSError, EOFError) as error:
            raise WorkerDied(
                f"{self} could not be started: {describe_error(error)}. If the fork server failed, see stderr."
            ) from error
        self.pid = self._child.pid
        """Id of the process, also after its end."""
        self.progress = self._child.status.progress
        """The current content of `objects["progress"]`, [progress_size] int64; a copy after the end of the process."""
        # multiprocessing's Finalize, not weakref.finalize, because it runs before multiprocessing waits for its children at
        # exit, which it does without a limit, and because it does not run in a fork of this process.
        self._free = Finalize(self, Child.free, (self._child,), exitpriority=10)

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return not self._end and self._child.process.is_alive()

    @property
    def is_starting(self) -> bool:
        """Whether it is not ready for requests yet, or creates objects; after its end, whether this was so at the end."""
        if self._end:
            return self._was_starting
        return not self._child.status.started or (bool(self._flying) and self._flying[0][2])

    @property
    def is_finished(self) -> bool:
        """Whether `finish` or `close` was called, or the process has ended."""
        return bool(self._end) or self._child.is_finished

    def fileno(self) -> int:
        """A descriptor for `select`, readable when an answer has arrived or the process has ended.

        Raises:
            RuntimeError: the worker is closed or dead.
        """
        self._require_alive()
        return self._child.channel.fileno()

    def submit(self, function: Callable[..., Any], *args: Any, is_start: bool = False) -> None:
        """Let the worker run `function(objects, *args)`; `result()` returns its result.

        Args:
            function: the function.
            *args: its arguments.
            is_start: the request creates objects, so its time limit is `start_timeout_s`.

        Raises:
            RuntimeError: there are `depth` requests in flight, or the worker is closed.
            WorkerDied: the process has ended.
            Exception: the request cannot be pickled; the worker stays usable.
        """
        self._require_alive()
        if len(self._flying) >= self._depth:
            count = "a request is" if self._depth == 1 else f"{self._depth} requests are"
            raise RuntimeError(
                f"{self} got {name_of(function)}() while {count} in flight: take its result() first, or use another worker."
            )
        with self._lock:
            self._require_alive()
            taken = {slot for _, slot, _ in tuple(self._flying)}
            if self._depth > 1:  # another thread may still read the last answer
                taken.add(self._read_slot)
            slot = next(slot for slot in range(self._depth + 1) if slot not in taken)
            try:
                self._child.channel.send(self._number + 1, REQUEST, (function, args), by_value=True, slot=slot)
            except ConnectionError:
                pass  # result() raises the error, after the last answers that have arrived
            except Exception as error:
                add_note(error, f"{name_of(function)}() and its arguments were pickled by cloudpickle, to send them to {self}.")
                raise
            self._number += 1
            if not self._flying:
                self._rest()
            self._flying.append((self._number, slot, is_start))

    def result(self, is_stopping: Callable[[], bool] = lambda: False) -> Any:
        """Wait for the result of the first request in flight. Arrays in it are valid until the next request.

        Args:
            is_stopping: called a few times a second; once it is true, the wait ends, and the request stays in flight.

        Raises:
            InterruptedError: `is_stopping()` is true.
            Exception: the error of the function, with the traceback in the worker as its cause. The worker stays usable.
            WorkerError: the same, if the exception or the result cannot be pickled or unpickled, or for a SystemExit.
            WorkerDied: the process has ended.
            WorkerHangs: it made no progress for `timeout_s`, and was killed.
            RuntimeError: no request is in flight, or the worker is closed.
        """
        self._require_alive()
        if not self._flying:
            raise RuntimeError(f"{self} has no request in flight: submit() one before result().")
        while self._message is None:
            if is_stopping():
                raise InterruptedError(f"the wait for {self} was stopped, because the run is stopping.")
            self.poll(wait=True)
        message, self._message = self._message, None
        _, self._read_slot, _ = self._flying.popleft()
        self._rest()
        try:
            value = message.load()
        except Exception as error:
            raise WorkerError(
                f"{self} sent a result that cannot be loaded here: {describe_error(error)}. Return numbers, strings, "
                "arrays, and lists and dicts of them."
            ) from error
        if message.kind == FAILURE:
            raise unpack(value, str(self))
        return value

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function(objects, *args)` in the worker, and wait for the result. No other request may be in flight."""
        if self._flying:
            raise RuntimeError(f"{self}.call({name_of(function)!r}) while a request is in flight: take its result() first.")
        self.submit(function, *args)
        return self.result()

    def finish(self) -> None:
        """Send no further requests: the worker answers those in flight, closes its objects and ends, without a wait here."""
        if not self._end:
            self._child.finish()

    def close(self, timeout_s: float = 2.0) -> None:
        """End the process. It closes its objects; it is killed after `timeout_s`, or at once if a request is in flight.

        Args:
            timeout_s: maximum seconds to close the objects; after `finish`, counted from the last answer.
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
            f"{self} cannot be sent to another process. If you sent a function, it refers to the worker as a global variable "
            "or in its closure: remove this reference."
        )

    def poll(self, wait: bool = False) -> bool:
        """Whether the answer to the first request in flight has arrived.

        One thread can wait for many workers if it calls this several times a second for each, which also detects hangs.

        Args:
            wait: wait a moment for the answer.

        Raises:
            WorkerDied, WorkerHangs, RuntimeError: as for `result`.
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
                self._has_died(WorkerError(f"it answered request {message.number}, expected {number}"))
            self._message = message
        return True

    def _rest(self) -> None:
        """Start to count the time without progress."""
        self._idle_s, self._looked_at, self._stack_asked_at = 0.0, time.monotonic(), None

    def _look(self) -> None:
        """Measure the time without progress. After the limit, ask for the stack, and kill the worker when it is there."""
        status, now = self._child.status, time.monotonic()
        words = status.words.tobytes()
        if words != self._seen:
            self._seen = words
            self._rest()
            return
        # Long gaps between two calls do not count: Ctrl-Z may have stopped both processes for an hour.
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
                f"{option}={limit_s}." + (f" Its stack:\n{stack}" if stack else "")
            )
        else:
            self._let_go(
                f"did not start within {self.start_timeout_s} s, and was killed: it hangs (stderr may say more); or the "
                f"machine is slow, then raise start_timeout_s={self.start_timeout_s}."
            )
        raise WorkerHangs(f"{self} {self._end}", self.exitcode)

    def _place(self, lead: str, separator: str = "; ") -> str:
        """A description of the worker's progress, as part of a sentence; empty if unknown."""
        if not self._child.status.started:
            return f"{separator}{lead}its start (stderr may say more)"
        if self._describe is None:
            return ""
        try:
            return f"{separator}{lead}{self._describe(self.progress)}"
        except Exception as error:  # noqa: BLE001 (this is only part of the message of another error)
            return f"{separator}{lead}{self.progress.tolist()} (describe() failed: {describe_error(error)})"

    def _let_go(self, end: str) -> None:
        """Kill the process if it is alive, free all resources, and store how it ended."""
        with self._lock:
            self._was_starting, self._end = self.is_starting, end
            self._flying.clear()
            self.progress = self.progress.copy()
            self.exitcode = self._free()
            del self._child

    def _require_alive(self) -> None:
        if self._end == _CLOSED:
            raise RuntimeError(f"{self} is closed: make a new WorkerProcess.")
        if self._end:
            raise WorkerDied(f"{self} is dead, make a new WorkerProcess: it {self._end}", self.exitcode)
