"""The task: runs a pipeline of middleware over a context, iteration by iteration."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from os import PathLike
from types import TracebackType
from typing import Any, SupportsIndex, TypeVar

from ding_lite.basics.blocks import block
from ding_lite.basics.files import absolute
from ding_lite.basics.foreign_names import foreign_arguments, foreign_attributes
from ding_lite.basics.messages import add_note, describe_error, did_you_mean, words_of
from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.basics.origins import is_method_of_ding_lite
from ding_lite.basics.run_downloads import restored_run
from ding_lite.basics.run_files import RunFiles
from ding_lite.basics.storages import open_storage
from ding_lite.basics.user_output import show, without_closed_stderr
from ding_lite.engine.calling_middleware import entries_around, middleware_around
from ding_lite.engine.deferrals import Caller, Deferrals, Deferred, Origin, warn_of
from ding_lite.engine.deferred_inputs import require_work
from ding_lite.engine.endings import MAX_STEP, EndingMixin, EndReason, where_set
from ding_lite.engine.events import Events, EventsMixin
from ding_lite.engine.foreign_names import ATTRIBUTES
from ding_lite.engine.interrupts import Interrupts, interruptible
from ding_lite.engine.lanes import current_lane
from ding_lite.engine.manual_control import ManualControl, running_task
from ding_lite.engine.paused_runs import PausedRun
from ding_lite.engine.plans import Plan, make_plan
from ding_lite.engine.roles import RolesMixin
from ding_lite.engine.run_states import RunStateMixin
from ding_lite.engine.stage_times import StageTimes
from ding_lite.engine.sync_loops import iterate
from ding_lite.engine.timeline_reports import TimelineMixin
from ding_lite.engine.timelines import Timeline
from ding_lite.engine.token_networks import Network
from ding_lite.engine.watchdogs import OutOfMemoryError, Watchdog, place_in, running_in
from ding_lite.pipeline.contexts import Context, family_of
from ding_lite.pipeline.contract_guards import Checker
from ding_lite.pipeline.contracts import names_object
from ding_lite.pipeline.lifecycle import Opening
from ding_lite.pipeline.pipeline_checks import check_pipeline
from ding_lite.pipeline.pools import Pool
from ding_lite.pipeline.shared_objects import reached_by, sharing_advice
from ding_lite.pipeline.suggestions import Touches
from ding_lite.pipeline.used_middleware import methods_of
from ding_lite.pipeline.views import ContractError

Result = TypeVar("Result")
_ENDLESS = int(1e12)
_AT_END = (_ENDLESS, 0)  # the place of what `end_run` does


@foreign_attributes(ATTRIBUTES)
class Task(ManualControl, EndingMixin, EventsMixin, RolesMixin, RunStateMixin, TimelineMixin):
    """A loop of middleware over a context. Scripts use the global `ding_lite.task`; tests may create their own.

    Each iteration runs every middleware in order of `use`, then the second halves of generators in reverse order. The next
    iteration gets a new context. The run ends after `max_step` iterations, or after the iteration in which `finish` was set.
    Then the method `end_run` of each middleware that has one is called. In asynchronous mode iterations overlap, with the same
    result on every run (see docs/design.md).

    Example:
        >>> loop = Task()
        >>> with loop.start():
        ...     _ = loop.use(lambda ctx: print("iteration", ctx.total_step))
        ...     loop.run(max_step=2)
        iteration 0
        iteration 1
    """

    async_mode: bool
    """Whether iterations overlap, the argument of `start`."""
    labels: set[str]
    """Labels for `match_labels`."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute that a task has. Subclasses may have more.

        Raises:
            AttributeError: there is none of this name, such as `finished`; or it is a method, and the value is none.
        """
        if name[0] != "_" and type(self) is Task:
            _require_attribute(name, value)
        object.__setattr__(self, name, value)

    def __init__(self) -> None:
        self._ctx: Any = Context()
        self._finish = self._ended = self._ran = self._iterating = False
        self._is_beginning = False  # whether a run has begun, and its first iteration has not
        self._left, self.n_async_workers = 0, 1
        self._watchdog_s: float | None = None
        self._memory_share: float | None = None
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
        self._clear_run_state()
        self._changed = threading.Condition()
        self._events = Events(self._changed)
        self._pool = Pool(self.n_async_workers, self._changed)
        caller = Caller(self._belongs_to_run, self._is_stopped, self._pool.resting, self._is_at_end, self._fail_at_once)
        self._deferrals = Deferrals(caller, self._changed)
        self._network: Network | None = None
        self._stage_times: StageTimes | None = None
        self._paused: PausedRun | None = None
        self._checked: tuple[tuple[object, list[tuple[int, int]]], Checker] | None = None
        self._touches = Touches()

    @foreign_arguments({})
    def start(
        self,
        async_mode: bool = False,
        n_async_workers: int = 3,
        ctx: Context | None = None,
        labels: Iterable[str] = (),
        max_lag: int | None = None,
        resume: str | PathLike[str] | None = None,
        new_episodes: bool = False,
        watchdog_s: float | None = None,
        memory_share: float | None = 0.95,
        storage_path: str | PathLike[str] | None = None,
        storage_filesystem: Any = None,
    ) -> Task:
        """Open the task with an empty pipeline. Use it in a `with` block, which stops the task at its end.

        Args:
            async_mode: overlap evaluation, collection and training, each on its lane. The result depends only on the seeds
                and on `max_lag`.
            n_async_workers: the number of parts of `parallel`, and of calls of `forward(..., async_mode=True)`, that run at a
                time. A part that waits for another lane, for deferred work or for an event frees its place.
            ctx: the context of the first iteration.
            labels: labels for `match_labels`, besides "local" and "node.0".
            max_lag: the exact number of iterations by which an earlier lane sees values of later lanes late, such as the
                collector's weights. Up to `1 + max_lag` iterations are in progress at a time. None means 1 in asynchronous
                mode, else 0. With `async_mode=False` the same schedule runs on one thread, with the same result.
            resume: the folder of a run that a `CkptSaver` has saved, or the URI of its copy, which is downloaded. The first
                `run` loads the latest state, and leaves out the iterations that are done; calls of `run` that had ended return
                at once. So the same script goes on as if the run had never ended. None begins a new run.
            new_episodes: with `resume`, whether to begin new episodes in environments that cannot be restored, instead of
                raising an error. The run is then not the same as the unbroken one.
            watchdog_s: the run is ended if no middleware begins or returns for this many seconds, in `begin_run` and `end_run`
                too: the stacks of all threads and the name of what hangs are printed, and the program ends with status 75. A
                group of `task.serial` or `task.parallel`, or a nested task, counts as one middleware. None for no limit.
            memory_share: a run that uses more than this share of the memory of the machine, or of its cgroup, is ended between
                two iterations, saved if the pipeline has a CkptSaver, and raises a MemoryError that names its largest objects.
                None for no limit.
            storage_path: URI or path under which a CkptSaver copies the run's folder after each save, such as
                "s3://bucket/experiments"; see docs/reliability.md. A folder to resume that is not on this machine is downloaded
                from there. None for `cfg.storage_path` of a logger in the pipeline.
            storage_filesystem: a `pyarrow.fs.FileSystem` on which storage_path is a path; None for that of the URI.

        Raises:
            RuntimeError: the task is open already.
            TypeError: `ctx` is not a Context, or is a class; or a context is passed as another argument; or `n_async_workers`
                is not a whole number.
            ValueError: `n_async_workers` < 1, `max_lag` < 0, `watchdog_s` is not above 0, or `memory_share` is not in (0, 1].
            CheckpointError: a ValueError; there is no run to resume.
            StorageError: an OSError; the storage cannot be opened, or the run there cannot be read.
        """
        if self._started_at is not None:
            raise RuntimeError(
                f"task.start() while the task opened at {self._started_at} is still running: leave its `with` block or call "
                "task.stop() first; a task does not nest."
            )
        if ctx is not None and not isinstance(ctx, Context):
            fix = f"write ctx={ctx.__name__}()" if isinstance(ctx, type) else "pass an instance of a Context subclass"
            raise TypeError(f"task.start(ctx=...) wants a context, got {ctx!r}: {fix}.")
        if isinstance(async_mode, (Context, type)):
            raise TypeError(f"task.start(async_mode={async_mode!r:.80}) wants True or False: write ctx=.")
        if isinstance(n_async_workers, bool) or not isinstance(n_async_workers, SupportsIndex):
            fix = ": write ctx=." if isinstance(n_async_workers, Context) else "."
            raise TypeError(f"task.start(n_async_workers={n_async_workers!r:.80}) wants a whole number, 1 or more{fix}")
        if n_async_workers < 1:
            raise ValueError(f"task.start(n_async_workers={n_async_workers}): at least 1 thread is needed.")
        if watchdog_s is not None and not watchdog_s > 0:
            raise ValueError(f"task.start(watchdog_s={watchdog_s!r}) wants a number of seconds above 0, or None.")
        if memory_share is not None and not 0 < memory_share <= 1:
            raise ValueError(f"task.start(memory_share={memory_share!r}) wants a share, a number in (0, 1], or None.")
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
        caller = sys._getframe(2)  # 1 is the decorator
        self._new_episodes = new_episodes
        self._watchdog_s, self._memory_share = watchdog_s, memory_share
        self.storage = None if storage_path is None else open_storage(storage_path, storage_filesystem)
        if resume is not None:
            folder = restored_run(resume, storage_path, storage_filesystem)
            RunFiles(folder).require()
            self._resume = absolute(folder)
        self._started_at, self._opening = f"{caller.f_code.co_filename}:{caller.f_lineno}", Opening()
        return self

    @property
    def watchdog_s(self) -> float | None:
        """The argument of `start`."""
        return self._watchdog_s

    def __reduce__(self) -> tuple[Callable[[], Task], tuple[()]]:
        """The global task is that of the other process, so that functions that use it can be sent there."""
        if self is not task:
            raise TypeError("a Task cannot be pickled: make one in the other process; only ding_lite.task is the same there.")
        return _script_task, ()

    def _built(self) -> Task:
        """The task whose pipeline is built: this one, or that of `opened_for` if this is `ding_lite.task`."""
        return (_opened.get() if self is task else None) or self

    def stop(self) -> None:
        """Close the task: close waiting generators, deliver events, join threads, and clear the pipeline.

        Environments, policies and other objects of this library in the `uses` of contracts free their processes. Inside a
        middleware, `stop` ends the run at once; `finish = True` completes the iteration first.
        """
        self._stop()

    def _stop(self, is_after_error: bool = False) -> None:
        if self._started_at is None:
            return
        missing = None if is_after_error else self._calls.missing
        if self._iterating and self._end_reason is None:
            self._end_reason = EndReason("stop", f"task.stop() was called in {where_set(above=1)}")
        if self._network is not None:  # other lanes are running: run() stops the task when they are done
            self._network.ask_to_stop()
            return
        things = {id(it): it for entry in self._entries if entry.contract for it in entry.contract.uses}
        with contextlib.ExitStack() as after:  # also after an error, even of another release
            for release in (attribute_of(thing, "release") for thing in reversed(things.values())):
                if callable(release) and is_method_of_ding_lite(release, "release"):  # not that of a lock
                    after.callback(release)
            self._close()
        if missing is not None:
            warnings.warn(
                f"the resumed script has called run for {missing[0]} iterations, the saved run had done {missing[1]}, so "
                "nothing more was done: make the same calls. A condition on task.ctx between them sees the saved context, and "
                "`try: task.run(n); break` ends at a call that had failed.",
                stacklevel=3,
            )

    def _close(self) -> None:
        """The part of `stop` before objects are released."""
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
            finally:  # even if a signal ends the wait
                for error in self._deferrals.failures():
                    warn_of(error, "the task has stopped before deferred work could be asked for its result")
                if self._opening is not None:
                    self._opening.running = False
                self._started_at, self._opening, self._was_open = None, None, True
                self._entries.clear()  # ends an iteration that is looping over them
                self._clear()

    def __enter__(self) -> Task:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._stop(is_after_error=error is not None)
        except BaseException as closing:
            if error is None:
                raise
            add_note(error, f"and closing the task raised {describe_error(closing)}")

    def run(self, max_step: int = _ENDLESS, final: bool = True) -> None:
        """Run `max_step` more iterations, or fewer if `finish` is set; the iteration that sets it is completed.

        `finish` is true during the whole last iteration if this can be known in advance, so that savers write the final state.
        After Ctrl-C or SIGTERM the current iteration is the last; a second signal stops at once. Where iterations overlap,
        other lanes have begun up to `max_lag` further iterations when `finish` ends the run. They complete the work that does
        not depend on later iterations of other lanes, and its results are dropped.

        A later run continues where this one ended: two runs give the same weights, data and environments as one run with as
        many iterations. Only after `finish`, an error or a change of the pipeline do overlapping lanes start again.

        When the last iteration is complete, on all lanes, the method `end_run(ctx)` of each middleware that has one is called
        on this thread, in pipeline order; code after a `yield` in it runs in reverse order. Its context is a new one of the
        last iteration: kept fields carry over, all others have their start values. Values written there are in `task.ctx`
        afterwards. `task.end_reason` says why the run ended. After an error or `task.stop()`, no `end_run` is called.

        Before the first iteration, the method `begin_run()` of each middleware that has one is called on this thread. After an
        error, `note_error(error)` is called. Neither gets a context.

        After each iteration of a plain loop, the method `agree(ctx, reason)` of each middleware that has one is called with the
        context and the reason why the run is to end here, or None; it returns the reason that counts. With it, several
        processes end after the same iteration.

        Args:
            max_step: maximum number of iterations.
            final: False if another run follows, for a program that calls `run` several times. Then `finish` is not true in the
                last iteration and no `end_run` is called, unless a middleware or a signal ends the run.

        Raises:
            PipelineError: the contracts show that this pipeline cannot work. Nothing has run.
            RunInterrupted: Ctrl-C ended the run; a KeyboardInterrupt that ends a script with status 130 and no traceback.
            SystemExit: SIGTERM ended the run, with status 143.
            BaseException: the error of a middleware, with a note that names the middleware and the iteration, after waiting
                generators have seen it. Or an error passed to `raise_at_end`, after a run without other errors.
        """
        self._require_open("run()")
        if self._iterating:
            raise RuntimeError("task.run() inside one of its own middleware: one run at a time.")
        if isinstance(max_step, bool) or not isinstance(max_step, SupportsIndex) or max_step.__index__() < 0:
            raise ValueError(f"task.run(max_step={max_step!r}) wants a whole number of iterations, 0 or more.")
        if not self._entries:
            warnings.warn("task.run() has nothing to do: add middleware with task.use() first.", stacklevel=2)
            self._end_reason = EndReason(MAX_STEP, "the pipeline has no middleware")
            return
        check_pipeline(self.ctx, self._entries)
        self._load_resumed()
        wanted = max_step.__index__()
        if not wanted:
            self._calls.begin_empty()
            self._end_reason = EndReason(MAX_STEP, "max_step=0 was reached")
            return
        left = self._calls.begin(wanted, final, self._next_step(self._ctx))
        if isinstance(left, EndReason):  # the loaded run has done all of it
            if not self._ran and self._calls.num_done:  # as after a call: the context is that of the last iteration
                object.__setattr__(self._ctx, "total_step", self._ctx.total_step - 1)
                self._ran = True
            self._end_reason, self._ended = left, True
            self._finish = final if left.kind == MAX_STEP else left.kind != "error"
            return
        max_step = left
        if self._ended:
            self._finish = self._ended = False
            self._forget_requests()
        self._iterating, self._end_reason, self._signal, self._progress = True, None, None, None
        self._errors_at_end.clear()
        self._places_of_errors.clear()
        self._deferrals.is_ending = False
        try:
            with (
                self._current(),
                without_closed_stderr(),
                interruptible(self._ask_to_finish) as interrupts,
                contextlib.ExitStack() as after,
            ):
                after.callback(setattr, self._pool, "home", self._pool.home)
                self._pool.home = threading.get_ident()
                if self._ran:
                    self.ctx = self.ctx.renew()
                first_step = self._ctx.total_step
                self._ran = self._is_beginning = True
                if not max_step:  # the loaded run has done all iterations, but may not have come to its end
                    object.__setattr__(self._ctx, "total_step", first_step - 1)
                self._note_start()
                watchdog = self._watchdog(interrupts)
                with watchdog.watching():
                    self._begin_run()
                    if not self._memories.is_begun and self._savers():
                        self._begin_memories()
                    if not max_step:
                        self._finish, self._is_beginning = True, False
                    elif self.async_mode or self.max_lag:
                        self._overlap(max_step, final, watchdog)
                    else:
                        self._loop(max_step, final, watchdog)
                    if self.running:
                        self._warn_of_settings()
                        self._left = 0
                        self._end_reason = self._asked or EndReason(MAX_STEP, f"max_step={wanted} was reached")
                        if final or self._asked is not None:
                            was_cut = self.is_cut
                            if max_step and (self._asked is None or was_cut):
                                self._save_run()
                            self._complete()
                            if not was_cut:
                                self._calls.complete(self._end_reason, self._next_step(self._ctx))
                                if self._signal is not None:  # it came while the run was ending
                                    self._save_run()
                            self._call_at_pause()
                if self._errors_at_end:
                    raise self._errors_at_end.pop(0)
                interrupts.raise_again()
                if self._end_reason is not None and self._end_reason.kind == "memory":
                    raise OutOfMemoryError(str(self._end_reason))
        except BaseException as error:
            first = self._first_of(error)
            if isinstance(first, Exception) and not isinstance(first, OutOfMemoryError):
                self._end_reason = EndReason("error", f"{type(first).__name__} was raised: {words_of(first)}")
                with self._current():
                    self._note_error(first)
            if first is not error:
                raise first from error
            raise
        finally:
            self._settle_reason()
            if self._is_beginning:  # no iteration has begun, so the next run begins with this one
                object.__setattr__(self._ctx, "total_step", first_step)
                self._ran = self._is_beginning = False
            if self._end_reason is None or self._end_reason.kind != MAX_STEP:
                self._calls.break_off(self._end_reason, self._next_step(self._ctx))
            self._ended, self._iterating = True, False
            self._at_pause.clear()

    def _watchdog(self, interrupts: Interrupts) -> Watchdog:
        home = threading.get_ident()

        def progress() -> object:
            network = self._network
            return (self._num_begun, place_in(home)) if network is None else network.places()

        def running() -> str:
            if awaited := self._deferrals.awaited:
                return awaited
            if self._is_paused:
                return "the save of the run, or what else is called between two iterations,"
            network = self._network
            return running_in(home) if network is None else network.running()

        return Watchdog(self._watchdog_s, self._memory_share, progress, running, self._cut, self._largest, interrupts)

    def _first_of(self, error: BaseException) -> BaseException:
        """The error that the run raises: SystemExit or KeyboardInterrupt of deferred work takes precedence over `error`."""
        self._deferrals.cancel()
        self._deferrals.wait(is_at_once=not isinstance(error, Exception))
        others = [*self._errors_at_end, *self._deferrals.failures()]
        ends = [other for other in others if not isinstance(other, Exception)]
        first = ends[0] if ends and isinstance(error, Exception) else error
        for other in (error, *others):
            if other is not first:
                add_note(first, f"and {describe_error(other)}")
        return first

    def _complete(self) -> None:
        """After the last iteration: call every `end_run`, and end deferred work."""
        self._deferrals.cancel(self.ctx.total_step)
        self._deferrals.wait()
        try:
            self._end_run()
        finally:
            self._deferrals.cancel()
        self._deferrals.wait()
        if self._places_of_errors:  # not in the order in which lanes came to them
            self._errors_at_end.sort(key=lambda error: self._places_of_errors.get(id(error), _AT_END))
        self._errors_at_end += self._deferrals.failures(self.ctx.total_step)
        self._errors_at_end.sort(key=lambda error: isinstance(error, Exception))

    def _loop(self, max_step: int, is_final: bool, watchdog: Watchdog) -> None:
        own = vars(self)  # __setattr__ would cost each iteration a tenth of its time
        checker, is_checked, is_watched = self._checker(), True, False
        agreeing = methods_of(self._entries, "agree")
        self._is_beginning = False
        while True:
            max_step -= 1
            own["_left"] = max_step if is_final else _ENDLESS
            if not self._left:
                self._finish = True
            is_checked = is_checked and checker.is_checked(self._ctx)
            is_watched = is_watched or watchdog.begin_in_time()
            entries = checker.guarded(self._entries) if is_checked else self._entries
            if self._stage_times is not None:
                entries = self._stage_times.timed(entries)
            iterate(self._ctx, entries, self._own_waiting)
            is_last = self._agree(agreeing) if agreeing and self.running else self._finish
            if self._at_pause and self.running and (self._asked is None or self.is_cut):
                self._call_at_pause()
            if is_last or not max_step or not self.running:
                self._at_pause.clear()
                return
            own["_ctx"] = self._ctx.renew()

    def _pipeline(self) -> list[tuple[int, int]]:
        """Identifies the middleware and their wrappers; equal as long as none of them changes."""
        return [(id(entry), id(entry.call)) for entry in self._entries]

    def _checker(self) -> Checker:
        """Enforces contracts in a plain loop; the same object as long as pipeline and context are the same."""
        key = family_of(self.ctx), self._pipeline()
        if self._checked is None or self._checked[0] != key:
            checker = Checker(self.ctx, self._entries, 0, has_lanes=False, is_threaded=False, touches=self._touches)
            self._checked = key, checker
        return self._checked[1]

    def _overlap(self, max_step: int, is_final: bool, watchdog: Watchdog) -> None:
        network = None if self._paused is None else self._paused.resumed(self._pipeline(), self.ctx)
        if network is None:
            self._paused = None
            network = self._new_network()
            lanes = self._lanes_to_load()
            if lanes is not None:
                network.lane_states.load(lanes)
            self._loaded_lanes = None
        before = self._asked if self._finish else None
        self._network, self._timeline = network, network.timeline
        if before is not None and self.is_cut and self._savers():  # a signal came before the lanes began
            self._finish = False
            self._forget_requests()
            network.cut(before)
        self._is_beginning = False
        network.pause_at_first(self._at_pause)
        self._at_pause.clear()
        try:
            network.run(1 if self._finish else max_step, is_final or self._finish, watchdog.begin_in_time)
            asked = network.reason or network.cut_by
            self._finish, self._asked = is_final or asked is not None, asked or before
        finally:
            self._network, self._paused, self.ctx = None, None, network.ctx
            if self._stage_times is not None:
                self._stage_times.add(network.timeline.busy_ns)
            if network.asked_to_stop:
                self.stop()
        if network.can_go_on:
            self._paused = PausedRun(network, self._pipeline(), self.ctx)

    def _new_network(self) -> Network:
        plan = make_plan(self.ctx, self._entries, self.max_lag)
        if self.async_mode:
            _warn_of_barriers(plan)
        reached = reached_by(self._entries)
        for problem in sharing_advice(self._entries, reached):
            warnings.warn(f"where iterations overlap, {problem}", stacklevel=4)
        checker = Checker(
            self.ctx,
            self._entries,
            self.max_lag,
            has_lanes=True,
            is_threaded=self.async_mode,
            touches=self._touches,
            reached=reached,
        )
        return Network(plan, self.ctx, Timeline(), checker, self._deferrals, is_threaded=self.async_mode)

    def _resting_network(self) -> Network | None:
        if self._paused is None or not self._paused.is_followed_by(self._pipeline(), self._ctx):
            return None
        self._paused.pass_on(self._ctx)
        return self._paused.network

    def _forget_last_run(self) -> None:
        self._ran = self._ended = self._finish = False
        self._paused = self._checked = None

    def suggest_contracts(self) -> str:
        """Print, for each function without a contract, the decorator to paste above it. Returns the text.

        It names the fields that the function touched in the first iterations, and the objects that it holds. A branch that was
        not taken may touch more. Call it after `run`, or in a middleware, while the task is open.

        Raises:
            RuntimeError: the task is not open.
        """
        self._require_open("suggest_contracts()")
        unseen = [entry.name for entry in self._entries if entry.contract is None and not self._ran]
        text = self._touches.suggest(self._entries)
        none = f"{', '.join(unseen)} has not run yet: call task.run() first." if unseen else "Every middleware has a contract."
        show(text or none)
        return text

    def renew(self) -> Task:
        """Replace the context by the next one, as `run` does between iterations; a later run begins with it."""
        if self._network is not None:
            raise RuntimeError("task.renew() inside a middleware, where iterations overlap: the engine renews each context.")
        if not self.is_catching_up:  # else a loaded context is that of a later call of `run`
            self.ctx = self.ctx.renew()
            self._ran = False
        return self

    def defer(self, fn: Callable[..., Result], *args: Any, **named: Any) -> Deferred[Result]:
        """Start long work, `fn(*args)`, whose result a later iteration takes; it overlaps with the iterations in between.

        Choose the iteration that takes the result independently of when the work is done; otherwise the run depends on timing.
        An error of the work is raised by `result()` or, if that is not called, at the end of the run, like by `raise_at_end`.
        SystemExit and KeyboardInterrupt end the run at once.

        The result may be taken until the run has finally ended; `run(n, final=False)` does not count as an end. Later, and in
        dropped iterations, `result()` raises WorkCancelled. To take the result in an `end_run`, set `used_in_end_run = True` on
        the returned object: the work then continues until every `end_run` is done.

        Pass values that will not change: a copy of a list, `copy.deepcopy(net)`, `policy.get_weights()`. In the first calls for
        each function, `result()` raises a RuntimeError if an input (a list, dict, array or module) has changed since the work
        began, also on one thread. Other objects are not checked. If the work itself changes an input, such as a module that it
        trains, set `changes_inputs = True` on the returned object: nothing else may change it then, and only changes after the
        work are detected.

        With several threads, the end of the run waits for all work; work that returns when `task.stopping` is true lets the
        task stop sooner. On one thread, the work is done inside this call, and `task.stopping` is false until it returns: work
        that ends only when `task.stopping` is true never ends there.

        Outside of a run the work is done at once, and its error raised here.

        Args:
            fn: a function. It must not use `task.ctx`, because work belongs to no iteration.
            args: positional arguments of `fn`.
            named: not supported; use `functools.partial` for keyword arguments.

        Returns:
            An object with `done`, `result()`, `used_in_end_run` and `changes_inputs`.

        Raises:
            TypeError: `fn` is not a plain function, does not take these arguments, or gets a context as an argument or from its
                closure.
        """
        self._refuse_beside_another("to defer work")
        require_work(fn, args, named)
        network = self._network
        latest = self._ctx.total_step if self._iterating else self._next_step(self._ctx) - 1  # of a loaded state as well
        place = (latest, 0) if network is None else network.place
        words = middleware_around((*self._ends, *self._entries), sys._getframe(1))
        origin = Origin(place, f"{words} in iteration {place[0]} of the task" if self._iterating else words)
        is_beside, count = (False, None) if network is None else (network.is_threaded, network.torch_threads_beside)
        is_within_work = self._deferrals.current() is not None
        work = self._deferrals.begin(fn, args, origin, is_beside, count)
        if not self._iterating and not is_within_work:
            for error in self._deferrals.failures(within=work):
                raise error
        return work

    def require_order(self, leader: Any, call: str) -> None:
        """Refuse a call that reads an object which another lane may change meanwhile: `call` says what was called.

        Raises:
            ContractError: iterations overlap, and the contract of the calling middleware does not name the object, or the call
                is in deferred work.
        """
        if self._network is None:
            return
        if self._deferrals.current() is not None:
            raise ContractError(
                f"{call} in deferred work reads weights that the learner changes meanwhile: call it in the middleware, and "
                "pass the result to the work."
            )
        around = entries_around((*self._ends, *self._entries), sys._getframe(2))
        terms = [entry.contract for entry in around if entry.contract is not None]
        if around and len(terms) == len(around) and not any(names_object(leader, one) for one in terms):
            raise ContractError(
                f"{around[0].name} ({around[0].location}) calls {call}, which reads the newest weights, and its contract does "
                "not name what changes them: add the learn_mode to it, uses=(..., policy.learn_mode), so that it waits for the "
                "learner."
            )

    def _belongs_to_run(self) -> bool:
        """Whether the caller may take results of deferred work."""
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
        """Raise this error at the end of the run, after all middleware have completed.

        A saver calls it if the final state cannot be written: the other middleware still complete, and the program fails
        afterwards. Outside of a run the error is raised at once.
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

    def stage_seconds(self) -> dict[str, float]:
        """Seconds that middleware have taken since the first call, for comparisons between two calls.

        In a plain loop, these are the times of first halves. Where iterations overlap, they are the times of the lanes, with
        the work that they delegated to worker processes; the first call adds those since the beginning of the run.

        Returns:
            Seconds by stage: evaluate, collect (with explore), process, and learn (with record, and functions without a
            contract).
        """
        if self._stage_times is None:
            self._stage_times = StageTimes()
        spent = self._stage_times.seconds()
        now = {} if self._network is None else self._network.lane_seconds()
        return {stage: seconds + now.get(stage, 0.0) for stage, seconds in spent.items()}

    @property
    def steps_left(self) -> int:
        """The maximum number of iterations after the current one in this run."""
        return self._left if self._network is None else self._network.steps_left()

    @property
    def stopping(self) -> bool:
        """Whether the run is being stopped, so that long work may end early. In deferred work, its own run counts."""
        work = self._deferrals.current()
        if work is not None:
            work.knows_that_it_is_over = work.is_over
            return work.is_over or not self.running
        return not self.running or (self._network is not None and self._network.stopping)

    @property
    def finish(self) -> bool:
        """Whether the current iteration is the last. Set it to end the run; the iteration is still completed.

        Where iterations overlap, reading it waits for all earlier middleware of the iteration.
        """
        if self._network is None:
            return self._finish
        self._refuse_in_listener("task.finish")
        with self._pool.resting():
            return self._network.is_last()

    @finish.setter
    def finish(self, value: bool) -> None:
        where = where_set(above=1) if value else ""  # above __setattr__
        self._ask(EndReason("finish", f"task.finish was set in {where}") if value else None)

    def finish_because(self, words: str) -> None:
        """Set `finish`, and say why.

        Args:
            words: a clause that follows "because", such as "the loss is below 0.1".
        """
        self._ask(EndReason("finish", words))

    @property
    def is_certain(self) -> bool:
        """Whether the current iteration belongs to the run. Where iterations overlap, it may still be dropped; reading this
        waits until the earlier iterations are complete.

        An action that is limited to certain iterations is the same in every run, independent of where the run ends.
        """
        if self._network is None:
            return True
        self._refuse_in_listener("task.is_certain")
        with self._pool.resting():
            return self._network.is_certain()

    def _refuse_in_listener(self, asked: str) -> None:
        """Refuse to wait for other lanes in a listener, because these lanes may wait to emit."""
        if self._events.is_within_listener:
            raise RuntimeError(
                f"{asked} was asked by the listener of an event, where iterations overlap: the answer may have to wait for "
                "other lanes, and these wait to emit. Ask in the middleware that emits, and pass the answer on."
            )

    def _refuse_beside_another(self, asked: str) -> None:
        """Refuse a request to `ding_lite.task` by a middleware of another task."""
        running = running_task()
        if self is task and not self._iterating and running is not None and running is not self:
            raise RuntimeError(
                f"a middleware of another Task asked ding_lite.task, which is not running, {asked}: use that task, or "
                "ding_lite.engine.current_task(), which returns the running one."
            )

    def _ask(self, reason: EndReason | None) -> None:
        self._refuse_beside_another("to finish")
        if self._network is not None:
            self._network.ask_to_finish(reason)
            return
        if self._ended:  # the requests were those of the last run
            self._forget_requests()
        self._settle(reason)
        self._finish = self._asked is not None or (self._iterating and not self._left)  # the last one stays the last
        self._ended = False

    def _ask_to_finish(self, signal: str) -> None:
        self._signal = signal
        self._cut(EndReason("signal", f"{signal} was received"))

    def _cut(self, reason: EndReason) -> None:
        """End the run between two iterations, so that it can be saved and resumed there."""
        if self._network is not None and self._savers():  # all lanes stop after the same iteration
            self._network.cut(reason)
        else:
            self._ask(reason)


