"""The end of a run whose iterations overlap: the last one completes in full, other lanes stop at a fixed point."""

import dataclasses
import threading

import pytest

from ding_lite.engine import Context, Task, contract, current_task, task

pytestmark = pytest.mark.timeout(60)

STAGES = ["evaluate", "collect", "learn"]
MODES = pytest.mark.parametrize(
    "mode",
    [{"async_mode": True}, {"async_mode": True, "max_lag": 3}, {"async_mode": False, "max_lag": 1}, {"async_mode": False}],
    ids=["threads", "threads, lag 3", "one thread", "plain"],
)


@dataclasses.dataclass
class Counts(Context):
    count: int = 0
    other: int = 0
    batch: int | None = None

    def __post_init__(self):
        self.keep("count", "other")


def halves(stage, log, **terms):
    """A middleware that logs both steps, and when it is closed instead."""

    @contract(stage=stage, **terms)
    def step(ctx):
        log.append((ctx.total_step, stage, 1))
        yield
        log.append((ctx.total_step, stage, 2))

    return step


class TestFinish:
    @MODES
    @pytest.mark.parametrize("who", STAGES)
    @pytest.mark.parametrize("half", [1, 2])
    def test_whoever_sets_it_that_iteration_completes_in_full_and_is_the_last(self, mode, who, half):
        log = []

        @contract(stage=who)
        def finishes(ctx):
            if half == 2:
                yield
            if ctx.total_step == 4:
                loop.finish = True

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(finishes)
            for stage in STAGES:
                loop.use(halves(stage, log))
            first = loop.ctx
            loop.run(100)
            assert loop.ctx is not first
            assert loop.ctx.total_step == 4
            assert loop.finish is True
        assert {entry for entry in log if entry[0] <= 4} == {(k, it, n) for k in range(5) for it in STAGES for n in (1, 2)}
        lag = mode.get("max_lag", int(mode["async_mode"]))  # what the learn lane gives them lasts for so many more
        ahead = {(k, it, n) for k in range(5, 5 + lag) for it in ("evaluate", "collect") for n in (1, 2)}
        assert {entry for entry in log if entry[0] > 4} == ahead

    @MODES
    def test_it_is_true_for_what_stands_behind_the_one_that_set_it_and_in_the_last_by_max_step_for_all(self, mode):
        seen = {}

        def asks(name, stage):
            @contract(stage=stage)
            def ask(ctx):
                seen.setdefault(ctx.total_step, {})[name, 1] = loop.finish
                yield
                seen[ctx.total_step][name, 2] = loop.finish

            return ask

        @contract(stage="evaluate")
        def finishes(ctx):
            if ctx.total_step == 2:
                loop.finish = True

        names = ["before", "beside", "behind", "at the end"]
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(asks("before", "learn")).use(asks("beside", "evaluate")).use(finishes)
            loop.use(asks("behind", "collect")).use(asks("at the end", "record"))
            loop.run(max_step=9)
            assert loop.ctx.total_step == 2
            loop.run(max_step=2)
            assert loop.ctx.total_step == 4
        false, true = ({(name, half): value for name in names for half in (1, 2)} for value in (False, True))
        assert seen[0] == seen[1] == seen[3] == false
        assert seen[2] == {**true, ("before", 1): False, ("beside", 1): False}
        assert seen[4] == true

    @MODES
    def test_the_last_word_of_one_middleware_or_of_a_later_one_counts(self, mode):
        @contract(stage="collect")
        def changes_its_mind(ctx):
            loop.finish = True
            loop.finish = False

        @contract(stage="evaluate")
        def hurries(ctx):
            loop.finish = True

        @contract(stage="learn")
        def takes_it_back(ctx):
            if ctx.total_step < 3:
                loop.finish = False

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(changes_its_mind)
            loop.run(6)
            assert loop.ctx.total_step == 5
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(hurries).use(takes_it_back)
            loop.run(6)
            assert loop.ctx.total_step == 3

    @MODES
    def test_set_before_the_run_it_leaves_one_iteration(self, mode):
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(contract(stage="collect")(lambda ctx: None))
            loop.finish = True
            loop.run(9)
            assert loop.ctx.total_step == 0

    @MODES
    @pytest.mark.parametrize("stage", STAGES)
    def test_what_wrap_began_ends_with_its_iteration_also_with_the_last(self, mode, stage):
        ends = []

        def inner(ctx):
            yield
            ends.append(ctx.total_step)

        with Task().start(ctx=Counts(), **mode) as loop:
            begin = loop.wrap(inner)

            @contract(stage=stage)
            def outer(ctx):
                begin(ctx)

            loop.use(outer)
            loop.run(5)
            assert ends == [0, 1, 2, 3, 4]


