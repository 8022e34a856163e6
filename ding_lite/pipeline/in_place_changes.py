"""In-place changes: no middleware may change a value in place that another one may still read.

In the checked iterations, values are compared before and after each step. An error names a middleware that changes a value that
it wrote earlier, a value that it only reads, or memory that belongs to another field too.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ding_lite.pipeline.contexts import SCALARS, Context, class_values, family_of, kept_fields, settable_fields, start_values
from ding_lite.pipeline.contracts import line_to_add
from ding_lite.pipeline.fingerprints import Print, changed, fingerprint, memory_of, overlapping, with_what_is_inside
from ding_lite.pipeline.value_kinds import may_change
from ding_lite.pipeline.views import ContractError, field_value


@dataclasses.dataclass(eq=False)
class _Handed:
    """A value that a middleware wrote."""

    field: str
    iteration: int
    value: Any
    print: Print
    who: str
    is_kept: bool
    """Whether its field is kept, so that its writer may go on changing it."""
    memory: list[tuple[int, int, int]]


class _Shared(NamedTuple):
    """Memory shared by a field that a step may write and another field."""

    handed: _Handed
    written: str
    keys: list[int]
    """Parts of the other value."""
    before: Print


class _Before(NamedTuple):
    """The values before a step, for comparison afterwards."""

    read: dict[str, tuple[Any, Print]]
    own: list[tuple[_Handed, Print]]
    shared: list[_Shared]


class Handovers:
    """The values that middleware handed over in the last iterations.

    Args:
        ctx: context of the first iteration. Values of kept fields are copied, so their writer may change its own.
        max_lag: number of further iterations that may be in progress.
        has_lanes: whether each lane has its own start values.
        is_threaded: whether other middleware run at the same time, so that a change may be theirs.
        writers: number of middleware that write each field.
    """

    def __init__(self, ctx: Context, max_lag: int, has_lanes: bool, is_threaded: bool, writers: Mapping[str, int]) -> None:
        self._family, self._kept = family_of(ctx), frozenset(kept_fields(ctx))
        self._max_lag, self._has_lanes, self._is_threaded = max_lag, has_lanes, is_threaded
        self._sole = frozenset(name for name, count in writers.items() if count == 1)
        self._handed: dict[object, deque[_Handed]] = {}
        """Values by the middleware that wrote them."""
        self._has_handed = False
        self._starts: dict[int, tuple[Any, Print]] = {}
        given = start_values(ctx)
        can_change = (name for name, it in given.items() if type(it) not in SCALARS and may_change(it))
        self._fields = tuple(name for name in can_change if name in settable_fields(ctx) - self._kept)
        """Those whose start values can change in place, by the values of the first context."""
        self._of_class = {name: (value, fingerprint(value)) for name, value in class_values(ctx).items()}
        self._class = type(ctx).__name__
        self.looks_at_unknown = bool(self._fields) or (has_lanes and bool(self._of_class))
        """Whether functions without a contract are compared."""
        self._has_warned = False
        self._writers: dict[str, str] = {}

    def forget(self) -> None:
        """Release all values."""
        self._handed.clear()
        self._starts.clear()
        self._of_class.clear()

    def before(self, key: object, ctx: Context, only_read: Sequence[str], written: Sequence[str]) -> _Before | None:
        """The values to compare with after this step; None if it cannot change a value.

        Args:
            key: identifies the middleware that is about to run.
            ctx: its context.
            only_read: fields that it reads and does not write.
            written: fields that it may write.
        """
        self._note_starts(ctx, written)
        read = {name: (value, fingerprint(value)) for name in only_read if may_change(value := field_value(ctx, name))}
        own = [(handed, fingerprint(handed.value)) for handed in tuple(self._handed.get(key, ())) if not handed.is_kept]
        shared = list(self._shared(ctx, written)) if written and self._has_handed else []
        return _Before(read, own, shared) if read or own or written or self._of_class else None

    def after(self, key: object, who: str, ctx: Context, written: Sequence[str], before: _Before, fn: object) -> None:
        """Compare, and note what this step has handed over.

        Args:
            key: identifies the middleware.
            who: its name and place.
            ctx: its context.
            written: fields that it may have written.
            before: result of `before`, not None.
            fn: the middleware.

        Raises:
            ContractError: it changed in place a value that it only reads, memory of a field that it does not write, or a value
                that it wrote in an earlier iteration.
        """
        iteration: int = field_value(ctx, "total_step")
        for name, (value, found) in before.read.items():
            where = changed(found, fingerprint(value))
            if where is not None:
                raise ContractError(self._changed_what_it_reads(who, name, where, fn))
        for shared in before.shared:
            now = with_what_is_inside(fingerprint(shared.handed.value), shared.keys)
            where = changed(shared.before, now)
            if where is not None:
                raise ContractError(self._changed_what_is_shared(who, shared, where, fn))
        for handed, found in before.own:
            may_be_read = 0 < iteration - handed.iteration <= max(1, self._max_lag)
            is_mine = may_be_read and (not self._is_threaded or handed.field in self._sole)
            counts = "numbers but None" if self._is_threaded else "all"  # a reader beside it may fill a cache
            where = changed(found, fingerprint(handed.value), counts) if is_mine else None
            if where is not None:
                raise ContractError(self._changed_what_it_handed_over(who, handed, where))
        self._refuse_changed_starts(who, ctx, written)
        self._note(key, who, ctx, iteration, written)

    def _shared(self, ctx: Context, written: Sequence[str]) -> Iterator[_Shared]:
        """Memory that this step may change in place, and that is also in a field that it does not write."""
        values = {name: value for name in written if may_change(value := field_value(ctx, name))}
        if not values or family_of(ctx) is not self._family:
            return
        iteration: int = field_value(ctx, "total_step")
        known = [handed for several in tuple(self._handed.values()) for handed in tuple(several)]
        others = [one for one in known if one.field not in written and abs(iteration - one.iteration) <= max(1, self._max_lag)]
        for name, value in values.items() if others else ():
            mine = next((one.memory for one in known if one.value is value), None)
            mine = memory_of(fingerprint(value)) if mine is None else mine
            for other in others:
                keys = overlapping(other.memory, mine)
                if keys:
                    yield _Shared(other, name, keys, with_what_is_inside(fingerprint(other.value), keys))

    def before_unknown(self, ctx: Context) -> None:
        """Record the values that a function without a contract must not change, before it runs."""
        if not self._has_warned:
            self._note_starts(ctx, self._fields)

    def after_unknown(self, who: str, ctx: Context) -> None:
        """Compare the values that a function without a contract must not change.

        Raises:
            ContractError: it changed a start value in place, and each lane has its own; on one lane this is a warning.
        """
        where = self._changed_start(ctx, self._fields) if self._fields else None
        if where is not None:
            if self._has_lanes:
                raise ContractError(self._changed_what_it_starts_from(who, *where))
            warnings.warn(self._changed_what_it_starts_from(who, *where), stacklevel=2)
            self._starts.clear()
            self._has_warned = True
        if self._has_lanes:
            self._refuse_changed_class(who)

    def _note_starts(self, ctx: Context, written: Sequence[str]) -> None:
        if not self._fields or family_of(ctx) is not self._family:  # contexts inside a field are new in each iteration
            return
        given = start_values(ctx)
        for name in written:
            value = given.get(name)
            if name not in self._kept and id(value) not in self._starts and may_change(value):
                self._starts[id(value)] = value, fingerprint(value)

    def _refuse_changed_starts(self, who: str, ctx: Context, written: Sequence[str]) -> None:
        """Refuse changes of start values, which would carry over to the next iteration in a field that is not kept."""
        where = self._changed_start(ctx, written)
        if where is not None:
            raise ContractError(self._changed_what_it_starts_from(who, *where))
        self._refuse_changed_class(who)

    def _changed_start(self, ctx: Context, names: Sequence[str]) -> tuple[str, str] | None:
        """Field and path of a start value that has changed in place."""
        given = start_values(ctx) if self._starts else {}
        for name in names if given else ():
            value, found = self._starts.get(id(given.get(name)), (None, {}))
            where = changed(found, fingerprint(value)) if found else None
            if where is not None:
                return name, where
        return None

    def _refuse_changed_class(self, who: str) -> None:
        for name, (value, found) in tuple(self._of_class.items()):
            where = changed(found, fingerprint(value))
            if where is not None:
                beside = ", or a middleware at the same time did" if self._is_threaded else ""
                raise ContractError(
                    f"{who} changed {self._class}.{name}{_way(where)} in place{beside}. It belongs to the class: no contract "
                    "names it, and nothing orders its users. Declare a field, and keep() it if it accumulates; or "
                    "let the middleware hold the object, and name it in the uses of their contracts."
                )

    def _note(self, key: object, who: str, ctx: Context, iteration: int, written: Sequence[str]) -> None:
        given = start_values(ctx) if family_of(ctx) is self._family else {}
        mine = self._handed.setdefault(key, deque())
        for name in written:
            value = field_value(ctx, name)
            is_kept = name in self._kept
            if not may_change(value) or (given.get(name) is value and not is_kept):
                continue
            found = fingerprint(value)
            if self._max_lag and not is_kept:
                self._refuse_reuse(tuple(mine), who, name, iteration, found)
            memory = memory_of(found) if family_of(ctx) is self._family else []
            self._has_handed = True
            mine.append(_Handed(name, iteration, value, found, who, is_kept, memory))
            self._writers[name] = who
        while mine and mine[0].iteration < iteration - max(1, self._max_lag):
            mine.popleft()

    def _refuse_reuse(self, earlier: Sequence[_Handed], who: str, name: str, iteration: int, found: Print) -> None:
        """Refuse memory that was handed over in an iteration that may be in progress, and has changed since."""
        memory = {part.identity for part in found.values()} - {None}
        for handed in earlier:
            if handed.is_kept or handed.field != name or not 0 < iteration - handed.iteration <= self._max_lag:
                continue
            reused = [key for key, part in handed.print.items() if part.identity in memory]
            if reused:
                where = changed(with_what_is_inside(handed.print, reused), fingerprint(handed.value))
                if where is not None:
                    raise ContractError(self._changed_what_it_handed_over(who, handed, where))

    def _changed_what_it_reads(self, who: str, name: str, where: str, fn: object) -> str:
        others = self._writers.get(name)
        beside = f" (or {others}, which wrote it, did so meanwhile)" if self._is_threaded and others else ""
        return (
            f"{who} changed ctx.{name}{_way(where)} in place{beside}, and its contract says that it only reads it. Work on "
            f"a copy, or add it: {line_to_add(fn, writes=[_quoted(name)])}."
        )

    def _changed_what_it_starts_from(self, who: str, name: str, where: str) -> str:
        beside = ", or a middleware after it did" if self._has_lanes else ""
        reach = "on one lane and not on another" if self._has_lanes else "which would start with the changed value"
        return (
            f"{who} changed ctx.{name}{_way(where)} in place{beside}. Every iteration starts with this same object, so the "
            f"change would reach the next iteration {reach}. Write a new value, ctx.{name} = ..., or give the field a "
            "default_factory, or keep() it."
        )

    def _changed_what_is_shared(self, who: str, shared: _Shared, where: str, fn: object) -> str:
        name, other = shared.written, shared.handed
        beside = " (or a middleware at the same time did)" if self._is_threaded else ""
        return (
            f"{who} changed ctx.{name} in place{beside}, and with it ctx.{other.field}{_way(where)}, which {other.who} wrote: "
            "both hold the same memory, and its contract names only one of them. Write a new value, "
            f"ctx.{name} = ..., or let the middleware that makes ctx.{name} hand over a copy; or add it: "
            f"{line_to_add(fn, writes=[_quoted(name), _quoted(other.field)])}."
        )

    def _changed_what_it_handed_over(self, who: str, handed: _Handed, where: str) -> str:
        beside = " (or a middleware at the same time did)" if self._is_threaded else ""
        return (
            f"{who} wrote ctx.{handed.field} in iteration {handed.iteration} and changed that value{_way(where)} in place in a "
            f"later one{beside}: where iterations overlap, others still read it then. Make a new value in each iteration, or "
            f"hand over a copy of it in ctx.{handed.field}."
        )


def _quoted(name: str) -> str:
    return f'"{name}"'


def _way(where: str) -> str:
    return f" (at {where})" if where else ""
