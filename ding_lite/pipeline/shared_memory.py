"""Shared memory: different objects with the same numbers, such as two views of one array, or a network and its optimizer."""

from __future__ import annotations

import itertools
import mmap
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ding_lite.basics.optional_attributes import has_attribute
from ding_lite.pipeline.value_kinds import bounds_of_memory, is_array_or_tensor

_MOST_ITEMS = 1_000  # of a list or dict
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


def arrays_in(value: Any) -> list[Any]:
    """The arrays whose numbers an object has: an array itself, the parameters and buffers of a torch module, the parameters of
    an optimizer, and arrays in a list or dict, such as a `state_dict`; none of other objects."""
    torch: Any = sys.modules.get("torch")
    has_torch = torch is not None and hasattr(torch, "optim")
    found: Iterable[Any] = ()
    if is_array(value):
        found = (value,)
    elif isinstance(value, (list, tuple, Mapping)):
        inner = value.values() if isinstance(value, Mapping) else value
        found = (it for it in itertools.islice(inner, _MOST_ITEMS) if is_array_or_tensor(it))
    elif has_torch and isinstance(value, torch.nn.Module):
        found = itertools.chain(value.parameters(), value.buffers())
    elif has_torch and isinstance(value, torch.optim.Optimizer) and has_attribute(value, "param_groups"):
        found = (param for group in value.param_groups for param in group["params"])
    lazy = torch.nn.parameter.UninitializedTensorMixin if has_torch else ()  # without memory until the first forward
    return [it for it in found if not isinstance(it, lazy)]


def objects_with_shared_memory(things: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Each two of these objects that are different ones and have the same arrays, or arrays that share an element."""
    several = {id(one): one for one in things}
    arrays: dict[int, Any] = {}
    owners: dict[int, list[int]] = {}
    for key, one in several.items():
        for array in {id(it): it for it in arrays_in(one)}.values():
            arrays[id(array)] = array
            owners.setdefault(id(array), []).append(key)
    told = set[tuple[int, int]]()
    same = (pair for keys in owners.values() for pair in itertools.combinations(keys, 2))
    alike = (
        pair
        for one, two in arrays_with_shared_memory(arrays.values())
        for pair in itertools.product(owners[id(one)], owners[id(two)])
    )
    for one, two in itertools.chain(same, alike):
        if one != two and (min(one, two), max(one, two)) not in told:
            told.add((min(one, two), max(one, two)))
            yield several[one], several[two]


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
