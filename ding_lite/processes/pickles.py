"""Pickles: objects as bytes, with large arrays in separate buffers, and functions and classes of a script by value."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import cloudpickle

T = TypeVar("T")

OUT_OF_BAND_BYTES = 4096
"""Minimum size of a separate buffer, because for smaller ones the bookkeeping takes longer than the copy."""


class Copied(Generic[T]):
    """Wraps a value to be sent to another process, where `.value` is a copy that does not use shared memory."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (dumps(self.value, by_value=True),)


class Shared(Generic[T]):
    """Wraps a value that is sent to several processes. There, `.value` is valid until the next request, and must not be
    changed."""

    def __init__(self, value: T) -> None:
        self.value = value


def _copied(pickled: bytes) -> Copied[Any]:
    return Copied(pickle.loads(pickled))


def dumps(value: Any, by_value: bool = False, apart: list[memoryview] | None = None) -> bytes:
    """`value` as bytes for `pickle.loads`.

    Args:
        value: the object.
        by_value: always pickle functions and classes of `__main__`, and those defined in functions, by value, with cloudpickle.
            If false, plain pickle is tried first, which is several times faster, but pickles functions of `__main__` by name.
            This is right for results of a worker, because its `__main__` is not the user's script.
        apart: if given, the large contiguous buffers are appended to it, and left out of the bytes.

    Raises:
        Exception: an error of pickling; then the content of `apart` is invalid.
    """
    if not by_value:
        try:
            return _dumps(pickle.dumps, value, apart)
        except Exception:  # noqa: BLE001 (pickling runs user code; cloudpickle can pickle more, and raises if it cannot)
            if apart is not None:
                apart.clear()
    return _dumps(cloudpickle.dumps, value, apart)


def loads(pickled: bytes) -> Any:
    """The value of `dumps`, in a process that trusts its sender."""
    return pickle.loads(pickled)


def _dumps(dump: Callable[..., bytes], value: Any, apart: list[memoryview] | None) -> bytes:
    if apart is None:
        return dump(value, protocol=5)

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < OUT_OF_BAND_BYTES:
            return True
        apart.append(raw)
        return False

    return dump(value, protocol=5, buffer_callback=stays_inside)
