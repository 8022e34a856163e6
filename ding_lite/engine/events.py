"""Events: in order, each exactly once, and a listener's error leaves the `emit` that called it."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ding_lite.basics.messages import add_note
from ding_lite.engine.networks import Network
from ding_lite.pipeline.lifecycles import POOL, Openable

Listener = Callable[..., Any]
EventArguments = tuple[tuple[Any, ...], dict[str, Any]]
_POLL_S = 0.05


class Events:
    """Listeners by event name.

    Delivery happens on the thread that emits, before `emit` returns, and one listener runs at a time: another thread that emits
    meanwhile waits for its turn. What a listener emits is queued behind the events before it.
    """

    def __init__(self) -> None:
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._listeners: dict[str, list[tuple[Listener, bool]]] = {}
        self._queue: deque[tuple[str, tuple[Any, ...], dict[str, Any]]] = deque()
        self._deliverer: int | None = None

    @property
    def is_delivering_here(self) -> bool:
        """Whether a listener is what asks."""
        return self._deliverer == threading.get_ident()

    def on(self, event: str, fn: Listener, once: bool = False) -> None:
        """Call `fn` with the arguments of every later `emit(event, ...)`, or of the next one only."""
        if not callable(fn):
            raise TypeError(f"on({event!r}) wants a function to call, got {fn!r} of type {type(fn).__name__}.")
        with self._lock:
            self._listeners.setdefault(event, []).append((fn, once))

    def off(self, event: str, fn: Listener | None = None) -> None:
        """Forget one listener of this event, or all of them."""
        with self._lock:
            left = [] if fn is None else [entry for entry in self._listeners.get(event, []) if entry[0] != fn]
            self._listeners[event] = left

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Deliver to every listener, in the order in which they registered.

        Raises:
            BaseException: what the first failing listener raised, when all others have been called; their errors as notes.
        """
        if self.is_delivering_here:
            self._queue.append((event, args, kwargs))
            return
        with self._turn:
            self._deliverer = threading.get_ident()
            try:
                self._queue.append((event, args, kwargs))
                self._deliver()
            finally:
                self._queue.clear()
                self._deliverer = None

    def _deliver(self) -> None:
        first: BaseException | None = None
        while self._queue:
            event, args, kwargs = self._queue.popleft()
            with self._lock:
                listeners = self._listeners.get(event, [])
                self._listeners[event] = [entry for entry in listeners if not entry[1]]
            for fn, _ in listeners:
                try:
                    fn(*args, **kwargs)
                except BaseException as error:  # noqa: BLE001  the other listeners still get their event
                    if first is None:
                        first = error
                        add_note(first, f"raised by a listener of the event {event!r}")
                    else:
                        add_note(first, f"a later listener, of {event!r}, raised {type(error).__name__}: {error}")
        if first is not None:
            raise first

    def wait_for(self, event: str, timeout: float, give_up: Callable[[], bool]) -> EventArguments | None:
        """Block until `event` is next emitted; its arguments, or None after `timeout` seconds or when `give_up()` is true."""
        received: list[EventArguments] = []
        arrived = threading.Event()

        def receive(*args: Any, **kwargs: Any) -> None:
            received.append((args, kwargs))
            arrived.set()

        self.on(event, receive, once=True)
        deadline = time.monotonic() + timeout
        while not arrived.wait(max(0.0, min(_POLL_S, deadline - time.monotonic()))):
            if time.monotonic() >= deadline or give_up():
                self.off(event, receive)
                break
        return received[0] if received else None

    def close(self, timeout: float = 5.0) -> None:
        """Deliver what is queued, or wait until the thread that delivers has done so; then forget every listener."""
        if self.is_delivering_here:  # a listener is closing
            self._deliver()
        elif self._turn.acquire(timeout=timeout):
            self._turn.release()
        with self._lock:
            self._listeners.clear()


def _is_idle(thread: threading.Thread, in_pool: bool) -> bool:
    """Whether this other thread cannot emit: the pool's to anybody outside it; to those in it, the one that waits for them."""
    return thread.name.startswith(POOL) or (in_pool and thread is threading.main_thread())


class HasEvents(Openable):
    """Something that emits events while it is open."""

    _events: Events
    _network: Network | None

    def emit(self, event: str, *args: Any, only_remote: bool = False, only_local: bool = False, **kwargs: Any) -> None:
        """Call every listener of `event` with these arguments, in order; their errors leave here.

        Args:
            only_remote: leave out this process.
            only_local: leave out other processes.
        """
        self._require_open(f"emit({event!r})")
        if not only_remote:
            self._events.emit(event, *args, **kwargs)

    def on(self, event: str, fn: Listener) -> None:
        """Call `fn` at each `emit` of this event, until the task stops."""
        self._require_open(f"on({event!r})")
        self._events.on(event, fn)

    def once(self, event: str, fn: Listener) -> None:
        """Call `fn` at the next `emit` of this event only."""
        self._require_open(f"once({event!r})")
        self._events.on(event, fn, once=True)

    def off(self, event: str, fn: Listener | None = None) -> None:
        """Forget this listener of the event, or all of them."""
        self._require_open(f"off({event!r})")
        self._events.off(event, fn)

    def wait_for(
        self, event: str, timeout: float | None = math.inf, ignore_timeout_exception: bool = True
    ) -> EventArguments | None:
        """Block until another thread emits `event`.

        Args:
            timeout: seconds; None for no limit.
            ignore_timeout_exception: return None after the timeout instead of raising.

        Returns:
            The arguments of `emit`, as (args, kwargs).

        Raises:
            TimeoutError: nobody emitted it in time.
            RuntimeError: no timeout is set, and nobody is left who could emit it: no other thread, or inside `parallel` only
                others that wait as well.
        """
        self._require_open(f"wait_for({event!r})")
        timeout = math.inf if timeout is None else timeout
        with nullcontext() if self._network is None else self._network.resting():
            if timeout == math.inf:
                received = self._wait_without_limit(event)
            else:
                received = self._events.wait_for(event, timeout, give_up=lambda: self.stopping)
        if received is None and not ignore_timeout_exception:
            raise TimeoutError(f"task.wait_for({event!r}): nobody emitted it within {timeout} s.")
        return received

    def _wait_without_limit(self, event: str) -> EventArguments | None:
        here, network = threading.current_thread(), self._network
        in_pool = here.name.startswith(POOL)
        may_start = in_pool or network is not None  # something else, in a moment
        looks = 0

        def nobody_is_left() -> bool:
            nonlocal looks
            others = [it for it in threading.enumerate() if it is not here and not _is_idle(it, in_pool)]
            alone = all(network is not None and network.is_at_rest(thread) for thread in others)
            stuck = alone and (not in_pool or self._parts.waiting >= self._parts.running)
            looks = looks + 1 if stuck else 0
            return looks > (2 if may_start else 0)

        with self._parts.counted("waiting") if in_pool else nullcontext():
            stuck = not may_start and nobody_is_left()
            received = None if stuck else self._events.wait_for(event, math.inf, lambda: self.stopping or nobody_is_left())
        if received is None and not self.stopping:
            raise RuntimeError(f"task.wait_for({event!r}) would block for ever: nobody is left to emit it. Set a timeout.")
        return received
