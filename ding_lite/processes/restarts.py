"""Restarts: objects of a worker, such as a process, that can be restarted in the same state."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pickle
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ding_lite.basics.messages import add_note, describe_error, name_of, words_of
from ding_lite.processes.errors import WorkerDied, WorkerHangs
from ding_lite.processes.hosts import Request, make_objects, require_objects, with_state
from ding_lite.processes.pickles import Shared, dumps
from ding_lite.processes.worker_processes import WorkerProcess

_logger = logging.getLogger(__name__)

_WITHOUT_STATE = ""
"""In place of a name, for objects of which none has a state: a new process could not have what they had."""

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
    gone: tuple[str, ...] = ()
    """Names of discarded objects, which the process removes first."""

    @property
    def is_settled(self) -> bool:
        return self.error is not None or self.answer is not None


class Worker(Protocol):
    """A process that holds objects and runs functions on them: `WorkerProcess` on this machine, or an actor of a cluster."""

    @property
    def pid(self) -> int | None:
        """Id of the process; None while it is not known."""

    @property
    def is_starting(self) -> bool:
        """Whether it is not ready for requests yet, or creates objects; after its end, whether this was so at the end."""

    @property
    def is_finished(self) -> bool:
        """Whether `finish` or `close` was called, or the process has ended."""

    def submit(self, function: Callable[..., Any], *args: Any, is_start: bool = False) -> None:
        """Let it run `function(objects, *args)`; see `WorkerProcess.submit`."""

    def poll(self, wait: bool = False) -> bool:
        """Whether the answer to the first request in flight has arrived; see `WorkerProcess.poll`."""

    def result(self) -> Any:
        """The result of the first request in flight; see `WorkerProcess.result`."""

    def finish(self) -> None:
        """Send no further requests: it answers those in flight, closes its objects and ends, without a wait here."""

    def close(self, timeout_s: float) -> None:
        """End the process. It closes its objects; it is killed after `timeout_s`, or at once if a request is in flight."""


@dataclasses.dataclass(frozen=True)
class Patience:
    """How often a request is repeated in a new worker."""

    attempts: int = 3
    """Maximum number of attempts at a request whose workers die or hang."""

    error_attempts: int = 3
    """Maximum number of attempts at a request that raises an error."""

    backoff_s: float = 0.0
    """Seconds to wait before the third attempt at a request; the wait doubles with each further attempt."""

    longest_backoff_s: float = 30.0
    """Maximum seconds to wait before an attempt."""

    def allows(self, attempts: int, error: Exception) -> bool:
        """Whether another attempt follows after this number of attempts, of which the last one ended with this error."""
        return attempts < (self.attempts if isinstance(error, WorkerDied) else self.error_attempts)

    def wait_s(self, attempts: int) -> float:
        """Seconds to wait after this number of failed attempts: none after the first."""
        return 0.0 if attempts < 2 else min(self.longest_backoff_s, self.backoff_s * 2 ** (attempts - 2))


class RestartingHost:
    """Objects of a worker, which is restarted in the same state after `release` and, with `restart`, after a failure.

    Without `restart`, the state of a worker that ended otherwise than by `release` is lost: it died or hung, or was killed
    because the wait for its answer was stopped. Then each request is a `WorkerDied`, until `load_state` has restored all
    objects, or `accept_loss` was called.

    A restart does not wait: the new worker is sent the requests that restore its state, and then all requests in flight. If a
    request finally fails, those after it fail too. So the time until an error is raised does not grow with the number of
    requests in flight or, because of `check`, of hosts.

    Args:
        name: name in messages.
        new_worker: function of a number of requests in flight that starts a worker.
        restart: if the worker dies or hangs, or a request raises an error, start a new one from the state after the last
            answer, and repeat the request; the last attempt of `patience` is final, and so is a worker that does not start in
            time. Every answer then includes the state of the objects.
        depth: maximum number of requests in flight. One thread may submit them while another takes the results.
        close_timeout_s: maximum seconds to close the objects.
        patience: how often a request is repeated.
    """

    works_in_background = True

    def __init__(
        self,
        name: str,
        new_worker: Callable[[int], Worker],
        restart: bool = False,
        depth: int = 1,
        close_timeout_s: float = 2.0,
        patience: Patience = Patience(),
    ) -> None:
        self.name, self.restart, self._depth, self._patience = name, restart, depth, patience
        self._close_timeout_s = close_timeout_s
        self.starts = self.restarts = 0
        """Number of started workers, and of those that replaced a failed one."""
        # depth + 3: two more requests restore the state of a new worker, and one saves the last state.
        self._new_worker = partial(new_worker, depth + 3)
        self._ask_again_at: float | None = None
        """When the requests in flight are repeated, in seconds of `time.monotonic`; None if they have been sent."""
        self._lasting: list[bytes] = []
        self._known: States = {}
        """The states from which a new process continues."""
        self._losses: dict[str, str] = {}
        """How the worker ended, by the name of each object whose current state was lost with it."""
        self._untold: list[str] = []
        """The warnings of the objects about their last states; of no use to a program that does not need these any more."""
        self.span: tuple[int, int] | None = None
        """Begin and end of the work on the last result, in nanoseconds of `time.perf_counter_ns`."""
        self._discarded: deque[tuple[bytes | None, Sequence[str]]] = deque()
        """The lasting requests of discarded objects, and the names of these objects."""
        self._requests: deque[_Request] = deque()
        self._left_to_set_up = 0  # number of answers to requests that restore the state, before that to the first request
        self._parting: _Request | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._worker: Worker | None = None
        self._start()

    def _start(self) -> Worker:
        self._worker = self._new_worker()
        self.starts += 1
        return self._worker

    @property
    def pid(self) -> int | None:
        """Id of the process; None while there is none."""
        return None if self._worker is None else self._worker.pid

    def share(self, value: Any) -> Shared[Any]:
        """A value to pass to `submit` of several hosts; see `Host.share`."""
        return Shared(value)

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
            request.gone = self._forget_discarded()
            self._requests.append(request)
            self._ask(request)
        return request

    def _forget_discarded(self) -> tuple[str, ...]:
        """The names of discarded objects, which are not made again; none while requests are in flight, which may need them."""
        gone: tuple[str, ...] = ()
        while self._discarded and not self._requests:
            packed, names = self._discarded.popleft()
            self._lasting = [one for one in self._lasting if one is not packed]
            gone += tuple(names)
        for name in gone:
            self._known.pop(name, None)
            self._losses.pop(name, None)
        return gone

    def _ask(self, request: _Request) -> None:
        request.refusal = None
        if self._ask_again_at is not None:
            return
        try:
            worker = self._worker or self._started_again(request.prepare)
            makes = request.lasting is not None
            worker.submit(_serve, request.fn, request.args, self.restart or makes, request.gone, is_start=makes)
        except Exception as error:  # noqa: BLE001  raised by result(), if the next attempts fail too
            request.refusal = error

    def _started_again(self, prepare: Request | None) -> Worker:
        self._require_no_loss()
        required = self._required(self._known)
        self._tell()
        worker = self._start()
        try:
            worker.submit(_make_again, self._lasting, is_start=True)
            worker.submit(_go_on_from, required, prepare)
        except BaseException:
            self._drop()
            raise
        self._left_to_set_up = 2
        return worker

    def result(self, is_stopping: Callable[[], bool] = lambda: False, request: Any = None) -> Any:
        """Wait for the result of the first request in flight.

        Args:
            is_stopping: called a few times a second; once it is true, the process is killed.
            request: the expected request, as returned by `submit`; None for any.

        Raises:
            RuntimeError: nothing is in flight, or the first request is not the expected one.
            WorkerDied: the process has ended, or hung and was killed; or it has before, and its state is lost.
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

    def discard(self, lasting: bytes | None, names: Sequence[str]) -> None:
        """Remove objects that a lasting request has created; see `Host.discard`."""
        self._discarded.append((lasting, names))

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
        if not self._has_asked_again(wait):
            return False
        try:
            if request.refusal is not None:
                raise request.refusal
            assert self._worker is not None
            if not self._worker.poll(wait):
                return False
            answer = self._worker.result()
            if self._left_to_set_up:
                self._left_to_set_up -= 1
            else:
                request.answer = answer
        except Exception as error:  # noqa: BLE001  raised by result(), unless the next attempt succeeds
            self._failed(request, error)
        return request.is_settled

    def _has_asked_again(self, wait: bool) -> bool:
        """Repeat the requests in flight once it is time. Returns whether they have been sent."""
        if self._ask_again_at is not None:
            left_s = self._ask_again_at - time.monotonic()
            if left_s > 0:
                time.sleep(min(left_s, 0.05) if wait else 0.0)
                return False
            with self._lock:
                self._ask_again_at = None
                for waiting in self._requests:
                    self._ask(waiting)
        return True

    def _failed(self, request: _Request, error: Exception) -> None:
        """Restart the worker and repeat all requests, or make this error the final one."""
        described = describe_error(error)
        request.attempts += 1
        request.first_failure = request.first_failure or described
        worker = self._worker
        never_started = isinstance(error, WorkerHangs) and worker is not None and worker.is_starting
        with self._lock:
            if self.restart and self._patience.allows(request.attempts, error) and not never_started:
                self.restarts += 1
                _logger.info("worker %r is started again, because it failed: %s", self.name, described)
                self._drop()
                self._ask_again_at = time.monotonic() + self._patience.wait_s(request.attempts)
            else:
                self._fail(request, error, described)
        self._has_asked_again(wait=False)

    def _fail(self, request: _Request, error: Exception, described: str) -> None:
        """Make this error the final one of this request."""
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
        self._note_loss(describe_error(ended))
        self._drop()
        for waiting in self._requests:
            if not waiting.is_settled:
                waiting.error = WorkerDied(f"worker {self.name!r} had ended before this request began: {words_of(ended)}")

    def _note_loss(self, how: str) -> None:
        """Note that the states end with the process, unless it continues from known states and no request has run since."""
        if self._worker is not None and self._lasting and not self.restart and not self._left_to_set_up:
            self._losses = dict.fromkeys(self._known or [_WITHOUT_STATE], how)

    def _require_no_loss(self, names: Sequence[str] = ()) -> None:
        """Check that the states of these objects are not lost; without names, of all."""
        lost = next((name for name in self._losses if not names or name in names), None)
        if lost is not None:
            raise WorkerDied(
                f"worker {self.name!r} has ended before, and its state is lost: load a state, make a new one, or reset its "
                f"environments if it has any. ({self._losses[lost]})"
            )

    def accept_loss(self) -> None:
        """Let objects whose state is lost continue from their last known state; see `Host.accept_loss`."""
        self._losses = {}

    def _required(self, states: States) -> dict[str, bytes]:
        """These states, if all of them are available; else an error."""
        required: dict[str, bytes] = {}
        for name, state in states.items():
            if isinstance(state, str):
                raise RuntimeError(f"worker {self.name!r} cannot continue, because the state of {name!r} is not known: {state}")
            required[name] = state
        return required

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.close(self._close_timeout_s)
        self._worker, self._left_to_set_up, self._ask_again_at = None, 0, None

    def state(self, *names: str) -> dict[str, Any]:
        """The state of each of these objects by name; without names, of each object that has a `state_dict`.

        It is the last known state if there is no process.

        Raises:
            RuntimeError: a `state_dict` raised an error, or there is no such object.
            WorkerDied: the process has ended, and the state is lost.
        """
        return {name: pickle.loads(state) for name, state in self._required(self._states(names)).items()}

    def _states(self, names: Sequence[str] = ()) -> States:
        if self._worker is not None and not self.restart:
            states: States = self.result(request=self.submit(_kept_states, names))
            self._known = self._known if names else states
            return states
        self._require_no_loss(names)
        require_objects(names, self._known)
        self._tell()
        return {name: self._known[name] for name in names or self._known}

    def _tell(self) -> None:
        """Give the warnings about the last states, because they are used now."""
        untold, self._untold = self._untold, []
        for words in untold:
            warnings.warn(f"{words} (worker {self.name!r})", stacklevel=2)

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Restore these states of the objects with these names.

        If there is no process, or it has died, the next one starts with them.

        Raises:
            RuntimeError: there is no such object.
        """
        packed = {name: dumps(state, by_value=True) for name, state in states.items()}
        is_loaded = False
        if self._worker is not None:
            try:
                self.result(request=self.submit(_load, packed))
                is_loaded = True
            except WorkerDied:
                if self.restart:
                    raise
        if not is_loaded:
            require_objects(packed, self._known)
        self._known = {**self._known, **packed}
        for name in packed:
            self._losses.pop(name, None)

    def begin_release(self, at_once: bool = False) -> None:
        """Begin `release`, without waiting: results of requests in flight are discarded, and no further requests are sent.

        Args:
            at_once: kill the process if a request is in flight, as `close` does.
        """
        if at_once and any(request is not self._parting for request in self._requests):
            self._note_loss("it was closed during a request.")
            self._requests.clear()
            self._parting = None
            self._drop()
        for request in self._requests:
            request.is_unwanted = request is not self._parting
        if self._worker is None or self._parting is not None or self._worker.is_finished:
            return
        if not self.restart:
            self._parting = self._put(_Request(_last_states, (), None, None))
        self._worker.finish()

    def release(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """End the process after the requests in flight. The next request starts a new process in the same state; or it is an
        error, because the process has died before and its state is lost.

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
                with contextlib.suppress(WorkerDied):  # an error when the state is needed
                    self._known, self._untold = self.result(is_stopping, parting)
        except InterruptedError:
            self._requests.clear()
        self._drop()

    def close(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """End the process permanently, at once if a request is in flight. `state` still returns its last known state."""
        self.begin_release(at_once=True)
        if not self._is_closed:
            self.release(is_stopping)
        self._is_closed = True


class ProcessHost(RestartingHost):
    """Objects of a worker process on this machine, which is restarted in the same state; see `RestartingHost`.

    With `restart`, the third failure of a request is final.

    Args:
        name, progress_size, describe, timeout_s, start_timeout_s: arguments of `WorkerProcess`.
        restart, depth: as for `RestartingHost`.
    """

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
        new = partial(WorkerProcess, name, progress_size, describe, timeout_s, start_timeout_s)
        super().__init__(name, new, restart, depth, min(2.0, timeout_s))


# Functions that run in the worker.


def _serve(
    objects: dict[str, Any], fn: Callable[..., Any], args: tuple[Any, ...], wants_state: bool, gone: Sequence[str]
) -> tuple[Any, ...]:
    for name in gone:
        objects.pop(name, None)
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
    return make_objects(objects, fn, args)


def _kept_states(objects: dict[str, Any], names: Sequence[str] = ()) -> States:
    require_objects(names, objects)
    return {name: _kept_state(objects[name]) for name in names or with_state(objects)}


def _last_states(objects: dict[str, Any]) -> tuple[States, list[str]]:
    """The states of objects whose process ends, and their warnings about these."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        states = _kept_states(objects)
    return states, [str(one.message) for one in caught]


def _kept_state(thing: Any) -> bytes | str:
    try:
        return dumps(thing.state_dict())
    except Exception as error:  # noqa: BLE001  user code; raised when the state is needed
        return describe_error(error)


def _load(objects: dict[str, Any], packed: Mapping[str, bytes]) -> None:
    require_objects(packed, objects)
    for name, state in packed.items():
        objects[name].load_state_dict(pickle.loads(state))
