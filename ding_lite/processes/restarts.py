"""Restarts: objects of a worker process that can be started again where it was.

Room: ding_lite.processes, floor 1. Imports basics, numpy and the room's workers.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ding_lite.basics.messages import add_note, name_of
from ding_lite.processes.errors import WorkerDied
from ding_lite.processes.hosts import Request, states_of
from ding_lite.processes.pickles import dumps
from ding_lite.processes.workers import WorkerProcess

_ATTEMPTS = 3  # at one request, before whatever goes wrong there is taken to be lasting


class _Request(NamedTuple):
    """What a process is asked."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    lasting: bytes | None
    prepare: Request | None


class ProcessHost:
    """Objects of a worker process, which is started again where it was when it was given back or, if wanted, when it died.

    A process that died otherwise, or was killed in the middle of a request, is started again where it was last known to be:
    when it was last given back, or last made something lasting.

    Args:
        name, crumbs, describe, timeout_s: of its `WorkerProcess`.
        restart: when the process dies or hangs, or a request raises, start a new one from the last acknowledged state, and ask
            it again; the third time in a row it is an error. Costs the transfer of that state with every answer.
    """

    def __init__(
        self,
        name: str,
        crumbs: int = 0,
        describe: Callable[[NDArray[np.int64]], str] | None = None,
        timeout_s: float = 60.0,
        restart: bool = False,
    ) -> None:
        self.name, self.restart = name, restart
        self.starts = self.restarts = 0
        """How often a process was started, and how often in place of one that failed."""
        self._new_process = partial(WorkerProcess, name, crumbs, describe, timeout_s)
        self._lasting: list[bytes] = []
        self._known: bytes | str = dumps({})
        """The state from which a new process goes on, pickled; or why there is none."""
        self._request: _Request | None = None
        self._refusal: Exception | None = None
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

    def submit(self, fn: Callable[..., Any], *args: Any, lasting: bool = False, prepare: Request | None = None) -> None:
        """Ask for `fn(objects, *args)`. What goes wrong on the way is raised by `result`, unless it is a wrong order.

        Raises:
            RuntimeError: a request is in flight, or the host is closed.
            Exception: something lasting cannot be pickled.
        """
        if self._is_closed:
            raise RuntimeError(f"worker {self.name!r} is closed, and cannot run {name_of(fn)}(): make another one.")
        if self._request is not None:
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
        self._request = _Request(fn, args, packed, prepare)
        self._ask()

    def _ask(self) -> None:
        assert self._request is not None
        self._refusal = None
        try:
            process = self._process or self._started_again(self._request.prepare)
            process.submit(_serve, self._request.fn, self._request.args, self.restart or self._request.lasting is not None)
        except Exception as error:  # noqa: BLE001  raised by result(), which is able to mend it
            self._refusal = error

    def result(self, is_stopping: Callable[[], bool] = lambda: False) -> Any:
        """What the request gave, or raised.

        Raises:
            WorkerDied: the process is gone, or hung and was killed.
            InterruptedError: `is_stopping()` became true; the process was killed.
            Exception: what the function raised.
        """
        assert self._request is not None
        first = ""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                value, known = self._answer(is_stopping)
                break
            except Exception as error:
                told = f"{type(error).__name__}: {error}"
                first = first or told
                interrupted = isinstance(error, InterruptedError)
                if interrupted or isinstance(error, WorkerDied):
                    self._drop()
                if interrupted or not self.restart or attempt == _ATTEMPTS:
                    self._request = None
                    if attempt > 1:
                        began = "" if told == first else f"; the first ended with {first}"
                        add_note(error, f"this was attempt {attempt} at the same request, each in a new process{began}")
                    raise
                self.restarts += 1
                self._drop()
                self._ask()
            except BaseException:  # Ctrl-C: nobody will take the answer
                self._request = None
                self._drop()
                raise
        if self._request.lasting is not None:
            self._lasting.append(self._request.lasting)
        self._known = self._known if known is None else known
        self._request = None
        return value

    def _answer(self, is_stopping: Callable[[], bool]) -> tuple[Any, bytes | str | None]:
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal
        assert self._process is not None
        answer: tuple[Any, bytes | str | None] = self._process.result(is_stopping)
        return answer

    def _started_again(self, prepare: Request | None) -> WorkerProcess:
        process = self._start()
        try:
            for packed in self._lasting:
                process.call(_run_packed, packed)
            process.call(_load, self._known_state())
            if prepare is not None:
                fn, args = prepare
                process.call(fn, *args)
        except BaseException:
            self._drop()
            raise
        return process

    def _known_state(self) -> bytes:
        if isinstance(self._known, str):
            raise RuntimeError(f"worker {self.name!r} cannot go on where it was, because its state is not known: {self._known}")
        return self._known

    def _drop(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None

    def state(self) -> dict[str, Any]:
        """By name, the state of each object that has a `state_dict`; the last known one where there is no process."""
        if self._process is not None and not self.restart:
            self.submit(_kept_state)
            self._known = self.result()
        states: dict[str, Any] = pickle.loads(self._known_state())
        return states

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Bring the objects of these names back to these states."""
        merged = dumps({**self.state(), **states}, by_value=True)
        if self._process is not None:
            self.submit(_load, dumps(dict(states), by_value=True))
            self.result()
        self._known = merged

    def release(self) -> None:
        """End the process. The next request starts one that goes on from where this one was."""
        if self._process is not None and self._request is None and not self.restart:
            with contextlib.suppress(WorkerDied):  # then it goes on from the last state that is known
                self.submit(_kept_state)
                self._known = self.result()
        self._request = None
        self._drop()

    def close(self) -> None:
        """End the process for good. Its last state is still known."""
        if not self._is_closed:
            self.release()
        self._is_closed = True


# What runs in the process.


def _serve(objects: dict[str, Any], fn: Callable[..., Any], args: tuple[Any, ...], wants_state: bool) -> tuple[Any, Any]:
    value = fn(objects, *args)
    return value, _kept_state(objects) if wants_state else None


def _run_packed(objects: dict[str, Any], packed: bytes) -> Any:
    fn, args = pickle.loads(packed)
    return fn(objects, *args)


def _kept_state(objects: dict[str, Any]) -> bytes | str:
    """Every state, pickled; or why it cannot be had, which matters only if it is needed."""
    try:
        return dumps(states_of(objects))
    except Exception as error:  # noqa: BLE001  anybody's code; raised where the state is needed
        return f"{type(error).__name__}: {error}"


def _load(objects: dict[str, Any], packed: bytes) -> None:
    for name, state in pickle.loads(packed).items():
        objects[name].load_state_dict(state)
