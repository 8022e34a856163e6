"""Hosts: objects and the functions run on them, here or in a worker process that can be started again where it was.

Room: ding_lite.processes, floor 1. Imports basics and the room's workers.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ding_lite.basics.messages import add_note
from ding_lite.processes.errors import WorkerDied
from ding_lite.processes.workers import WorkerProcess

Request = tuple[Callable[..., Any], tuple[Any, ...]]
_ATTEMPTS = 3  # at one request, before whatever goes wrong there is taken to be lasting


class Host(Protocol):
    """Holds a dict of objects, and runs functions on them, called as `function(objects, *args)`; one request at a time."""

    def submit(self, fn: Callable[..., Any], *args: Any, lasting: bool = False, prepare: Request | None = None) -> None:
        """Ask for `fn(objects, *args)`.

        Args:
            lasting: it makes objects; a new process runs it again first.
            prepare: what a new process runs before this request, so that it stands where the old one did.
        """

    def result(self, is_stopping: Callable[[], bool] = lambda: False) -> Any:
        """What the request gave, or raised. Large arrays in it may be valid only until the next request."""

    def state(self) -> dict[str, Any]:
        """By name, the state of each object that has a `state_dict`."""

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Bring the objects of these names back to these states."""

    def release(self) -> None:
        """Give back what the system lent; the next request gets it again."""

    def close(self) -> None:
        """Give it back for good."""


class LocalHost:
    """Objects of this process."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self._request: Request | None = None

    def submit(self, fn: Callable[..., Any], *args: Any, lasting: bool = False, prepare: Request | None = None) -> None:
        """Ask for `fn(objects, *args)`, which runs when its result is wanted."""
        self._request = fn, args

    def result(self, is_stopping: Callable[[], bool] = lambda: False) -> Any:
        """What the request gives."""
        assert self._request is not None
        (fn, args), self._request = self._request, None
        return fn(self.objects, *args)

    def state(self) -> dict[str, Any]:
        """By name, the state of each object that has a `state_dict`."""
        return _state(self.objects)

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Bring the objects of these names back to these states."""
        _load(self.objects, states)

    def release(self) -> None:
        """Nothing: there is nothing to give back."""

    def close(self) -> None:
        """Close the objects that can be closed."""
        for thing in self.objects.values():
            close = getattr(thing, "close", None)
            if callable(close):
                close()


class ProcessHost:
    """Objects of a worker process, which is started again where it was when it was given back or, if wanted, when it died.

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
        self.restarts = 0
        """How often a process was started in place of one that failed."""
        self._crumbs, self._describe, self._timeout_s = crumbs, describe, timeout_s
        self._lasting: list[Request] = []
        self._acknowledged: bytes | None = None
        self._request: tuple[Request, bool, Request | None] | None = None
        self._process: WorkerProcess | None = self._started()

    def _started(self) -> WorkerProcess:
        return WorkerProcess(self.name, self._crumbs, self._describe, self._timeout_s)

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def submit(self, fn: Callable[..., Any], *args: Any, lasting: bool = False, prepare: Request | None = None) -> None:
        """Ask for `fn(objects, *args)`."""
        self._request = (fn, args), lasting, prepare
        if self._process is None:
            self._start_again()
        self._ask()

    def _ask(self) -> None:
        assert self._process is not None
        assert self._request is not None
        (fn, args), *_ = self._request
        self._process.submit(_serve, fn, args, self.restart)

    def result(self, is_stopping: Callable[[], bool] = lambda: False) -> Any:
        """What the request gave, or raised.

        Raises:
            WorkerDied: the process is gone, or hung and was killed.
            InterruptedError: `is_stopping()` became true; the process was killed.
            BaseException: what the function raised.
        """
        assert self._request is not None
        request, lasting, _ = self._request
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                assert self._process is not None
                value, state = self._process.result(is_stopping)
                break
            except InterruptedError:
                self._drop()
                raise
            except Exception as error:
                died = isinstance(error, WorkerDied)
                if died:
                    self._drop()
                if not self.restart or attempt == _ATTEMPTS:
                    if attempt > 1:
                        add_note(error, f"this was attempt {attempt} at the same request, each in a new process")
                    raise
                self.restarts += 1
                self._drop()
                self._start_again()
                self._ask()
        if lasting:
            self._lasting.append(request)
        if state is not None:
            self._acknowledged = bytes(state)
        self._request = None
        return value

    def _start_again(self) -> None:
        self._process = self._started()
        prepare = self._request[2] if self._request else None
        for fn, args in self._lasting:
            self._process.call(_serve, fn, args, False)
        if self._acknowledged is not None:
            self._process.call(_load, pickle.loads(self._acknowledged))
        if prepare is not None:
            self._process.call(_serve, *prepare, False)

    def _drop(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None

    def state(self) -> dict[str, Any]:
        """By name, the state of each object that has a `state_dict`; the last acknowledged one where there is no process."""
        if self._process is None:
            states: dict[str, Any] = pickle.loads(self._acknowledged) if self._acknowledged else {}
        else:
            states = pickle.loads(bytes(self._process.call(_pickled_state)))
        return states

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Bring the objects of these names back to these states."""
        merged = {**self.state(), **states}
        if self._process is not None:
            self._process.call(_load, merged)
        self._acknowledged = pickle.dumps(merged)

    def release(self) -> None:
        """End the process. The next request starts one that goes on from where this one was."""
        if self._process is not None and self._request is None:
            with contextlib.suppress(WorkerDied):  # then it goes on from the last state that is known
                self._acknowledged = bytes(self._process.call(_pickled_state))
        self._request = None
        self._drop()

    def close(self) -> None:
        """End the process."""
        self._request = None
        self._drop()


def _serve(objects: dict[str, Any], fn: Callable[..., Any], args: tuple[Any, ...], wants_state: bool) -> tuple[Any, Any]:
    value = fn(objects, *args)
    return value, _pickled_state(objects) if wants_state else None


def _pickled_state(objects: dict[str, Any]) -> bytes:
    return pickle.dumps(_state(objects), protocol=5)


def _state(objects: dict[str, Any]) -> dict[str, Any]:
    return {name: thing.state_dict() for name, thing in objects.items() if hasattr(thing, "state_dict")}


def _load(objects: dict[str, Any], states: Mapping[str, Any]) -> None:
    for name, state in states.items():
        objects[name].load_state_dict(state)
