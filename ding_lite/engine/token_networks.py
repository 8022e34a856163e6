"""Token networks: run a plan, with one thread per lane or on a single thread, and handle ends and errors.

Each lane runs its steps in order: it takes tokens from the incoming edges of a step, runs the step, and puts tokens on the
outgoing edges. A lane that ends closes its edges. A lane that waits for it then ends as well, at a point that depends only on
the plan.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from ding_lite.basics.messages import HelperContext, add_note, describe_error, words_of
from ding_lite.basics.torch_threads import torch_threads, use_torch_threads
from ding_lite.engine.cpu_cores import short_switch_interval, threads_of_torch
from ding_lite.engine.deferrals import Deferrals, WorkCancelled
from ding_lite.engine.edges import EdgeClosed, EdgeEnds, giver
from ding_lite.engine.endings import EndReason, Request, decide
from ding_lite.engine.lane_states import LaneStates, copy_for_lane, refuse_factories_that_count
from ding_lite.engine.lanes import Lane, LaneThread, current_lane, enter
from ding_lite.engine.middleware_steps import LEARN, Edge, MiddlewareStep
from ding_lite.engine.plans import Plan
from ding_lite.engine.step_runs import RunnableStep, StepRunner
from ding_lite.engine.timelines import Timeline
from ding_lite.pipeline.contexts import Context, kept_fields
from ding_lite.pipeline.contract_guards import Checker
from ding_lite.pipeline.contracts import LANES
from ding_lite.pipeline.generators import WaitingGenerator, backward_step

LANE_THREAD = "task.lane"
"""Prefix of the names of the lanes' threads."""

_PATIENCE_S = 60.0  # after the end of the run, before a warning names the middleware that is waited for
_AT_ONCE = -1, -1  # before every step
_ENDLESS = int(1e12)


