"""Restarts: objects of a worker process that can be restarted in the same state."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
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

_logger = logging.getLogger(__name__)

_ATTEMPTS = 3  # maximum number of attempts at one request

States = dict[str, bytes | str]
"""The pickled state of each object by name; or the reason why there is none, for an error if it is needed."""


@dataclasses.dataclass(eq=False)
class _Request:
    """A request to the process."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    lasting: bytes | None
    prepare: Request | None
    is_unwanted: bool = False
    refusal: Exception | None = None
    """The error of sending it in this attempt."""
    attempts: int = 0
    """Number of failed attempts."""
    first_failure: str = ""
    error: Exception | None = None
    """The final error, after which there is no further attempt."""
    answer: tuple[Any, States | None, tuple[int, int]] | None = None

    @property
    def is_settled(self) -> bool:
        return self.error is not None or self.answer is not None


class ProcessHost:
    """Objects of a worker process, which is restarted in the same state after `release` and, with `restart`, after a failure.

    Without `restart`, a process that died or was killed during a request is restarted from its last known state: that of the
    last `release`, or of the last request that created objects.

    A restart does not wait: the new process is sent the requests that restore its state, and then all requests in flight. If a
    request finally fails, those after it fail too. So the time until an error is raised does not grow with the number of
    requests in flight or, because of `check`, of hosts.

    Args:
        name, progress_size, describe, timeout_s, start_timeout_s: arguments of `WorkerProcess`.
        restart: if the process dies or hangs, or a request raises an error, start a new process from the state after the last
            answer, and repeat the request; the third failure of a request is final, and so is a process that does not start in
            time. Every answer then includes the state of the objects.
        depth: maximum number of requests in flight. One thread may submit them while another takes the results.
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
        """Number of started processes, and of those that replaced a failed one."""
        # depth + 3: two more requests restore the state of a new process, and one saves the last state.
        self._new_process = partial(WorkerProcess, name, progress_size, describe, timeout_s, start_timeout_s, depth + 3)
        self._lasting: list[bytes] = []
        self._known: States = {}
        """The states from which a new process continues."""
        self.span: tuple[int, int] | None = None
        """Begin and end of the work on the last result, in nanoseconds of `time.perf_counter_ns`."""
        self._requests: deque[_Request] = deque()
        self._left_to_set_up = 0  # number of answers to requests that restore the state, before that to the first request
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
        """Id of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def submit(self, fn: Callable[..., Any], *args: Any, lasting: bool = False, prepare: Request | None = None) -> Any:
        """Request `fn(objects, *args)`; see `Host.submit`. Other errors than these are raised by `result`.

        Returns:
            The request, for `result` and `forget`.

        Raises:
            RuntimeError: there are `depth` requests in flight, or the host is closed.
            Exception: a `lasting` request cannot be pickled.
        """
        if self._is_closed:
            raise RuntimeError(f"worker {self.name!r} is closed, and cannot run {name_of(fn)}(): make a new one.")
        if len(self._requests) >= self._depth:
            raise RuntimeError(
                f"worker {self.name!r} got {name_of(fn)}() while a request is in flight: take its result() first."
            )
        packed = None
        if lasting:
            try:
                packed = dumps((fn, args), by_value=True)
            except Exception as error:
                add_note(
                    error,
                    f"{name_of(fn)}() and its arguments were pickled by cloudpickle, to send them to worker {self.name!r}.",
                )
                raise
            # As bytes, because the created objects live longer than the shared memory in which large arrays are sent.
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
        except Exception as error:  # noqa: BLE001  raised by result(), if the next attempts fail too
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
        """Wait for the result of the first request in flight.

        Args:
            is_stopping: called a few times a second; once it is true, the process is killed.
            request: the expected request, as returned by `submit`; None for any.

        Raises:
            RuntimeError: nothing is in flight, or the first request is not the expected one.
            WorkerDied: the process has ended, or hung and was killed.
            InterruptedError: `is_stopping()` became true; the process was killed.
            Exception: the error of the function.
        """
        while self._requests and self._requests[0].is_unwanted:
            self._wait(self._requests[0], is_stopping)
            self._done()
        if not self._requests or (request is not None and self._requests[0] is not request):
            if request is not None:
                self.forget(request)
            what = "another request is first" if self._requests else "nothing is in flight"
            raise RuntimeError(f"result() of worker {self.name!r} while {what}: take results in the order of submit().")
        self._wait(self._requests[0], is_stopping)
        return self._value_of(self._done())

    def forget(self, request: Any) -> None:
        """Discard the result of this request, which `submit` returned."""
        request.is_unwanted = True

    def check(self) -> None:
        """Check the process without waiting: take the answer to the first request that is not discarded, and restart the
        process if it died, hangs or raised an error.

        The thread that waits for the result of another host calls it several times a second.
        """
        while self._requests and (self._requests[0].is_settled or self._settles(self._requests[0], wait=False)):
            if not self._requests[0].is_unwanted:
                return
            self._done()

    def _wait(self, request: _Request, is_stopping: Callable[[], bool]) -> None:
        try:
            while not request.is_settled:
                if is_stopping():
                    raise InterruptedError(f"worker {self.name!r} was stopped during its request, because the run is stopping.")
                self._settles(request, wait=True)
        except BaseException as error:  # also Ctrl-C, because the answer will not be taken
            with self._lock:
                self._requests.popleft()
                self._end(error)
            raise

    def _settles(self, request: _Request, wait: bool) -> bool:
        """Check the first request. Returns whether it has an answer or a final error."""
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
        """Restart the process and repeat all requests, or make this error the final one."""
        described = f"{type(error).__name__}: {error}"
        request.attempts += 1
        request.first_failure = request.first_failure or described
        process = self._process
        never_started = isinstance(error, WorkerHangs) and process is not None and process.is_starting
        with self._lock:
            if self.restart and request.attempts < _ATTEMPTS and not never_started:
                self.restarts += 1
                _logger.info("worker %r is started again, because it failed: %s", self.name, described)
                self._drop()
                for waiting in self._requests:
                    self._ask(waiting)
                return
            if request.attempts > 1:
                began = "" if described == request.first_failure else f"; the first ended with {request.first_failure}"
                add_note(error, f"this was attempt {request.attempts} of the same request, each in a new process{began}")
            request.error = error
            if isinstance(error, WorkerDied) or self._left_to_set_up:
                self._end(error)

    def _done(self) -> _Request:
        """Remove the first request, which is settled, and return it."""
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
        """End the process. Requests without an answer fail."""
        self._drop()
        for waiting in self._requests:
            if not waiting.is_settled:
                waiting.error = WorkerDied(f"worker {self.name!r} had ended before this request began: {ended}")

    def _required(self, states: States) -> dict[str, bytes]:
        """These states, if all of them are available; else an error."""
        required: dict[str, bytes] = {}
        for name, state in states.items():
            if isinstance(state, str):
                raise RuntimeError(f"worker {self.name!r} cannot continue, because the state of {name!r} is not known: {state}")
            required[name] = state
        return required

    def _drop(self) -> None:
        if self._process is not None:
            self._process.close(self._close_timeout_s)
        self._process, self._left_to_set_up = None, 0

    def state(self, *names: str) -> dict[str, Any]:
        """The state of each of these objects by name; without names, of each object that has a `state_dict`.

        It is the last known state if there is no process.

        Raises:
            RuntimeError: a `state_dict` raised an error.
        """
        return {name: pickle.loads(state) for name, state in self._required(self._states(names)).items()}

    def _states(self, names: Sequence[str] = ()) -> States:
        if self._process is not None and not self.restart:
            states: States = self.result(request=self.submit(_kept_states, names))
            self._known = self._known if names else states
            return states
        return {name: self._known[name] for name in names or self._known}

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Restore these states of the objects with these names."""
        packed = {name: dumps(state, by_value=True) for name, state in states.items()}
        before = self._states()
        if self._process is not None:
            self.result(request=self.submit(_load, packed))
        self._known = {**before, **packed}

    def begin_release(self, at_once: bool = False) -> None:
        """Begin `release`, without waiting: results of requests in flight are discarded, and no further requests are sent.

        Args:
            at_once: kill the process if a request is in flight, as `close` does.
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
        """End the process after the requests in flight. The next request starts a new process in the same state.

        Args:
            is_stopping: once it is true, requests in flight are not waited for.
        """
        self.begin_release()
        parting, self._parting = self._parting, None
        try:
            while self._requests and self._requests[0] is not parting:
                self._wait(self._requests[0], is_stopping)
                self._done()
            if parting is not None:
                with contextlib.suppress(WorkerDied):  # then it continues from the last known state
                    self._known = self.result(is_stopping, parting)
        except InterruptedError:
            self._requests.clear()
        self._drop()

    def close(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """End the process permanently, at once if a request is in flight. `state` still returns its last known state."""
        self.begin_release(at_once=True)
        if not self._is_closed:
            self.release(is_stopping)
        self._is_closed = True


# Functions that run in the worker process.


def _serve(objects: dict[str, Any], fn: Callable[..., Any], args: tuple[Any, ...], wants_state: bool) -> tuple[Any, ...]:
    begun = time.perf_counter_ns()
    value = fn(objects, *args)
    return value, _kept_states(objects) if wants_state else None, (begun, time.perf_counter_ns())


def _make_again(objects: dict[str, Any], lasting: Sequence[bytes]) -> None:
    """Create the objects of the previous process."""
    for packed in lasting:
        _run_packed(objects, packed)


def _go_on_from(objects: dict[str, Any], states: Mapping[str, bytes], prepare: Request | None) -> None:
    """Restore the state of the previous process."""
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
    except Exception as error:  # noqa: BLE001  user code; raised when the state is needed
        return f"{type(error).__name__}: {error}"


def _load(objects: dict[str, Any], packed: Mapping[str, bytes]) -> None:
    for name, state in packed.items():
        objects[name].load_state_dict(pickle.loads(state))
