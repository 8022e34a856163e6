"""Handed-over values: nobody changes in place what another middleware may still read.

A value that a middleware wrote is the other's from then on. In the checked iterations its content is compared before and after
each half: one that changes a value that it wrote earlier, or that it only reads, is named in the error.

Room: ding_lite.pipeline, floor 0. Imports the standard library; looks at arrays and tensors where these are loaded.
"""

from __future__ import annotations

import array
import enum
import numbers
import operator
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

from ding_lite.pipeline.contexts import Context, family_of, is_scalar, kept_fields, start_values
from ding_lite.pipeline.views import ContractError, field_value

_MOST_PARTS = 20_000
"""Values inside one value that are compared; what lies beyond is not."""
_MOST_BYTES = 1 << 20
"""Of an array; of a larger one every n-th element is compared."""
_PLAIN = (numbers.Number, str, bytes, enum.Enum, type(None))
_SKIPPED = (FunctionType, MethodType, BuiltinFunctionType, ModuleType, GeneratorType, type)
_UNCHANGING = (*_PLAIN, *_SKIPPED)
_NUMPY = {kind: operator.attrgetter(kind) for kind in ("ndarray", "generic", "random.Generator")}


class _Part(NamedTuple):
    """A value inside a value."""

    identity: int | None
    """Of what may change in place; None for what cannot."""
    content: Any


Print = dict[tuple[str, ...], _Part]
"""A fingerprint: what a value held, by the way to it."""


class _Handed(NamedTuple):
    """A value that a middleware wrote."""

    field: str
    iteration: int
    value: Any
    print: Print


