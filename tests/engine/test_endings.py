"""The end of a run: why it ended, and what middleware do once its last iteration is complete."""

import contextlib
import dataclasses
import functools
import signal
import threading

import pytest

from ding_lite.engine import Context, Task, contract

pytestmark = pytest.mark.timeout(60)

MODES = pytest.mark.parametrize(
    "mode",
    [{"async_mode": True}, {"async_mode": True, "max_lag": 3}, {"async_mode": False, "max_lag": 1}, {"async_mode": False}],
    ids=["threads", "threads, lag 3", "one thread", "plain"],
)


@dataclasses.dataclass
class Counts(Context):
    count: int = 0
    score: int = -1
    data: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.keep("count")


@contract(("count",), ("count", "data"), stage="collect")
def count(ctx):
    ctx.count += 1
    ctx.data = [ctx.count]


class Ends:
    """Logs both steps of its end, and what it sees."""

    def __init__(self, log, name, stage="learn"):
        self.log, self.name = log, name
        self.__name__ = name
        contract(reads=("count",), may_read=("data", "score"), stage=stage)(self)

    def __call__(self, ctx):
        self.last = ctx.total_step, ctx.count

    def end_run(self, ctx):
        self.log.append((self.name, 1, (ctx.total_step, ctx.count), list(ctx.data), threading.current_thread().name))
        yield
        self.log.append((self.name, 2))


def run(mode, *middleware, max_step=5, **options):
    with Task().start(ctx=Counts(), **mode, **options) as loop:
        for fn in middleware:
            loop.use(fn)
        loop.run(max_step)
    return loop


class TestEndRun:
    @MODES
    def test_it_runs_in_order_and_in_reverse_when_the_last_iteration_is_complete(self, mode):
        log = []

        def last(ctx):
            yield
            log.append(("backward step", ctx.total_step))

        here = threading.current_thread().name
        one, other = Ends(log, "one", "evaluate"), Ends(log, "other")
        loop = run(mode, contract(stage="record")(last), count, one, other)

        assert log[:5] == [("backward step", step) for step in range(5)]
        assert log[5:] == [("one", 1, (4, 5), [], here), ("other", 1, (4, 5), [], here), ("other", 2), ("one", 2)]
        assert (loop.ctx.total_step, loop.ctx.count, loop.ctx.data) == (4, 5, [5])

    @MODES
    def test_composites_wrappers_locks_and_decorators_pass_it_on(self, mode):
        log = []

        def decorated(fn):
            @functools.wraps(fn)
            def call(ctx):
                return fn(ctx)

            return call

        lock = threading.Lock()
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(count)
            loop.use_wrapper(lambda fn: lambda ctx: fn(ctx))
            loop.use(loop.serial(Ends(log, "a"), loop.parallel(Ends(log, "b"), Ends(log, "c"))), lock=lock)
            loop.use(decorated(Ends(log, "d")))
            loop.use(functools.partial(Ends(log, "e")))
            loop.run(2)
        assert [entry[:2] for entry in log] == [
            *[(name, 1) for name in "abcde"],
            *[(name, 2) for name in "edcba"],
        ]
        assert not lock.locked()

    @MODES
    def test_each_run_has_an_end_and_what_it_keeps_carries_over(self, mode):
        class Scores:
            __name__ = "scores"

            def __call__(self, ctx):
                pass

            def end_run(self, ctx):
                ctx.count += 100
                ctx.score = ctx.total_step

        scores = contract(writes=("count", "score"), reads=("count",), stage="learn")(Scores())
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(count).use(scores)
            loop.run(2)
            assert (loop.ctx.total_step, loop.ctx.count, loop.ctx.score) == (1, 102, 1)
            loop.run(3)
            assert (loop.ctx.total_step, loop.ctx.count, loop.ctx.score) == (4, 205, 4)

    @MODES
    @pytest.mark.parametrize("ending", ["error", "stop"])
    def test_after_an_error_or_stop_nothing_is_called(self, mode, ending):
        log, loop = [], Task()

        def breaks(ctx):
            if ending == "error":
                raise ValueError("broken")
            loop.stop()

        with loop.start(ctx=Counts(), **mode):
            loop.use(count).use(Ends(log, "one")).use(contract(stage="learn")(breaks))
            with contextlib.suppress(ValueError):
                loop.run(3)
            assert str(loop.end_reason).startswith("ValueError was raised: broken" if ending == "error" else "task.stop() was")
        assert log == []

    @MODES
    def test_an_error_in_it_leaves_the_run_and_is_thrown_into_those_that_wait(self, mode):
        class Fails(Ends):
            def end_run(self, ctx):
                raise ValueError("no end")

        class Waits(Ends):
            def end_run(self, ctx):
                try:
                    yield
                except ValueError as error:
                    self.log.append(str(error))
                    raise

        log = []
        with pytest.raises(ValueError, match="no end") as caught:
            run(mode, count, Waits(log, "waits"), Fails(log, "fails"), Ends(log, "after"))
        assert log == ["no end"]
        assert any("fails.end_run" in note and "iteration 4 of the task" in note for note in caught.value.__notes__)

    @MODES
    def test_it_can_be_repeated_when_the_others_have_seen_what_was_written(self, mode):
        scores, loop = [], Task()

        class Twice:
            __name__ = "twice"
            told = 0

            def __call__(self, ctx):
                pass

            def end_run(self, ctx):
                self.told += 1
                ctx.score = self.told
                if self.told == 1:
                    loop.repeat_end()

        class Sees(Ends):
            def end_run(self, ctx):
                yield
                scores.append((ctx.score, loop.is_end_repeated))

        with loop.start(ctx=Counts(), **mode):
            loop.use(count).use(Sees([], "sees")).use(contract(writes=("score",), stage="evaluate")(Twice()))
            loop.run(3)
        assert scores == [(1, True), (2, False)]
        assert loop.ctx.score == 2

    def test_one_that_takes_no_context_is_refused_where_it_is_used(self):
        class Wrong:
            def __call__(self, ctx):
                pass

            def end_run(self):
                pass

        with Task().start() as loop, pytest.raises(TypeError, match=r"end_run\(\) wants a function of one argument, ctx"):
            loop.use(Wrong())

    def test_work_that_is_used_in_end_run_can_be_taken_there_and_no_thread_stays(self):
        go, got = threading.Event(), []

        class Defers:
            __name__ = "defers"

            def __call__(self, ctx):
                if ctx.total_step == 1:
                    self.work = loop.defer(go.wait, 30)
                    self.work.used_in_end_run = True

            def end_run(self, ctx):
                assert not self.work.done
                go.set()
                got.append(self.work.result())

        with Task().start(ctx=Counts(), async_mode=True) as loop:
            loop.use(contract(stage="evaluate")(Defers())).use(count)
            loop.run(4)
            assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("task.")]
        assert got == [True]


