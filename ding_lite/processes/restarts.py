"""Restarts: objects of a worker process that can be started again where it was.

Room: ding_lite.processes, floor 1. Imports basics, numpy and the room's workers.
"""

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
from ding_lite.processes.errors import WorkerDied
from ding_lite.processes.hosts import Request, with_state
from ding_lite.processes.pickles import dumps
from ding_lite.processes.workers import WorkerProcess

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
    refusal: Exception | None = None
    """Why it could not be asked."""
    is_unwanted: bool = False


class ProcessHost:
    """Objects of a worker process, which is started again where it was when it was given back or, if wanted, when it died.

    A process that died otherwise, or was killed in the middle of a request, is started again where it was last known to be:
    when it was last given back, or last made something lasting.

    Args:
        name, crumbs, describe, timeout_s: of its `WorkerProcess`.
        restart: when the process dies or hangs, or a request raises, start a new one from the last acknowledged state, and ask
            it again; the third time in a row it is an error. Costs the transfer of that state with every answer.
        depth: requests that may be in flight at a time. One thread may submit them while another takes the results.
    """

    works_alone = True

    def __init__(
        self,
        name: str,
        crumbs: int = 0,
        describe: Callable[[NDArray[np.int64]], str] | None = None,
        timeout_s: float = 60.0,
        restart: bool = False,
        depth: int = 1,
    ) -> None:
        self.name, self.restart, self._depth = name, restart, depth
        self.starts = self.restarts = 0
        """How often a process was started, and how often in place of one that failed."""
        self._new_process = partial(WorkerProcess, name, crumbs, describe, timeout_s, depth)
        self._lasting: list[bytes] = []
        self._known: States = {}
        """From which a new process goes on."""
        self.span: tuple[int, int] | None = None
        """When the work on the last result began and ended there, in nanoseconds on the clock of `time.perf_counter_ns`."""
        self._requests: deque[_Request] = deque()
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
        request = _Request(fn, args, packed, prepare)
        with self._lock:
            self._requests.append(request)
            self._ask(request)
        return request

    def _ask(self, request: _Request) -> None:
        request.refusal = None
        try:
            process = self._process or self._started_again(request.prepare)
            process.submit(_serve, request.fn, request.args, self.restart or request.lasting is not None)
        except Exception as error:  # noqa: BLE001  raised by result(), which is able to mend it
            request.refusal = error

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
            try:
                self._first_result(is_stopping)
            except InterruptedError:
                raise
            except Exception:  # noqa: BLE001  nobody wants what it gives, nor what it raises
                pass
        if not self._requests or (request is not None and self._requests[0] is not request):
            if request is not None:
                self.forget(request)
            what = "another request is first" if self._requests else "nothing is in flight"
            raise RuntimeError(f"worker {self.name!r} was asked for a result while {what}: take them in the order of asking.")
        return self._first_result(is_stopping)

    def forget(self, request: Any) -> None:
        """Nobody wants what this request gives, which `submit` returned."""
        request.is_unwanted = True

    def _first_result(self, is_stopping: Callable[[], bool]) -> Any:
        request = self._requests[0]
        first = ""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                value, known, self.span = self._answer(request, is_stopping)
                break
            except Exception as error:
                told = f"{type(error).__name__}: {error}"
                first = first or told
                interrupted = isinstance(error, InterruptedError)
                has_ended = interrupted or isinstance(error, WorkerDied)
                if interrupted or not self.restart or attempt == _ATTEMPTS:
                    self._give_up(error if has_ended else None)
                    if attempt > 1:
                        began = "" if told == first else f"; the first ended with {first}"
                        add_note(error, f"this was attempt {attempt} at the same request, each in a new process{began}")
                    raise
                with self._lock:
                    self.restarts += 1
                    self._drop()
                    for waiting in self._requests:
                        self._ask(waiting)
            except BaseException as error:  # Ctrl-C: nobody will take the answer
                self._give_up(error)
                raise
        if request.lasting is not None:
            self._lasting.append(request.lasting)
        self._known = self._known if known is None else known
        with self._lock:
            self._requests.popleft()
        return value

    def _answer(self, request: _Request, is_stopping: Callable[[], bool]) -> tuple[Any, States | None, tuple[int, int]]:
        if request.refusal is not None:
            refusal, request.refusal = request.refusal, None
            raise refusal
        assert self._process is not None
        answer: tuple[Any, States | None, tuple[int, int]] = self._process.result(is_stopping)
        return answer

    def _give_up(self, ended: BaseException | None) -> None:
        """Forget the first request; where its process has ended, or is to, those behind it have no answer either."""
        with self._lock:
            self._requests.popleft()
            if ended is None:
                return
            self._drop()
            for waiting in self._requests:
                waiting.refusal = WorkerDied(f"worker {self.name!r} had ended before it came to this: {ended}")

    def _started_again(self, prepare: Request | None) -> WorkerProcess:
        process = self._start()
        try:
            for packed in self._lasting:
                process.call(_run_packed, packed)
            process.call(_load, self._required(self._known))
            if prepare is not None:
                fn, args = prepare
                process.call(fn, *args)
        except BaseException:
            self._drop()
            raise
        return process

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
            self._process.close()
        self._process = None

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

    def release(self) -> None:
        """End the process, when what is in flight is done. The next request starts one that goes on from where this one was."""
        while self._requests:
            with contextlib.suppress(Exception):  # nobody wants what it gives
                self.result()
        if self._process is not None and not self.restart:
            with contextlib.suppress(WorkerDied):  # then it goes on from the last state that is known
                self.submit(_kept_states)
                self._known = self.result()
        self._drop()

    def close(self) -> None:
        """End the process for good, at once where a request is in flight. Its last state is still known."""
        if self._requests:
            self._requests.clear()
            self._drop()
        if not self._is_closed:
            self.release()
        self._is_closed = True


# What runs in the process.


def _serve(objects: dict[str, Any], fn: Callable[..., Any], args: tuple[Any, ...], wants_state: bool) -> tuple[Any, ...]:
    begun = time.perf_counter_ns()
    value = fn(objects, *args)
    return value, _kept_states(objects) if wants_state else None, (begun, time.perf_counter_ns())


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
