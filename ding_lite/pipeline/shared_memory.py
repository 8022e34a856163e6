"""Shared memory: arrays and tensors that are different objects with the same numbers, such as two views of one array."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ding_lite.pipeline.value_kinds import bounds_of_memory, is_array_or_tensor

_MOST_WORK = 10_000  # of numpy's search for an element that two arrays share


class _Span(NamedTuple):
    """A part of the memory, or of a file that is mapped into it."""

    space: str
    begin: int
    end: int
    key: int
    """Id of the array."""


def is_array(value: object) -> bool:
    """Whether a value is an array, a tensor or a bytearray."""
    return is_array_or_tensor(value) or (isinstance(value, bytearray) and "numpy" in sys.modules)


def arrays_with_shared_memory(things: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Each two of these arrays that are different objects and share an element."""
    arrays = {id(one): one for one in things}
    told = set[tuple[int, int]]()
    open_spans: list[_Span] = []
    for span in sorted(span for one in arrays.values() for span in _spans_of(one)):
        open_spans = [other for other in open_spans if other.space == span.space and other.end > span.begin]
        for other in open_spans:
            one, two = arrays[other.key], arrays[span.key]
            pair = min(other.key, span.key), max(other.key, span.key)
            if one is not two and pair not in told and (span.space or _share_an_element(one, two)):
                told.add(pair)
                yield one, two
        open_spans.append(span)


def _spans_of(array: Any) -> Iterator[_Span]:
    np: Any = sys.modules.get("numpy")  # not imported here, because the engine runs without it
    if isinstance(array, bytearray):
        array, key = np.frombuffer(array, np.uint8), id(array)
    else:
        key = id(array)
    bounds = bounds_of_memory(array)
    if bounds is None:
        return
    yield _Span("", *bounds, key)
    if (
        np is not None
        and isinstance(array, np.memmap)
        and array.filename is not None
        and isinstance(array.base, (mmap.mmap, np.ndarray))
    ):
        mapped: Any = getattr(array, "_mmap")  # noqa: B009  unknown to type checkers
        start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
        shift = start - np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
        yield _Span(f"{array.filename}", bounds[0] + shift, bounds[1] + shift, key)


def _share_an_element(one: Any, two: Any) -> bool:
    """Whether two arrays whose spans overlap share an element. Some are taken to, because it cannot be found out fast."""
    try:
        return bool(sys.modules["numpy"].shares_memory(_as_numpy(one), _as_numpy(two), max_work=_MOST_WORK))
    except (KeyError, TypeError, RuntimeError):  # no numpy, a tensor that numpy cannot show, or too much work
        return True


def _as_numpy(array: Any) -> Any:
    if isinstance(array, bytearray):
        return sys.modules["numpy"].frombuffer(array, "uint8")
    return array.detach().numpy() if hasattr(array, "untyped_storage") else array
