"""Events: delivered in order, each exactly once; an error of a listener is raised by `emit`."""

from __future__ import annotations

import contextvars
import math
import numbers
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ding_lite.basics.messages import add_note, describe_error
from ding_lite.engine.deferrals import Deferrals
from ding_lite.engine.lanes import current_lane
from ding_lite.engine.token_networks import Network
from ding_lite.pipeline.lifecycle import Lifecycle
from ding_lite.pipeline.pools import Pool, WouldBlockError

Listener = Callable[..., Any]
_LOOK_S = 0.2  # between two looks at whether threads of the script have ended
EventArguments = tuple[tuple[Any, ...], dict[str, Any]]


class _Delivery:
    """The time in which the listeners of one `emit` are called."""

    def __init__(self, events: Events) -> None:
        self.events, self.has_ended = events, False


_delivery: contextvars.ContextVar[_Delivery | None] = contextvars.ContextVar("delivery", default=None)


class Events:
    """Listeners by event name.

    Events are delivered on the thread that emits, before `emit` returns. One listener runs at a time; other threads that emit
    wait for their turn. Events that a listener emits are queued.

    Args:
        changed: notified when an awaited event is emitted, or when waiting may end for another reason.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._is_closed = False
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._listeners: dict[str, list[tuple[Listener, bool]]] = {}
        self._queue: deque[tuple[str, tuple[Any, ...], dict[str, Any]]] = deque()
        self._deliverer: int | None = None

    @property
    def is_delivering_here(self) -> bool:
        """Whether a listener calls this."""
        return self._deliverer == threading.get_ident()

    @property
    def is_within_listener(self) -> bool:
        """Whether a listener asks, or what it has begun on another thread, while it has not returned."""
        delivery = _delivery.get()
        return delivery is not None and delivery.events is self and not delivery.has_ended

    def on(self, event: str, fn: Listener, once: bool = False) -> None:
        """Call `fn` with the arguments of every later `emit(event, ...)`, or of the next one only."""
        if not callable(fn):
            raise TypeError(f"on({event!r}) wants a function to call, got {fn!r} of type {type(fn).__name__}.")
        with self._lock:
            self._listeners.setdefault(event, []).append((fn, once))

    def off(self, event: str, fn: Listener | None = None) -> None:
        """Remove one listener of this event, or all of them."""
        with self._lock:
            left = [] if fn is None else [entry for entry in self._listeners.get(event, []) if entry[0] != fn]
            self._listeners[event] = left

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Deliver to every listener, in the order in which they registered.

        Raises:
            BaseException: the first error of a listener, after all listeners were called; later errors are notes.
        """
        if self.is_delivering_here:
            self._queue.append((event, args, kwargs))
            return
        with self._turn:
            self._deliverer, delivery = threading.get_ident(), _Delivery(self)
            token = _delivery.set(delivery)
            try:
                self._queue.append((event, args, kwargs))
                self._deliver()
            finally:
                self._queue.clear()
                self._deliverer, delivery.has_ended = None, True
                _delivery.reset(token)

    def _deliver(self) -> None:
        first: BaseException | None = None
        later = 0
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
                        later += 1
                        text = f"a later listener, of {event!r}, raised {describe_error(error)}"
                        add_note(first, text, place=f"later listener {later}")
        if first is not None:
            raise first

    def wait_for(
        self,
        event: str,
        timeout: float | None,
        give_up: Callable[[], bool],
        waiting: AbstractContextManager[Any],
        came: Callable[[], None] | None = None,
    ) -> EventArguments | None:
        """Block until `event` is next emitted. Returns its arguments, or None.

        Waiting ends with the event, after the timeout, when the task stops, or when `give_up()` is true. Code that makes it
        true must notify `changed`.

        Args:
            event: name of the event.
            timeout: seconds; None for no limit.
            give_up: whether to end waiting.
            waiting: context manager that is entered while waiting, after the listener is registered.
            came: called once by the thread that emits.
        """
        received: list[EventArguments] = []

        def receive(*args: Any, **kwargs: Any) -> None:
            with self._changed:
                received.append((args, kwargs))
                if came is not None:
                    came()
                self._changed.notify_all()

        self.on(event, receive, once=True)
        try:
            with waiting, self._changed:
                limit = _LOOK_S if timeout is None else min(timeout, threading.TIMEOUT_MAX)
                while not self._changed.wait_for(lambda: bool(received) or self._is_closed or give_up(), limit):
                    if timeout is not None:
                        break
        finally:
            self.off(event, receive)
        return received[0] if received else None

    def close(self, timeout: float = 5.0) -> None:
        """Deliver queued events, or wait for the thread that delivers them; then remove all listeners."""
        if self.is_delivering_here:  # a listener is closing
            self._deliver()
        elif self._turn.acquire(timeout=timeout):
            self._turn.release()
        with self._lock:
            self._listeners.clear()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class EventsMixin(Lifecycle):
    """Something that emits events while it is open."""

    _events: Events
    _deferrals: Deferrals
    _network: Network | None
    _pool: Pool

    def emit(self, event: str, *args: Any, only_remote: bool = False, only_local: bool = False, **kwargs: Any) -> None:
        """Call every listener of `event` with these arguments, in order; raises the errors of listeners.

        Args:
            only_remote: skip listeners of this process.
            only_local: skip listeners of other processes.
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
        """Remove this listener of the event, or all of them."""
        self._require_open(f"off({event!r})")
        self._events.off(event, fn)

    def wait_for(
        self, event: str, timeout: float | None = math.inf, ignore_timeout_exception: bool = True
    ) -> EventArguments | None:
        """Block until another thread emits `event`.

        Waiting ends with the event, the timeout, `task.stop()`, or, in a middleware, the end of the run. Without a timeout, the
        thread that runs the task, and parts of `parallel` and `forward`, wait only while another of these, or another thread of
        the script, may emit. Another thread of the script may wait without a limit, until the task stops.

        Args:
            timeout: seconds; None for no limit. Where iterations overlap, middleware must set one.
            ignore_timeout_exception: return None after the timeout instead of raising.

        Returns:
            The arguments of `emit`, as (args, kwargs).

        Raises:
            TimeoutError: the event was not emitted in time.
            TypeError: the event is not a string, or the timeout not a number.
            ValueError: the timeout is negative or NaN.
            RuntimeError: no timeout is set, and nothing is left to emit it, or iterations overlap; or a listener asks, to which
                no other event can come.
        """
        self._require_open(f"wait_for({event!r})")
        limit = _limit_of(event, timeout)
        if self._events.is_within_listener:
            raise RuntimeError(
                f"task.wait_for({event!r}) inside the listener of an event would never see it: events are delivered one after "
                f"another, and this one is not done. Wait in the middleware that emits, or use task.once({event!r}, ...)."
            )
        if limit is None and (self._pool.knows_caller or current_lane() is not None or self._deferrals.current() is not None):
            received = self._wait_without_limit(event)
        else:
            received = self._events.wait_for(event, limit, lambda: self.stopping, self._pool.resting())
        if received is None and not ignore_timeout_exception:
            raise TimeoutError(f"task.wait_for({event!r}): not emitted within {timeout} s.")
        return received

    def _wait_without_limit(self, event: str) -> EventArguments | None:
        """Wait on a thread of the task, as long as another of its threads is running and could emit."""
        if self._network is not None:
            raise RuntimeError(
                f"task.wait_for({event!r}) may block for ever: no contract says that another lane emits it. Set a timeout "
                "where iterations overlap."
            )
        pool = self._pool
        sleep = pool.asleep()

        def nobody_is_left() -> bool:
            return self.stopping or (pool.is_asleep and not _is_script_on_other_threads(pool))

        received = self._events.wait_for(event, None, nobody_is_left, sleep, sleep.end)
        if received is None and not self.stopping:
            raise WouldBlockError(f"task.wait_for({event!r}) would block for ever: nothing is left to emit it. Set a timeout.")
        return received


def _is_script_on_other_threads(pool: Pool) -> bool:
    """Whether there are threads that the task did not start. Their end is not signalled, so this has to be polled."""
    mine = pool.home, threading.get_ident()
    return any(it.ident not in mine and not it.name.startswith("task.") for it in threading.enumerate())


def _limit_of(event: object, timeout: object) -> float | None:
    """The timeout in seconds, or None for no limit."""
    if not isinstance(event, str):
        raise TypeError(f"task.wait_for({event!r}) wants the name of one event, got {type(event).__name__}.")
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real):  # numpy's numbers are real ones, too
        raise TypeError(f"task.wait_for({event!r}, timeout={timeout!r}) wants seconds, or None, got {type(timeout).__name__}.")
    number: Any = timeout
    try:
        seconds = float(number)
    except OverflowError:
        seconds = math.inf if number > 0 else -math.inf
    if not seconds >= 0:
        raise ValueError(f"task.wait_for({event!r}, timeout={timeout!r}) wants seconds of at least 0, or None for no limit.")
    return None if seconds == math.inf else seconds
