"""Pools: concurrent calls on a limited number of threads, without deadlocks if calls wait for each other."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any, TypeVar

from ding_lite.basics.blocks import block
from ding_lite.basics.torch_threads import torch_threads_here, use_torch_threads

Result = TypeVar("Result")
POOL = "task.parallel"
"""Prefix of the names of threads that run middleware."""


class _Here(threading.local):
    """What a thread does."""

    is_busy = False


class WouldBlockError(RuntimeError):
    """A thread waits for an event that nothing is left to emit, perhaps because other parts failed."""


class _Waiter:
    """A wait for the end of `left` calls."""

    def __init__(self, left: int) -> None:
        self.left = left


class _Result(Future[Any]):
    """The result of a call. A call of the same pool that asks for it lends its place while it waits."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    def result(self, timeout: float | None = None) -> Any:
        """What the call gave."""
        with self._pool.resting():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, or None."""
        with self._pool.resting():
            return super().exception(timeout)


class _Call:
    """One call of the pool."""

    def __init__(self, fn: Callable[[], Any], pool: Pool) -> None:
        self.fn, self.future, self.has_ended = fn, _Result(pool), False
        self.torch_count = torch_threads_here()
        self.waiters: list[_Waiter] = []

    def run(self, before_end: Callable[[_Call], None]) -> None:
        """Make the call; its future is set after `before_end` was called."""
        result, error = None, None
        is_wanted = self.future.set_running_or_notify_cancel()
        try:
            result = self.fn() if is_wanted else None
        except BaseException as raised:  # noqa: BLE001  raised by the future
            error = raised
        before_end(self)
        if error is not None:
            self.future.set_exception(error)
        elif is_wanted:
            self.future.set_result(result)


class Pool:
    """Threads for concurrent calls. At most `size` calls run at a time, besides those that have waited meanwhile.

    A call that waits for another call or lane frees its place for the next call, so waiting calls cannot block the pool.

    The pool also counts which of its threads, and the thread that runs the task, are awake: if none is, an awaited event
    cannot come.

    Args:
        size: maximum number of running calls.
        changed: notified when no thread is awake any more.
    """

    def __init__(self, size: int, changed: threading.Condition) -> None:
        self._size, self._changed = size, changed
        self._lock = threading.Lock()
        self._backlog: deque[_Call] = deque()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()  # admitted
        self._call_of: dict[Future[Any], _Call] = {}
        self._threads: list[threading.Thread] = []
        self._busy = self._idle = 0
        self._is_closing = False
        self._here = _Here()
        self._awake = 1  # the task's thread and all unfinished calls, except those that wait
        self.home = threading.get_ident()
        """Identifier of the thread that runs the task."""

    @property
    def is_here(self) -> bool:
        """Whether a call of the pool calls this."""
        return self._here.is_busy

    @property
    def knows_caller(self) -> bool:
        """Whether the caller is a counted thread, not another thread of the script."""
        return self.is_here or threading.get_ident() == self.home

    @property
    def is_asleep(self) -> bool:
        """Whether no counted thread is awake."""
        return self._awake <= 0

    def submit(self, fn: Callable[[], Result]) -> Future[Result]:
        """Call `fn` on one of the threads, when a place is free."""
        call = _Call(fn, self)
        with self._lock:
            self._awake += 1
            self._call_of[call.future] = call
            self._backlog.append(call)
            self._admit()
        return call.future

    def wait(self, calls: Sequence[Future[Any]]) -> None:
        """Wait until these calls have ended; the caller's own place is free meanwhile."""
        waiter = _Waiter(0)
        with self._lock:
            for future in calls:
                call = self._call_of.get(future)
                if call is not None and not call.has_ended:
                    call.waiters.append(waiter)
                    waiter.left += 1
            self._awake -= waiter.left > 0
        self._say_if_asleep()
        with self.resting():
            futures.wait(calls)

    @block
    def resting(self) -> Iterator[None]:
        """Within this block, a call of the pool waits, and its place is free for the next call."""
        is_here = self.is_here
        if is_here:
            with self._lock:
                self._busy -= 1
                self._admit()
        try:
            yield
        finally:
            if is_here:
                with self._lock:  # does not wait for a place, because others may wait for this call
                    self._busy += 1

    def asleep(self) -> Sleep:
        """Within this block the caller sleeps, until another thread ends its sleep."""
        return Sleep(self)

    def count_awake(self, change: int) -> None:
        """Add `change` to the number of threads that are awake."""
        with self._lock:
            self._awake += change
        self._say_if_asleep()

    def close(self) -> None:
        """End the threads after all calls, and wait for that; a thread of the pool does not wait for itself."""
        with self._lock:
            self._is_closing = True
            for _ in range(self._idle):
                self._calls.put(None)
            self._idle = 0
        while not self.is_here:
            with self._lock:  # what still runs may begin more calls meanwhile
                left = [thread for thread in self._threads if thread.is_alive()]
            if not left:
                return
            for thread in left:
                thread.join()

    def _say_if_asleep(self) -> None:
        if self.is_asleep:
            with self._changed:
                self._changed.notify_all()

    def _admit(self) -> None:
        while self._backlog and self._busy < self._size:
            self._busy += 1
            self._calls.put(self._backlog.popleft())
            if self._idle:
                self._idle -= 1
            else:
                number = len(self._threads)
                thread = threading.Thread(target=self._work, name=f"{POOL}_{number}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._here.is_busy = True
            use_torch_threads(call.torch_count)  # as on the submitting thread, so that the result is the same
            call.run(self._end)
            self._here.is_busy = False
            del call
            with self._lock:
                self._busy -= 1
                self._idle += 1
                self._admit()
                if self._is_closing and self._idle:
                    self._idle -= 1
                    return

    def _end(self, call: _Call) -> None:
        with self._lock:
            call.has_ended = True
            del self._call_of[call.future]
            self._awake -= 1
            for waiter in call.waiters:
                waiter.left -= 1
                self._awake += waiter.left == 0  # at the same moment, the waiting thread continues
        self._say_if_asleep()


class Sleep:
    """A wait of one thread that a pool counts.

    Args:
        pool: the pool that counts it.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool, self._resting = pool, pool.resting()
        self._lock, self._has_ended = threading.Lock(), False

    def __enter__(self) -> None:
        self._pool.count_awake(-1)
        self._resting.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._resting.__exit__(*raised)
        self.end()

    def end(self) -> None:
        """Count the thread as awake from now on, even before it continues."""
        with self._lock:
            has_ended, self._has_ended = self._has_ended, True
        if not has_ended:
            self._pool.count_awake(1)
