"""Lanes: a plan carried out, iteration after iteration, on a thread a lane or all on one.

Room: ding_lite.engine, floor 0. Imports the pipeline; otherwise the standard library.
"""

from __future__ import annotations

import contextvars
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ding_lite.basics.messages import add_note
from ding_lite.engine.cores import cores_left_free, one_thread_of_torch, quick_switches
from ding_lite.engine.deferrals import BrokenOff, Deferred
from ding_lite.engine.endings import EndReason, Request, decide
from ding_lite.engine.frames import Frame, current_frame, enter
from ding_lite.engine.gates import Gates
from ding_lite.engine.plans import LANES, LEARN, HalfStep, Plan
from ding_lite.engine.slots import Slots
from ding_lite.engine.timelines import Timeline
from ding_lite.pipeline.contexts import Context, kept_fields, with_own_values
from ding_lite.pipeline.generators import first_half, unwind
from ding_lite.pipeline.guards import Checker
from ding_lite.pipeline.remainders import Remainder

LANE_THREAD = "task.lane"
"""What the names of lanes' threads begin with."""

_LOOK_S = 0.5  # between two looks at whether a thread has ended
_GRACE_S = 60.0  # that a middleware may take to end after the run has; then its thread is given up


class LaneRun:
    """One run of a plan: the halves of middleware on their lanes, what they ask of the run, and what becomes of errors.

    Args:
        plan: what waits for what.
        ctx: of the first iteration.
        max_step: iterations, at most.
        timeline: records what ran and what waited.
        checker: enforces the contracts, in every iteration.
    """

    def __init__(self, plan: Plan, ctx: Context, max_step: int, timeline: Timeline, checker: Checker) -> None:
        self.plan, self.max_step, self.timeline = plan, max_step, timeline
        self._guards = {id(half.entry): checker.guard(half.entry) for half in plan.halves if half.entry is not None}
        self.first_step = ctx.total_step
        self.asked_to_stop = False
        self.error: BaseException | None = None
        # The caller's context is the one of the learn lane, which is the one that comes back.
        self.frames = tuple(Frame(lane, ctx if lane == LEARN else _twin(ctx, plan, lane)) for lane in range(len(LANES)))
        self._sizes = tuple(len(lane) for lane in plan.lanes)
        self._slots = Slots(plan, ctx)
        self._gates = Gates(self._sizes, timeline)
        self._remainders: dict[tuple[int, int], tuple[HalfStep, Remainder]] = {}
        late = {id(half.entry) for half in plan.halves if half.is_late}
        self._has_late = frozenset(it for it in plan.halves if id(it.entry) in late and not it.is_late and not it.is_second)
        self._waits = {
            half: tuple((w.half.lane, w.half.index + 1 - w.distance * self._sizes[w.half.lane], w) for w in half.waits)
            for half in plan.halves
        }
        self._finishes: dict[int, list[Request]] = {}
        self.reason: EndReason | None = None
        """Which request made the last iteration the last; None where it was `max_step`."""
        self._skipped: dict[int, set[HalfStep]] = {}
        self._mutex = threading.Lock()
        # Before it counts as done, what wrappers' halves and `task.wrap` left to the end of the iteration runs as well.
        self._closing = frozenset(it for lane in plan.lanes for it in [it for it in lane if it.entry is not None][-1:])
        self._threads: list[threading.Thread] = []
        self._deferred: list[Deferred[Any]] = []

    @property
    def stopping(self) -> bool:
        """Whether the run is over, or breaks off: what is under way may stop early."""
        return self._gates.stopping

    @property
    def ctx(self) -> Any:
        """The context of the iteration that is complete next, or was last."""
        return self.frames[LEARN].ctx

    # What middleware ask, on whichever lane.

    def is_last(self) -> bool:
        """Whether the iteration of whoever asks is the last one, by what stands before it in the pipeline.

        Waits until all of that has run, so that the answer does not depend on who was faster.
        """
        frame = current_frame() or self.frames[LEARN]
        if frame.iteration + 1 >= self.max_step:
            return True
        if self._gates.threaded and not self._gates.has_paused_others(frame.lane):  # where it has, it has waited already
            for lane, until in self._before(frame):
                self._gates.wait(frame, lane, until, None)
        return self._decided(frame.iteration, frame.position) is not None

    def is_certain(self) -> bool:
        """Whether the iteration of the caller belongs to the run. Waits until those before it are complete."""
        frame = current_frame() or self.frames[LEARN]
        if self._gates.threaded and frame.lane != LEARN:
            self._gates.wait(frame, LEARN, frame.iteration * self._sizes[LEARN], None)
        return not self.stopping

    def ask_to_finish(self, reason: EndReason | None) -> None:
        """Make the iteration of the caller the last one, for this reason, or take that back."""
        frame = current_frame() or self.frames[LEARN]  # a thread of the script's own counts as the caller's
        iteration, position = frame.iteration, frame.position
        is_through = self._gates.progress[LEARN] >= (iteration + 1) * self._sizes[LEARN] - 1
        if frame.lane == LEARN and is_through:  # a signal, and no saver of this iteration could know any more
            iteration, position = iteration + 1, -1
        self._finishes.setdefault(iteration, []).append(Request(position, reason))

    def ask_to_stop(self) -> None:
        """End the run where it stands."""
        self.asked_to_stop = True
        self._break_off()

    def steps_left(self) -> int:
        """The most iterations that may follow that of whoever asks."""
        return self.max_step - 1 - (current_frame() or self.frames[LEARN]).iteration

    def nobody_else_runs(self) -> bool:
        """Whether every lane but that of whoever asks waits, or has nothing to do."""
        frame = current_frame()
        return self._gates.nobody_else_runs(None if frame is None else frame.lane)

    def is_at_rest(self, thread: threading.Thread) -> bool:
        """Whether this is the thread of a lane, and no lane but that of whoever asks runs anything."""
        return (thread is self._home or thread.name.startswith(LANE_THREAD)) and self.nobody_else_runs()

    def blocked(self) -> AbstractContextManager[None]:
        """For the time of the block, whoever asks waits for something that another lane may have to do."""
        frame = current_frame()
        return self._gates.blocked(frame.lane) if frame is not None and self._gates.threaded else nullcontext()

    def defer(self, work: Deferred[Any]) -> None:
        """Do this beside what follows, or now where nothing overlaps."""
        with self._mutex:  # several lanes may come at once
            self._deferred = [other for other in self._deferred if not other.is_taken] + [work]
        work.is_over = self.stopping
        if not self._gates.threaded:
            work.run_here()
            return

        def prepare() -> None:
            enter(None)  # it belongs to no iteration any more
            one_thread_of_torch()

        work.run_beside(prepare, self._fail, lambda: self.stopping)
        assert work.thread is not None
        with self._mutex:
            self._threads = [thread for thread in self._threads if thread.is_alive()] + [work.thread]

    def _before(self, frame: Frame) -> Iterator[tuple[int, int]]:
        """How far each lane is, of which anything stands before the half that runs, when that is done."""
        for lane, halves in enumerate(self.plan.lanes):
            earlier = sum(half.position < frame.position for half in halves)
            if earlier and lane != frame.lane:
                yield lane, frame.iteration * len(halves) + earlier

    def _is_done(self, half: HalfStep, iteration: int) -> bool:
        return self._gates.progress[half.lane] > iteration * self._sizes[half.lane] + half.index

    def _decided(self, iteration: int, before: int) -> EndReason | None:
        return decide(request for request in self._finishes.get(iteration, ()) if request.position <= before)

    # The two ways to carry it out.

    def run(self, overlap: bool) -> None:
        """All iterations. Leaves in `ctx` the context of the last one.

        Args:
            overlap: on a thread a lane; else on this thread, in sequence, with the same result.

        Raises:
            BaseException: what a middleware raised and no generator on its lane handled.
        """
        outside = current_frame()
        self._home = threading.current_thread()
        self.timeline.begin()
        try:
            with cores_left_free():
                if overlap and any(self._sizes[:LEARN]):
                    self._run_on_threads()
                else:
                    self._run_in_sequence()
        finally:
            self._break_off_work(in_order=self.error is None and not self.asked_to_stop)
            self.timeline.sum_up(self.frames)
            self._unwind_rest()
            enter(outside)
            if self.error is not None or self.asked_to_stop:
                frame = self.frames[LEARN]
                self._slots.gather(frame, lambda half: self._is_done(half, frame.iteration))
        if self.error is not None:
            raise self.error

    def _run_in_sequence(self) -> None:
        try:
            for iteration in range(self.max_step):
                if self.stopping:
                    return
                for frame in self.frames:
                    frame.begin(iteration)
                for half in self.plan.halves:
                    if self.stopping:
                        return
                    frame = self.frames[half.lane]
                    enter(frame)
                    self._perform(half, frame)
        except BaseException as error:  # noqa: BLE001  raised again when what waits has seen it
            self._fail(error)

    def _run_on_threads(self) -> None:
        self._gates.threaded = True
        lanes = [
            threading.Thread(
                target=contextvars.copy_context().run,
                args=(self._run_lane, lane),
                name=f"{LANE_THREAD}.{LANES[lane]}",
                daemon=True,  # a middleware that never ends must not keep the process alive
            )
            for lane in range(LEARN)
            if self._sizes[lane]
        ]
        with quick_switches():
            try:
                for thread in lanes:
                    thread.start()
                    with self._mutex:
                        self._threads.append(thread)
                self._run_lane(LEARN)
            except BaseException as error:  # noqa: BLE001  a signal, between two halves
                self._fail(error)
            finally:
                self._join()

    def _run_lane(self, lane: int) -> None:
        frame, halves = self.frames[lane], [(half, self._waits[half]) for half in self.plan.lanes[lane]]
        gates, progress, size_of = self._gates, self._gates.progress, self._sizes
        if lane != LEARN:
            one_thread_of_torch()
        enter(frame)
        self.timeline.begin_lane(lane)
        try:
            for iteration in range(self.max_step):
                if gates.alert and not gates.may_go_on(lane):
                    return
                frame.begin(iteration)
                for half, waits in halves:
                    for other, offset, wait in waits:
                        if progress[other] < iteration * size_of[other] + offset:
                            gates.wait(frame, other, iteration * size_of[other] + offset, (half, wait))
                    if (gates.alert or gates.stopping) and not gates.may_go_on(lane):  # a wait ends where the run does
                        return
                    self._perform(half, frame)
        except BaseException as error:  # noqa: BLE001  raised on the thread that called run()
            self._fail(error)
        finally:
            self.timeline.end_lane(lane)
            gates.leave(lane)

    # One half.

    def _perform(self, half: HalfStep, frame: Frame) -> None:
        frame.position = half.position
        if half.entry is None:
            self._end_iteration(half, frame)
            return
        if half.loads:
            self._slots.load(half, frame)
        if half.adopts:
            self._slots.adopt(half, frame)
        if frame.dropped or (self._skipped and self._is_cut_off(half, frame.iteration)):
            self._skip(half, frame)
        else:
            self._run_half(half, frame)
        if half in self._closing:
            self._finish_lane(frame)
        if half.publishes or half.snapshots:
            self._slots.publish(half, frame)
        self._gates.advance(frame.lane)

    def _run_half(self, half: HalfStep, frame: Frame) -> None:
        entry = half.entry
        assert entry is not None
        frame.waited_ns = 0
        begun = time.perf_counter_ns()
        try:
            if half.is_late:
                self._take(half, frame)
            elif half.is_second:
                frame.end(entry)
            else:
                result = self._guards[id(entry)](frame.ctx)
                if result is not None:
                    self._keep(half, frame, result)
        except BaseException as error:  # noqa: BLE001  the generators that wait may handle it
            self._recover(half, frame, error)
        ended = time.perf_counter_ns()
        frame.busy_ns += ended - begun - frame.waited_ns
        if half.is_late:  # what it waited for stands on the lane that did it
            begun += frame.waited_ns
        self.timeline.ran[frame.lane].append((half, frame.iteration, begun, ended))

    def _keep(self, half: HalfStep, frame: Frame, result: object) -> None:
        entry = half.entry
        assert entry is not None
        if isinstance(result, Remainder) and half in self._has_late:
            self._remainders[id(entry), frame.iteration] = half, result
            return
        generator = first_half(entry.fn, result, frame.ctx)
        if generator is None:
            return
        if half.is_opaque and not any(other.entry is entry and other.is_second for other in self.plan.halves):
            generator.close()
            raise TypeError(
                f"{entry.name} ({entry.location}) returned a generator, but is no generator function, so that nobody could "
                "know: put functools.wraps(...) on the decorator around it, or declare its contract."
            )
        frame.wait(entry, generator)

    def _take(self, half: HalfStep, frame: Frame) -> None:
        """Wait for what the first half of this middleware left to others."""
        asked, remainder = self._remainders.pop((id(half.entry), frame.iteration), (None, None))
        if asked is None or remainder is None:  # its first half did all the work, or was skipped
            return
        before = frame.released_ns
        remainder.take(frame.ctx)
        waited, frame.released_ns = frame.released_ns - before, before
        frame.waited_ns += waited
        self.timeline.took(asked, frame.iteration, frame.lane, waited, remainder.span)

    def _end_iteration(self, half: HalfStep, frame: Frame) -> None:
        iteration = frame.iteration
        if kept_fields(frame.ctx) is not self.plan.kept and kept_fields(frame.ctx) != self.plan.kept:
            new = set(kept_fields(frame.ctx)) - set(self.plan.kept)
            raise RuntimeError(
                f"ctx.keep({', '.join(map(repr, sorted(new)))}) inside a middleware: where iterations overlap, what is kept "
                "has to be known before the run. Call keep() in the context's __post_init__."
            )
        self.reason = self._decided(iteration, half.position)
        if iteration + 1 >= self.max_step or self.reason is not None:
            self._slots.load(half, frame)
            self._break_off(in_order=True)
        self._slots.forget_data(iteration)
        self._finishes.pop(iteration, None)
        self._skipped.pop(iteration, None)
        self._gates.advance(frame.lane)

    def _finish_lane(self, frame: Frame) -> None:
        """What a lane's middleware left to the end of the iteration: wrappers' halves, and what `task.wrap` began."""
        if frame.waiting and not self.stopping:
            try:
                unwind(frame.waiting)
            except BaseException as error:
                add_note(error, f"in iteration {self.first_step + frame.iteration} of the task")
                raise

    # Errors.

    def _recover(self, half: HalfStep, frame: Frame, error: BaseException) -> None:
        """Throw the error into the generators that wait on this lane; where one handles it, the lane goes on."""
        entry = half.entry
        assert entry is not None
        add_note(
            error, f"in middleware {half.name} ({entry.location}), iteration {self.first_step + frame.iteration} of the task"
        )
        if not frame.waiting:
            raise error
        if not isinstance(error, Exception):  # such as a second Ctrl-C: it waits for nobody, and no middleware undoes it
            self._fail(error)
        with self._gates.others_paused(frame.lane, list(self._before(frame))):
            unwind(frame.waiting, error)
        frame.begun.clear()
        frame.dropped = True
        self._skip(half, frame)

    def _skip(self, half: HalfStep, frame: Frame) -> None:
        self._skipped.setdefault(frame.iteration, set()).add(half)
        if half.is_late and (left := self._remainders.pop((id(half.entry), frame.iteration), None)):
            left[1].drop()

    def _is_cut_off(self, half: HalfStep, iteration: int) -> bool:
        """Whether something that it needs of this iteration was skipped. A second half still runs: it cleans up."""
        skipped = self._skipped.get(iteration)
        return skipped is not None and not half.is_second and not skipped.isdisjoint(half.needs)

    def _fail(self, error: BaseException) -> None:
        if self.stopping and isinstance(error, BrokenOff):  # a middleware waited for work that the end of the run broke off
            return
        with self._mutex:
            if self.error is None:
                self.error = error
            elif error is not self.error:
                add_note(self.error, f"after it, another lane raised {type(error).__name__}: {error}")
        self._break_off()

    def _unwind_rest(self) -> None:
        """Generators that still wait see the error, or are closed, and nobody takes remainders: their iteration was dropped."""
        for _, remainder in self._remainders.values():
            remainder.drop()
        for frame in self.frames:
            enter(frame)
            try:
                while frame.waiting and self.error is None:
                    frame.waiting.pop().close()
                if frame.waiting and self.error is not None:
                    unwind(frame.waiting, self.error)
            except BaseException as error:  # noqa: BLE001  raised by run(), with the first
                self._fail(error)

    # The end.

    def _break_off(self, in_order: bool = False) -> None:
        """From here on nothing begins, and what is under way may stop early."""
        self._gates.stop()
        self._break_off_work(in_order)

    def _break_off_work(self, in_order: bool) -> None:
        for work in self._deferred:
            work.is_over = work.is_over or not (in_order and work.outlasts)

    def close(self) -> None:
        """Break off the work that has outlasted the run, and join its threads."""
        self._break_off()
        self._join()

    def _join(self) -> None:
        """Join every thread but those whose work outlasts the run."""
        deadline = time.monotonic() + _GRACE_S
        while (thread := self._next_to_join()) is not None:
            while thread.is_alive() and time.monotonic() < deadline:
                self._gates.call_attention()
                thread.join(_LOOK_S)
            if thread.is_alive():
                warnings.warn(
                    f"what runs on the thread {thread.name} ({self._running_on(thread)}) did not return within {_GRACE_S:.0f} "
                    "s after the run had ended: the thread is left behind. Give what it waits for a timeout.",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _next_to_join(self) -> threading.Thread | None:
        with self._mutex:  # a lane that still runs may defer work
            lasting = [work.thread for work in self._deferred if not work.is_over]
            thread = next((it for it in reversed(self._threads) if it not in lasting), None)
            if thread is not None:
                self._threads.remove(thread)
            return thread

    def _running_on(self, thread: threading.Thread) -> str:
        for frame in self.frames:
            if thread.name == f"{LANE_THREAD}.{LANES[frame.lane]}":
                return next((half.name for half in self.plan.halves if half.position == frame.position), "nothing yet")
        return "deferred work"


def _twin(ctx: Context, plan: Plan, lane: int) -> Context:
    """The same context for another lane, which may change in place what it starts with.

    Raises:
        PipelineError: a value that the lane touches cannot be copied.
    """
    touched = frozenset[str]().union(*(half.reads | half.writes for half in plan.lanes[lane]))
    return with_own_values(ctx, touched, LANES[lane])
