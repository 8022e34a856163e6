"""task.defer: long work beside the iterations that follow, taken at a fixed one."""

import copy
import dataclasses
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import warnings

import pytest
from deferred_runs import MODES, Counts, collector, learner, threads, train
from forked_scripts import Script
from hypothesis import given
from hypothesis import strategies as st
from random_runs import cases, pacing

from ding_lite.engine import Task, WorkCancelled, contract

pytestmark = pytest.mark.timeout(60)

STAGES = ["evaluate", "collect", "learn"]
learner_of_all = contract(("count",), ("count",), may_read=("work",), stage="learn")(train)


class TestBetweenRuns:
    @MODES
    def test_it_does_not_raise_the_error_of_earlier_work(self, mode):
        works, found = [], []

        def begin(ctx):
            if ctx.total_step == 0:
                works.append(loop.defer(_failing))
            if ctx.total_step == 3:
                with pytest.raises(OSError, match="sensor") as raised:
                    works[0].result()
                found.append(raised.value)

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(begin)
            loop.run(2, final=False)
            assert loop.defer(pow, 2, 3).result() == 8
            with pytest.raises(OSError, match="sensor"):
                loop.defer(_failing)
            loop.run(3)
        assert len(found) == 1

    def test_it_raises_the_error_of_work_inside_it(self):
        with Task().start(ctx=Counts()) as loop:
            loop.use(lambda ctx: None)
            loop.run(1, final=False)
            with pytest.raises(OSError, match="sensor"):
                loop.defer(lambda: loop.defer(_failing) and None)


def _failing():
    raise OSError("sensor")


