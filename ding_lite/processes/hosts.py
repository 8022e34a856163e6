"""Hosts: objects and the functions run on them, in another process or in this one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ding_lite.basics.messages import name_of
from ding_lite.basics.torch_threads import torch_threads

Request = tuple[Callable[..., Any], tuple[Any, ...]]


class Host(Protocol):
    """Holds a dict of objects, and runs functions on them, called as `function(objects, *args)`; one request at a time."""

    span: tuple[int, int] | None
    """When the work on the last result began and ended, in nanoseconds on the clock of `time.perf_counter_ns`, if known."""
    starts: int
    """How often its objects were made. What was sent to them before is to be sent again when this has changed."""

    works_in_background: bool
    """Whether it works on what was submitted while nobody waits for it."""

    def submit(self, fn: Callable[..., Any], *args: Any, lasting: bool = False, prepare: Request | None = None) -> Any:
        """Ask for `fn(objects, *args)`. What goes wrong on the way is raised by `result`.

        Args:
            lasting: it makes objects; a new process runs it again first.
            prepare: what a new process runs before this request, so that it stands where the old one did.

        Returns:
            The request, for `forget`.
        """

    def forget(self, request: Any) -> None:
        """Nobody wants what this request gives: `result` passes over it."""

    def result(self, is_stopping: Callable[[], bool] = lambda: False, request: Any = None) -> Any:
        """What the first request gave, or raised. Large arrays in it may be valid only until the next request; see `Copied`.

        Args:
            is_stopping: once it is true, the wait ends.
            request: which one is meant; None for the first, whichever it is. Another one is an error.
        """

    def state(self, *names: str) -> dict[str, Any]:
        """By name, the state of each of these objects; where none is named, of each that has a `state_dict`.

        What an object's `state_dict` gives travels by pickle, and so do the objects in it.
        """

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Bring the objects of these names back to these states."""

    def check(self) -> None:
        """See how it gets on with its first request, without waiting, so that failures of many hosts are found and mended side
        by side. Called several times a second while another host is waited for."""

    def begin_release(self, at_once: bool = False) -> None:
        """Begin `release` or, where nothing that is in flight is waited for, `close`; without waiting."""

    def release(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Give back what the system lent; the next request gets it again."""

    def close(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Give it back for good."""


_CHECK_EVERY_S = 0.02


def gather_results(
    hosts: Sequence[Host], requests: Sequence[Any], is_stopping: Callable[[], bool] = lambda: False
) -> list[Any]:
    """What these requests, one to each host, gave; or the first error, once none has an answer left that nobody took.

    Hosts are waited for side by side: many that hang take as long as one.
    """

    def answer(index: int, is_stopping: Callable[[], bool]) -> Any:
        return hosts[index].result(_checking(hosts[index + 1 :], is_stopping), requests[index])

    if len(requests) != len(hosts):
        raise ValueError(f"{len(hosts)} hosts were given {len(requests)} requests: give one to each.")
    return _each(len(hosts), [answer], is_stopping)


def release_hosts(hosts: Sequence[Host], for_good: bool = False) -> None:
    """`release` of all hosts, or `close`, side by side: each of them, also where one raises."""

    def leave(index: int, is_stopping: Callable[[], bool]) -> None:
        hosts[index].begin_release(at_once=for_good)

    def end(index: int, is_stopping: Callable[[], bool]) -> None:
        (hosts[index].close if for_good else hosts[index].release)(_checking(hosts[index + 1 :], is_stopping))

    _each(len(hosts), [leave, end], _no)


def _each(count: int, steps: Sequence[Callable[[int, Callable[[], bool]], Any]], is_stopping: Callable[[], bool]) -> list[Any]:
    """Each step for each host, also where one raises: what they gave, or the first error once all had their turn.

    Args:
        count: of hosts.
        steps: called with the number of a host, and a function that says whether its wait is to end.
        is_stopping: that function, until Ctrl-C, after which no host is waited for.
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
    """`is_stopping`, which checks the other hosts whenever it is asked."""
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
    """Objects of this process. `objects["is_stopping"]` tells a request whether anybody still waits for it."""

    starts, works_in_background = 1, False
    span: tuple[int, int] | None = None

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self._request: Request | None = None

    def submit(self, fn: Callable[..., Any], *args: Any, lasting: bool = False, prepare: Request | None = None) -> Any:
        """Ask for `fn(objects, *args)`, which runs when its result is wanted."""
        self._request = fn, args
        return self._request

    def forget(self, request: Any) -> None:
        """Nobody wants what this request gives: it does not run."""
        if self._request is request:
            self._request = None

    def result(self, is_stopping: Callable[[], bool] = lambda: False, request: Any = None) -> Any:
        """What the request gives.

        Raises:
            InterruptedError: `is_stopping()` was true before it began.
            RuntimeError: nothing was asked for, or something else than is meant.
        """
        if self._request is None or (request is not None and request is not self._request):
            raise RuntimeError("a host was asked for a result while something else, or nothing, is in flight: ask before.")
        (fn, args), self._request = self._request, None
        if is_stopping():
            raise InterruptedError(f"{name_of(fn)}() was not begun, because nobody waits for it any more.")
        self.objects["is_stopping"] = is_stopping
        try:
            with torch_threads(1):  # as in a process of its own, so that the result is the same
                return fn(self.objects, *args)
        finally:
            del self.objects["is_stopping"]

    def state(self, *names: str) -> dict[str, Any]:
        """By name, the state of each of these objects; where none is named, of each that has a `state_dict`."""
        return {name: self.objects[name].state_dict() for name in names or with_state(self.objects)}

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Bring the objects of these names back to these states."""
        for name, state in states.items():
            self.objects[name].load_state_dict(state)

    def check(self) -> None:
        """Nothing: it works while its result is waited for."""

    def begin_release(self, at_once: bool = False) -> None:
        """Nothing: it works while its result is waited for."""

    def release(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Nothing: there is nothing to give back."""

    def close(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Close the objects that can be closed."""
        for thing in self.objects.values():
            close = getattr(thing, "close", None)
            if callable(close):
                close()


def with_state(objects: Mapping[str, Any]) -> list[str]:
    """The names of the objects that have a `state_dict`."""
    return [name for name, thing in objects.items() if hasattr(thing, "state_dict")]