def _warn_of_barriers(plan: Plan) -> None:
    if plan.opaque:
        names = ", ".join(f"{entry.name} ({entry.location})" if entry.location else entry.name for entry in plan.opaque)
        warnings.warn(
            f"asynchronous mode cannot overlap {names}: a middleware without a contract runs after all earlier middleware of "
            "the pipeline, and before all later ones. To let it overlap, declare what it accesses, @contract(reads=..., "
            "writes=..., uses=..., stage=...); task.suggest_contracts() prints this line after some iterations.",
            stacklevel=5,
        )


_opened: ContextVar[Task | None] = ContextVar("opened_task", default=None)


@block
def opened_for(other: Task) -> Iterator[None]:
    """Within this block, `ding_lite.task.use` adds to another task, so that a function written for the global task builds the
    pipeline of that one."""
    token = _opened.set(other)
    try:
        yield
    finally:
        _opened.reset(token)


_ATTRIBUTES = frozenset(
    name for base in Task.__mro__ for name in (*vars(base), *vars(base).get("__annotations__", {})) if not name.startswith("_")
).difference(ATTRIBUTES)
"""The public attributes of a task."""


def _require_attribute(name: str, value: Any) -> None:
    """Refuse to set an attribute that a task does not have, and a method to something else than a function."""
    if name not in _ATTRIBUTES:
        advice = f": {ATTRIBUTES[name]}" if name in ATTRIBUTES else did_you_mean(name, _ATTRIBUTES)
        raise AttributeError(f"Task has no attribute {name!r} to set to {value!r:.80}{advice}", name=name)
    if callable(getattr(Task, name, None)) and not callable(value):
        raise AttributeError(
            f"task.{name} is a method, and cannot be set to {value!r:.80}: call it, task.{name}(...).", name=name
        )


task = Task()
"""The task that scripts use."""


def _script_task() -> Task:
    return task


def current_task() -> Task:
    """The task whose middleware calls this, or `ding_lite.task` if there is none."""
    return running_task() or task