class TestDefer:
    @pytest.mark.few
    @MODES
    @pytest.mark.parametrize("stage", STAGES)
    def test_its_result_comes_at_a_fixed_iteration_the_same_in_every_mode(self, mode, stage):
        pending, scores = [], []

        @contract(("score",), ("score",), stage=stage)
        def evaluate(ctx):
            if pending and ctx.total_step % 3 == 2:
                ctx.score = pending.pop().result()
            if ctx.total_step % 3 == 0:
                pending.append(loop.defer(pow, ctx.total_step, 2))
            scores.append(ctx.score)

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(evaluate).use(learner)
            loop.run(9)
            assert loop.ctx.score == 36
        assert scores == [-1, -1, 0, 0, 0, 9, 9, 9, 36]
        assert threads() == []

    @MODES
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("outlasts", r"'outlasts' to set: it is called 'used_in_end_run' now\."),
            ("owns_inputs", r"'owns_inputs' to set: it is called 'changes_inputs' now\."),
            ("used_in_endrun", r"'used_in_endrun' to set: did you mean 'used_in_end_run'\?"),
            ("colour", r"'colour' to set\. A script may set used_in_end_run and changes_inputs\."),
        ],
    )
    def test_a_setting_that_it_does_not_have_is_refused(self, mode, name, words):
        @contract(stage="learn")
        def learn(ctx):
            work = loop.defer(pow, 2, 2)
            work.used_in_end_run = work.changes_inputs = True
            with pytest.raises(AttributeError, match=rf"the object that task\.defer\(\) returned has no attribute {words}"):
                setattr(work, name, True)
            assert not hasattr(work, name)

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(learn).run(2)

    @pytest.mark.parametrize("stage", STAGES)
    def test_it_runs_beside_the_iterations_that_follow(self, stage):
        later, got = threading.Event(), []

        def work(text):
            return text if later.wait(30) else None

        @contract(stage=stage)
        def evaluate(ctx):
            if ctx.total_step == 0:
                got.append(loop.defer(work, "done"))
                assert not got[0].done
            if ctx.total_step == 3:
                later.set()
                got.append(got[0].result())
                assert got[0].done

        with Task().start(async_mode=True, ctx=Counts()) as loop:
            loop.use(collector).use(evaluate).use(learner)
            loop.run(5)
        assert got[1] == "done"

    @MODES
    @pytest.mark.parametrize("stage", STAGES)
    def test_its_error_is_raised_at_the_end_of_the_run_where_nobody_has_asked(self, mode, stage):
        error, ended = ValueError("no score"), []

        def fail():
            raise error

        @contract(stage=stage)
        def evaluate(ctx):
            if ctx.total_step == 2:
                loop.defer(fail)

        class Ends:
            def __call__(self, ctx):
                pass

            def end_run(self, ctx):
                ended.append(ctx.total_step)

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(evaluate).use(learner).use(contract(stage="learn")(Ends()))
            with pytest.raises(ValueError, match="no score") as caught:
                loop.run(max_step=6)
            assert caught.value is error
            [note] = error.__notes__
            here = r"\(.*test_deferrals\.py:\d+\)"
            assert re.fullmatch(rf"in fail {here}, deferred by middleware evaluate {here} in iteration 2 of the task", note)
            assert (loop.ctx.total_step, ended) == (5, [5])
            assert loop.end_reason.kind == "error"
        assert threads() == []

    @MODES
    @pytest.mark.parametrize("stage", STAGES)
    def test_its_error_is_raised_where_the_result_is_asked_for_and_may_be_handled_there(self, mode, stage):
        seen, works = [], []

        def fail():
            raise ValueError("no score")

        @contract(stage=stage)
        def evaluate(ctx):
            if ctx.total_step == 1:
                works.append(loop.defer(fail))
            if ctx.total_step == 3:
                try:
                    works.pop().result()
                except ValueError as error:
                    seen.append(str(error))

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(evaluate).use(learner)
            loop.run(max_step=6)
        assert seen == ["no score"]

    @MODES
    @pytest.mark.parametrize("final", [True, False])
    def test_its_result_may_be_taken_in_a_later_run_only_where_this_one_said_that_it_follows(self, mode, final):
        works, seen = [], []

        @contract(stage="evaluate")
        def evaluate(ctx):
            if ctx.total_step == 1:
                works.append(loop.defer(pow, 2, 3))
            if ctx.total_step == 4:
                try:
                    seen.append(works[0].result())
                except WorkCancelled as error:
                    seen.append(str(error))

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(evaluate).use(learner)
            loop.run(3, final=final)
            loop.run(3)
            with pytest.raises(WorkCancelled):
                works[0].result()
        if final:
            [text] = seen
            assert text.startswith("the run has ended, and with it pow, which it deferred.")
            assert "`work.used_in_end_run = True`" in text
            assert "task.run(n, final=False)" in text
        else:
            assert seen == [8]

    @MODES
    def test_work_that_is_given_a_context_is_refused(self, mode):
        def closes_over(ctx):
            loop.defer(lambda: ctx.count)

        def passes(ctx):
            loop.defer(len, ctx)

        for begins in (closes_over, passes):
            with Task().start(ctx=Counts(), **mode) as loop:
                loop.use(collector).use(contract(("count",), stage="learn")(begins))
                with pytest.raises(TypeError, match=r"task\.defer\(.*context, which the iteration changes"):
                    loop.run(3)

    @MODES
    def test_an_error_of_it_that_nobody_asked_for_is_a_warning_where_the_task_stops_after_a_slice(self, mode):
        def fail():
            raise ValueError("no score")

        loop = Task().start(ctx=Counts(), **mode)
        loop.use(collector).use(contract(stage="learn")(lambda ctx: loop.defer(fail) and None))
        loop.run(1, final=False)
        with pytest.warns(RuntimeWarning, match="raised ValueError: no score. Its result was never taken."):
            loop.stop()
        assert threads() == []

    @MODES
    def test_it_belongs_to_no_iteration_and_has_no_context(self, mode):
        works = []

        @contract(stage="learn")
        def learn(ctx):
            if not works:
                works.append(loop.defer(lambda: loop.ctx.count))
            works[0].result()

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(learn)
            with pytest.raises(RuntimeError, match=r"task.ctx was used in deferred work, which belongs to no iteration"):
                loop.run(3)

    def test_outside_of_a_run_its_error_is_raised_at_once(self):
        with Task().start(ctx=Counts()) as loop:
            assert loop.defer(pow, 2, 3).result() == 8
            with pytest.raises(ZeroDivisionError):
                loop.defer(divmod, 1, 0)

    @MODES
    def test_an_error_of_it_that_nobody_asked_for_is_a_note_on_the_error_that_ends_the_run(self, mode):
        failed = threading.Event()

        def fail():
            failed.set()
            raise ValueError("no score")

        @contract(stage="learn")
        def learn(ctx):
            work = loop.defer(fail)
            assert failed.wait(30)
            while not work.done:
                threading.Event().wait(0.001)
            raise KeyError("lost")

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(learn)
            with pytest.raises(KeyError, match="lost") as caught:
                loop.run(3)
        assert "and ValueError: no score" in caught.value.__notes__

    @pytest.mark.parametrize("stage", STAGES)
    def test_unfinished_work_is_broken_off_at_the_end_of_the_run(self, stage):
        kept, stopped = [], []

        def endless():
            while not loop.stopping:
                threading.Event().wait(0.001)
            stopped.append(True)

        @contract(stage=stage)
        def evaluate(ctx):
            if ctx.total_step == 1:
                kept.append(loop.defer(endless))

        with Task().start(async_mode=True, ctx=Counts()) as loop:
            loop.use(collector).use(evaluate).use(learner)
            loop.run(4)
            assert threads() == []
            assert stopped == [True]
            with pytest.raises(WorkCancelled, match=r"the run has ended, and with it .*endless"):
                kept[0].result()

    @pytest.mark.parametrize("ending", ["error", "finish"])
    def test_whoever_waits_for_it_on_another_lane_is_let_go_when_the_run_ends(self, ending):
        hold, waiting, seen = threading.Event(), threading.Event(), []

        @contract(stage="collect")
        def collect(ctx):
            if ctx.total_step == 1:
                work = loop.defer(hold.wait, 30)
                waiting.set()
                try:
                    work.result()
                finally:
                    hold.set()
                    seen.append(loop.stopping)

        @contract(stage="learn")
        def learn(ctx):
            assert waiting.wait(30)
            if ending == "error":
                raise ValueError("ends it")
            loop.finish = True

        with Task().start(async_mode=True, ctx=Counts()) as loop:
            loop.use(collect).use(learn)
            if ending == "error":
                with pytest.raises(ValueError, match="ends it"):
                    loop.run(9)
            else:
                loop.run(9)
                assert loop.ctx.total_step == 0
        assert seen == [True]
        assert threads() == []

    def test_many_lanes_may_defer_at_once_and_every_thread_ends_with_the_run(self):
        begun = [0]

        def small():
            begun[0] += 1

        def evaluate(ctx):
            for _ in range(5):
                loop.defer(small)

        with Task().start(async_mode=True, ctx=Counts(), max_lag=2) as loop:
            for stage in STAGES:
                loop.use(contract(stage=stage)(lambda ctx: evaluate(ctx)))
            loop.run(20)
            assert threads() == []
        assert begun[0] == 300

    @MODES
    def test_of_two_errors_that_nobody_asked_for_the_one_of_the_work_that_began_first_is_raised(self, mode):
        ended = threading.Event()

        def slow():
            if mode == {"async_mode": True}:
                assert ended.wait(30)
            raise ValueError("first")

        def quick():
            ended.set()
            raise KeyError("second")

        @contract(stage="evaluate")
        def evaluate(ctx):
            if ctx.total_step == 1:
                works = [loop.defer(slow), loop.defer(quick)]
                while not works[1].done:
                    threading.Event().wait(0.001)

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(evaluate).use(learner)
            with pytest.raises(ValueError, match="first") as caught:
                loop.run(4)
        assert "and KeyError: 'second'" in caught.value.__notes__

    @MODES
    @pytest.mark.parametrize("asks", [True, False])
    @pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
    def test_what_ends_a_program_ends_the_run_at_once_and_is_no_result(self, mode, asks, end):
        handled = []

        def leave():
            raise end

        @contract(stage="evaluate")
        def evaluate(ctx):
            if ctx.total_step == 1:
                work = loop.defer(leave)
                try:
                    work.result() if asks else None
                except BaseException as error:
                    handled.append(type(error))
                    raise

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(evaluate).use(learner)
            with pytest.raises(type(end)) as caught:
                loop.run()
        assert caught.value is end
        assert handled in ([], [WorkCancelled])
        assert threads() == []

    @MODES
    def test_what_ends_a_program_at_the_end_of_the_run_comes_before_an_error(self, mode):
        class Ends:
            def __call__(self, ctx):
                if ctx.total_step == 0 and mode == {"async_mode": True}:
                    self.work = loop.defer(self.leave)
                    self.work.used_in_end_run = True

            def leave(self):
                assert go.wait(30)
                raise SystemExit(3)

            def end_run(self, ctx):
                go.set()
                if mode == {"async_mode": True}:
                    self.work.result()
                loop.defer(sys.exit, 3)

        go = threading.Event()
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(contract(stage="evaluate")(Ends())).use(learner)
            with pytest.raises(SystemExit) as caught:
                loop.run(3)
        assert caught.value.code == 3

    @MODES
    def test_an_error_names_the_middleware_that_deferred_it_also_where_it_is_an_object_or_a_method(self, mode):
        class Judge:
            def __call__(self, ctx):
                if ctx.total_step == 1:
                    self.defer(lambda: 1 // 0)

            def end_run(self, ctx):
                self.defer(lambda: [][1])

            def defer(self, work):
                try:
                    loop.defer(work).result()
                except (ZeroDivisionError, IndexError) as error:
                    notes.extend(error.__notes__)

        notes = []
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(contract(stage="evaluate")(Judge())).use(learner)
            loop.run(3)
        assert [re.sub(r"\(.*?\)", "()", note) for note in notes] == [
            "in <lambda> (), deferred by middleware Judge () in iteration 1 of the task",
            "in <lambda> (), deferred by middleware Judge.end_run () in iteration 2 of the task",
        ]

    @MODES
    def test_it_may_stand_in_a_kept_field_and_is_copied_as_itself(self, mode):
        @dataclasses.dataclass
        class Holds(Counts):
            work: object = None

            def __post_init__(self):
                self.keep("work")

        got = []

        @contract(("work",), ("work",), stage="evaluate")
        def evaluate(ctx):
            if ctx.total_step > 0:
                got.append(ctx.work.result())
            ctx.work = loop.defer(pow, ctx.total_step, 2)

        with Task().start(ctx=Holds(), **mode) as loop:
            loop.use(contract(("work",), stage="collect")(lambda ctx: None)).use(evaluate).use(learner_of_all)
            loop.run(2, final=False)
            assert copy.copy(loop.ctx.work) is loop.ctx.work is copy.deepcopy(loop.ctx.work)
            loop.run(2)
        assert got == [0, 1, 4]

    def test_it_cannot_be_pickled(self):
        with Task().start(ctx=Counts()) as loop:
            work = loop.defer(pow, 2, 3)
            with pytest.raises(TypeError, match=r"pow, deferred by test_it_cannot.*cannot be pickled.*Take its result"):
                pickle.dumps(work)

    @pytest.mark.parametrize("where", ["run", "last but one", "end_run"])
    def test_a_long_wait_for_it_at_the_end_says_once_what_it_waits_for(self, where, monkeypatch):
        monkeypatch.setattr("ding_lite.engine.deferrals._PATIENCE_S", 0.01)
        told = threading.Event()

        class Ends:
            def __call__(self, ctx):
                if ctx.total_step == 1:
                    self.work = loop.defer(told.wait, 30)
                    self.work.used_in_end_run = where == "end_run"
                if ctx.total_step == 3 and where == "last but one":
                    assert self.work.result()

            def end_run(self, ctx):
                if where == "end_run":
                    assert self.work.result()

        def tell(text, *kind, **place):
            texts.append(text)
            told.set()

        texts = []
        monkeypatch.setattr(warnings, "warn", tell)
        with Task().start(async_mode=True, ctx=Counts()) as loop:
            loop.use(collector).use(contract(stage="evaluate")(Ends())).use(learner)
            loop.run(5)
        [text] = texts
        assert re.search(
            r"waits for deferred work, .* 0.01 s: wait .*, deferred by middleware Ends \(.*\) in iteration 1", text
        )
        assert threads() == []

    @pytest.mark.parametrize("ends", ["max_step", "finish", "end_run", "error"])
    def test_a_second_signal_leaves_it_behind_and_names_it(self, ends):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with Script(WAITS, ends, **pipes, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline().startswith("SIGINT: this iteration finishes")
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=30)
        assert output == "KeyboardInterrupt\n"
        assert re.search(
            r"deferred work did not end and is abandoned: endless .*by middleware begins \(.*in iteration 1", errors
        )


WAITS = """
import signal, sys, threading, ding_lite.engine.deferrals
from ding_lite.engine import Task, contract
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
ding_lite.engine.deferrals._PATIENCE_S = 1.0
ends, loop = sys.argv[1], Task()
begun, over = threading.Event(), threading.Event()

def endless():
    begun.set()
    while not loop.stopping and ends != "end_run":
        threading.Event().wait(0.001)
    if ends == "end_run":
        over.wait()
    print("ready", flush=True)
    threading.Event().wait()

class begins:
    def __call__(self, ctx):
        if ctx.total_step == 1:
            self.work = loop.defer(endless)
            self.work.used_in_end_run = ends == "end_run"
            begun.wait()

    def end_run(self, ctx):
        over.set()
        if ends == "end_run":
            self.work.result()

@contract(stage="learn")
def learn(ctx):
    if ctx.total_step == 3 and ends == "finish":
        loop.finish = True
    if ctx.total_step == 3 and ends == "error":
        raise ValueError("lost")

try:
    with loop.start(async_mode=True):
        loop.use(contract(stage="collect")(lambda ctx: None)).use(contract(stage="evaluate")(begins())).use(learn)
        loop.run(5)
except BaseException as error:
    print(type(error).__name__, flush=True)
"""


class Plan(random.Random):
    """What the middleware of one random run do."""

    def happens(self, *what):
        return random.Random(repr((self.seed_, *what))).random() < 0.4


def outcome(seed, lag, finish_at, pace=lambda delay: None, **mode):
    """What every iteration of a random run saw of deferred work, and how the run ended."""
    plan, log, works = Plan(seed), {}, {stage: [] for stage in STAGES}
    plan.seed_ = seed

    def work(stage, step):
        pace(2e-3)
        if plan.happens("fails", stage, step):
            raise ValueError(f"{stage} {step}")
        return stage, step

    def middleware(stage):
        class Middle:
            def __call__(self, ctx):
                step = ctx.total_step
                pace(1e-3)
                if works[stage] and plan.happens("takes", stage, step):
                    self.take(step)
                if plan.happens("defers", stage, step):
                    works[stage].append(loop.defer(work, stage, step))
                    works[stage][-1].used_in_end_run = plan.happens("used_in_end_run", stage, step)
                if step == finish_at and stage == "learn":
                    loop.finish = True

            def take(self, step):
                try:
                    log[step, stage] = works[stage].pop(0).result()
                except ValueError as error:
                    log[step, stage] = str(error)
                    if plan.happens("raises", stage, step) and plan.happens("raises as well", stage, step):
                        raise
                except WorkCancelled:
                    log[step, stage] = "broken off"

            def end_run(self, ctx):
                for work in [work for work in works[stage] if work.used_in_end_run][:1]:
                    try:
                        log["end", stage] = work.result()
                    except (ValueError, WorkCancelled) as error:  # it may belong to the run before
                        log["end", stage] = str(error)

        return contract(stage=stage)(Middle())

    error = None
    with warnings.catch_warnings(record=True) as caught, Task().start(ctx=Counts(), max_lag=lag, **mode) as loop:
        warnings.simplefilter("always")
        for stage in STAGES:
            loop.use(middleware(stage))
        try:
            loop.run(4, final=plan.happens("slices"))
            loop.run(6)
        except ValueError as raised:
            error = str(raised), str(loop.end_reason), loop.ctx.total_step
        last = loop.ctx.total_step
    log = {key: value for key, value in log.items() if key[0] == "end" or (key[0] <= last and (error is None or key[0] < last))}
    told = sorted({str(one.message) for one in caught if "was deferred in an iteration" in str(one.message)})
    return {"error": error, "log": log, "last": last, "warnings": told}


@pytest.mark.slow
@cases(25)
@given(seed=st.integers(0, 10**6), lag=st.integers(0, 3), finish_at=st.integers(0, 12))
def test_random_work_means_the_same_on_one_thread_and_on_several(seed, lag, finish_at):
    wanted = outcome(seed, lag, finish_at, async_mode=False)
    assert outcome(seed, lag, finish_at, async_mode=True) == wanted
    assert outcome(seed, lag, finish_at, pacing(seed), async_mode=True) == wanted
