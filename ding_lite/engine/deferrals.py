"""Deferrals: long work that a middleware begins in one iteration and takes the result of in a later one."""

from __future__ import annotations

import contextvars
import functools
import itertools
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from ding_lite.basics.messages import HelperContext, add_note, call_of, describe_call, name_of
from ding_lite.basics.torch_threads import torch_threads, use_torch_threads
from ding_lite.engine.deferred_inputs import InputFingerprints
from ding_lite.engine.lanes import enter
from ding_lite.pipeline.pipeline_checks import Entry

Result = TypeVar("Result")
DEFERRED_THREAD = "task.deferred"
"""What the names of threads begin with that run deferred work."""
_PATIENCE_S = 5.0  # that work may take after the run has ended, before a warning says what is waited for
_WATCHED = 5  # works of a function whose inputs are watched
Place = tuple[int, int]
"""(iteration, position) of the step that deferred something."""


class Origin(NamedTuple):
    """Where work was deferred."""

    place: Place
    words: str
    """The middleware, with its file and line, and the iteration."""


class WorkCancelled(RuntimeError):
    """The run ended before this work did, or before its result was taken."""


BrokenOff = WorkCancelled  # its name in earlier versions


class Deferred(Generic[Result]):
    """Work that runs beside the iterations that follow, or has run already where nothing overlaps."""

    changes_by_itself = True
    """In a field of a context it changes, and no middleware has changed it."""

    def __init__(
        self,
        fn: Callable[..., Result],
        args: tuple[Any, ...],
        origin: Origin,
        order: tuple[int, ...],
        owner: Deferrals,
        outer: Deferred[Any] | None,
    ) -> None:
        self._call: Callable[[], Result] | None = functools.partial(fn, *args)
        self.name = name_of(fn)
        self.place, self.order, self.origin, self._owner = origin.place, order, origin, owner
        self._outer = outer  # the work that has deferred it
        self.torch_count: int | None = None
        """Threads of torch that its operations take; None for torch's own."""
        self.errors_at_end: list[Exception] = []
        """What it has asked to be raised at the end of the run."""
        self.description = f"{describe_call(fn)}, deferred by {origin.words}"
        self._prints: InputFingerprints | None = None
        self._result: Result
        self.error: BaseException | None = None
        """What it raised, until `result()` has raised it."""
        self._has_failed: BaseException | None = None
        self.done = False
        """Whether the result is there."""
        self.thread: threading.Thread | None = None
        """On which it runs; None where it ran at once."""
        self.outlasts = False
        """Whether it goes on when the run has ended in order, for an `end_run` that takes its result."""
        self.owns_inputs = False
        """Whether it changes what it was given, such as a module that it trains, and nothing else does before its result is
        taken."""
        self.is_over: bool = outer is not None and outer.is_over
        """Whether the run that it belongs to has ended, so that nobody takes its result any more."""
        self.knows_that_it_is_over = False
        """Whether it has asked since, so that an error may be its way to end."""
        self.is_left = False
        """Whether the run did not wait for its end."""

    def watch(self, prints: InputFingerprints) -> None:
        """Before the work: let `result()` refuse one whose inputs have changed since it began."""
        self._prints = prints

    def run(self) -> None:
        """Do the work. What it raises is kept."""
        assert self._call is not None
        token = _current.set(self)
        try:
            self._result = self._call()
            if self._prints is not None:
                self._prints.take()
        except BaseException as error:
            self._has_failed = error
            add_note(error, f"in {self.description}")
            if self.thread is None and not isinstance(error, Exception):
                raise  # it ends the program
            is_its_end = self.is_over and self.knows_that_it_is_over
            self.error = None if is_its_end or self.is_left else error
            if not isinstance(error, Exception) and not self.is_over:
                self._owner.fail(error)
        finally:
            _current.reset(token)
            self._call = None
            self.done = True

    @property
    def outlasts_run(self) -> bool:
        """Whether it, or the work that has deferred it, goes on when the run has ended in order."""
        return any(work.outlasts for work in self.with_outer())

    @property
    def has_errors(self) -> bool:
        """Whether it has ended, with errors that are left to raise."""
        return self.done and (self.error is not None or bool(self.errors_at_end))

    def take_errors(self) -> list[BaseException]:
        """These errors, which nothing else raises from here on."""
        errors = [*([] if self.error is None else [self.error]), *self.errors_at_end]
        self.error = None
        self.errors_at_end.clear()
        return errors

    def with_outer(self) -> Iterator[Deferred[Any]]:
        """This work, the work that has deferred it, and so on."""
        work: Deferred[Any] | None = self
        while work is not None:
            yield work
            work = work._outer

    def belongs_to(self, owner: Deferrals) -> bool:
        """Whether this task has begun it."""
        return self._owner is owner

    def cancel(self) -> None:
        """The run that it belongs to has ended: its result is not taken any more, and `result()` raises at once."""
        self.is_over = True
        self._owner.notify()

    def result(self) -> Result:
        """Wait for the result. A middleware whose iteration may still be dropped waits until that is known as well.

        Raises:
            WorkCancelled: the run ended meanwhile, or the iteration of the caller is dropped.
            RuntimeError: what the work was given has changed since it began: a list, an array, a module.
            Exception: what the work raised.
        """
        if not self._owner.wait_for(self) or not isinstance(self._has_failed, Exception | None):
            raise WorkCancelled(
                f"the run has ended, and with it {self.name}, which it deferred. Where `end_run` takes the result, set "
                "`work.outlasts = True` on what task.defer() returned; where the next run takes it, end this one by "
                "task.run(n, final=False)."
            )
        self._refuse_changes()
        if self._has_failed is not None:
            self.error = None
            raise self._has_failed
        return self._result

    def _refuse_changes(self) -> None:
        prints, self._prints = self._prints, None
        problem = None if prints is None or self._has_failed is not None else prints.problem(self.owns_inputs)
        if problem is not None:
            self._has_failed = RuntimeError(f"{self.description}: {problem}")

    def __copy__(self) -> Deferred[Result]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Deferred[Result]:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.description} cannot be pickled, saved or sent to another process: it is work of this run. Take its "
            "result() before, and save that."
        )


