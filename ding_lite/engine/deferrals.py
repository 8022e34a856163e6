"""Deferrals: long work that one iteration begins, and whose result a later iteration takes."""

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
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from ding_lite.basics.blocks import block
from ding_lite.basics.messages import HelperContext, add_note, describe_call, describe_error, did_you_mean, name_of
from ding_lite.basics.torch_threads import torch_threads, use_torch_threads
from ding_lite.engine.calling_middleware import code_of
from ding_lite.engine.deferred_inputs import InputFingerprints
from ding_lite.engine.lanes import enter

Result = TypeVar("Result")
DEFERRED_THREAD = "task.deferred"
"""Prefix of the names of threads that run deferred work."""
_SETTLE_S = 60.0  # before a save of the run is given up, because deferred work does not end
_PATIENCE_S = 5.0  # after the end of the run, before a warning names the work that is waited for
_WATCHED = 5  # calls per function whose inputs are checked
_SETTINGS = ("used_in_end_run", "changes_inputs")  # what a script may set on the object that task.defer() returns
_EARLIER_NAMES = {"outlasts": "used_in_end_run", "owns_inputs": "changes_inputs"}
Place = tuple[int, int]
"""(iteration, position) of the step that deferred the work."""


class Origin(NamedTuple):
    """The place where work was deferred."""

    place: Place
    words: str
    """The middleware, with its file and line, and the iteration."""


class WorkCancelled(RuntimeError):
    """The run ended before this work did, or before its result was taken."""


BrokenOff = WorkCancelled  # its name in earlier versions


class Deferred(Generic[Result]):
    """Work that runs in parallel with later iterations; without overlap, it is done when it is created."""

    __slots__ = (
        "__weakref__",
        "_call",
        "_has_failed",
        "_outer",
        "_owner",
        "_prints",
        "_result",
        "changes_inputs",
        "description",
        "done",
        "error",
        "errors_at_end",
        "is_left",
        "is_over",
        "knows_that_it_is_over",
        "name",
        "order",
        "origin",
        "place",
        "thread",
        "torch_count",
        "used_in_end_run",
    )
    changes_by_itself = True
    """As the value of a context's field, it may change without being changed by a middleware."""

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
        """The error of the work, until `result()` has raised it."""
        self._has_failed: BaseException | None = None
        self.done = False
        """Whether the result is available."""
        self.thread: threading.Thread | None = None
        """The thread that runs it; None if it was done at once."""
        self.used_in_end_run = False
        """Whether it continues after the last iteration, for an `end_run` that takes its result."""
        self.changes_inputs = False
        """Whether it changes its inputs, such as a module that it trains, and nothing else does until its result is taken."""
        self.is_over: bool = outer is not None and outer.is_over
        """Whether its run has ended, so that its result can no longer be taken."""
        self.knows_that_it_is_over = False
        """Whether it has noticed that, so that an error may be its way to end."""
        self.is_left = False
        """Whether the run ended without waiting for it."""

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except AttributeError:
            now = _EARLIER_NAMES.get(name)
            hint = f": it is called {now!r} now." if now else did_you_mean(name, _SETTINGS)
            raise AttributeError(
                f"the object that task.defer() returned has no attribute {name!r} to set{hint} A script may set "
                f"{' and '.join(_SETTINGS)}.",
                name=name,
                obj=self,
            ) from None

    def watch(self, prints: InputFingerprints) -> None:
        """Call before the work starts: `result()` will then raise an error if the inputs have changed."""
        self._prints = prints

    def run(self) -> None:
        """Do the work. An error is stored."""
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
    def is_used_in_end_run(self) -> bool:
        """Whether it, or the work that has deferred it, goes on when the run has ended without an error."""
        return any(work.used_in_end_run for work in self.with_outer())

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
        """The run has ended: `result()` raises WorkCancelled from now on."""
        self.is_over = True
        self._owner.notify()

    def result(self) -> Result:
        """Wait for the result. If the iteration of the caller may still be dropped, wait until that is known as well.

        Raises:
            WorkCancelled: the run has ended, or the iteration of the caller is dropped.
            RuntimeError: an input of the work, such as a list, array or module, has changed since the work began.
            Exception: the error of the work.
        """
        if not self._owner.wait_for(self) or not isinstance(self._has_failed, Exception | None):
            raise WorkCancelled(
                f"the run has ended, and with it {self.name}, which it deferred. If `end_run` takes the result, set "
                "`work.used_in_end_run = True` on the object that task.defer() returned; if the next run takes it, end this "
                "run by task.run(n, final=False)."
            )
        self._refuse_changes()
        if self._has_failed is not None:
            self.error = None
            raise self._has_failed
        return self._result

    def _refuse_changes(self) -> None:
        prints, self._prints = self._prints, None
        problem = None if prints is None or self._has_failed is not None else prints.problem(self.changes_inputs)
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
    """What a task knows about the middleware that asks for a result."""

    belongs_to_run: Callable[[], bool]
    """Whether the caller's iteration belongs to the run; waits until that is known."""
    is_stopped: Callable[[], bool]
    """Whether the run has ended for the caller, or failed before its step."""
    resting: Callable[[], AbstractContextManager[Any]]
    """A block within which the caller waits for others."""
    is_at_end: Callable[[], bool]
    """Whether at most one iteration follows the caller's."""
    fail: Callable[[BaseException], None]
    """Ends an overlapping run at once with SystemExit or KeyboardInterrupt."""