class Handovers:
    """The values that middleware handed over in the last iterations.

    Args:
        ctx: of the first iteration. Values of kept fields are copied on the way: their writer may go on changing its own.
        max_lag: iterations that may be under way beside the current one.
        has_lanes: whether each lane has start values of its own, so that what one does to them the others do not see.
        is_threaded: whether other middleware run while one does, so that a change may be theirs.
        writers: by field, how many middleware write it.
    """

    def __init__(self, ctx: Context, max_lag: int, has_lanes: bool, is_threaded: bool, writers: Mapping[str, int]) -> None:
        self._family, self._kept = family_of(ctx), frozenset(kept_fields(ctx))
        self._max_lag, self._has_lanes, self._is_threaded = max_lag, has_lanes, is_threaded
        self._sole = frozenset(name for name, count in writers.items() if count == 1)
        self._handed: dict[object, deque[_Handed]] = {}
        self._starts: dict[int, tuple[Any, Print]] = {}
        self._writers: dict[str, str] = {}

    def forget(self) -> None:
        """Hold on to no value any more."""
        self._handed.clear()
        self._starts.clear()

    def before(self, key: object, ctx: Context, only_read: Sequence[str], written: Sequence[str]) -> Any:
        """What to compare with when this half is through; None where it cannot change a value.

        Args:
            key: stands for the middleware that is about to run.
            ctx: that it runs on.
            only_read: fields that it reads and does not write.
            written: fields that it may write.
        """
        if self._has_lanes and family_of(ctx) is self._family:  # contexts inside a field are made anew in each iteration
            self._note_starts(ctx, written)
        read = {name: (value, fingerprint(value)) for name in only_read if _may_change(value := field_value(ctx, name))}
        own = [(handed, fingerprint(handed.value)) for handed in tuple(self._handed.get(key, ()))]
        return (read, own) if read or own or written else None

    def after(self, key: object, who: str, ctx: Context, written: Sequence[str], before: Any) -> None:
        """Compare, and note what this half has handed over.

        Args:
            key: stands for the middleware.
            who: its name and place.
            ctx: that it ran on.
            written: fields that it may have written.
            before: what `before` gave, unless it was None.

        Raises:
            ContractError: it changed in place what it only reads, or what it handed over in an earlier iteration.
        """
        read, own = before
        iteration: int = field_value(ctx, "total_step")
        for name, (value, found) in read.items():
            where = changed(found, fingerprint(value))
            if where is not None:
                raise ContractError(self._changed_what_it_reads(who, name, where))
        for handed, found in own:
            may_be_read = 0 < iteration - handed.iteration <= max(1, self._max_lag)
            is_mine = may_be_read and (not self._is_threaded or handed.field in self._sole)
            where = changed(found, fingerprint(handed.value), "numbers" if self._is_threaded else "all") if is_mine else None
            if where is not None:
                raise ContractError(self._changed_what_it_handed_over(who, handed, where))
        self._refuse_changed_starts(who, ctx, written)
        self._note(key, who, ctx, iteration, written)

    def _note_starts(self, ctx: Context, written: Sequence[str]) -> None:
        given = start_values(ctx)
        for name in written:
            value = given.get(name)
            if name not in self._kept and id(value) not in self._starts and _may_change(value):
                self._starts[id(value)] = value, fingerprint(value)

    def _refuse_changed_starts(self, who: str, ctx: Context, written: Sequence[str]) -> None:
        """Refuse what would carry a value over to the next iteration in a field that is not kept."""
        if not self._starts:
            return
        given = start_values(ctx)
        for name in written:
            value, found = self._starts.get(id(given.get(name)), (None, {}))
            where = changed(found, fingerprint(value)) if found else None
            if where is not None:
                raise ContractError(
                    f"{who} changed ctx.{name}{_way(where)} in place, or a middleware after it did. Every iteration starts "
                    "from that very object, so the change would reach the next iteration on one lane and not on another. "
                    f"Write a new value, ctx.{name} = ..., or give the field a default_factory, or keep() it."
                )

    def _note(self, key: object, who: str, ctx: Context, iteration: int, written: Sequence[str]) -> None:
        given = start_values(ctx) if family_of(ctx) is self._family else {}
        mine = self._handed.setdefault(key, deque())
        for name in written:
            value = field_value(ctx, name)
            if name in self._kept or not _may_change(value) or given.get(name) is value:
                continue
            found = fingerprint(value)
            if self._max_lag:
                self._refuse_reuse(tuple(mine), who, name, iteration, found)
            mine.append(_Handed(name, iteration, value, found))
            self._writers[name] = who
        while mine and mine[0].iteration < iteration - max(1, self._max_lag):
            mine.popleft()

    def _refuse_reuse(self, earlier: Sequence[_Handed], who: str, name: str, iteration: int, found: Print) -> None:
        """Refuse memory that was handed over in an iteration that may be under way, and has changed since."""
        memory = {part.identity for part in found.values()} - {None}
        for handed in earlier:
            if handed.field != name or not 0 < iteration - handed.iteration <= self._max_lag:
                continue
            reused = tuple(where for where, part in handed.print.items() if part.identity in memory)
            if reused:
                old = {where: part for where, part in handed.print.items() if any(where[: len(it)] == it for it in reused)}
                where = changed(old, fingerprint(handed.value))
                if where is not None:
                    raise ContractError(self._changed_what_it_handed_over(who, handed, where))

    def _changed_what_it_reads(self, who: str, name: str, where: tuple[str, ...]) -> str:
        others = self._writers.get(name)
        beside = f" (or {others}, which wrote it, did so meanwhile)" if self._is_threaded and others else ""
        return (
            f"{who} changed ctx.{name}{_way(where)} in place{beside}, and its contract says that it only reads it. Work on "
            f'a copy, or add it: @contract(..., writes=("{name}",)).'
        )

    def _changed_what_it_handed_over(self, who: str, handed: _Handed, where: tuple[str, ...]) -> str:
        beside = " (or a middleware that runs beside it did)" if self._is_threaded else ""
        return (
            f"{who} wrote ctx.{handed.field} in iteration {handed.iteration} and changed that value{_way(where)} in place in a "
            f"later one{beside}: where iterations overlap, others still read it then. Make a new value in each iteration, or "
            f"hand over a copy of it in ctx.{handed.field}."
        )


def fingerprint(value: Any) -> Print:
    """What a value holds now: numbers and the bytes of arrays, through containers and attributes of objects."""
    found: Print = {}
    _walk(value, (), found, set())
    return found


