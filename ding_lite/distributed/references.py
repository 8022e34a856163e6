"""References: values in the object store of the cluster, which several workers read, and the requests that refer to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import ray
from numpy.typing import NDArray

from ding_lite.basics.blocks import block
from ding_lite.processes import LostValueError, Shared
from ding_lite.processes.pickles import dumps, loads

T = TypeVar("T")

_FETCH_S = 30.0
"""Maximum seconds to read a stored value from another machine."""

_losses = 0  # number of times that a stored value was found to be lost


class _Refs(threading.local):
    """The references of the request that this thread packs or unpacks."""

    found: list[Any] | None = None


_refs = _Refs()


class StoredValue(Shared[T]):
    """A value in the object store. It leaves the store when this object is collected.

    Requests of `packed` hold a reference to it, and not the value. After `count_loss`, the next request stores it again.

    Args:
        value: the value. It is kept here too, and must not be changed.
    """

    def __init__(self, value: T) -> None:
        super().__init__(value)
        self._ref, self._losses = ray.put(value), _losses

    @property
    def ref(self) -> Any:
        """The reference."""
        if self._losses != _losses:
            self._ref, self._losses = ray.put(self.value), _losses
        return self._ref

    def __reduce__(self) -> tuple[Any, ...]:
        if _refs.found is None:
            raise TypeError("a StoredValue can only be sent by a request to a worker of the cluster.")
        _refs.found.append(self.ref)
        return _FetchedValue, (len(_refs.found) - 1,)


class RemoteValue(Generic[T]):
    """A value that a worker has put into the object store; other workers read it there, and the program passes it on unread.

    It is lost with the worker, or with its machine. It leaves the store when the last reference is collected.

    Args:
        ref: the reference.
    """

    def __init__(self, ref: Any) -> None:
        self._ref = ref

    @property
    def value(self) -> T:
        """The value, which cannot be changed.

        Raises:
            LostValueError: it is lost, or no machine sends it.
        """
        try:
            found: T = ray.get(self._ref, timeout=_FETCH_S)
        except (ray.exceptions.ObjectLostError, ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError) as error:
            raise LostValueError(f"the object store has lost the result of a worker: {type(error).__name__}") from None
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        if _refs.found is None:  # Ray sends the reference in the answer of the worker
            return RemoteValue, (self._ref,)
        _refs.found.append(self._ref)
        return _remote_value, (len(_refs.found) - 1,)


def _remote_value(index: int) -> RemoteValue[Any]:
    assert _refs.found is not None, "requests are loaded by `unpacked`"
    return RemoteValue(_refs.found[index])


def stored_here(value: T) -> RemoteValue[T]:
    """Put a value of this worker into the object store, for its answer."""
    return RemoteValue(ray.put(value))


class _FetchedValue:
    """A `StoredValue` in a worker: fetched when it is first read."""

    def __init__(self, index: int) -> None:
        assert _refs.found is not None, "requests are loaded by `unpacked`"
        self._ref = _refs.found[index]

    @property
    def value(self) -> Any:
        """The value, which cannot be changed.

        Raises:
            ObjectLostError: it is not in the store any more, or no machine sends it.
        """
        try:
            return ray.get(self._ref, timeout=_FETCH_S)
        except ray.exceptions.GetTimeoutError:
            # Ray itself looks for a lost object for ten minutes.
            raise ray.exceptions.ObjectFetchTimedOutError(self._ref.hex(), None, "") from None


def count_loss() -> None:
    """Store all values again before they are next sent, because one was lost with a machine or from a full store."""
    global _losses
    _losses += 1


def packed(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bytes, list[Any]]:
    """A request as bytes, and the references in it.

    Raises:
        Exception: an error of pickling.
    """
    with _collecting([]) as refs:
        return dumps((function, args), by_value=True), refs


def unpacked(data: bytes, refs: Sequence[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The request that `packed` packed."""
    with _collecting(list(refs)):
        function, args = loads(data)
    return function, args


Answer = bytes | tuple[bytes, list[Any], list[NDArray[np.uint8]]]
"""An answer: its pickle, and if it has any, the references in it, and its large arrays as buffers."""


def packed_answer(value: Any) -> Answer:
    """What a worker returns for a value. Ray passes bytes on as they are, and takes much longer for other objects.

    Raises:
        Exception: an error of pickling.
    """
    apart: list[memoryview] = []
    with _collecting([]) as refs:
        data = dumps(value, apart=apart)
    return (data, refs, [np.frombuffer(buffer, np.uint8) for buffer in apart]) if refs or apart else data


def unpacked_answer(answer: Answer) -> Any:
    """The value of `packed_answer`. Its large arrays are views of the object store, which cannot be changed."""
    if isinstance(answer, bytes):
        return loads(answer)
    data, refs, buffers = answer
    with _collecting(list(refs)):
        return loads(data, buffers)


@block
def _collecting(refs: list[Any]) -> Iterator[list[Any]]:
    before, _refs.found = _refs.found, refs
    try:
        yield refs
    finally:
        _refs.found = before
