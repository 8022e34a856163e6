"""Guards: a middleware run under its contract, both halves and what it left to others.

Room: ding_lite.pipeline, floor 0. Imports basics; otherwise the standard library.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import GeneratorType
from typing import Any, NamedTuple, NoReturn

from ding_lite.basics.messages import location_of, name_of
from ding_lite.pipeline.checks import Entry
from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.contracts import Contract, contract_of
from ding_lite.pipeline.generators import Half, named, second_half
from ding_lite.pipeline.handovers import Handovers, Print, changed, fingerprint
from ding_lite.pipeline.properties import expand_reads, expand_writes, is_property
from ding_lite.pipeline.remainders import Remainder
from ding_lite.pipeline.suggestions import Touches
from ding_lite.pipeline.views import Terms, become, checker_of, field_value, real_class, view_class

CHECKED_ITERATIONS = 5
"""Of a run, in which contracts are enforced also where iterations do not overlap, and values are compared."""


class Checker:
    """Enforces the contracts of one run.

    Args:
        ctx: of the first iteration.
        entries: the pipeline.
        max_lag: of the run.
        has_lanes: whether each lane has a context of its own.
        is_threaded: whether lanes run at the same time.
        touches: takes what functions without a contract touch in the checked iterations.
    """

    def __init__(
        self, ctx: Context, entries: Sequence[Entry], max_lag: int, has_lanes: bool, is_threaded: bool, touches: Touches
    ) -> None:
        self.end = ctx.total_step + CHECKED_ITERATIONS
        """The first iteration in which nothing is compared."""
        self.max_lag = max_lag
        self.touches = touches
        writers = Counter(name for entry in entries for name in _all_writes(type(ctx), entry.contract))
        self.handovers = Handovers(ctx, max_lag, has_lanes, is_threaded, writers)
        self._guards: dict[tuple[int, int], Guard] = {}

    def is_checked(self, ctx: Context) -> bool:
        """Whether the iteration of this context is one of the first; values are let go where it is not."""
        if ctx.total_step < self.end:
            return True
        self.handovers.forget()
        return False

    def guarded(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries, each with a call that enforces its contract. A list may grow meanwhile."""
        for entry in entries:
            yield dataclasses.replace(entry, call=self.guard(entry))

    def guard(self, entry: Entry) -> Guard:
        """What enforces the contract of this entry."""
        key = (id(entry), -1)
        if key not in self._guards:
            is_wrapped = entry.call is not entry.fn
            self._guards[key] = Guard(entry.fn, entry.call, entry.name, entry.location, entry.contract, self, is_wrapped)
        return self._guards[key]

    def nested(self, owner: object, index: int, fn: Callable[..., Any]) -> Guard:
        """What enforces the contract of a middleware inside another, the `index`-th of its owner."""
        key = (id(owner), index)
        found = self._guards.get(key)
        if found is None or found.fn is not fn:
            found = self._guards[key] = Guard(fn, fn, name_of(fn), location_of(fn), contract_of(fn), self)
        return found


def under_contract(owner: object, index: int, fn: Callable[..., Any], ctx: object) -> Callable[..., Any]:
    """`fn`, a middleware inside another, under its own contract where that of the outer one is enforced."""
    checker: Checker | None = checker_of(ctx)
    return fn if checker is None else checker.nested(owner, index, fn)


class _View(NamedTuple):
    """One half of a middleware on one class of context."""

    cls: type[Any]
    terms: Terms
    only_read: tuple[str, ...]
    written: tuple[str, ...]


FIRST, SECOND, LATE = range(3)
"""Halves of a middleware; the last one takes its remainder."""