class Network:
    """Runs a plan: the steps of middleware on their lanes, their requests to the run, and errors.

    Args:
        plan: the edges.
        ctx: context of the first iteration.
        timeline: records running and waiting times.
        checker: enforces the contracts, in every iteration.
        deferrals: the deferred work of the task.
        is_threaded: whether each lane has a thread; otherwise all run on the thread that calls `run`, with the same result.
    """

    def __init__(
        self, plan: Plan, ctx: Context, timeline: Timeline, checker: Checker, deferrals: Deferrals, is_threaded: bool
    ) -> None:
        self.plan, self.timeline, self._deferrals = plan, timeline, deferrals
        self.max_step = 0
        """Number of iterations at the end of the current run, since the first run."""
        self._until = 0
        """Number of iterations after which all lanes stop: `max_step`, or less for a pause between two iterations."""
        self._at_pause: list[Callable[[], None]] = []
        """What to call there."""
        self._begin_watchdog: Callable[[], bool] = lambda: True
        self._is_final = True
        self.first_step = ctx.total_step
        self.asked_to_stop = False
        self.error: BaseException | None = None
        self.reason: EndReason | None = None
        """The request that made the last iteration the last; None if it was `max_step`."""
        self.cut_by: EndReason | None = None
        """Why the run is cut off between two iterations, if it is."""
        self._last: int | None = None  # the last iteration, when it is complete
        self._failed_at = _AT_ONCE  # (iteration, position) of the error
        self._stop_at: tuple[int, int] | None = None  # (iteration, position) of a failure; nothing after it begins
        refuse_factories_that_count(ctx, plan)
        # The learn lane uses the caller's context, which is also the result.
        self.lanes = tuple(
            Lane(number, ctx if number == LEARN else copy_for_lane(ctx, plan, number)) for number in range(len(plan.lanes))
        )
        self._learn = self.lanes[LEARN]
        groups = plan.threads if is_threaded else [tuple(range(len(plan.lanes)))]
        self._threads = [LaneThread([self.lanes[number] for number in group]) for group in groups]
        self.torch_threads_beside: int | None = None
        """Torch threads per operation outside of the learn lane; None for torch's default."""
        for lane in self.lanes:
            lane.is_beside_learning = not any({lane.number, LEARN} <= set(group) for group in plan.threads)
        thread_of = {lane: thread for thread in self._threads for lane in thread.lanes}
        self._ends = {edge: self._ends_of(edge, thread_of) for edge in plan.edges}
        self._work = [self._work_of(step, checker) for step in plan.steps]
        self._ended_contexts = checker.ended
        self._runner = StepRunner(plan.steps, timeline, self.first_step)
        self.lane_states = LaneStates(plan, self.lanes, self._ends)
        """What lanes and edges hold, to save and restore it."""
        self._requests: dict[int, list[Request]] = {}
        self._mutex = threading.RLock()  # reentrant, because a signal may call `cut` while this thread holds it
        self._progress, self._askers = threading.Condition(), 0
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()  # signals the end of a thread

    def _work_of(self, step: MiddlewareStep, checker: Checker) -> RunnableStep:
        takes = tuple(self._ends[edge].take for edge in step.inputs)
        give = giver([self._ends[edge] for edge in step.outputs]) if step.outputs else None
        call = None if step.entry is None else checker.guard(step.entry).__call__  # bound: called faster than the guard
        last = [it for it in self.plan.lanes[step.lane] if it.entry is not None][-1:]
        ran = self.timeline.ran[step.lane].append
        return RunnableStep(step, self.lanes[step.lane], step.position, takes, call, give, step.index == 0, step in last, ran)

    def _ends_of(self, edge: Edge, thread_of: dict[Lane, LaneThread]) -> EdgeEnds:
        giver, taker = thread_of[self.lanes[edge.source.lane]], thread_of[self.lanes[edge.target.lane]]
        ends = EdgeEnds(edge, self.plan.kept, None if giver is taker else taker, self.timeline)
        ends.begin(self._learn)
        return ends

    @property
    def ctx(self) -> Any:
        """The context of the current iteration, or of the last one."""
        return self._learn.ctx

    def lane_seconds(self) -> dict[str, float]:
        """Seconds that the middleware of each lane has taken in the current run, here and in worker processes."""
        elsewhere = self.timeline.elsewhere_ns
        return {name: (lane.busy_ns + elsewhere[lane.number]) / 1e9 for name, lane in zip(LANES, self.lanes)}

    # Requests of middleware, on any lane.

    @property
    def stopping(self) -> bool:
        """Whether the caller should stop: the run has ended for it, or an earlier step has failed."""
        lane = current_lane()
        if lane is None:
            return self._last is not None or self._stop_at is not None
        return self._is_beyond_end(lane) or self._is_stopped(lane.iteration, lane.position)

    def is_last(self) -> bool:
        """Whether the caller's iteration is the last one, according to earlier middleware in the pipeline.

        Waits until all of these have run, so that the answer does not depend on timing.
        """
        lane = current_lane() or self._learn
        if lane.iteration + 1 >= self.max_step and self._is_final:
            return True
        for other in self.lanes:
            steps = self.plan.lanes[other.number]
            earlier = sum(step.position < lane.position for step in steps)
            if earlier and other is not lane and not self._has_come_to(other, lane.iteration * len(steps) + earlier, lane):
                return True  # it has ended before that
        return self._decided(lane.iteration, lane.position) is not None

    def is_certain(self) -> bool:
        """Whether the caller's iteration belongs to the run. Waits until earlier iterations are complete."""
        lane = current_lane() or self._learn
        is_complete = lane is self._learn or self._has_come_to(self._learn, lane.iteration * len(self.plan.lanes[LEARN]), lane)
        return is_complete and not self._is_beyond_end(lane) and not self._is_stopped(lane.iteration, lane.position)

    def ask_to_finish(self, reason: EndReason | None) -> None:
        """Make the caller's iteration the last one, for this reason; None withdraws that."""
        lane = current_lane() or self._learn  # other threads of the script count as the learn lane
        iteration, position = lane.iteration, lane.position
        is_through = lane.done >= (iteration + 1) * len(self.plan.lanes[LEARN]) - 1
        if lane is self._learn and is_through:  # a signal, too late for the savers of this iteration
            iteration, position = iteration + 1, -1
        self._requests.setdefault(iteration, []).append(Request(position, reason))

    def pause(self, fn: Callable[[], None]) -> None:
        """Stop all lanes between two iterations, call `fn` on the thread that called `run`, and continue.

        The place depends only on the caller's iteration k: after iteration k + 1 + max_lag, or after the last one of the run. A
        lane may wait already for the end of iteration k, to begin that one, but cannot have come to a later one.
        """
        lane = current_lane() or self._learn
        with self._mutex:
            self._at_pause.append(fn)
            self._until = min(self._until, lane.iteration + 2 + self.plan.max_lag)

    def pause_at_first(self, calls: Iterable[Callable[[], None]]) -> None:
        """Make these calls after the first iteration of the next run, as in a plain loop; before that run."""
        self._at_pause += calls

    def cut(self, reason: EndReason) -> None:
        """End the run between two iterations, as soon as all lanes can stop after the same one.

        If the learn lane has completed c iterations, another one may wait already for its next one, to begin iteration
        c + 1 + max_lag. It may not be in that iteration yet, if the signal came just after its end, or before its first one.
        """
        with self._mutex:
            self.cut_by = reason
            completed = self._learn.done // len(self.plan.lanes[LEARN])
            self._until = min(self._until, completed + 2 + self.plan.max_lag)

    def fail_at_once(self, error: BaseException) -> None:
        """End the run at once by SystemExit or KeyboardInterrupt of deferred work, which belongs to no lane."""
        self._fail(error)

    def ask_to_stop(self) -> None:
        """End the run at once."""
        self.asked_to_stop = True
        self._stop(_AT_ONCE)

    def steps_left(self) -> int:
        """The maximum number of iterations after the caller's."""
        return self.max_step - 1 - (current_lane() or self._learn).iteration if self._is_final else _ENDLESS

    def places(self) -> tuple[tuple[int, int, int], ...]:
        """The iteration and position of each lane, and the number of steps done."""
        return tuple((lane.iteration, lane.position, lane.done) for lane in self.lanes)

    def running(self) -> str:
        """The steps that lanes are in, or wait to begin."""
        at = [f"{self._running_on(thread)} (lane {LANES[thread.lanes[-1].number]})" for thread in self._threads]
        return ", or ".join(at)

    @property
    def is_threaded(self) -> bool:
        """Whether lanes run at the same time."""
        return len(self._threads) > 1

    @property
    def place(self) -> tuple[int, int]:
        """(iteration, position) of the calling step; other threads of the script count as the learn lane."""
        lane = current_lane() or self._learn
        return self.first_step + lane.iteration, lane.position

    def _has_come_to(self, other: Lane, done: int, lane: Lane) -> bool:
        """Wait until another lane has done `done` steps; False if it ends before."""
        if other.done >= done or other.is_over or len(self._threads) == 1:
            return other.done >= done
        begun = time.perf_counter_ns()
        with self._progress:
            self._askers += 1
            self._progress.wait_for(lambda: other.done >= done or other.is_over)
            self._askers -= 1
        ended = time.perf_counter_ns()
        lane.waited_ns += ended - begun
        self.timeline.waited(lane.number, lane.iteration, begun, ended, None)
        return other.done >= done

    def _tell_askers(self) -> None:
        with self._progress:
            self._progress.notify_all()

    def _decided(self, iteration: int, before: int) -> EndReason | None:
        return decide(request for request in self._requests.get(iteration, ()) if request.position <= before)

    def _is_beyond_end(self, lane: Lane) -> bool:
        return self._last is not None and lane.iteration > self._last

    def _is_stopped(self, iteration: int, position: int) -> bool:
        return self._stop_at is not None and (iteration, position) > self._stop_at

    # The threads.

    def run(self, max_step: int, is_final: bool, begin_watchdog: Callable[[], bool]) -> None:
        """Run `max_step` more iterations. Leaves the context of the last one in `ctx`.

        After a run that ended by `max_step`, it can be called again: the edges hold the tokens for the next iterations.

        Args:
            max_step: maximum number of iterations.
            is_final: False if another run follows.
            begin_watchdog: called before each iteration of the calling thread, until it returns True.

        Raises:
            BaseException: the error of a middleware that no generator on its lane handled. Of several errors, the one that a
                single thread would raise.
        """
        outside = current_lane()
        self._is_final, self._last, self._begin_watchdog = is_final, None, begin_watchdog
        self.timeline.begin(self.max_step)
        self.max_step += max_step
        try:
            self._allot_torch()
            with torch_threads(None):
                first = self._learn.iteration + 2 if self._at_pause else self.max_step  # asked for by `pause_at_first`
                self._carry_out(min(first, self.max_step))
                while self._is_between_iterations and self._until < self.max_step:
                    self._call_at_pause()
                    if self.cut_by is not None:
                        self.max_step = self._until
                    elif self.error is None:
                        self._carry_out(self.max_step)
                if self._is_between_iterations:
                    self._call_at_pause()
                limit = self.max_step if is_final else _ENDLESS
                if (
                    self.reason is not None and self.error is None and self._until < limit
                ):  # other lanes continue, without a pause
                    self._carry_out(limit)
        finally:
            self._at_pause.clear()
            self._end_work()
            self.timeline.sum_up(self.lanes)
            self._unwind_rest()
            if self._ended_contexts is not None:
                self._ended_contexts.release()
            enter(outside)
            if self.error is not None or self.asked_to_stop:
                self._gather()
            for edge in self.plan.edges:
                for _, follower in edge.follows:
                    follower.load_snapshot(None)
        if self.error is not None:
            raise self.error

    @property
    def can_go_on(self) -> bool:
        """Whether the next run can start from the tokens on the edges: the last run ended by `max_step`, without losses."""
        return self._is_between_iterations and self._learn.iteration + 1 == self.max_step

    @property
    def _is_between_iterations(self) -> bool:
        """Whether all lanes have stopped after the same iteration, without losses."""
        is_whole = self.error is None and not self.asked_to_stop and self.reason is None
        return is_whole and self._learn.iteration + 1 == self._until and not any(lane.is_over for lane in self.lanes)

    def _call_at_pause(self) -> None:
        enter(None)
        calls, self._at_pause = self._at_pause, []
        try:
            for call in calls:
                call()
        except BaseException as error:  # noqa: BLE001  raised by run()
            self._fail(error)

    def state(self) -> dict[str, Any]:
        """What lanes and edges hold between two iterations, as plain data if the kept fields are.

        Raises:
            RuntimeError: lanes are in the middle of iterations.
        """
        if not self._is_between_iterations:
            raise RuntimeError("the lanes have stopped within iterations, so their state cannot be saved.")
        return self.lane_states.save()

    def go_on(self, ctx: Context) -> None:
        """Prepare for one more run, whose first iteration has this context."""
        self._requests.clear()
        self.cut_by = None  # a signal to the last run is dealt with
        self.lane_states.go_on(ctx)

    def _allot_torch(self) -> None:
        """Set the number of torch threads of each lane."""
        learn, self.torch_threads_beside = threads_of_torch(self.plan.max_lag)
        for lane in self.lanes:
            lane.torch_threads = self.torch_threads_beside if lane.is_beside_learning else learn

    def _carry_out(self, until: int) -> None:
        """Run all lanes until that many iterations are done since the first run, or up to the next pause."""
        with self._mutex:
            self._until = until
            if self.cut_by is not None:  # asked last: a signal that comes now lowers the number by itself
                self._until = min(until, self._learn.iteration + 2 + self.plan.max_lag)
        if len(self._threads) > 1:
            self._run_on_threads()
            return
        try:
            self._run_lanes(self._threads[0])
        except BaseException as error:  # noqa: BLE001  a signal, between two steps
            self._fail(error)

    def _run_on_threads(self) -> None:
        *others, mine = self._threads
        threads = {
            it: threading.Thread(
                target=HelperContext().run,
                args=(self._run_thread, it),
                name=f"{LANE_THREAD}.{LANES[it.lanes[-1].number]}",
                daemon=True,  # a middleware that never ends must not keep the process alive
            )
            for it in others
        }
        for it in others:
            it.has_ended = False
        with short_switch_interval():
            try:
                for thread in threads.values():
                    thread.start()
                self._run_lanes(mine)
            except BaseException as error:  # noqa: BLE001  a signal, between two steps
                self._fail(error)
            finally:
                self._join(threads)

    def _run_thread(self, mine: LaneThread) -> None:
        try:
            self._run_lanes(mine)
        except BaseException as error:  # noqa: BLE001  raised by run()
            self._fail(error)
        finally:
            self._end_lanes(mine)
            mine.has_ended = True
            self._ended.put(None)

    def _run_lanes(self, mine: LaneThread) -> None:
        """Run these lanes on the calling thread, in sequential order."""
        mine_in_order = [work for work in self._work if work.lane in mine.lanes]
        last = mine.lanes[-1]
        here: Lane | None = None
        use_torch_threads(last.torch_threads)
        is_torch_alike = len({lane.torch_threads for lane in mine.lanes}) == 1
        if len(self._threads) > 1:
            self.timeline.begin_lane(last.number)
        iteration = 1 + max(lane.iteration for lane in mine.lanes)
        is_watched = mine is not self._threads[-1]
        try:
            while iteration < self._until:
                iteration += 1
                is_watched = is_watched or self._begin_watchdog()
                for work in mine_in_order:
                    lane = work.lane
                    if lane.is_over:
                        continue
                    if lane is not here:
                        here = lane
                        enter(lane)
                        if not is_torch_alike:
                            use_torch_threads(lane.torch_threads)
                    self._step(work, lane)
                if last.is_over and all(work.lane.is_over for work in mine_in_order):
                    return
        finally:
            if len(self._threads) > 1:
                self.timeline.end_lane(last.number)

    def _step(self, work: RunnableStep, lane: Lane) -> None:
        """Take tokens, run the step, give tokens."""
        if work.is_first:
            lane.begin()
        lane.position = work.position
        try:
            if work.call is None:
                self._take_for_end(work, lane)
            else:
                for take in work.takes:
                    take(lane)
        except IndexError:  # EdgeClosed, or an empty deque
            self._end_lane(lane)
            return
        try:
            if self._stop_at is not None and self._must_stop(lane, work.position):
                raise EdgeClosed
            while lane.snapshots:  # after all tokens are taken: before, a user of the follower may still run on another lane
                follower, snapshot = lane.snapshots.pop()
                follower.load_snapshot(snapshot)
            if work.call is None:
                self._end_iteration(work, lane)
            else:
                self._runner.run(work, work.call, lane)
            lane.done += 1
            if work.give is not None:
                work.give(lane)
        except EdgeClosed:
            self._end_lane(lane)
        except BaseException as error:  # noqa: BLE001  raised by run()
            self._fail(error, lane)
            self._end_lane(lane)
        if self._askers:
            self._tell_askers()

    def _must_stop(self, lane: Lane, position: int) -> bool:
        """Whether an earlier step has failed. Waits until it is known whether the failed iteration belongs to the run."""
        while (at := self._stop_at) is not None and (lane.iteration, position) > at:
            if at == _AT_ONCE or lane is self._learn:
                return True
            is_known = self._has_come_to(self._learn, at[0] * len(self.plan.lanes[LEARN]), lane)
            if self._stop_at == at:
                return is_known and (self._last is None or at[0] <= self._last)
        return False

    @staticmethod
    def _take_for_end(work: RunnableStep, lane: Lane) -> None:
        for taken, take in enumerate(work.takes):
            lane.taken = taken
            take(lane)

    def _end_lane(self, lane: Lane) -> None:
        """Close the edges of this lane; lanes that wait for them end as well, and close their own."""
        lane.is_over = True
        for step in self.plan.lanes[lane.number]:
            for edge in step.outputs:
                self._ends[edge].close()
        if self._askers:
            self._tell_askers()

    def _end_lanes(self, thread: LaneThread) -> None:
        for lane in thread.lanes:
            has_work = self.plan.lanes[lane.number]
            if has_work and not lane.is_over and (self.error is not None or lane.iteration + 1 < self._until):
                self._end_lane(lane)

    def _join(self, threads: dict[LaneThread, threading.Thread]) -> None:
        """Wait for the end of every lane and of all deferred work, except work with `used_in_end_run`.

        A signal to stop at once is handled here as well; one more abandons everything that still runs. If only deferred work is
        still running, the first signal abandons it.
        """
        is_asked = False
        while True:
            try:
                self._end_lanes(self._threads[-1])
                for it, thread in threads.items():
                    if thread.ident is None:  # a signal came before it could start
                        self._end_lanes(it)
                        it.has_ended = True
                self._wait_for_lanes(threads)
                self._end_work()
                self._deferrals.wait(is_at_once=not isinstance(self.error, Exception | None))
            except BaseException as error:  # noqa: BLE001  a signal
                self._fail(error)
                left = [thread.name for it, thread in threads.items() if not it.has_ended]
                if is_asked and left:
                    warnings.warn(f"{', '.join(left)} did not end and is abandoned.", RuntimeWarning, stacklevel=2)
                if is_asked or not left:  # if only deferred work was left, it is abandoned
                    return
                is_asked = True
            else:
                return

    def _wait_for_lanes(self, threads: dict[LaneThread, threading.Thread]) -> None:
        # Thread.join is not enough: if a signal interrupts it, it takes a live thread for dead (until Python 3.13).
        patience: float | None = _PATIENCE_S
        while left := [it for it in threads if not it.has_ended]:
            try:
                self._ended.get(timeout=patience)
            except queue.Empty:
                running = ", ".join(f"{threads[it].name} ({self._running_on(it)})" for it in left)
                warnings.warn(
                    f"the run has ended, and waits for {running}, which did not return within {_PATIENCE_S:.0f} s. If it waits "
                    "for something, set a timeout there. Ctrl-C abandons it.",
                    RuntimeWarning,
                    stacklevel=2,
                )
                patience = None
        for thread in threads.values():
            if thread.ident is not None:
                thread.join()

    def _running_on(self, thread: LaneThread) -> str:
        return next((step.name for lane in thread.lanes for step in self.plan.steps if step.position == lane.position), "-")

    def _end_iteration(self, work: RunnableStep, lane: Lane) -> None:
        kept = kept_fields(lane.ctx)
        if kept is not self.plan.kept and kept != self.plan.kept:
            new = set(kept) - set(self.plan.kept)
            raise RuntimeError(
                f"ctx.keep({', '.join(map(repr, sorted(new)))}) inside a middleware: where iterations overlap, kept fields "
                "must be known before the run. Call keep() in the context's __post_init__."
            )
        self.reason = None
        if self._requests:
            self.reason = self._decided(lane.iteration, work.position)
            self._requests.pop(lane.iteration, None)
        is_finished = self.reason is not None
        if is_finished or (lane.iteration + 1 >= self.max_step and self._is_final):
            self._last = lane.iteration
            self._deferrals.cancel(self.first_step + lane.iteration)
        if is_finished:  # other lanes continue as far as they can without more tokens from this one
            lane.done += 1
            raise EdgeClosed

    # Errors and ends.

    def _fail(self, error: BaseException, lane: Lane | None = None) -> None:
        """The run fails. Of several errors, the one that began first is raised. Other lanes continue up to the step in which
        the error left the last generator that might have handled it, as on a single thread."""
        at = end = _AT_ONCE
        if lane is not None and isinstance(error, Exception):
            at, end = (lane.iteration, lane.failed_at), (lane.iteration, lane.position)
            at = at if lane.failed_at >= 0 else end
            if isinstance(error, WorkCancelled) and (self._last is not None or self._stop_at is not None):
                return  # it waited for deferred work when the run ended
        with self._mutex:  # several lanes may fail at once
            first, other = error, self.error
            if other is not None and self._failed_at <= at:
                first, other = other, error
            else:
                self.error, self._failed_at = error, at
            if other is not None and other is not first:
                add_note(first, f"another lane also raised {describe_error(other)}")
        self._stop(end)

    def _stop(self, at: tuple[int, int]) -> None:
        with self._mutex:
            self._stop_at = at if self._stop_at is None else min(at, self._stop_at)
        if at == _AT_ONCE:
            self._deferrals.cancel()
        self._deferrals.notify()

    def _unwind_rest(self) -> None:
        """Clean up dropped iterations: waiting generators see the error or are closed, and pending work is dropped."""
        self._runner.drop_pending()
        for lane in self.lanes:
            if lane.error is not None:  # it was pending, and may be the first of the run
                enter(lane)
                try:
                    lane.end_rest()
                except BaseException as raised:  # noqa: BLE001  raised by run()
                    self._fail(raised, lane)
        for lane in self.lanes:
            enter(lane)
            while lane.waiting:
                self._end_generator(lane.waiting.pop(), lane)
        self._forgive_what_came_after()

    def _end_generator(self, generator: WaitingGenerator, lane: Lane) -> None:
        """End a generator of a dropped iteration: it sees the error of the run, but cannot handle it, or is closed."""
        error = self.error
        try:
            if error is None:
                generator.close()
            else:
                backward_step(generator, error)
        except BaseException as raised:  # noqa: BLE001  raised by run()
            if error is None:
                self._fail(raised, lane)
            elif raised is not error:
                add_note(error, f"a generator that saw it then raised {describe_error(raised)}")

    def _forgive_what_came_after(self) -> None:
        """Turn an error in an iteration after the last one, which other lanes had begun, into a warning."""
        if self.error is None or self._last is None or self._failed_at[0] <= self._last:
            return
        error, self.error = self.error, None
        notes = "; ".join(error.__dict__.get("__notes__", ()))
        warnings.warn(
            f"the run had ended when {type(error).__name__} was raised in a later iteration that had already begun: "
            f"{words_of(error)} ({notes})",
            RuntimeWarning,
            stacklevel=2,
        )

    def _gather(self) -> None:
        """Complete the context of a failed iteration with the kept fields of the other lanes."""
        lane, end = self._learn, self.plan.steps[-1]
        for edge in end.inputs[lane.taken if lane.position == end.position else 0 :]:
            self._ends[edge].set_kept(lane.ctx, self._ends[edge].pop())

    def _end_work(self) -> None:
        """Break off deferred work, unless another run may take its result."""
        if self._last is not None and (self._stop_at is None or self._stop_at[0] > self._last):
            self._deferrals.cancel(self.first_step + self._last)
        elif self._stop_at is not None:
            self._deferrals.cancel()