class TestNextRun:
    @MODES
    def test_it_goes_on_where_the_last_one_ended(self, mode):
        @contract(("count",), ("count", "batch"), may_read=("batch",), stage="collect")
        def collect(ctx):
            assert ctx.batch is None
            ctx.count += 1
            ctx.batch = ctx.count

        @contract(("batch", "other"), ("other",), stage="learn")
        def learn(ctx):
            ctx.other += ctx.batch

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collect).use(learn)
            for steps in (1, 2, 3):
                loop.run(steps)
            assert dataclasses.asdict(loop.ctx) == {"total_step": 5, "count": 6, "other": 21, "batch": 6}

    @MODES
    def test_after_an_error_it_goes_on_with_what_was_kept(self, mode):
        @contract(("count",), ("count",), stage="collect")
        def collect(ctx):
            ctx.count += 1

        @contract(("count", "other"), ("other",), stage="learn")
        def learn(ctx):
            ctx.other += 1
            if ctx.other == 3:
                raise ValueError("once")

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collect).use(learn)
            with pytest.raises(ValueError, match="once"):
                loop.run(5)
            assert (loop.ctx.total_step, loop.ctx.count, loop.ctx.other) == (2, 3, 3)
            loop.run(2)
            assert (loop.ctx.total_step, loop.ctx.count, loop.ctx.other) == (4, 5, 5)

    def test_a_field_without_a_value_and_one_that_cannot_be_copied_do_no_harm(self):
        @dataclasses.dataclass
        class Odd(Context):
            unset: int = dataclasses.field(init=False)
            lock: object = None

        @contract(writes=("unset", "lock"), stage="collect")
        def collect(ctx):
            ctx.unset = ctx.total_step

        seen = []
        with Task().start(async_mode=True, ctx=Odd(lock=threading.Lock())) as loop:
            loop.use(collect).use(contract(("unset", "lock"), stage="learn")(lambda ctx: seen.append(ctx.unset)))
            loop.run(3)
        assert seen == [0, 1, 2]


class TestStop:
    @MODES
    @pytest.mark.parametrize("who", STAGES)
    def test_inside_a_middleware_it_ends_the_run_there_and_then(self, mode, who):
        log, closed = [], []

        def waits(stage):
            def wait(ctx):
                try:
                    yield
                    log.append((ctx.total_step, stage))
                finally:
                    closed.append((ctx.total_step, stage))

            return contract(stage=stage)(wait)

        @contract(stage=who)
        def stops(ctx):
            if ctx.total_step == 3:
                loop.stop()

        with Task().start(ctx=Counts(), **mode) as loop:
            for stage in STAGES:
                loop.use(waits(stage))
            loop.use(stops)
            loop.run(50)
            assert not loop.running
        assert (3, who) not in log
        assert (3, who) in closed
        assert all((k, who) in log for k in range(3))
        assert len(closed) == len(set(closed))


@MODES
def test_an_error_for_the_end_is_raised_when_everything_else_has_ended(mode):
    log = []

    @contract(stage="learn")
    def lose(ctx):
        if ctx.total_step == 1:
            current_task().raise_at_end(OSError("the disk is full"))
            current_task().raise_at_end(OSError("and the other one"))

    task = Task()
    with task.start(ctx=Counts(), **mode):
        task.use(halves("learn", log)).use(lose)
        with pytest.raises(OSError, match="the disk is full") as caught:
            task.run(max_step=3)
        assert log == [(step, "learn", half) for step in range(3) for half in (1, 2)]
        assert caught.value.__notes__ == ["and OSError: and the other one"]
        task.run(max_step=2)  # without an error of the run before

    assert len(log) == 10


def test_outside_of_a_run_an_error_for_the_end_is_raised_at_once():
    with pytest.raises(OSError, match="the disk is full"):
        Task().raise_at_end(OSError("the disk is full"))


@MODES
@pytest.mark.parametrize("asks", [lambda: setattr(task, "finish", True), lambda: task.defer(pow, 2, 3)])
def test_the_global_task_does_not_take_what_is_meant_for_the_one_that_runs(mode, asks):
    with (
        Task().start(ctx=Counts(), **mode) as loop,
        pytest.raises(RuntimeError, match="asked ding_lite.task, which is not running"),
    ):
        loop.use(contract(stage="learn")(lambda ctx: asks())).run(3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("finished", "Task has no attribute 'finished' to set to True: did you mean 'finish'\\?"),
        ("stop", r"task\.stop is a method, and cannot be set to True: call it, task\.stop"),
        ("router", "Task has no attribute 'router' to set to True: a task runs in one process"),
    ],
)
def test_an_attribute_that_would_not_end_a_run_is_refused(name, words):
    loop = Task()
    with pytest.raises(AttributeError, match=words):
        setattr(loop, name, True)
    loop.finish, loop._mine = True, True

    class Mine(Task):
        def __init__(self):
            super().__init__()
            self.results = []

    assert Mine().results == []
