"""Pickles: objects as bytes, their large arrays apart, and functions and classes of a script by value."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import cloudpickle

T = TypeVar("T")

OUT_OF_BAND_BYTES = 4096
"""A buffer of at least this size is kept apart: below, the bookkeeping costs more than the copy."""


class Copied(Generic[T]):
    """`Copied(value).value`, whose receiver may keep it: no array in it lies in shared memory when it has travelled."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (dumps(self.value, by_value=True),)


def _copied(pickled: bytes) -> Copied[Any]:
    return Copied(pickle.loads(pickled))


def dumps(value: Any, by_value: bool = False, apart: list[memoryview] | None = None) -> bytes:
    """`value` as bytes for `pickle.loads`.

    Args:
        by_value: send what `__main__` or a function defines by value, always. Otherwise plain pickle, which is several times
            faster, has the first try. It would send a function of `__main__` by name, to a process that has another
            `__main__`: right for the way back, where what bears such a name is not in the sender's own `__main__`.
        apart: if given, takes the large contiguous buffers, which are then not in the bytes.

    Raises:
        Exception: whatever pickling raised; what is in `apart` is then worth nothing.
    """
    if not by_value:
        try:
            return _dumps(pickle.dumps, value, apart)
        except Exception:  # noqa: BLE001 (pickling runs anybody's code; cloudpickle is able to do more, and has the last word)
            if apart is not None:
                apart.clear()
    return _dumps(cloudpickle.dumps, value, apart)


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
