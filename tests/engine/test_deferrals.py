"""task.defer: long work beside the iterations that follow, taken at a fixed one."""

import dataclasses
import threading

import pytest

from ding_lite.engine import BrokenOff, Context, Task, contract

pytestmark = pytest.mark.timeout(60)

STAGES = ["evaluate", "collect", "learn"]
MODES = pytest.mark.parametrize(
    "mode",
    [{"async_mode": True}, {"async_mode": False, "max_lag": 1}, {"async_mode": False}],
    ids=["threads", "one thread", "plain"],
)


@dataclasses.dataclass
class Counts(Context):
    count: int = 0
    score: int = -1

    def __post_init__(self):
        self.keep("count", "score")


def train(ctx):
    ctx.count += 1


learner = contract(("count",), ("count",), stage="learn")(train)
collector = contract(stage="collect")(lambda ctx: None)  # where all is on one lane, nothing overlaps


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("task.")]


class TestDefer:
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

    @pytest.mark.parametrize("stage", STAGES)
    def test_it_runs_beside_the_iterations_that_follow(self, stage):
        later, got = threading.Event(), []

        def work(text):
            assert loop.ctx is not None
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
    def test_its_error_ends_the_run_and_is_the_one_that_was_raised(self, mode, stage):
        error = ValueError("no score")

        def fail():
            raise error

        @contract(stage=stage)
        def evaluate(ctx):
            if ctx.total_step == 2:
                loop.defer(fail)

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(evaluate).use(learner)
            with pytest.raises(ValueError, match="no score") as caught:
                loop.run(max_step=10**6)
            assert caught.value is error
            assert "fail, deferred by a middleware" in str(error.__notes__) or not mode["async_mode"]
        assert threads() == []

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
            with pytest.raises(BrokenOff, match=r"the run has ended, and with it .*endless"):
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