class TestReason:
    @MODES
    def test_max_step_is_one(self, mode):
        loop = run(mode, count, max_step=3)
        assert (loop.end_reason.kind, str(loop.end_reason)) == ("max_step", "max_step=3 was reached")

    @MODES
    @pytest.mark.parametrize("stage", ["evaluate", "collect", "learn"])
    def test_finish_names_the_function_and_the_line_that_set_it(self, mode, stage):
        loop = Task()

        def ends_early(ctx):
            loop.finish = ctx.total_step == 2

        with loop.start(ctx=Counts(), **mode):
            loop.use(count).use(contract(stage=stage)(ends_early)).run(9)
        line = ends_early.__code__.co_firstlineno + 1
        assert loop.ctx.total_step == 2
        assert str(loop.end_reason) == f"task.finish was set in ends_early ({__file__}:{line})"
        assert loop.end_reason.kind == "finish"

    @MODES
    def test_a_middleware_may_say_it_in_words_and_the_first_that_holds_is_told(self, mode):
        loop = Task()

        def first(ctx):
            if ctx.total_step < 2:
                loop.finish_because("of a mistake")
            else:
                loop.finish_because("the loss is small")

        def takes_back(ctx):
            if ctx.total_step < 2:
                loop.finish = False

        with loop.start(ctx=Counts(), **mode):
            loop.use(count).use(contract(stage="learn")(first)).use(contract(stage="learn")(takes_back))
            loop.use(contract(stage="learn")(lambda ctx: loop.finish_because("x") if ctx.total_step == 2 else None))
            loop.run(9)
            assert loop.end_reason.words == "the loss is small"
            loop.run(1)
            assert loop.ctx.total_step == 3

    @MODES
    def test_set_before_a_run_it_is_told_as_well(self, mode):
        loop = Task()
        with loop.start(ctx=Counts(), **mode):
            loop.use(count)
            assert loop.end_reason is None
            loop.finish = True
            loop.run(9)
        assert loop.ctx.total_step == 0
        assert str(loop.end_reason).startswith("task.finish was set in test_set_before_a_run")

    @MODES
    def test_a_signal_is_one_and_no_middleware_takes_it_back(self, mode):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        log, loop = [], Task()

        def interrupted(ctx):
            if ctx.total_step == 1:
                signal.raise_signal(signal.SIGINT)
            loop.finish = ctx.total_step == 100  # as people write it

        try:
            with loop.start(ctx=Counts(), **mode):
                loop.use(count).use(Ends(log, "one")).use(contract(stage="learn")(interrupted))
                with pytest.raises(KeyboardInterrupt):
                    loop.run(9)
        finally:
            signal.signal(signal.SIGINT, before)
        assert loop.ctx.total_step == 1
        assert (loop.end_reason.kind, str(loop.end_reason)) == ("signal", "SIGINT was received")
        assert [entry[:2] for entry in log] == [("one", 1), ("one", 2)]

    @pytest.mark.parametrize("withdrawn_in", [1, 2])
    @MODES
    def test_a_signal_after_finish_was_set_stays_if_finish_is_withdrawn(self, mode, withdrawn_in):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        loop = Task()

        def ask(ctx):
            loop.finish = ctx.total_step == 1  # as people write it

        def interrupt(ctx):
            if ctx.total_step == 1:
                signal.raise_signal(signal.SIGINT)

        def withdraw(ctx):
            loop.finish = False

        middleware = [ask, interrupt, withdraw] if withdrawn_in == 1 else [ask, withdraw, interrupt, ask, withdraw]
        try:
            with loop.start(ctx=Counts(), **mode):
                for fn in middleware:
                    loop.use(contract(stage="learn")(fn))
                with pytest.raises(KeyboardInterrupt):
                    loop.run(9)
                assert loop.ctx.total_step == 1
                assert str(loop.end_reason) == "SIGINT was received"
                loop.finish = False
                loop.run(2)  # the signal belongs to the last run
                assert (loop.ctx.total_step, str(loop.end_reason)) == (3, "max_step=2 was reached")
        finally:
            signal.signal(signal.SIGINT, before)

    @MODES
    def test_a_signal_while_the_run_ends_is_its_reason_also_when_the_task_is_closed(self, mode):
        class Interrupted(Ends):
            def end_run(self, ctx):
                signal.raise_signal(signal.SIGINT)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        loop, reasons = Task(), []
        try:
            with loop.start(ctx=Counts(), **mode):
                loop.use(Interrupted([], "one"))
                with pytest.raises(KeyboardInterrupt):
                    loop.run(3)
                reasons.append(loop.end_reason)
                loop.run(0)
                reasons.append(loop.end_reason)
                with pytest.raises(KeyboardInterrupt):
                    loop.run(1)
        finally:
            signal.signal(signal.SIGINT, before)
        assert [str(reason) for reason in (*reasons, loop.end_reason)] == [
            "SIGINT was received",
            "max_step=0 was reached",
            "SIGINT was received",
        ]

    def test_during_the_iterations_there_is_none_yet_and_progress_is_that_of_who_ends_the_run(self):
        seen, loop = [], Task()

        def says(ctx):
            seen.append((loop.end_reason, loop.progress))
            loop.progress = ctx.total_step / 4
            loop.progress = 0.0

        with loop.start():
            loop.use(says).run(2)
            loop.run(1)
        assert seen == [(None, None), (None, 0.0), (None, None)]