def changed(before: Print, now: Print, private: str = "arrays") -> tuple[str, ...] | None:
    """The way to the first thing that has changed in place, or None. What was added to an object is no change.

    Args:
        private: what counts of attributes that begin with an underscore, where a reader may fill a cache: "arrays" alone,
            "numbers" too, or "all", and what was added as well.
    """
    if private == "all":
        added = next((where for where in now if where not in before and where[:-1] in before), None)
        if added is not None:
            return added
    for where, part in before.items():
        other = now.get(where)
        if other is None or other.content == part.content:
            continue
        if private == "arrays" and part.content == "None" and where and where[-1].startswith("."):
            continue  # a cache that is filled when it is first asked for
        if private == "all" or not any(name.startswith("._") for name in where):
            return where
        is_number = private == "numbers" and part.identity is None and part.content != "None"
        if is_number or (part.identity == other.identity and isinstance(part.content, _Bytes)):
            return where
    return None


class _Bytes(int):
    """The hash of an array's content."""


def _walk(value: Any, way: tuple[str, ...], found: Print, seen: set[int]) -> None:
    if is_scalar(value):  # nearly all of them, and the tests below take long
        if len(found) < _MOST_PARTS:
            found[way] = _Part(None, repr(value))
        return
    if len(found) >= _MOST_PARTS or isinstance(value, _SKIPPED):
        return
    if isinstance(value, _PLAIN) or _is_numpy(value, "generic"):
        found[way] = _Part(None, repr(value))
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    content = _content_of(value)
    if content is not None:
        found[way] = content
        return
    if isinstance(value, (bytearray, array.array, memoryview)):
        found[way] = _Part(id(value), _Bytes(hash(bytes(value))))
        return
    if _is_numpy(value, "random.Generator") or isinstance(value, random.Random):
        state = value.getstate() if isinstance(value, random.Random) else value.bit_generator.state
        found[way] = _Part(id(value), repr(state))
        return
    if isinstance(value, Set):
        found[way] = _Part(None if isinstance(value, frozenset) else id(value), frozenset(map(repr, value)))
        return
    if isinstance(value, dict):
        found[way] = _Part(id(value), hash(tuple(map(repr, value))))
    elif isinstance(value, (list, tuple, deque)):
        found[way] = _Part(None if isinstance(value, tuple) else id(value), len(value))
    else:
        found[way] = _Part(id(value), type(value).__qualname__)
    for name, inner in _inside(value):
        _walk(inner, (*way, name), found, seen)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple, deque)):
        yield from ((f"[{index}]", inner) for index, inner in enumerate(value))
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in list(value.items()))
    if hasattr(type(value), "_detach") and hasattr(type(value), "items"):  # a tree
        yield from ((f".{key}", inner) for key, inner in value.items())
    else:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, Mapping):
            mark = "/" if isinstance(value, Context) else "."
            yield from ((f"{mark}{name}", inner) for name, inner in list(attributes.items()) if name != "_lineage")
        for cls in type(value).__mro__:
            for name in _slots(cls):
                if name in vars(cls) and hasattr(value, name):
                    yield f".{name}", getattr(value, name)


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _content_of(value: Any) -> _Part | None:
    """The memory of an array or tensor, and the hash of what stands there; None for anything else."""
    if _is_numpy(value, "ndarray"):
        small = value
        while small.nbytes > _MOST_BYTES and max(small.shape) > 1:
            small = small[_every_other(small.shape)]
        content = tuple(map(repr, small.reshape(-1)[:_MOST_PARTS])) if small.dtype.hasobject else small.tobytes()
        return _Part(value.__array_interface__["data"][0] if value.size else None, _Bytes(hash((value.shape, content))))
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.is_sparse or value.is_quantized or value.is_meta:
        return None
    plain = value.detach()
    while plain.numel() * plain.element_size() > _MOST_BYTES and max(plain.shape) > 1:
        plain = plain[_every_other(plain.shape)]
    content = plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return _Part(value.data_ptr() or None, _Bytes(hash((tuple(value.shape), content))))


def _every_other(shape: Sequence[int]) -> tuple[slice, ...]:
    longest = max(range(len(shape)), key=lambda axis: shape[axis])
    return tuple(slice(None, None, 2) if axis == longest else slice(None) for axis in range(len(shape)))


def _is_numpy(value: Any, kind: str) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, _NUMPY[kind](numpy))


def _may_change(value: Any) -> bool:
    return not (is_scalar(value) or isinstance(value, _UNCHANGING))


def _way(where: tuple[str, ...]) -> str:
    return f" (at {''.join(where)})" if where else ""
