"""Endings: the reason for the end of a run, and what the task calls before the first iteration and at the end."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from ding_lite.basics.messages import add_note, describe_error, location_of
from ding_lite.engine.hidden_middleware import unended_middleware
from ding_lite.engine.sync_loops import iterate
from ding_lite.pipeline.contexts import Context, same_iteration, settable_fields
from ding_lite.pipeline.contract_guards import Checker
from ding_lite.pipeline.contracts import of_both_halves
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.generators import WaitingGenerator, locked, method_of
from ding_lite.pipeline.suggestions import Touches
from ding_lite.pipeline.used_middleware import methods_of

Kind = Literal["max_step", "finish", "signal", "memory", "stop", "error"]
"""max_step; finish, which a middleware set; signal; memory, which was about to be used up; stop; or error."""

MAX_STEP: Kind = "max_step"
_CUTS: tuple[Kind, ...] = ("signal", "memory")
_UNSET = object()


@dataclasses.dataclass(frozen=True)
class EndReason:
    """Why a run ended."""

    kind: Kind
    """What ended it."""

    words: str
    """The cause, as a clause: "max_step=100 was reached"."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", f"{self.words}")  # of a script it may be an error, or text of numpy

    def __str__(self) -> str:
        return self.words

    @property
    def is_cut(self) -> bool:
        """Whether the run was cut off, and may be resumed: by a signal, or because memory was about to be used up."""
        return self.kind in _CUTS


Agree = Callable[[Any, EndReason | None], EndReason | None]
"""The method `agree` of a middleware."""


class Request(NamedTuple):
    """A middleware's request to set or reset `finish`."""

    position: int
    """Position of the step that asked, in the sequential order of an iteration."""
    reason: EndReason | None
    """None withdraws earlier requests."""


def decide(requests: Iterable[Request]) -> EndReason | None:
    """The reason why this iteration is the last one, or None: the last request counts. A signal and lack of memory cannot
    be withdrawn, also if `finish` was set before them."""
    standing, cut = None, None
    for _, reason in sorted(requests, key=lambda request: request.position):
        standing, cut = settle(standing, reason), cut or cut_of(reason)
    return standing or cut


def settle(standing: EndReason | None, reason: EndReason | None) -> EndReason | None:
    """The valid reason after a request for `reason`, if `standing` was valid before."""
    return cut_of(standing) if reason is None else standing or reason


def cut_of(reason: EndReason | None) -> EndReason | None:
    """The reason if it cannot be withdrawn, otherwise None."""
    return reason if reason is not None and reason.is_cut else None