def test_an_iteration_is_certain_only_when_those_before_it_are_complete():
    """What is done in such an iteration alone is the same in every run, wherever the run ends."""
    begun, done = [], []

    @contract(stage="evaluate")
    def evaluate(ctx):
        if loop.is_certain:
            begun.append((ctx.total_step, len(done)))

    @contract(stage="learn")
    def learn(ctx):
        done.append(ctx.total_step)
        if ctx.total_step == 6:
            loop.finish = True

    for _ in range(5):
        begun.clear(), done.clear()
        with Task().start(ctx=Counts(), async_mode=True, max_lag=3) as loop:
            loop.use(evaluate).use(learn).run(100)
        assert [step for step, _ in begun] == list(range(7))
        assert all(count >= step for step, count in begun)


class Reporting:
    """A middleware that notes what the task calls."""

    def __init__(self, fails_in=None, fails_with=ValueError):
        self.calls, self.fails_in, self.fails_with = [], fails_in, fails_with

    def begin_run(self):
        self.calls.append("begin")

    def __call__(self, ctx):
        self.calls.append(ctx.total_step)
        if ctx.total_step == self.fails_in:
            raise self.fails_with("no")

    def note_error(self, error):
        self.calls.append(repr(error))
        raise RuntimeError("and this failed too")


@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag", "threads"])
def test_the_task_calls_begin_run_before_a_run_and_note_error_after_an_error(mode):
    one, inner, loop = Reporting(fails_in=2), Reporting(), Task()
    with loop.start(**mode):
        loop.use(loop.serial(inner)).use(one)
        with pytest.raises(ValueError, match="no") as caught:
            loop.run(max_step=5)

    assert one.calls == ["begin", 0, 1, 2, "ValueError('no')"]
    assert inner.calls[:2] == ["begin", 0]
    assert inner.calls[-1] == "ValueError('no')"
    assert "and note_error of Reporting raised RuntimeError: and this failed too" in caught.value.__notes__


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_note_error_is_not_called_after_a_signal_or_sys_exit(end):
    one, loop = Reporting(fails_in=1, fails_with=end), Task()
    with loop.start(), pytest.raises(end):
        loop.use(one).run(max_step=3)

    assert one.calls == ["begin", 0, 1]
