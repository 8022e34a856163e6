"""Pickles: objects as bytes, with large arrays in separate buffers, and functions and classes of a script by value."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray

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


class LostValueError(RuntimeError):
    """A value that another worker has stored is lost, for example with its machine."""


class _TensorPickler(pickle.Pickler):
    """Pickles tensors as numpy arrays, because torch would write each to its own file."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.requires_grad or value.device.type != "cpu":
            return NotImplemented
        if value.layout != torch.strided or value.dtype == torch.bfloat16 or value.is_quantized or value.is_nested:
            return NotImplemented
        return torch.from_numpy, (value.numpy(),)


class _DetachingPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Detaches tensors that belong to the graph of a loss, which would arrive as tensors that require a gradient."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and not value.is_leaf:
            return value.detach().__reduce_ex__(5)  # type: ignore[no-untyped-call]
        return super().reducer_override(value)


def _written(pickler: Callable[..., Any], value: Any, **options: Any) -> bytes:
    """A value as bytes by this kind of pickler."""
    file = io.BytesIO()
    pickler(file, **options).dump(value)
    return file.getvalue()


def dumps_apart(value: Any) -> tuple[bytes, list[NDArray[np.uint8]]]:
    """Plain data with tensors and arrays, for `loads_apart`: the large ones as buffers, which are not copied here.

    Raises:
        Exception: an error of pickling.
    """
    apart: list[memoryview] = []

    data = _dumps(partial(_written, _TensorPickler), value, apart)
    return data, [np.frombuffer(buffer, np.uint8) for buffer in apart]


def loads_apart(data: bytes, buffers: Sequence[NDArray[np.uint8]]) -> Any:
    """The value of `dumps_apart`, whose tensors and arrays are copies of the buffers."""
    return pickle.loads(data, buffers=[bytearray(buffer) for buffer in buffers])


def _copied(pickled: bytes) -> Copied[Any]:
    return Copied(pickle.loads(pickled))


def dumps(value: Any, by_value: bool = False, apart: list[memoryview] | None = None) -> bytes:
    """`value` as bytes for `pickle.loads`.

    Args:
        value: the object.
        by_value: always pickle functions and classes of `__main__`, and those defined in functions, by value, with cloudpickle.
            Tensors that belong to the graph of a loss, such as those that a network has kept, are detached.
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
    return _dumps(partial(_written, _DetachingPickler), value, apart)


def loads(pickled: bytes, apart: Iterable[Any] = ()) -> Any:
    """The value of `dumps`, in a process that trusts its sender. Buffers that were kept apart are used where they are."""
    return pickle.loads(pickled, buffers=apart)


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
