"""Hosts: objects and the functions run on them, in another process or in this one."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ding_lite.basics.messages import add_note, describe_error, name_of
from ding_lite.basics.torch_threads import torch_threads
from ding_lite.processes.errors import WorkerDied
from ding_lite.processes.pickles import Shared
from ding_lite.processes.servers import close_objects

Request = tuple[Callable[..., Any], tuple[Any, ...]]


class Host(Protocol):
    """Holds a dict of objects, and runs functions on them, called as `function(objects, *args)`, one request at a time."""

    span: tuple[int, int] | None
    """When the work on the last result began and ended, in nanoseconds on the clock of `time.perf_counter_ns`, if known."""
    starts: int
    """Number of times that its objects were created. If it has changed, data sent to them earlier must be sent again."""

    works_in_background: bool
    """Whether requests run in the background, before `result` is called."""

    def share(self, value: Any) -> Shared[Any]:
        """A value to pass to `submit` of several hosts of this kind, in their arguments; the function reads its `.value`. On a
        cluster it is sent to each machine once."""

    def submit(self, fn: Callable[..., Any], *args: Any, lasting: bool = False, prepare: Request | None = None) -> Any:
        """Request `fn(objects, *args)`. Errors are raised by `result`.

        Args:
            fn: the function.
            *args: its arguments.
            lasting: the function creates objects; a new process runs it again first. If it raises an error, those that it has
                created are closed and removed.
            prepare: (function, args) that a new process runs before this request, to restore data sent to the old one.

        Returns:
            The request, for `result` and `forget`.
        """

    def forget(self, request: Any) -> None:
        """Discard the result of this request: `result` skips it."""

    def discard(self, lasting: bytes | None, names: Sequence[str]) -> None:
        """Remove objects before a later request, when no other request is in flight. A finalizer may call it.

        Args:
            lasting: `lasting` of the request that created them, and whose result was taken; None if requests have none.
            names: their names.
        """

    def result(self, is_stopping: Callable[[], bool] = lambda: False, request: Any = None) -> Any:
        """The result of the first request, or its error raised. Large arrays may be valid only until the next request; see
        `Copied`.

        Args:
            is_stopping: once it is true, the wait ends.
            request: the expected request, an error if it is not the first; None for any.
        """

    def state(self, *names: str) -> dict[str, Any]:
        """The state of each of these objects by name; without names, of each object that has a `state_dict`.

        The states are pickled.

        Raises:
            RuntimeError: there is no object of a name.
        """

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Restore these states of the objects with these names.

        Raises:
            RuntimeError: there is no object of a name.
        """

    def accept_loss(self) -> None:
        """Let objects whose state is lost, because their process died or was killed, continue from their last known state."""

    def check(self) -> None:
        """Check the first request without waiting, so that failures of several hosts are found and handled at the same time.
        Called several times a second during the wait for another host."""

    def begin_release(self, at_once: bool = False) -> None:
        """Begin `release`, without waiting; or with `at_once`, `close`, which discards requests in flight."""

    def release(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Free resources such as a process. The next request allocates them again."""

    def close(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Free all resources permanently."""


_CHECK_EVERY_S = 0.02


def load_states(hosts: Sequence[Host], name: str, states: Sequence[Any]) -> None:
    """Restore an object of each host. If one refuses its state, all are restored to those before the call.

    A host whose state is lost takes its own last, because it cannot be restored.
    """
    before: list[dict[str, Any] | None] = []
    for host in hosts:
        try:
            before.append(host.state(name))
        except WorkerDied:
            before.append(None)
    changed: list[int] = []
    try:
        for index in sorted(range(len(hosts)), key=lambda index: before[index] is None):
            hosts[index].load_state({name: states[index]})
            changed.append(index)
    except Exception as error:
        for index in changed:  # the host that raised the error has restored its own object
            _bring_back(hosts[index], before[index], error)
        raise


def _bring_back(host: Host, before: Mapping[str, Any] | None, refusal: Exception) -> None:
    """Restore the earlier state of an object, after another host refused a state."""
    try:
        host.load_state(before or {})
    except Exception as error:  # noqa: BLE001  added to the refusal, which is the first error
        add_note(refusal, f"a part could not be restored to its earlier state: {describe_error(error)}")


def gather_results(
    hosts: Sequence[Host], requests: Sequence[Any], is_stopping: Callable[[], bool] = lambda: False
) -> list[Any]:
    """The results of these requests, one of each host. If one fails, the first error is raised after all have been taken.

    Hosts are checked at the same time: several that hang take no longer than one.
    """

    def answer(index: int, is_stopping: Callable[[], bool]) -> Any:
        return hosts[index].result(_checking(hosts[index + 1 :], is_stopping), requests[index])

    if len(requests) != len(hosts):
        raise ValueError(f"gather_results() wants one request for each of {len(hosts)} hosts, got {len(requests)} requests.")
    return _each(len(hosts), [answer], is_stopping)


def release_hosts(hosts: Sequence[Host], for_good: bool = False) -> None:
    """Release all hosts at the same time, or close them with `for_good`. An error of one does not stop the others."""

    def leave(index: int, is_stopping: Callable[[], bool]) -> None:
        hosts[index].begin_release(at_once=for_good)

    def end(index: int, is_stopping: Callable[[], bool]) -> None:
        (hosts[index].close if for_good else hosts[index].release)(_checking(hosts[index + 1 :], is_stopping))

    _each(len(hosts), [leave, end], _no)


def _each(count: int, steps: Sequence[Callable[[int, Callable[[], bool]], Any]], is_stopping: Callable[[], bool]) -> list[Any]:
    """Call each step for each host, and return the results. If calls fail, the first error is raised after all calls.

    Args:
        count: number of hosts.
        steps: functions of the index of a host, and of a function that returns whether to stop waiting.
        is_stopping: that function; after Ctrl-C, it is replaced by one that is always true.
    """
    found: list[Any] = []
    failed: BaseException | None = None
    for step in steps:
        for index in range(count):
            try:
                found.append(step(index, is_stopping))
            except BaseException as error:  # noqa: BLE001  raised below
                failed = failed or error
                if not isinstance(error, Exception):  # Ctrl-C
                    is_stopping = _yes
    try:
        if failed is not None:
            raise failed
    finally:
        del failed  # it refers to this frame
    return found


def _checking(others: Sequence[Host], is_stopping: Callable[[], bool]) -> Callable[[], bool]:
    """`is_stopping`, which also checks the other hosts at each call."""
    if not others:
        return is_stopping
    checked = time.monotonic()

    def stops() -> bool:
        nonlocal checked
        if time.monotonic() >= checked + _CHECK_EVERY_S:
            for other in others:
                other.check()
            checked = time.monotonic()
        return is_stopping()

    return stops


def _yes() -> bool:
    return True


def _no() -> bool:
    return False


class LocalHost:
    """A host in this process. A request may call `objects["is_stopping"]()` to see whether to stop."""

    starts, works_in_background = 1, False
    span: tuple[int, int] | None = None

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self._request: Request | None = None
        self._is_lasting = False
        self._discarded: deque[str] = deque()

    def share(self, value: Any) -> Shared[Any]:
        """A value to pass to `submit` of several hosts; see `Host.share`."""
        return Shared(value)

    def submit(self, fn: Callable[..., Any], *args: Any, lasting: bool = False, prepare: Request | None = None) -> Any:
        """Request `fn(objects, *args)`, which runs in `result`."""
        while self._discarded and self._request is None:
            self.objects.pop(self._discarded.popleft(), None)
        self._request, self._is_lasting = (fn, args), lasting
        return self._request

    def forget(self, request: Any) -> None:
        """Discard this request: it does not run."""
        if self._request is request:
            self._request = None

    def discard(self, lasting: bytes | None, names: Sequence[str]) -> None:
        """Remove objects before a later request; see `Host.discard`."""
        self._discarded.extend(names)

    def result(self, is_stopping: Callable[[], bool] = lambda: False, request: Any = None) -> Any:
        """Run the request, and return its result.

        Raises:
            InterruptedError: `is_stopping()` was true before it began.
            RuntimeError: there is no request, or not the expected one.
        """
        if self._request is None or (request is not None and request is not self._request):
            raise RuntimeError("result() of a host without this request: call submit() first, and result() once for it.")
        (fn, args), self._request = self._request, None
        if is_stopping():
            raise InterruptedError(f"{name_of(fn)}() was not begun, because the run is stopping.")
        self.objects["is_stopping"] = is_stopping
        try:
            with torch_threads(1):  # as in a worker process, so that the result is the same
                return make_objects(self.objects, fn, args) if self._is_lasting else fn(self.objects, *args)
        finally:
            del self.objects["is_stopping"]

    def state(self, *names: str) -> dict[str, Any]:
        """The state of each of these objects by name; without names, of each object that has a `state_dict`."""
        require_objects(names, self.objects)
        return {name: self.objects[name].state_dict() for name in names or with_state(self.objects)}

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Restore these states of the objects with these names."""
        require_objects(states, self.objects)
        for name, state in states.items():
            self.objects[name].load_state_dict(state)

    def accept_loss(self) -> None:
        """Does nothing, because there is no process that dies."""

    def check(self) -> None:
        """Does nothing, because requests run in `result`."""

    def begin_release(self, at_once: bool = False) -> None:
        """Does nothing, because requests run in `result`."""

    def release(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Does nothing, because there is no process."""

    def close(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Close the objects that have a `close`."""
        for thing in self.objects.values():
            close = getattr(thing, "close", None)
            if callable(close):
                close()


def with_state(objects: Mapping[str, Any]) -> list[str]:
    """The names of the objects that have a `state_dict`."""
    return [name for name, thing in objects.items() if hasattr(thing, "state_dict")]


def require_objects(names: Iterable[str], known: Iterable[str]) -> None:
    """Check that there are objects of these names.

    Raises:
        RuntimeError: there is none of a name.
    """
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise RuntimeError(
            f"there is no object {missing!r}, only {', '.join(map(repr, known)) or 'none'}: create it first, in a request with "
            "lasting=True, which a new process runs again."
        )


def make_objects(objects: dict[str, Any], fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """`fn(objects, *args)`, which creates objects. If it raises an error, those that it has created are closed and removed:
    otherwise they would be in the state, from which a new process could not go on, because it does not create them."""
    before = [*objects]
    try:
        return fn(objects, *args)
    except BaseException:
        made = {name: objects.pop(name) for name in [*objects] if name not in before}
        close_objects(made, multiprocessing.current_process().name)
        raise
