"""Guards: enforce contracts while middleware run, in both halves and in pending work."""

from __future__ import annotations

import operator
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any

from ding_lite.basics.comparisons import same_values
from ding_lite.basics.messages import location_of, name_of
from ding_lite.basics.optional_attributes import attribute_behind
from ding_lite.pipeline.contexts import Context, kept_fields, start_values
from ding_lite.pipeline.contracts import Contract, contract_of, inherits_contract, line_to_add
from ding_lite.pipeline.end_readers import reads_at_end, too_late
from ding_lite.pipeline.ended_contexts import EndedContexts
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.fingerprints import Print, changed, fingerprint
from ding_lite.pipeline.generators import WaitingGenerator, backward_step, forward_step, named
from ding_lite.pipeline.in_place_changes import Handovers
from ding_lite.pipeline.pending_work import PendingWork
from ding_lite.pipeline.properties import expand_reads, expand_writes, is_property
from ding_lite.pipeline.shared_objects import Reached, watched_objects
from ding_lite.pipeline.suggestions import Touches
from ding_lite.pipeline.views import Reach, RunningStep, become, checker_of, field_value, real_class_of

CHECKED_ITERATIONS = 5
"""Number of first iterations in which contracts are enforced in every run, and values are compared."""


class Checker:
    """Enforces the contracts of one run.

    Args:
        ctx: of the first iteration.
        entries: the pipeline.
        max_lag: of the run.
        has_lanes: whether each lane has a context of its own.
        is_threaded: whether lanes run at the same time.
        touches: takes what functions without a contract touch in the checked iterations.
        reached: the objects that middleware reach; needed if each lane has a context of its own.
    """

    def __init__(
        self,
        ctx: Context,
        entries: Sequence[Entry],
        max_lag: int,
        has_lanes: bool,
        is_threaded: bool,
        touches: Touches,
        reached: Reached | None = None,
    ) -> None:
        self._entries, self._class, self._kept = entries, real_class_of(type(ctx)), frozenset(kept_fields(ctx))
        self.end = ctx.total_step + CHECKED_ITERATIONS
        """The first iteration in which nothing is compared."""
        self.max_lag = max_lag
        self.touches = touches
        counted = entries if is_threaded else ()  # only there it matters who else writes a field
        writers = Counter(name for entry in counted for name in _all_writes(type(ctx), entry.contract))
        self.handovers = Handovers(ctx, max_lag, has_lanes, is_threaded, writers)
        self.watched = {} if reached is None else watched_objects(entries, reached)
        """What contracts leave out, by id of each function that holds it."""
        self.ended = EndedContexts() if has_lanes else None
        """Contexts of earlier iterations, which middleware are not to read."""
        self._guards: dict[tuple[int, int], Guard] = {}
        self._within: set[int] = set()
        """By id, the middleware inside others that run on a context inside a field."""

    def is_checked(self, ctx: Context) -> bool:
        """Whether this iteration is one of the first; otherwise recorded values are released."""
        if ctx.total_step < self.end:
            return True
        self.handovers.forget()
        self.watched.clear()
        return False

    def unseen_after(self, fn: Callable[..., Any]) -> dict[str, tuple[Entry, list[Entry]]]:
        """The fields that the second half of `fn` would set too late for loggers and savers: by name, its entry and theirs."""
        place = next((place for place, entry in enumerate(self._entries) if entry.fn is fn), len(self._entries))
        found: dict[str, tuple[Entry, list[Entry]]] = {}
        for reader in self._entries[place + 1 :]:
            terms = reader.contract
            if terms is None or not reads_at_end(reader.fn):
                continue
            for name in sorted(expand_reads(self._class, (*terms.reads, *terms.may_read)) - self._kept):
                if not is_property(self._class, name):
                    found.setdefault(name, (self._entries[place], []))[1].append(reader)
        return found

    def guarded(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries, each with a call that enforces its contract. The list may grow meanwhile."""
        for entry in entries:
            yield self.guard(entry).entry or self._guarded(entry)

    def _guarded(self, entry: Entry) -> Entry:
        guard = self.guard(entry)
        guard.entry = Entry(**{**vars(entry), "call": guard})  # dataclasses.replace(), in a third of its time
        return guard.entry

    def guard(self, entry: Entry) -> Guard:
        """The guard of this entry."""
        key = (id(entry), -1)
        found = self._guards.get(key)
        if found is None or found.call is not entry.call:  # a wrapper may come later
            is_wrapped = entry.call is not entry.fn
            found = Guard(entry.fn, entry.call, entry.name, entry.location, entry.contract, self, is_wrapped)
            self._guards[key] = found
        return found

    def nested(self, owner: object, index: int, fn: Callable[..., Any], terms: Contract | None = None) -> Guard:
        """The guard of a middleware inside another: the `index`-th of its owner. `terms` are those of its contract, if it does
        not hold them itself."""
        key = (id(owner), index)
        found = self._guards.get(key)
        if found is None or found.fn is not fn:
            terms = contract_of(fn) if terms is None else terms
            found = self._guards[key] = Guard(fn, fn, name_of(fn), location_of(fn), terms, self)
            found.is_within = attribute_behind(owner, "within") is not None or id(owner) in self._within
            if found.is_within:
                self._within.add(id(fn))
        return found


def under_contract(
    owner: object, index: int, fn: Callable[..., Any], ctx: object, terms: Contract | None = None
) -> Callable[..., Any]:
    """`fn`, a middleware inside another, with its own contract enforced if that of the outer one is.

    Args:
        owner: the outer middleware.
        index: the place of `fn` in it.
        fn: the middleware.
        ctx: the context of the outer one.
        terms: the contract of `fn`, if it does not hold it itself, as a method that belongs to it.
    """
    checker: Checker | None = checker_of(ctx)
    return fn if checker is None else checker.nested(owner, index, fn, terms)


FIRST, SECOND, LATE = range(3)
"""Steps of a middleware; LATE takes its pending work."""
_Known = dict[type[Any], tuple[Reach, RunningStep]]
_NOTHING = frozenset[str]()
_FIELDS = operator.attrgetter("reads", "may_read", "reads_after", "writes", "may_write", "writes_after", "writes_late")


class Guard:
    """Called in place of a middleware: each step sees a view of the context.

    Args:
        fn: the middleware.
        call: `fn` with its wrappers.
        name: its name in messages.
        location: file:line of its definition.
        contract: None for a plain function, whose touches are noted in the checked iterations.
        checker: of the run.
        is_wrapped: whether a wrapper takes its pending work at once.
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
        self.fn, self.call, self.name, self.location, self.contract = fn, call, name, location, contract
        self._checker, self._is_wrapped = checker, is_wrapped
        self._steps: tuple[_Known, _Known, _Known] = ({}, {}, {})
        self.entry: Entry | None = None
        """The entry that calls this guard."""
        self.is_within = False
        """Whether the middleware runs on a context inside a field, which is the same one on all lanes."""
        self._compares = True
        """Whether values are compared; turned off after the first iterations."""
        self._read: dict[str, Print] = {}
        """Values that a function without a contract has read in its current step, by field."""
        self._changed: set[str] = set()
        """The fields whose values it has changed in place there."""
        self._has_warned = False
        self._unseen: dict[str, tuple[Entry, list[Entry]]] | None = None
        """Fields that the second half of a function without a contract would set too late; None before the first look."""

    @property
    def who(self) -> str:
        """Name and place."""
        return f"{self.name} ({self.location})" if self.location else self.name

    def __call__(self, ctx: Any) -> Any:
        if self._compares:
            if self.contract is None and ctx.total_step >= self._checker.end:
                return self.call(ctx)
            if self._checker.ended is not None:
                self._checker.ended.enter(self, ctx, 1 + self._checker.max_lag if self.is_within else 1)
            return self._run(FIRST, ctx, self.call, ctx)
        outside = type(ctx)  # as in `_run`, without what only the first iterations need: every step passes here
        reach, step = self._steps[FIRST].get(outside) or self._know(outside, FIRST)
        view = reach.take(step)
        become(ctx, view.cls)
        try:
            result = self.call(ctx)
            if result is not None:
                result = self._followed(result, ctx)
        finally:
            become(ctx, outside)
            refusal = view.give_back()
        if refusal is not None:
            raise refusal
        return result

    def _run(self, which: int, ctx: Any, act: Callable[..., Any], *given: Any) -> Any:
        """Call `act(*given)` with the context as the view of this step."""
        outside = type(ctx)
        reach, step = self._steps[which].get(outside) or self._know(outside, which)
        compares = self._compares
        before = self._before(ctx, reach) if compares else None
        view = reach.take(step)
        become(ctx, view.cls)
        try:
            result = act(*given)
            if result is not None and which == FIRST:
                result = self._followed(result, ctx)
        finally:
            become(ctx, outside)
            refusal = view.give_back()
        if refusal is not None:  # raise it again if the middleware caught it
            raise refusal
        if compares:
            if before is not None:
                self._after(ctx, which, reach, before)
            for watched in self._checker.watched.get(id(self.fn), ()):
                watched.warn_if_changed()
        return result

    def _followed(self, result: Any, ctx: Any) -> Any:
        """The result of the call, with the contract enforced as well."""
        if isinstance(result, GeneratorType):
            generator = forward_step(self.fn, result, ctx)
            return None if generator is None else named(generator.__qualname__, self._rest(generator, ctx))
        if isinstance(result, PendingWork):
            result.wrap_take(self._take)
        if isinstance(result, dict) and self._compares:
            self._warn_of_returned(result, ctx)
        return result

    def _warn_of_returned(self, result: dict[Any, Any], ctx: Any) -> None:
        """Warn of a dict of fields, because what a middleware returns is not read."""
        fields = real_class_of(type(ctx)).__dataclass_fields__
        if result and not self._has_warned and all(name in fields for name in result):
            self._has_warned = True
            lines = ", ".join(f"ctx.{name} = ..." for name in result)
            warnings.warn(
                f"{self.who} returns a dict of fields ({', '.join(result)}), which nothing reads: a middleware sets the fields "
                f"of its context itself, {lines}.",
                stacklevel=2,
            )

    def _rest(self, generator: WaitingGenerator, ctx: Any) -> Iterator[None]:
        try:  # not at_yield(), which takes 5% more time for a checked step
            yield
        except BaseException as error:  # noqa: BLE001  the middleware may handle it
            self._run(SECOND, ctx, backward_step, generator, error)
        else:
            before = self._unseen_before(ctx)
            self._run(SECOND, ctx, backward_step, generator)
            self._warn_of_unseen(ctx, before)

    def _unseen_before(self, ctx: Any) -> dict[str, Any]:
        """The values of the fields that this second half would set too late for a logger or saver."""
        if self.contract is not None or not self._compares or ctx.total_step >= self._checker.end:
            return {}
        if self._unseen is None:
            self._unseen = self._checker.unseen_after(self.fn)
        return {name: field_value(ctx, name) for name in self._unseen}

    def _warn_of_unseen(self, ctx: Any, before: Mapping[str, Any]) -> None:
        """Warn of values that no logger or saver has seen, unless they only clear the field."""
        for name, earlier in before.items():
            value = field_value(ctx, name)
            if (value is not earlier or name in self._changed) and not _is_cleared(ctx, name, value):
                assert self._unseen is not None
                warnings.warn(too_late(self._unseen[name][0], name, self._unseen[name][1]), stacklevel=2)
                del self._unseen[name]

    def _take(self, take: Callable[[Any], None], ctx: Any) -> None:
        self._run(LATE, ctx, take, ctx)

    def _before(self, ctx: Any, reach: Reach) -> Any:
        """The values before this step; None if there is nothing to compare."""
        checker, step = self._checker, ctx.total_step
        if step >= checker.end:
            if step > checker.end + checker.max_lag:
                self._compares = False
                checker.handovers.forget()
                checker.watched.clear()
            return None
        if self.contract is None:
            self._read, self._changed = {}, set()
            if checker.handovers.looks_at_unknown:
                checker.handovers.before_unknown(ctx)
            return self._read
        return checker.handovers.before(self, ctx, reach.only_read, reach.written)

    def _after(self, ctx: Any, which: int, reach: Reach, before: Any) -> None:
        if self.contract is not None:
            self._checker.handovers.after(self, self.who, ctx, reach.written, before, self.fn)
            return
        for name, found in self._read.items():  # a function without a contract may change what it reads
            if changed(found, fingerprint(field_value(ctx, name))) is not None:
                self._changed.add(name)
                self._observer(which)("write", name)
        if self._checker.handovers.looks_at_unknown:
            self._checker.handovers.after_unknown(self.who, ctx)

    def _know(self, outside: type[Any], which: int) -> tuple[Reach, RunningStep]:
        """What this step may touch on contexts of this class, which may be an outer middleware's view."""
        cls = real_class_of(outside)
        reach = reach_of(cls, self.contract, which, self._is_wrapped)
        if self.contract is None:
            step = RunningStep(self.who, _no_advice, self._checker, self._noting(self._observer(which)))
        else:
            step = RunningStep(self.who, _Advice(self.fn, self.contract, which, reach.writable), self._checker)
        known = self._steps[which][outside] = reach, step
        return known

    def _observer(self, which: int) -> Callable[[str, str], None]:
        return self._checker.touches.observer(self.fn, self.name, self.location, is_second=which == SECOND)

    def _noting(self, note: Callable[[str, str], None]) -> Callable[[Any, str, str], None]:
        """`note`, which also records the value at the first read."""

        def note_touch(ctx: Any, verb: str, name: str) -> None:
            note(verb, name)
            if verb == "read" and name not in self._read:
                self._read[name] = fingerprint(field_value(ctx, name))

        return note_touch


def reach_of(cls: type[Context], terms: Contract | None, which: int, takes_at_once: bool = False) -> Reach:
    """The allowed fields of one step; without a contract none, so that all are recorded. One object for equal terms.

    Args:
        cls: of the context.
        terms: the contract.
        which: FIRST, SECOND or LATE.
        takes_at_once: whether the first half takes the pending work as well.
    """
    known: dict[Any, Reach] = cls._plan.reaches  # it goes when the class goes
    key = None if terms is None else (which, takes_at_once, *_FIELDS(terms))
    reach = known.get(key)
    if reach is None:
        fields = (_NOTHING, _NOTHING) if terms is None else step_fields(cls, terms, which, takes_at_once)
        reach = known[key] = Reach(cls, *fields, is_noted=terms is None)
    return reach


def step_fields(
    cls: type[Context], terms: Contract, which: int, takes_at_once: bool = False
) -> tuple[frozenset[str], frozenset[str]]:
    """The fields that one step may read and write: those in its contract, and those behind properties in its contract.

    Args:
        cls: of the context.
        terms: the contract.
        which: FIRST, SECOND or LATE.
        takes_at_once: whether the first half takes the pending work as well.
    """
    reads, writes = (*terms.reads, *terms.may_read), (*terms.writes, *terms.may_write)
    late = (*terms.writes_late, *terms.may_write) if terms.writes_late else ()
    if which == SECOND:
        reads, writes = (*reads, *terms.reads_after), (*writes, *terms.writes_after)
    elif which == LATE:
        writes = late
    elif terms.writes_late:
        writes = (*terms.writes, *late) if takes_at_once else terms.writes
    written = expand_writes(cls, writes)
    readable = expand_reads(cls, (*reads, *(name for name in writes if is_property(cls, name))))
    return (readable & written if which == LATE else readable), written


def _all_writes(cls: type[Context], terms: Contract | None) -> frozenset[str]:
    """The fields that a middleware writes in any step; all fields if it has no contract."""
    if terms is None:
        return cls._plan.fields
    return frozenset[str]().union(*(step_fields(cls, terms, which)[1] for which in (FIRST, SECOND, LATE)))


def _is_cleared(ctx: Any, name: str, value: Any) -> bool:
    """Whether a field has no value, an empty one, or that from its declaration. A factory is not called, because the numbers
    that it draws would be missing in later iterations."""
    is_empty = isinstance(value, (list, tuple, dict, set)) and not value
    return value is None or is_empty or same_values(value, start_values(ctx).get(name))


def _no_advice(verb: str, name: str, is_unset: bool) -> str:
    return ""


class _Advice:
    """How to allow a refused access: the term of the contract as code."""

    def __init__(self, fn: object, terms: Contract, which: int, late: frozenset[str]) -> None:
        self._fn, self._terms, self._which, self._late = fn, terms, which, late

    def __call__(self, verb: str, name: str, is_unset: bool) -> str:
        if name == "total_step":
            return "The task counts iterations there: declare a counter of your own."
        suffix = {FIRST: "", SECOND: "_after", LATE: "_late"}[self._which]
        if self._which == LATE and verb == "read":
            if name not in self._late:
                return (
                    f"Taking pending work sees only the fields that it writes: read ctx.{name} before, where the work is "
                    "requested, and keep the value in the closure."
                )
            suffix = ""
        term = f"{verb}s{suffix}"
        is_added = inherits_contract(self._fn)
        if term == "reads" and not is_added and name in (*self._terms.all_writes, *self._terms.may_write):
            term = "may_read"  # it writes the field itself, now and then: no earlier middleware needs to
        names = (name,) if is_added else (*getattr(self._terms, term), name)
        advice = "Add it: " + line_to_add(self._fn, **{term: [f'"{one}"' for one in names]}) + "."
        if term == "reads" and is_unset:  # such as what a property reads if it is there
            advice += " If it may be None, as it is now, name it in may_read instead."
        return advice