class Guard:
    """Called in place of a middleware: each half sees a view of the context.

    Args:
        fn: the middleware.
        call: `fn` with what is wrapped around it.
        name: what people call it.
        location: file:line of its definition.
        contract: None for a plain function, whose touches are noted in the checked iterations.
        checker: of the run.
        is_wrapped: whether a wrapper takes its remainder at once.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        call: Callable[..., Any],
        name: str,
        location: str,
        contract: Contract | None,
        checker: Checker,
        is_wrapped: bool = False,
    ) -> None:
        self.fn, self.name, self.location, self.contract = fn, name, location, contract
        self._call, self._checker, self._is_wrapped = call, checker, is_wrapped
        self._views: dict[tuple[type[Any], int], _View] = {}
        self._ctx: Any = None
        self._read: dict[str, Print] = {}
        """By field, what a function without a contract found when it first read it."""

    @property
    def who(self) -> str:
        """Name and place."""
        return f"{self.name} ({self.location})" if self.location else self.name

    def __call__(self, ctx: Any) -> Any:
        if ctx.total_step < self._checker.end:
            return self._compared(ctx)
        if self.contract is None:
            return self._call(ctx)
        outside = type(ctx)
        view = self._views.get((outside, FIRST)) or self._view(ctx, FIRST)
        view.terms.refusal = None
        if view.terms.written:
            view.terms.written.clear()
        become(ctx, "__class__", view.cls)
        try:
            result = self._call(ctx)
            if result is not None:
                result = self._followed(result, ctx)
        finally:
            become(ctx, "__class__", outside)
        if view.terms.refusal is not None:
            _raise_again(view.terms)
        return result

    def _compared(self, ctx: Any) -> Any:
        """The call in one of the first iterations, in which values are compared."""
        with self._seen(ctx, FIRST):
            result = self._call(ctx)
            return self._followed(result, ctx)

    def _note_changes(self, ctx: Any, half: int) -> None:
        """Note which of the values that it read a function without a contract has changed in place."""
        note = self._checker.touches.recorder(self.fn, self.name, self.location, is_second=half == SECOND)
        for name, found in self._read.items():
            if changed(found, fingerprint(field_value(ctx, name))) is not None:
                note("write", name)

    def _noting(self, note: Callable[[str, str], None]) -> Callable[[str, str], None]:
        """`note`, which also takes down what a value is when it is first read."""

        def note_touch(verb: str, name: str) -> None:
            note(verb, name)
            if verb == "read" and name not in self._read:
                self._read[name] = fingerprint(field_value(self._ctx, name))

        return note_touch

    def _followed(self, result: Any, ctx: Any) -> Any:
        """What the call returned, under the contract as well."""
        if isinstance(result, GeneratorType):
            try:
                next(result)
            except StopIteration:
                return None
            return named(result.__qualname__, self._rest(result, ctx))
        if isinstance(result, Remainder):
            result.wrap_take(self._take)
        return result

    def _rest(self, half: Half, ctx: Any) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001  the middleware may handle it
            with self._seen(ctx, SECOND):
                second_half(half, error)
        else:
            with self._seen(ctx, SECOND):
                second_half(half)

    def _take(self, take: Callable[[Any], None], ctx: Any) -> None:
        with self._seen(ctx, LATE):
            take(ctx)

    @contextmanager
    def _seen(self, ctx: Any, half: int) -> Iterator[None]:
        """For the time of the block the context is what this half sees."""
        outside, view = type(ctx), self._view(ctx, half)
        view.terms.refusal = None
        self._ctx, self._read = ctx, {}
        handed = self._before(ctx, view)
        view.terms.written.clear()
        become(ctx, "__class__", view.cls)
        try:
            yield
        finally:
            become(ctx, "__class__", outside)
        if view.terms.refusal is not None:
            _raise_again(view.terms)
        if self.contract is None:
            self._note_changes(ctx, half)
        if handed is not None:
            self._checker.handovers.after(self, self.who, ctx, view.written, handed)

    def _before(self, ctx: Any, view: _View) -> Any:
        """What the values are before this half; None where they are not compared any more."""
        checker = self._checker
        if ctx.total_step > checker.end + checker.max_lag:
            checker.handovers.forget()
        if self.contract is None or ctx.total_step >= checker.end:
            return None
        return checker.handovers.before(self, ctx, view.only_read, view.written)

    def _view(self, ctx: object, half: int) -> _View:
        key = type(ctx), half
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = self._made(real_class(ctx), half)
        return view

    def _made(self, cls: type[Context], half: int) -> _View:
        if self.contract is None:
            nothing = frozenset[str]()
            note = self._checker.touches.recorder(self.fn, self.name, self.location, is_second=half == SECOND)
            terms = Terms(self.who, nothing, nothing, lambda verb, name: "", self._noting(note))
        else:
            reads, writes = half_fields(cls, self.contract, half, takes_at_once=self._is_wrapped)
            terms = Terms(self.who, reads, writes, _Advice(self.contract, half, writes))
        fields = cls._plan.fields
        only_read = tuple(sorted(fields.intersection(terms.readable) - terms.writable))
        return _View(view_class(cls, terms, self._checker), terms, only_read, tuple(sorted(fields & terms.writable)))


def half_fields(
    cls: type[Context], terms: Contract, half: int, takes_at_once: bool = False
) -> tuple[frozenset[str], frozenset[str]]:
    """What one half may read and write: the fields that its contract names, and those behind the properties that it names.

    Args:
        cls: of the context.
        terms: the contract.
        half: FIRST, SECOND or LATE.
        takes_at_once: whether the first half takes the remainder as well.
    """
    reads, writes = (*terms.reads, *terms.may_read), (*terms.writes, *terms.may_write)
    late = (*terms.writes_late, *terms.may_write) if terms.writes_late else ()
    if half == SECOND:
        reads, writes = (*reads, *terms.reads_after), (*writes, *terms.writes_after)
    elif half == LATE:
        writes = late
    elif terms.writes_late:
        writes = (*terms.writes, *late) if takes_at_once else terms.writes
    written = expand_writes(cls, writes)
    readable = expand_reads(cls, (*reads, *(name for name in writes if is_property(cls, name))))
    return (readable & written if half == LATE else readable), written


def _all_writes(cls: type[Context], terms: Contract | None) -> frozenset[str]:
    """The fields that a middleware writes in any half; all of them where it has no contract."""
    if terms is None:
        return cls._plan.fields
    return frozenset[str]().union(*(half_fields(cls, terms, half)[1] for half in (FIRST, SECOND, LATE)))


def _raise_again(terms: Terms) -> NoReturn:
    """Raise the refusal that a half has caught, so that nobody misses it."""
    refusal, terms.refusal = terms.refusal, None
    assert refusal is not None
    raise refusal


class _Advice:
    """How to allow what was refused: the term of the contract as code."""

    def __init__(self, terms: Contract, half: int, late: frozenset[str]) -> None:
        self._terms, self._half, self._late = terms, half, late

    def __call__(self, verb: str, name: str) -> str:
        if name == "total_step":
            return "It counts iterations by itself: declare a counter of your own."
        suffix = {FIRST: "", SECOND: "_after", LATE: "_late"}[self._half]
        if self._half == LATE and verb == "read":
            if name not in self._late:
                return (
                    f"Taking a remainder sees only the fields that it writes: read ctx.{name} before, where the work is asked "
                    "for, and keep the value in the closure."
                )
            suffix = ""
        term = f"{verb}s{suffix}"
        names = (*getattr(self._terms, term), name)
        listed = ", ".join(f'"{one}"' for one in names)
        return f"Add it: @contract(..., {term}=({listed}{',' if len(names) == 1 else ''}))."