class Deferrals:
    """The deferred work of one task, with the same behaviour on one thread and on several.

    Work belongs to the run that began it. Its result may be taken until that run has finally ended, and by middleware only in
    iterations that belong to the run; later, `result()` raises WorkCancelled. An error of the work is raised by `result()`, or
    when the run ends.

    Args:
        caller: information about the caller of `result()`.
        changed: notified when work ends or is broken off.
    """

    def __init__(self, caller: Caller, changed: threading.Condition) -> None:
        self._caller, self._changed = caller, changed
        self._open: list[Deferred[Any]] = []  # in progress, or failed with an error that was not raised yet
        self._done: weakref.WeakSet[Deferred[Any]] = weakref.WeakSet()  # whose result may still be taken
        self._awaited: Iterable[Deferred[Any]] = ()
        self._numbers = itertools.count()
        self._watched: Counter[Any] = Counter()
        self.is_ending = False
        """Whether the run has ended and waits for work."""

    def fail(self, error: BaseException) -> None:
        """End the run at once, because work has raised SystemExit or KeyboardInterrupt."""
        self._caller.fail(error)

    def begin(
        self, fn: Callable[..., Result], args: tuple[Any, ...], origin: Origin, is_beside: bool, torch_count: int | None
    ) -> Deferred[Result]:
        """Do this work on a new thread, or at once.

        Args:
            fn: the work.
            args: its positional arguments.
            origin: the step that defers it.
            is_beside: whether it runs on a new thread.
            torch_count: torch threads per operation; None for torch's default.
        """
        outer = self.current()
        # The order depends on where and when work begins, never on when it ends.
        before = origin.place if outer is None else outer.order
        work = Deferred(fn, args, origin if outer is None else outer.origin, (*before, next(self._numbers)), self, outer)
        if outer is not None:
            is_beside, torch_count = outer.thread is not None, outer.torch_count
        work.torch_count = torch_count
        key = code_of(fn) or type(fn)
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
        enter(None)  # this thread belongs to no lane
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
        """Wake all waiting threads, so that they check the state of the run."""
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

    @block
    def _awaiting(self, works: Iterable[Deferred[Any]]) -> Iterator[None]:
        """Within this block, the task waits for this work, which may become more."""
        self._awaited = works
        try:
            yield
        finally:
            self._awaited = ()

    @property
    def awaited(self) -> str:
        """The work for whose end the task waits, for messages; empty if it waits for none."""
        return "; ".join(work.description for work in tuple(self._awaited) if not work.done)

    @property
    def is_busy(self) -> bool:
        """Whether work that has begun is not done."""
        return not all(work.done for work in list(self._open))

    def settle(self) -> list[Deferred[Any]]:
        """Wait until all work that has begun is done, at most a minute; results can still be taken. Returns what is left."""
        with self._awaiting(self._open):
            self._wait_for(lambda: not self.is_busy, _SETTLE_S)
        return [work for work in list(self._open) if not work.done]

    def cancel(self, last: int | None = None) -> None:
        """The run has ended: results can no longer be taken.

        Args:
            last: the last iteration, if an `end_run` may follow, which can take results of work with `used_in_end_run`, unless
                a later, dropped iteration began it.
        """
        with self._changed:
            self.is_ending = True
            for work in (*self._open, *self._done):
                is_kept = work.is_used_in_end_run and last is not None and work.place[0] <= last
                work.is_over = work.is_over or not is_kept
            self._changed.notify_all()

    def wait(self, is_at_once: bool = False) -> None:
        """Wait until everything that is cancelled has ended, and what that defers meanwhile.

        Args:
            is_at_once: the run ends at once: work that has not ended after some seconds is abandoned, with a warning.
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
            with self._awaiting(seen):
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

    def failures(self, last: int | None = None, within: Deferred[Any] | None = None) -> Iterator[BaseException]:
        """Errors of work that `result()` has not raised, in the order in which the work was begun; each once.

        Args:
            last: the last iteration of the run. An error of work from a later, dropped iteration is only a warning, unless it
                is SystemExit or KeyboardInterrupt. None takes all.
            within: only errors of this work, and of work that it has deferred; None for all.
        """
        with self._changed:
            failed = [it for it in self._open if it.has_errors and (within is None or within in it.with_outer())]
            self._open = [work for work in self._open if work not in failed]
            failed.sort(key=lambda work: work.order)
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
    """Abandon this work. Its threads are daemons, which end with the program."""
    left = [work for work in works if not work.done]
    for work in left:
        work.is_left = True
    if left:
        names = "; ".join(work.description for work in left)
        warnings.warn(f"deferred work did not end and is abandoned: {names}.", RuntimeWarning, stacklevel=4)


def _warn_of_waiting(works: Iterable[Deferred[Any]]) -> None:
    names = "; ".join(work.description for work in works if not work.done)
    warnings.warn(
        f"the run has ended, and waits for deferred work, which did not return within {_PATIENCE_S:g} s: {names}. Let long "
        "work end when task.stopping is true. Ctrl-C, twice at most, ends the wait.",
        RuntimeWarning,
        stacklevel=4,
    )


def warn_of(error: BaseException, where: str) -> None:
    """Warn of an error of deferred work that no run can raise any more."""
    text = f"{where}, and raised {describe_error(error)}. Its result was never taken."
    warnings.warn(text, RuntimeWarning, stacklevel=3)


_current: contextvars.ContextVar[Deferred[Any] | None] = contextvars.ContextVar("deferred", default=None)
