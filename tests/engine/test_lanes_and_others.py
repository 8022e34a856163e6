"""Where iterations overlap: events, locks, deferred work, and what a script does between two runs."""

import dataclasses
import gc
import itertools
import signal
import threading
import time
import weakref

import pytest

from ding_lite.engine import Context, PipelineError, RunInterrupted, Task, contract

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore:Counts keeps")]

MODES = pytest.mark.parametrize(
    "mode",
    [{"async_mode": True}, {"async_mode": True, "max_lag": 0}, {"async_mode": False, "max_lag": 1}, {"async_mode": False}],
    ids=["threads", "threads, no lag", "one thread", "plain"],
)


@dataclasses.dataclass
class Counts(Context):
    count: int = 0
    rows: list = dataclasses.field(default_factory=list)
    batch: object = None

    def __post_init__(self):
        self.keep("count", "rows")


@contract(("count",), ("count",), stage="learn")
def learn(ctx):
    ctx.count += 1


class TestEvents:
    @MODES
    def test_an_event_is_delivered_before_emit_returns_also_while_another_lane_emits(self, mode):
        got, missing = [], []

        @contract(stage="collect")
        def collect(ctx):
            loop.emit("frame", ctx.total_step)
            missing.append(ctx.total_step not in got)

        @contract(("count",), ("count",), stage="learn")
        def learn_and_tell(ctx):
            ctx.count += 1
            loop.emit("loss", ctx.count)

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.on("frame", got.append)
            loop.on("loss", lambda value: time.sleep(0.001))
            loop.use(collect).use(learn_and_tell).run(30)
        assert missing == [False] * 30

    @MODES
    @pytest.mark.parametrize("ends", ["finish", "error"])
    def test_what_a_listener_does_counts_for_the_middleware_that_emits(self, mode, ends):
        def listen(step):
            if step == 3 and ends == "finish":
                loop.finish = True
            if step == 3 and ends == "error":
                raise ValueError("heard badly")

        @contract(stage="collect")
        def collect(ctx):
            try:
                loop.emit("frame", ctx.total_step)
            except ValueError:
                handled.append(ctx.total_step)

        handled = []
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.on("frame", listen)
            loop.on("loss", lambda value: time.sleep(0.001))
            loop.use(collect)
            loop.use(contract(stage="learn")(lambda ctx: loop.emit("loss", 1)))
            loop.run(6)
            assert loop.ctx.total_step == (3 if ends == "finish" else 5)
        assert handled == ([3] if ends == "error" else [])

    def test_a_listener_that_asks_what_other_lanes_have_to_do_first_is_refused(self):
        with Task().start(async_mode=True, ctx=Counts()) as loop:
            loop.on("frame", lambda: loop.finish)
            loop.use(contract(stage="collect")(lambda ctx: loop.emit("frame"))).use(learn)
            with pytest.raises(
                RuntimeError, match="task.finish was asked by the listener of an event, where iterations overlap"
            ):
                loop.run(3)

    def test_no_limit_may_be_written_as_none(self):
        with Task().start() as loop, pytest.raises(RuntimeError, match="would block for ever"):
            loop.wait_for("never", timeout=None)


class TestLocks:
    @MODES
    def test_who_holds_a_lock_may_ask_what_waits_for_others_with_the_same_lock(self, mode):
        seen = []

        @contract(stage="evaluate")
        def asks(ctx):
            seen.append(loop.is_certain)

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(asks, lock=True).use(learn, lock=True).run(10)
            assert loop.ctx.count == 10
        assert seen == [True] * 10