class EndingMixin:
    """The part of a task that deals with the beginning and the end of a run."""

    _ctx: Any
    _finish: bool
    _entries: list[Entry]
    _own_waiting: list[WaitingGenerator]
    _touches: Touches

    def _clear_ending(self) -> None:
        self._forget_requests()
        self._signal: str | None = None
        self._is_repeated = False
        self._num_begun = 0  # calls of `begin_run`, for the watchdog
        self._ends: list[Entry] = []
        self._progress: float | None = None
        self._num_looked_at = 0  # middleware of the pipeline, of which hidden ones were looked for

    def _forget_requests(self) -> None:
        self._asked: EndReason | None = None
        self._cut_asked: EndReason | None = None  # remains if `finish` was set before, and is withdrawn

    def _settle(self, reason: EndReason | None) -> None:
        """Settle a request outside of overlapping iterations."""
        self._cut_asked = self._cut_asked or cut_of(reason)
        self._asked = settle(self._asked, reason) or self._cut_asked

    @property
    def end_reason(self) -> EndReason | None:
        """Why the last run ended; None before a run, and during its iterations."""
        if self._end_reason is not None and self._signal is not None:  # the signal may also have come while the run was ending
            return EndReason("signal", f"{self._signal} was received")
        return self._end_reason

    @property
    def is_ended_by_signal(self) -> bool:
        """Whether a signal has ended the iterations of the run. One that comes while the run ends lets that finish."""
        return self._end_reason is not None and self._end_reason.kind == "signal"

    @property
    def is_cut(self) -> bool:
        """Whether a signal or lack of memory ends the run, which may be resumed: in a plain loop, true from then on."""
        return self._signal is not None if self._asked is None else self._asked.is_cut

    _end_reason: EndReason | None = None

    def _settle_reason(self) -> None:
        """The run is over: its reason stays, also when the signal is forgotten."""
        self._end_reason, self._signal = self.end_reason, None

    @property
    def progress(self) -> float | None:
        """The completed fraction of the run, in [0, 1], set by a middleware that will end it; None if unknown.

        If several middleware set it, the largest value counts. It is only for display.
        """
        return self._progress

    @progress.setter
    def progress(self, value: float) -> None:
        self._progress = max(value, self._progress or 0.0)

    def _agree(self, agreeing: Iterable[tuple[str, Agree]]) -> bool:
        """Whether this iteration is the last one, by the methods `agree` of middleware.

        A request that comes while they are called, such as a signal, counts for the next iteration.
        """
        reason = self._asked
        for name, agree in agreeing:
            try:
                reason = agree(self._ctx, reason)
            except BaseException as error:
                add_note(error, f"in agree of {name}, after iteration {self._ctx.total_step} of the task")
                raise
        if reason is not None:
            self._asked, self._finish = reason, True
        return reason is not None

    def repeat_end(self) -> None:
        """Inside an `end_run`: call every `end_run` once more after this pass."""
        self._is_repeated = True

    @property
    def is_end_repeated(self) -> bool:
        """Whether every `end_run` is called once more."""
        return self._is_repeated

    def _end_run(self) -> None:
        """Call every `end_run` after the last iteration, step by step in the order of an iteration.

        Each pass has a new context, to which kept fields carry over, also in place of each context in a dict of contexts, such
        as `parts`. Values written there are copied to the contexts of the last iteration.
        """
        self._ends[:] = _ends_of(self._entries, self._touches)
        self._is_repeated = True
        while self._ends and self._is_repeated:
            self._is_repeated = False
            fresh = _EndContext(self._ctx)
            ctx = fresh.ctx
            checker = Checker(ctx, self._ends, 0, has_lanes=False, is_threaded=False, touches=self._touches)
            iterate(ctx, checker.guarded(self._ends), self._own_waiting)
            fresh.copy_written()
        self._ends.clear()

    def _begin_run(self) -> None:
        """Call `begin_run` of each middleware that has it, and warn of those for which the task cannot do so."""
        if len(self._entries) != self._num_looked_at:  # each call of `run` begins a run
            self._num_looked_at = len(self._entries)
            for words in unended_middleware(self._entries):
                warnings.warn(words, stacklevel=3)
        for name, begin in methods_of(self._entries, "begin_run"):
            self._num_begun += 1
            try:
                begin()
            except BaseException as error:
                add_note(error, f"in begin_run of {name}, before the first iteration")
                raise

    def _note_error(self, error: Exception) -> None:
        """Call `note_error` of each middleware that has it. What goes wrong there is a note on the error."""
        for name, note in methods_of(self._entries, "note_error"):
            try:
                note(error)
            except Exception as failed:  # noqa: BLE001  it must not hide the error of the run
                add_note(error, f"and note_error of {name} raised {describe_error(failed)}")


class _EndContext:
    """A new context for a pass of `end_run`, with what it had before the pass.

    Args:
        last: the context of the last iteration.
    """

    def __init__(self, last: Any) -> None:
        self.ctx: Any = same_iteration(last)
        self._last = last
        self._inner: dict[str, list[_EndContext]] = {}
        """Those of the contexts in a dict, by field. Kept fields are the same objects, and have none."""
        for field, value in _values(last).items():
            is_nested = isinstance(value, dict) and value and all(isinstance(one, Context) for one in value.values())
            if is_nested and getattr(self.ctx, field) is not value:
                inner = {name: _EndContext(one) for name, one in value.items()}
                self._inner[field] = [*inner.values()]
                setattr(self.ctx, field, {name: one.ctx for name, one in inner.items()})
        self._before = _values(self.ctx)

    def copy_written(self) -> Any:
        """Copy the values that were written since to the context of the last iteration. Returns that."""
        for field, value in _values(self.ctx).items():
            inner = {id(one.ctx): one for one in self._inner.get(field, ())}
            if inner and isinstance(value, dict):  # also if its items were changed in place
                value = {name: inner[id(one)].copy_written() if id(one) in inner else one for name, one in value.items()}
            if value is not self._before[field]:
                setattr(self._last, field, value)
        return self._last


def where_set(above: int = 0) -> str:
    """`NAME (file:line)` of the caller of the function that calls this, or of one so many frames above it."""
    frame = sys._getframe(2 + above)
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


def _ends_of(entries: Sequence[Entry], touches: Touches) -> list[Entry]:
    ends = []
    for entry in entries:
        end = method_of(entry.fn, "end_run")
        if end is not None:
            call = end if entry.lock is None else locked(end, entry.lock)
            touches.note_end(end, entry.fn)
            terms = None if entry.contract is None else of_both_halves(entry.contract)
            name, location = f"{entry.name}.end_run", location_of(end)
            ends.append(dataclasses.replace(entry, fn=end, call=call, name=name, location=location, contract=terms))
    return ends


def _values(ctx: Context) -> dict[str, Any]:
    return {name: getattr(ctx, name, _UNSET) for name in settable_fields(ctx)}
