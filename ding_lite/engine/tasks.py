"""The task: a pipeline of middleware over one context, run again and again."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple, SupportsIndex, TypeVar

from ding_lite.basics.messages import add_note
from ding_lite.engine.deferrals import Caller, Deferrals, Deferred, Origin, middleware_around, warn_of
from ding_lite.engine.deferred_inputs import require_work
from ding_lite.engine.endings import EndingMixin, EndReason, settle, where_set
from ding_lite.engine.events import Events, EventsMixin
from ding_lite.engine.interrupts import interruptible
from ding_lite.engine.lanes import current_lane
from ding_lite.engine.manual_control import ManualControl, running_task
from ding_lite.engine.networks import Network
from ding_lite.engine.plans import Plan, make_plan
from ding_lite.engine.roles import RolesMixin
from ding_lite.engine.sync_loops import iterate
from ding_lite.engine.timeline_reports import TimelineMixin
from ding_lite.engine.timelines import Timeline
from ding_lite.pipeline.contexts import Context, family_of, is_scalar, kept_fields
from ding_lite.pipeline.fingerprints import Print, changed, fingerprint
from ding_lite.pipeline.guards import Checker
from ding_lite.pipeline.pipeline_checks import check_pipeline
from ding_lite.pipeline.pools import Pool
from ding_lite.pipeline.suggestions import Touches, unnamed_objects

Result = TypeVar("Result")
_ENDLESS = int(1e12)


class Task(ManualControl, EndingMixin, EventsMixin, RolesMixin, TimelineMixin):
    """A loop of middleware over a context. `ding_lite.task` is the one that scripts use; tests may make their own.

    Each iteration runs every middleware in order of `use`; then the backward steps of those that are generators, in reverse;
    then the context is renewed. It ends after `max_step` iterations, or after the one in which `finish` was set. Then
    the method `end_run` of each middleware that has one is called. In asynchronous mode iterations overlap, with the same
    result on every run (docs/design.md says which).

    Example:
        >>> loop = Task()
        >>> with loop.start():
        ...     _ = loop.use(lambda ctx: print("iteration", ctx.total_step))
        ...     loop.run(max_step=2)
        iteration 0
        iteration 1
    """

    def __init__(self) -> None:
        self._ctx: Any = Context()
        self._finish = self._ended = self._ran = self._iterating = False
        self._left, self.n_async_workers = 0, 1
        self._errors_at_end: list[BaseException] = []
        self._places_of_errors: dict[int, tuple[int, int]] = {}  # by id, of the steps that asked for them on lanes
        self.async_mode, self.max_lag = False, 0
        self._timeline: Timeline | None = None
        self._clear()

    def _clear(self) -> None:
        self.labels, self._roles = set(), set()
        self._clear_pipeline()
        self._clear_halves()
        self._clear_ending()
        self._changed = threading.Condition()
        self._events = Events(self._changed)
        self._pool = Pool(self.n_async_workers, self._changed)
        caller = Caller(self._belongs_to_run, self._is_stopped, self._pool.resting, self._is_at_end, self._fail_at_once)
        self._deferrals = Deferrals(caller, self._changed)
        self._network: Network | None = None
        self._paused: _Paused | None = None
        self._checked: tuple[tuple[object, list[tuple[int, int]]], Checker] | None = None
        self._touches = Touches()

    def start(
        self,
        async_mode: bool = False,
        n_async_workers: int = 3,
        ctx: Context | None = None,
        labels: Iterable[str] = (),
        max_lag: int | None = None,
    ) -> Task:
        """Open the task, empty, on this context. Use it in a `with` block, which stops it.

        Args:
            async_mode: overlap evaluation, collection and training, each on its lane. The result is a function of the seeds
                and of `max_lag` alone.
            n_async_workers: how many of what `parallel`, and `forward(..., async_mode=True)`, begin are at work at a time. What
                waits for another lane, for deferred work or for an event lends its place to the next.
            ctx: the context of the first iteration.
            labels: what `match_labels` looks for, beside "local" and "node.0".
            max_lag: by how many iterations exactly what only an earlier lane reads, such as the weights that collect, comes
                late; up to `1 + max_lag` iterations are under way at a time. None is 1 in asynchronous mode, else 0. With
                `async_mode=False` the same schedule runs on one thread, with the same result.

        Raises:
            RuntimeError: it is open already.
            TypeError: `ctx` is no Context, or is a class.
            ValueError: `n_async_workers` < 1 or `max_lag` < 0.
        """
        if self._started_at is not None:
            raise RuntimeError(
                f"task.start() while the task opened at {self._started_at} is still running: leave its `with` block or call "
                "task.stop() first; a task does not nest."
            )
        if ctx is not None and not isinstance(ctx, Context):
            mend = f"write ctx={ctx.__name__}()" if isinstance(ctx, type) else "pass an instance of a Context subclass"
            raise TypeError(f"task.start(ctx=...) wants a context, got {ctx!r}: {mend}.")
        if n_async_workers < 1:
            raise ValueError(f"task.start(n_async_workers={n_async_workers}): at least 1 thread is needed.")
        if max_lag is not None and (isinstance(max_lag, bool) or not isinstance(max_lag, SupportsIndex) or int(max_lag) < 0):
            raise ValueError(f"task.start(max_lag={max_lag!r}) wants a whole number of iterations, 0 or more.")
        self.n_async_workers = n_async_workers
        self._clear()
        self.async_mode = bool(async_mode)
        self.max_lag = int(self.async_mode) if max_lag is None else int(max_lag)
        self._timeline = None
        self.ctx = Context() if ctx is None else ctx
        self.labels = {"local", "node.0", *([labels] if isinstance(labels, str) else labels)}
        self._finish = self._ended = self._ran = False
        self._end_reason = None
        caller = sys._getframe(1)
        self._started_at = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        return self

    def stop(self) -> None:
        """Close the task: generators that still wait are closed, events delivered, threads joined, the pipeline forgotten.

        What a contract's `uses` names and has a method `release()` is told, so that it gives back its processes. Inside a
        middleware, `stop` ends the run there and then; `finish = True` is the gentle way.
        """
        if self._started_at is None:
            return
        if self._iterating and self._end_reason is None:
            self._end_reason = EndReason("stop", f"task.stop() was called in {where_set()}")
        if self._network is not None:  # other lanes run: run() stops the task when they are done
            self._network.ask_to_stop()
            return
        things = {id(it): it for entry in self._entries if entry.contract for it in entry.contract.uses}
        try:
            for future in self._begun_by_hand:
                future.cancel()
            while self._own_waiting:
                self._own_waiting.pop().close()
            self._events.close()
        finally:
            self._paused = None
            self._pool.close()
            try:
                self._deferrals.close()
            finally:  # also where a signal ends the wait
                for error in self._deferrals.failures():
                    warn_of(error, "the task has stopped before deferred work could be asked for its result")
                self._started_at = None
                self._entries.clear()  # where an iteration is going through them, it ends
                self._clear()
            for thing in things.values():
                release = getattr(thing, "release", None)
                if callable(release):
                    release()

    def __enter__(self) -> Task:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.stop()
        except BaseException as closing:
            if error is None:
                raise
            add_note(error, f"and closing the task raised {type(closing).__name__}: {closing}")

    def run(self, max_step: int = _ENDLESS, final: bool = True) -> None:
        """Run `max_step` more iterations, or fewer if `finish` is set; the iteration that sets it completes in full.

        `finish` is true during the whole last iteration where it can be known, so that savers write the final state. Ctrl-C
        and SIGTERM let the iteration finish as the last one; a second signal stops at once. Where iterations overlap, other
        lanes have begun up to `max_lag` iterations more when `finish` ends the run. They do what does not need the iterations
        that will not come, and what they did there is dropped.

        A run that follows goes on where this one ended: two runs give the weights, data and environments that one of as many
        iterations gives. What overlaps is begun again only after `finish`, an error, or a change of the pipeline.

        When the last iteration is complete, on all lanes, the method `end_run(ctx)` of each middleware that has one is called,
        in pipeline order and on this thread; what follows a `yield` in it, in reverse. Its context is a fresh one of the last
        iteration: kept fields carried over, everything else as at the start of an iteration. What is written there is in
        `task.ctx` afterwards. `task.end_reason` says why the run ended. After an error or `task.stop()` nothing is called.

        Args:
            max_step: iterations, at most.
            final: False says that another run follows, for a program that drives the task from outside: nothing is done then
                as in the end, neither `finish` nor `end_run`, unless a middleware or a signal ends the run.

        Raises:
            PipelineError: the contracts show that this pipeline cannot work. Nothing has run.
            RunInterrupted: Ctrl-C ended it, a KeyboardInterrupt that ends a script with status 130 and without a traceback.
            SystemExit: SIGTERM ended it, with status 143.
            BaseException: what a middleware raised, with a note naming it and the iteration. The generators that had
                yielded have seen it. Or what `raise_at_end` was given, after a run that went well otherwise.
        """
        self._require_open("run()")
        if self._iterating:
            raise RuntimeError("task.run() inside one of its own middleware: one run at a time.")
        if isinstance(max_step, bool) or not isinstance(max_step, SupportsIndex) or max_step.__index__() < 0:
            raise ValueError(f"task.run(max_step={max_step!r}) wants a whole number of iterations, 0 or more.")
        if not self._entries or max_step == 0:
            words = f"max_step={max_step} was reached" if self._entries else "the pipeline has no middleware"
            if not self._entries:
                warnings.warn("task.run() has nothing to do: add middleware before it, by task.use().", stacklevel=2)
            self._end_reason = EndReason("max_step", words)
            return
        check_pipeline(self.ctx, self._entries)
        if self._ended:
            self._finish = self._ended = False
            self._asked = None
        self._iterating, self._end_reason, self._signal, self._progress = True, None, None, None
        self._errors_at_end.clear()
        self._places_of_errors.clear()
        self._deferrals.is_ending = False
        try:
            with self._current(), interruptible(self._ask_to_finish) as interrupts, contextlib.ExitStack() as after:
                after.callback(setattr, self._pool, "home", self._pool.home)
                self._pool.home = threading.get_ident()
                if self._ran:
                    self.ctx = self.ctx.renew()
                self._ran = True
                if self.async_mode or self.max_lag:
                    self._overlap(max_step.__index__(), final)
                else:
                    self._loop(max_step.__index__(), final)
                if self.running:
                    self._left = 0
                    self._end_reason = self._asked or EndReason("max_step", f"max_step={max_step} was reached")
                    if final or self._asked is not None:
                        self._complete()
                if self._errors_at_end:
                    raise self._errors_at_end.pop(0)
                interrupts.raise_again()
        except BaseException as error:
            first = self._first_of(error)
            if isinstance(first, Exception):
                self._end_reason = EndReason("error", f"{type(first).__name__} was raised: {first}")
            if first is not error:
                raise first from error
            raise
        finally:
            self._ended, self._iterating = True, False

    def _first_of(self, error: BaseException) -> BaseException:
        """What the run raises that this error has ended: what deferred work ends the program with comes before an error."""
        self._deferrals.cancel()
        self._deferrals.wait(is_at_once=not isinstance(error, Exception))
        others = [*self._errors_at_end, *self._deferrals.failures()]
        ends = [other for other in others if not isinstance(other, Exception)]
        first = ends[0] if ends and isinstance(error, Exception) else error
        for other in (error, *others):
            if other is not first:
                add_note(first, f"and {type(other).__name__}: {other}")
        return first

    def _complete(self) -> None:
        """What is done when the last iteration is complete: `end_run`, and the end of what was deferred."""
        self._deferrals.cancel(self.ctx.total_step)
        self._deferrals.wait()
        try:
            self._end_run()
        finally:
            self._deferrals.cancel()
        self._deferrals.wait()
        if self._places_of_errors:  # not in the order in which lanes came to them
            self._errors_at_end.sort(key=lambda error: self._places_of_errors[id(error)])
        self._errors_at_end += self._deferrals.failures(self.ctx.total_step)
        self._errors_at_end.sort(key=lambda error: isinstance(error, Exception))

    def _loop(self, max_step: int, is_final: bool) -> None:
        checker, is_checked = self._checker(), True
        while True:
            max_step -= 1
            self._left = max_step if is_final else _ENDLESS
            if not self._left:
                self._finish = True
            is_checked = is_checked and checker.is_checked(self._ctx)
            iterate(self._ctx, checker.guarded(self._entries) if is_checked else self._entries, self._own_waiting)
            if self._finish or not max_step or not self.running:
                return
            self._ctx = self._ctx.renew()

    def _pipeline(self) -> list[tuple[int, int]]:
        """Which middleware it has, with which wrappers: equal as long as nothing of that is changed."""
        return [(id(entry), id(entry.call)) for entry in self._entries]

    def _checker(self) -> Checker:
        """What enforces contracts in a plain loop: the same one as long as pipeline and context are the same."""
        key = family_of(self.ctx), self._pipeline()
        if self._checked is None or self._checked[0] != key:
            checker = Checker(self.ctx, self._entries, 0, has_lanes=False, is_threaded=False, touches=self._touches)
            self._checked = key, checker
        return self._checked[1]

    def _overlap(self, max_step: int, is_final: bool) -> None:
        network = self._resumed()
        if network is None:
            self._paused = None
            network = self._new_network()
        before = self._asked if self._finish else None
        self._network, self._timeline = network, network.timeline
        try:
            network.run(1 if self._finish else max_step, is_final or self._finish)
            self._finish, self._asked = is_final or network.reason is not None, network.reason or before
        finally:
            self._network, self._paused, self.ctx = None, None, network.ctx
            if network.asked_to_stop:
                self.stop()
        if network.can_go_on:
            kept = {name: getattr(self.ctx, name, None) for name in kept_fields(self.ctx)}
            prints = {name: fingerprint(value) for name, value in kept.items() if not is_scalar(value)}
            self._paused = _Paused(network, self._pipeline(), self.ctx, kept, prints)

    def _new_network(self) -> Network:
        plan = make_plan(self.ctx, self._entries, self.max_lag)
        if self.async_mode:
            _warn_of_barriers(plan)
        for problem in unnamed_objects(self._entries):
            warnings.warn(f"where iterations overlap, {problem}", stacklevel=4)
        checker = Checker(
            self.ctx, self._entries, self.max_lag, has_lanes=True, is_threaded=self.async_mode, touches=self._touches
        )
        return Network(plan, self.ctx, Timeline(), checker, self._deferrals, is_threaded=self.async_mode)

    def _resumed(self) -> Network | None:
        """The network of the last run, if this one goes on with the same pipeline and context."""
        paused = self._paused
        if paused is None or paused.pipeline != self._pipeline() or family_of(paused.ctx) is not family_of(self.ctx):
            return None
        if self.ctx.total_step != paused.ctx.total_step + 1 or kept_fields(self.ctx) != tuple(paused.kept):
            return None
        values = {name: getattr(self.ctx, name, None) for name in paused.kept}
        set_since = {name: it for name, it in values.items() if it is not paused.kept[name]}
        for name, found in paused.prints.items():
            if changed(found, fingerprint(values[name]), private="all") is not None:
                set_since[name] = values[name]
        paused.network.go_on(self.ctx, set_since)
        return paused.network

    def suggest_contracts(self) -> str:
        """Print, for each function without a contract, the decorator to paste above it. Returns what it prints.

        It names the fields that the function was seen to touch in the first iterations, and the objects that it
        holds; a branch that was not taken may touch more. Call it after `run`, or in a middleware, while the task is open.

        Raises:
            RuntimeError: the task is not open.
        """
        self._require_open("suggest_contracts()")
        unseen = [entry.name for entry in self._entries if entry.contract is None and not self._ran]
        text = self._touches.suggest(self._entries)
        none = f"{', '.join(unseen)} has not run yet: call task.run() first." if unseen else "Every middleware has a contract."
        print(text or none)
        return text

    def renew(self) -> Task:
        """Go on to a new context, as `run` does between iterations; a run that follows begins with it."""
        if self._network is not None:
            raise RuntimeError("task.renew() inside a middleware, where iterations overlap: the engine renews each context.")
        self.ctx = self.ctx.renew()
        self._ran = False
        return self

    def defer(self, fn: Callable[..., Result], *args: Any, **named: Any) -> Deferred[Result]:
        """Begin long work whose result a later iteration takes: `fn(*args)`, beside what follows where iterations overlap.

        Take the result in an iteration that does not depend on when the work is done, or the run depends on it too. What the
        work raises is raised by `result()`, and where nobody asks, at the end of the run, as by `raise_at_end`. SystemExit and
        KeyboardInterrupt end the run at once.

        The result may be taken until the run has ended for good; `run(n, final=False)` is no such end. Later, and in
        iterations that are dropped, `result()` raises WorkCancelled. An `end_run` that takes the result sets `outlasts = True`
        on what this returns: the work then goes on until every `end_run` is done.

        Give the work values that do not change any more: a copy of a list, `copy.deepcopy(net)`, `policy.get_weights()`. In
        the first works of each function, `result()` raises a RuntimeError where a list, a dict, an array or a module that the
        work was given has changed since the work began. This is so on one thread, too. Other objects are not looked at. Work
        that changes what it is given, such as a module that it trains, sets `owns_inputs = True` on what this returns: nothing
        else may change it then, and only what comes after the work is noticed.

        On several threads, work that ends when `task.stopping` is true lets the task stop at once; the end of the run waits
        for all work that has begun. On one thread the work is done at once, inside this call. `task.stopping` is then false
        until it returns: work that only ends when `task.stopping` is true never ends there.

        Outside of a run the work is done at once, and its error raised.

        Args:
            fn: a function. One that asks for `task.ctx` fails: work belongs to no iteration.
            args: what it is called with.
            named: none; `functools.partial` takes arguments by name.

        Returns:
            Something with `done`, `result()`, `outlasts` and `owns_inputs`.

        Raises:
            TypeError: `fn` can be no work, does not take these arguments, is given a context, or uses one from around it:
                middleware see it through their contracts.
        """
        self._refuse_beside_another("to defer work")
        require_work(fn, args, named)
        network = self._network
        place = (self._ctx.total_step, 0) if network is None else network.place
        words = middleware_around((*self._ends, *self._entries), sys._getframe(1))
        origin = Origin(place, f"{words} in iteration {place[0]} of the task" if self._iterating else words)
        is_beside, count = (False, None) if network is None else (network.is_threaded, network.torch_threads_beside)
        is_within_work = self._deferrals.current() is not None
        work = self._deferrals.begin(fn, args, origin, is_beside, count)
        if not self._iterating and not is_within_work:
            for error in self._deferrals.failures():
                raise error
        return work

    def _belongs_to_run(self) -> bool:
        """Whether deferred work may give its result to the caller."""
        if self._network is None or current_lane() is None or self._deferrals.current() is not None:
            return True
        self._refuse_in_listener("the result of deferred work")
        with self._pool.resting():
            return self._network.is_certain()

    def _is_stopped(self) -> bool:
        return self._network is not None and current_lane() is not None and self._network.stopping

    def _is_at_end(self) -> bool:
        return self.steps_left <= 1

    def _fail_at_once(self, error: BaseException) -> None:
        network = self._network
        if network is not None:
            network.fail_at_once(error)

    def raise_at_end(self, error: Exception) -> None:
        """Raise this error when the run has ended as it would without it: for a loss that need not stop the others.

        A saver calls it where the last state cannot be written: each middleware completes the iteration, and the program fails
        nevertheless. Outside of a run the error is raised at once.
        """
        work = self._deferrals.current()
        if work is not None:
            work.errors_at_end.append(error)
            return
        if not self._iterating:
            raise error
        self._errors_at_end.append(error)
        if self._network is not None:
            self._places_of_errors[id(error)] = self._network.place

    def withdraw(self, error: Exception) -> None:
        """Do not raise this error at the end of the run any more, because its cause is gone."""
        self._errors_at_end[:] = [other for other in self._errors_at_end if other is not error]
        self._deferrals.withdraw(error)

    @property
    def steps_left(self) -> int:
        """The most iterations that may follow the current one in this run."""
        return self._left if self._network is None else self._network.steps_left()

    @property
    def stopping(self) -> bool:
        """Whether the run breaks off, so that long work may end early. Deferred work is asked for its own run."""
        work = self._deferrals.current()
        if work is not None:
            work.knows_that_it_is_over = work.is_over
            return work.is_over or not self.running
        return not self.running or (self._network is not None and self._network.stopping)

    @property
    def finish(self) -> bool:
        """Whether the current iteration is the last. Set it to end the run; the iteration still completes in full.

        Where iterations overlap, asking waits until all that stands before the middleware that asks has run.
        """
        if self._network is None:
            return self._finish
        self._refuse_in_listener("task.finish")
        with self._pool.resting():
            return self._network.is_last()

    @finish.setter
    def finish(self, value: bool) -> None:
        self._ask(EndReason("finish", f"task.finish was set in {where_set()}") if value else None)

    def finish_because(self, words: str) -> None:
        """Set `finish`, and say why.

        Args:
            words: a clause that stands behind "because", such as "the loss is below 0.1".
        """
        self._ask(EndReason("finish", words))

    @property
    def is_certain(self) -> bool:
        """Whether the current iteration belongs to the run. Where iterations overlap, one that was begun may still be dropped;
        asking waits until those before it are complete.

        What a middleware does then is the same in every run, wherever it ends.
        """
        if self._network is None:
            return True
        self._refuse_in_listener("task.is_certain")
        with self._pool.resting():
            return self._network.is_certain()

    def _refuse_in_listener(self, asked: str) -> None:
        """Refuse what waits for other lanes while these may wait for their turn to emit."""
        if self._events.is_within_listener:
            raise RuntimeError(
                f"{asked} was asked by the listener of an event, where iterations overlap: the answer may take until other "
                "lanes have gone on, and they wait to emit. Ask in the middleware that emits, and pass the answer on."
            )

    def _refuse_beside_another(self, asked: str) -> None:
        """Refuse a middleware's request to `ding_lite.task` where another task runs that middleware."""
        running = running_task()
        if self is task and not self._iterating and running is not None and running is not self:
            raise RuntimeError(
                f"{asked} was asked of ding_lite.task, which does not run, by a middleware of another Task: ask that one, or "
                "ding_lite.engine.current_task(), which is the one that runs."
            )

    def _ask(self, reason: EndReason | None) -> None:
        self._refuse_beside_another("to finish")
        if self._network is not None:
            self._network.ask_to_finish(reason)
            return
        self._asked = settle(self._asked, reason)
        self._finish = self._asked is not None or (self._iterating and not self._left)  # the last of max_step stays the last
        self._ended = False

    def _ask_to_finish(self, signal: str) -> None:
        self._signal = signal
        self._ask(EndReason("signal", f"{signal} was received"))


def _warn_of_barriers(plan: Plan) -> None:
    if plan.opaque:
        names = ", ".join(f"{entry.name} ({entry.location})" if entry.location else entry.name for entry in plan.opaque)
        warnings.warn(
            f"asynchronous mode knows nothing of {names}: without a contract, everything before it in the pipeline is done "
            "first, and nothing after it begins. Say what it touches, @contract(reads=..., writes=..., uses=..., stage=...), "
            "and it overlaps with the rest; task.suggest_contracts() prints that line after some iterations.",
            stacklevel=5,
        )


class _Paused(NamedTuple):
    """A run that has ended by `max_step`, and may go on."""

    network: Network
    pipeline: list[tuple[int, int]]
    ctx: Context
    """Of its last iteration."""
    kept: dict[str, Any]
    """What was kept when its last iteration was complete."""
    prints: dict[str, Print]
    """What of that may change in place, as it was."""


task = Task()
"""The task that scripts use."""


def current_task() -> Task:
    """The task that is running the middleware that calls this, or `ding_lite.task` outside of any."""
    return running_task() or task