class Caller(NamedTuple):
    """What a task says of the middleware that asks for a result."""

    belongs_to_run: Callable[[], bool]
    """Whether its iteration belongs to the run; waits until that is known."""
    is_stopped: Callable[[], bool]
    """Whether the run has ended for it, or failed before it."""
    resting: Callable[[], AbstractContextManager[Any]]
    """For the time of this block it waits for others."""
    is_at_end: Callable[[], bool]
    """Whether at most one iteration follows that of the caller."""
    fail: Callable[[BaseException], None]
    """Ends the run at once where it overlaps, by what ends a program: SystemExit or KeyboardInterrupt."""


class Deferrals:
    """The deferred work of one task, with one meaning on one thread and on several.

    Work belongs to the run that began it. Its result may be taken until that run has ended for good, and by middleware only in
    iterations that belong to the run; later, `result()` raises WorkCancelled. What work raises is raised by `result()`; where
    nobody has asked, at the end of the run.

    Args:
        caller: what is known about the one that asks for a result.
        changed: notified when work ends or is cancelled.
    """

    def __init__(self, caller: Caller, changed: threading.Condition) -> None:
        self._caller, self._changed = caller, changed
        self._open: list[Deferred[Any]] = []  # that is under way, or has failed and nobody knows
        self._done: weakref.WeakSet[Deferred[Any]] = weakref.WeakSet()  # whose result somebody may ask for
        self._numbers = itertools.count()
        self._watched: Counter[Any] = Counter()
        self.is_ending = False
        """Whether the run has ended, so that a wait for work is a wait for the end."""

    def fail(self, error: BaseException) -> None:
        """End the run at once: work has raised what ends a program."""
        self._caller.fail(error)

    def begin(
        self, fn: Callable[..., Result], args: tuple[Any, ...], origin: Origin, is_beside: bool, torch_count: int | None
    ) -> Deferred[Result]:
        """Do this work on a thread of its own, or now.

        Args:
            fn: the work.
            args: what it is called with.
            origin: the step that defers it.
            is_beside: whether it runs on a thread of its own.
            torch_count: threads of torch that its operations take; None for torch's own.
        """
        outer = self.current()
        # By where and when it begins, never by when it ends.
        before = origin.place if outer is None else outer.order
        work = Deferred(fn, args, origin if outer is None else outer.origin, (*before, next(self._numbers)), self, outer)
        if outer is not None:
            is_beside, torch_count = outer.thread is not None, outer.torch_count
        work.torch_count = torch_count
        key = _code_of(fn) or type(fn)
        self._watched[key] += 1
        if self._watched[key] <= _WATCHED:
            work.watch(InputFingerprints(fn, args))
        if is_beside:
            target = HelperContext().run
            name = f"{DEFERRED_THREAD}.{work.name}"
            work.thread = threading.Thread(target=target, args=(self._run_beside, work, torch_count), name=name, daemon=True)
            with self._changed:
                self._open.append(work)
            try:
                work.thread.start()
            except BaseException:
                self._open.remove(work)
                raise
        else:
            with torch_threads(torch_count):
                contextvars.copy_context().run(work.run)
            with self._changed:
                self._file(work)
        return work

    def _run_beside(self, work: Deferred[Any], torch_count: int | None) -> None:
        enter(None)  # it belongs to no iteration any more
        use_torch_threads(torch_count)
        work.run()
        with self._changed:
            self._open.remove(work)
            self._file(work)
            self._changed.notify_all()

    def _file(self, work: Deferred[Any]) -> None:
        self._done.add(work)
        if work.error is not None or work.errors_at_end:
            self._open.append(work)

    def current(self) -> Deferred[Any] | None:
        """The deferred work of this task that calls this, or None outside of any."""
        work = _current.get()
        return work if work is not None and work.belongs_to(self) else None

    def notify(self) -> None:
        """Let everyone who waits look again at what the run has come to."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, work: Deferred[Any]) -> bool:
        """Wait until work is done; false where its result is not to be taken."""
        if self.current() is not None:  # as on one thread, where work that work defers is done at once
            self._wait_for(lambda: work.done or work.is_left)
            return work.done
        if work.is_over or not self._caller.belongs_to_run():
            return False
        with self._caller.resting():
            is_end = self.is_ending or self._caller.is_at_end()
            if is_end and not self._wait_for(lambda: self._is_let_go(work), _PATIENCE_S):
                _warn_of_waiting([work])
            self._wait_for(lambda: self._is_let_go(work))
        return work.done and not work.is_over

    def _is_let_go(self, work: Deferred[Any]) -> bool:
        return work.done or work.is_over or self._caller.is_stopped()

    def _wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def cancel(self, last: int | None = None) -> None:
        """The run has ended: no result is taken any more.

        Args:
            last: the last iteration, where an `end_run` may follow, which takes the results of what outlasts the run; not of
                what was begun in a later iteration, which is dropped.
        """
        with self._changed:
            self.is_ending = True
            for work in (*self._open, *self._done):
                is_kept = work.outlasts_run and last is not None and work.place[0] <= last
                work.is_over = work.is_over or not is_kept
            self._changed.notify_all()

    def wait(self, is_at_once: bool = False) -> None:
        """Wait until everything that is cancelled has ended, and what that defers meanwhile.

        Args:
            is_at_once: the run ends at once: what has not ended after some seconds is left behind, with a warning.
        """
        self._wait(lambda work: work.is_over, is_at_once)

    def close(self) -> None:
        """Cancel what no run has ended, and wait for it; not for what a run has left behind, nor for the caller itself."""
        here, left = self.current(), [work for work in self._open if not work.is_over]
        self.cancel()
        self._wait(lambda work: work is not here and any(one in left for one in work.with_outer()))

    def _wait(self, is_awaited: Callable[[Deferred[Any]], bool], is_at_once: bool = False) -> None:
        seen: dict[Deferred[Any], None] = {}

        def is_done() -> bool:
            seen.update(dict.fromkeys(work for work in self._open if not work.is_left and is_awaited(work)))
            return all(work.done for work in seen)

        try:
            if not self._wait_for(is_done, _PATIENCE_S):
                if is_at_once:
                    _leave(seen)
                    return
                _warn_of_waiting(seen)
                self._wait_for(is_done)
            for work in seen:
                if work.thread is not None:
                    work.thread.join()
        except BaseException:  # a signal that asks to stop at once
            _leave(seen)
            raise

    def failures(self, last: int | None = None) -> Iterator[BaseException]:
        """What work has raised that nobody has asked for, in the order in which it was begun; each once.

        Args:
            last: the last iteration of the run; what was begun in a later one, which was dropped, is a warning, unless it ends
                a program. None takes all.
        """
        with self._changed:
            failed = sorted((work for work in self._open if work.has_errors), key=lambda work: work.order)
            self._open = [work for work in self._open if not work.has_errors]
        for work in failed:
            for error in work.take_errors():
                if last is None or work.place[0] <= last or not isinstance(error, Exception):
                    yield error
                else:
                    warn_of(error, f"{work.name} was deferred in an iteration that was begun beside the last one")

    def withdraw(self, error: Exception) -> None:
        """Take back what work has asked to be raised at the end."""
        with self._changed:
            for work in self._open:
                work.errors_at_end[:] = [other for other in work.errors_at_end if other is not error]


def _leave(works: Iterable[Deferred[Any]]) -> None:
    """Do not wait for the end of this work any more. Its threads are daemons, which end with the program."""
    left = [work for work in works if not work.done]
    for work in left:
        work.is_left = True
    if left:
        names = "; ".join(work.description for work in left)
        warnings.warn(f"deferred work did not end, and is left behind: {names}.", RuntimeWarning, stacklevel=4)


def _warn_of_waiting(works: Iterable[Deferred[Any]]) -> None:
    names = "; ".join(work.description for work in works if not work.done)
    warnings.warn(
        f"the run ends, and waits for deferred work, which did not return within {_PATIENCE_S:g} s: {names}. Let long "
        "work end when task.stopping is true. Ctrl-C, twice at most, ends the wait.",
        RuntimeWarning,
        stacklevel=4,
    )


def warn_of(error: BaseException, where: str) -> None:
    """Warn of what deferred work has raised, where no run is left to raise it."""
    text = f"{where}, and raised {type(error).__name__}: {error}. Nobody has taken its result."
    warnings.warn(text, RuntimeWarning, stacklevel=3)


_current: contextvars.ContextVar[Deferred[Any] | None] = contextvars.ContextVar("deferred", default=None)


def middleware_around(entries: Iterable[Entry], frame: FrameType) -> str:
    """The middleware that runs in this frame or around it, with its place; where there is none, the function of the frame."""
    codes = [(entry, _code_of(entry.fn)) for entry in entries]
    here: FrameType | None = frame
    while here is not None:
        for entry, code in codes:
            if code is here.f_code and _is_of(entry.fn, here):
                return f"middleware {entry.name} ({entry.location})"
        here = here.f_back
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


def _code_of(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__code__", None) or getattr(call_of(fn), "__code__", None)


def _is_of(fn: Any, frame: FrameType) -> bool:
    """Whether a frame with the code of `fn` runs for this object, where `fn` is one or a method of one."""
    owner = getattr(fn, "__self__", None if hasattr(fn, "__code__") or isinstance(fn, functools.partial) else fn)
    names = frame.f_code.co_varnames[:1]
    return owner is None or not names or frame.f_locals.get(names[0], owner) is owner