class TestBetweenRuns:
    @MODES
    def test_a_kept_list_that_was_changed_in_place_is_seen_by_every_lane(self, mode):
        seen = []

        @contract(("rows",), stage="collect")
        def collect(ctx):
            seen.append(list(ctx.rows))

        @contract(("rows",), ("rows",), stage="learn")
        def keeps(ctx):
            ctx.rows = ctx.rows

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collect).use(keeps)
            loop.run(2, final=False)
            loop.ctx.rows.append("between")
            loop.run(2)
        assert seen == [[], [], ["between"], ["between"]]

    @MODES
    def test_a_wrapper_counts_from_there_on(self, mode):
        calls = []

        def wrapper(fn):
            def wrapped(ctx):
                calls.append(ctx.total_step)
                return fn(ctx)

            return wrapped

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(contract(stage="collect")(lambda ctx: None)).use(learn)
            loop.run(2, final=False)
            loop.use_wrapper(wrapper)
            loop.run(1)
        assert calls == [2, 2]

    @MODES
    def test_what_was_set_on_a_renewed_context_is_seen_by_every_lane(self, mode):
        seen = []
        collect = contract(may_read=("batch",), stage="collect")(lambda ctx: seen.append(ctx.batch))

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collect).use(learn)
            loop.run(1)
            loop.renew()
            loop.ctx.batch = "set"
            loop.run(2)
        assert seen == [None, "set", None]

    @MODES
    def test_a_signal_ends_one_run(self, mode):
        @contract(stage="record")
        def interrupts(ctx):
            if ctx.total_step == 2:
                signal.raise_signal(signal.SIGINT)

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(contract(stage="collect")(lambda ctx: None)).use(learn).use(interrupts)
            with pytest.raises(RunInterrupted):
                loop.run(3, final=False)
            last = loop.ctx.total_step
            loop.run(5)
            assert loop.ctx.total_step == last + 5
            assert str(loop.end_reason) == "max_step=5 was reached"


class TestDeferred:
    def test_work_whose_result_nobody_takes_is_let_go(self):
        class Large:
            pass

        made = []

        def work():
            large = Large()
            made.append(weakref.ref(large))
            return large

        @contract(stage="collect")
        def collect(ctx):
            loop.defer(work)

        with Task().start(async_mode=True, ctx=Counts()) as loop:
            loop.use(collect).use(learn)

            @contract(stage="record")
            def count(ctx):
                if ctx.total_step == 39:
                    gc.collect()
                    alive.append(sum(ref() is not None for ref in list(made)))

            alive = []
            loop.use(count).run(40)
        assert alive[-1] < 20

    def test_a_thread_that_cannot_start_is_the_error_of_the_middleware(self, monkeypatch):
        start = threading.Thread.start

        def fails(thread):
            if thread.name.startswith("task.deferred"):
                raise RuntimeError("can't start new thread")
            start(thread)

        with Task().start(async_mode=True, ctx=Counts()) as loop:
            loop.use(contract(stage="collect")(lambda ctx: None))
            loop.use(contract(stage="learn")(lambda ctx: loop.defer(len, "") and None))
            monkeypatch.setattr(threading.Thread, "start", fails)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                loop.run(3)

    @MODES
    def test_it_may_be_handed_over_in_the_context(self, mode):
        got = []

        @contract(writes=("batch",), stage="collect")
        def begin(ctx):
            ctx.batch = loop.defer(pow, ctx.total_step, 2)

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(begin).use(contract(("batch",), stage="learn")(lambda ctx: got.append(ctx.batch.result()))).run(4)
        assert got == [0, 1, 4, 9]


@MODES
@pytest.mark.parametrize("where", ["by itself", "in parallel"])
def test_stop_says_which_line_called_it(mode, where):
    def stops(ctx):
        loop.stop()

    stops = contract(stage="collect")(stops)
    with Task().start(ctx=Counts(), **mode) as loop:
        loop.use(loop.parallel(stops) if where == "in parallel" else stops).use(learn)
        loop.run(5)
        assert not loop.running
        assert f"task.stop() was called in stops ({__file__}:" in str(loop.end_reason)


@pytest.mark.parametrize("async_mode", [True, False])
def test_a_default_that_is_another_number_each_time_is_refused_where_several_lanes_touch_it(async_mode):
    counter = itertools.count()

    @dataclasses.dataclass
    class Numbered(Counts):
        ident: int = dataclasses.field(default_factory=counter.__next__)

    reads = [contract(("ident",), stage=stage)(lambda ctx: None) for stage in ("collect", "learn")]
    with Task().start(async_mode=async_mode, max_lag=1, ctx=Numbered()) as loop:
        loop.use(reads[0]).use(reads[1])
        with pytest.raises(
            PipelineError, match=r"the default_factory of Numbered.ident gives another value each time \(\d, then"
        ):
            loop.run(3)
    with Task().start(async_mode=async_mode, max_lag=1, ctx=Numbered()) as loop:
        loop.use(reads[0]).use(learn).run(3)
