"""Restarts: objects of a worker process that can be started again where it was."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ding_lite.basics.messages import add_note, name_of
from ding_lite.processes.errors import WorkerDied, WorkerHangs
from ding_lite.processes.hosts import Request, with_state
from ding_lite.processes.pickles import dumps
from ding_lite.processes.worker_processes import WorkerProcess

_ATTEMPTS = 3  # at one request, before whatever goes wrong there is taken to be lasting

States = dict[str, bytes | str]
"""By name of the object, its state, pickled; or why it cannot be had, which matters only if it is needed."""


@dataclasses.dataclass(eq=False)
class _Request:
    """What a process is asked."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    lasting: bytes | None
    prepare: Request | None
    is_unwanted: bool = False
    refusal: Exception | None = None
    """Why it could not be asked this time."""
    attempts: int = 0
    """Those that failed."""
    first_failure: str = ""
    error: Exception | None = None
    """What it came to, where no further attempt is made."""
    answer: tuple[Any, States | None, tuple[int, int]] | None = None

    @property
    def is_settled(self) -> bool:
        return self.error is not None or self.answer is not None


class ProcessHost:
    """Objects of a worker process, which is started again where it was when it was given back or, if wanted, when it died.

    A process that died otherwise, or was killed in the middle of a request, is started again where it was last known to be:
    when it was last given back, or last made something lasting.

    Starting again waits for nothing: the new process is sent what brings it there and, behind that, all requests in flight.
    When no further attempt is made at a request, those behind it fail with it. So the time until an error is raised does not
    grow with the number of requests in flight or, through `check`, of hosts.

    Args:
        name, progress_size, describe, timeout_s, start_timeout_s: of its `WorkerProcess`.
        restart: when the process dies or hangs, or a request raises, start a new one from the last acknowledged state, and ask
            it again; the third time in a row it is an error. A process that is not there in time is one at once. Costs the
            transfer of that state with every answer.
        depth: requests that may be in flight at a time. One thread may submit them while another takes the results.
    """

    works_in_background = True

    def __init__(
        self,
        name: str,
        progress_size: int = 0,
        describe: Callable[[NDArray[np.int64]], str] | None = None,
        timeout_s: float = 60.0,
        restart: bool = False,
        depth: int = 1,
        start_timeout_s: float = 120.0,
    ) -> None:
        self.name, self.restart, self._depth = name, restart, depth
        self._close_timeout_s = min(2.0, timeout_s)
        self.starts = self.restarts = 0
        """How often a process was started, and how often in place of one that failed."""
        # Beside the requests, what brings a new process there, and the last look at its state.
        self._new_process = partial(WorkerProcess, name, progress_size, describe, timeout_s, start_timeout_s, depth + 3)
        self._lasting: list[bytes] = []
        self._known: States = {}
        """From which a new process goes on."""
        self.span: tuple[int, int] | None = None
        """When the work on the last result began and ended there, in nanoseconds on the clock of `time.perf_counter_ns`."""
        self._requests: deque[_Request] = deque()
        self._left_to_set_up = 0  # answers of the process that come before that to the first request
        self._parting: _Request | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._process: WorkerProcess | None = None
        self._start()

    def _start(self) -> WorkerProcess:
        self._process = self._new_process()
        self.starts += 1
        return self._process

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def submit(self, fn: Callable[..., Any], *args: Any, lasting: bool = False, prepare: Request | None = None) -> Any:
        """Ask for `fn(objects, *args)`. What goes wrong on the way is raised by `result`, unless it is a wrong order.

        Returns:
            The request, for `forget`.

        Raises:
            RuntimeError: a request is in flight, or the host is closed.
            Exception: something lasting cannot be pickled.
        """
        if self._is_closed:
            raise RuntimeError(f"worker {self.name!r} is closed, and cannot run {name_of(fn)}(): make another one.")
        if len(self._requests) >= self._depth:
            raise RuntimeError(
                f"worker {self.name!r} was given {name_of(fn)}() while a request is in flight: take its result()."
            )
        packed = None
        if lasting:
            try:
                packed = dumps((fn, args), by_value=True)
            except Exception as error:
                add_note(
                    error, f"{name_of(fn)}() and its arguments were to be sent to worker {self.name!r}, pickled by cloudpickle."
                )
                raise
            # As bytes: what it makes lives longer than the shared memory by which large arrays travel.
            fn, args = _run_packed, (packed,)
        return self._put(_Request(fn, args, packed, prepare))

    def _put(self, request: _Request) -> _Request:
        with self._lock:
            self._requests.append(request)
            self._ask(request)
        return request

    def _ask(self, request: _Request) -> None:
        request.refusal = None
        try:
            process = self._process or self._started_again(request.prepare)
            makes = request.lasting is not None
            process.submit(_serve, request.fn, request.args, self.restart or makes, is_start=makes)
        except Exception as error:  # noqa: BLE001  raised by result(), which is able to mend it
            request.refusal = error

    def _started_again(self, prepare: Request | None) -> WorkerProcess:
        required = self._required(self._known)
        process = self._start()
        try:
            process.submit(_make_again, self._lasting, is_start=True)
            process.submit(_go_on_from, required, prepare)
        except BaseException:
            self._drop()
            raise
        self._left_to_set_up = 2
        return process

    def result(self, is_stopping: Callable[[], bool] = lambda: False, request: Any = None) -> Any:
        """What the first request in flight gave, or raised.

        Args:
            is_stopping: asked a few times a second; once it is true, the process is killed.
            request: which one is meant, as `submit` returned it; None for the first, whichever it is.

        Raises:
            RuntimeError: nothing is in flight, or the first is another one than is meant.
            WorkerDied: the process is gone, or hung and was killed.
            InterruptedError: `is_stopping()` became true; the process was killed.
            Exception: what the function raised.
        """
        while self._requests and self._requests[0].is_unwanted:
            self._wait(self._requests[0], is_stopping)
            self._done()
        if not self._requests or (request is not None and self._requests[0] is not request):
            if request is not None:
                self.forget(request)
            what = "another request is first" if self._requests else "nothing is in flight"
            raise RuntimeError(f"worker {self.name!r} was asked for a result while {what}: take them in the order of asking.")
        self._wait(self._requests[0], is_stopping)
        return self._value_of(self._done())

    def forget(self, request: Any) -> None:
        """Nobody wants what this request gives, which `submit` returned."""
        request.is_unwanted = True

    def check(self) -> None:
        """See how the process is, without waiting: take the answer to the first request that is wanted, and start the process
        again where it died, hangs or raised. `result` then has less to wait for.

        Called several times a second while the result of another host is awaited, by that thread.
        """
        while self._requests and (self._requests[0].is_settled or self._settles(self._requests[0], wait=False)):
            if not self._requests[0].is_unwanted:
                return
            self._done()

    def _wait(self, request: _Request, is_stopping: Callable[[], bool]) -> None:
        try:
            while not request.is_settled:
                if is_stopping():
                    raise InterruptedError(f"worker {self.name!r} still works on its request, which nobody waits for any more.")
                self._settles(request, wait=True)
        except BaseException as error:  # Ctrl-C too: nobody will take the answer
            with self._lock:
                self._requests.popleft()
                self._end(error)
            raise

    def _settles(self, request: _Request, wait: bool) -> bool:
        """Whether the first request has an answer now, or an error that is the last word."""
        try:
            if request.refusal is not None:
                raise request.refusal
            assert self._process is not None
            if not self._process.poll(wait):
                return False
            answer = self._process.result()
            if self._left_to_set_up:
                self._left_to_set_up -= 1
            else:
                request.answer = answer
        except Exception as error:  # noqa: BLE001  raised by result(), unless the next attempt succeeds
            self._failed(request, error)
        return request.is_settled

    def _failed(self, request: _Request, error: Exception) -> None:
        """Start the process again and ask everything again; or leave it at this error."""
        described = f"{type(error).__name__}: {error}"
        request.attempts += 1
        request.first_failure = request.first_failure or described
        process = self._process
        never_started = isinstance(error, WorkerHangs) and process is not None and process.is_starting
        with self._lock:
            if self.restart and request.attempts < _ATTEMPTS and not never_started:
                self.restarts += 1
                self._drop()
                for waiting in self._requests:
                    self._ask(waiting)
                return
            if request.attempts > 1:
                began = "" if described == request.first_failure else f"; the first ended with {request.first_failure}"
                add_note(error, f"this was attempt {request.attempts} at the same request, each in a new process{began}")
            request.error = error
            if isinstance(error, WorkerDied) or self._left_to_set_up:
                self._end(error)

    def _done(self) -> _Request:
        """Take the first request, which is settled, from those in flight."""
        request = self._requests[0]
        if request.answer is not None:
            _, known, self.span = request.answer
            if request.lasting is not None:
                self._lasting.append(request.lasting)
            self._known = self._known if known is None else known
        with self._lock:
            self._requests.popleft()
        return request

    @staticmethod
    def _value_of(request: _Request) -> Any:
        if request.error is not None:
            try:
                raise request.error
            finally:
                request.error = None  # it refers to this frame
        assert request.answer is not None, "a request that is settled has an answer or an error"
        return request.answer[0]

    def _end(self, ended: BaseException) -> None:
        """End the process, of which requests that are not settled have no answer any more."""
        self._drop()
        for waiting in self._requests:
            if not waiting.is_settled:
                waiting.error = WorkerDied(f"worker {self.name!r} had ended before it came to this: {ended}")

    def _required(self, states: States) -> dict[str, bytes]:
        """The same, if each can be had."""
        required: dict[str, bytes] = {}
        for name, state in states.items():
            if isinstance(state, str):
                raise RuntimeError(f"worker {self.name!r} cannot go on where it was, because its state is not known: {state}")
            required[name] = state
        return required

    def _drop(self) -> None:
        if self._process is not None:
            self._process.close(self._close_timeout_s)
        self._process, self._left_to_set_up = None, 0

    def state(self, *names: str) -> dict[str, Any]:
        """By name, the state of each of these objects; where none is named, of each that has a `state_dict`.

        The last known one where there is no process.

        Raises:
            RuntimeError: one of these cannot be had.
        """
        return {name: pickle.loads(state) for name, state in self._required(self._states(names)).items()}

    def _states(self, names: Sequence[str] = ()) -> States:
        if self._process is not None and not self.restart:
            states: States = self.result(request=self.submit(_kept_states, names))
            self._known = self._known if names else states
            return states
        return {name: self._known[name] for name in names or self._known}

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Bring the objects of these names back to these states."""
        packed = {name: dumps(state, by_value=True) for name, state in states.items()}
        before = self._states()
        if self._process is not None:
            self.result(request=self.submit(_load, packed))
        self._known = {**before, **packed}

    def begin_release(self, at_once: bool = False) -> None:
        """Begin `release`, without waiting: nobody wants what is in flight, and nothing more comes.

        Args:
            at_once: kill the process where a request is in flight, as `close` does.
        """
        if at_once and any(request is not self._parting for request in self._requests):
            self._requests.clear()
            self._parting = None
            self._drop()
        for request in self._requests:
            request.is_unwanted = request is not self._parting
        if self._process is None or self._parting is not None or self._process.is_finished:
            return
        if not self.restart:
            self._parting = self._put(_Request(_kept_states, (), None, None))
        self._process.finish()

    def release(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """End the process, when what is in flight is done. The next request starts one that goes on from where this one was.

        Args:
            is_stopping: once it is true, what is in flight is not waited for.
        """
        self.begin_release()
        parting, self._parting = self._parting, None
        try:
            while self._requests and self._requests[0] is not parting:
                self._wait(self._requests[0], is_stopping)
                self._done()
            if parting is not None:
                with contextlib.suppress(WorkerDied):  # then it goes on from the last state that is known
                    self._known = self.result(is_stopping, parting)
        except InterruptedError:
            self._requests.clear()
        self._drop()

    def close(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """End the process for good, at once where a request is in flight. Its last state is still known."""
        self.begin_release(at_once=True)
        if not self._is_closed:
            self.release(is_stopping)
        self._is_closed = True


# What runs in the process.


def _serve(objects: dict[str, Any], fn: Callable[..., Any], args: tuple[Any, ...], wants_state: bool) -> tuple[Any, ...]:
    begun = time.perf_counter_ns()
    value = fn(objects, *args)
    return value, _kept_states(objects) if wants_state else None, (begun, time.perf_counter_ns())


def _make_again(objects: dict[str, Any], lasting: Sequence[bytes]) -> None:
    """Make what the process before this one had made."""
    for packed in lasting:
        _run_packed(objects, packed)


def _go_on_from(objects: dict[str, Any], states: Mapping[str, bytes], prepare: Request | None) -> None:
    """Bring it to where that one was."""
    _load(objects, states)
    if prepare is not None:
        fn, args = prepare
        fn(objects, *args)


def _run_packed(objects: dict[str, Any], packed: bytes) -> Any:
    fn, args = pickle.loads(packed)
    return fn(objects, *args)


def _kept_states(objects: dict[str, Any], names: Sequence[str] = ()) -> States:
    return {name: _kept_state(objects[name]) for name in names or with_state(objects)}


def _kept_state(thing: Any) -> bytes | str:
    try:
        return dumps(thing.state_dict())
    except Exception as error:  # noqa: BLE001  anybody's code; raised where the state is needed
        return f"{type(error).__name__}: {error}"


def _load(objects: dict[str, Any], packed: Mapping[str, bytes]) -> None:
    for name, state in packed.items():
        objects[name].load_state_dict(pickle.loads(state))
