"""Errors where iterations overlap: wherever one is raised, run() raises that one, nothing hangs, and nothing is left behind."""

import contextlib
import dataclasses
import functools
import threading
import time

import pytest

from ding_lite.engine import Context, Task, contract

pytestmark = pytest.mark.timeout(60)

STAGES = ["evaluate", "collect", "learn"]
MODES = pytest.mark.parametrize("overlap", [True, False], ids=["threads", "one thread"])
ON_EACH_LANE = pytest.mark.parametrize("who", STAGES)


@dataclasses.dataclass
class Counts(Context):
    count: int = 0
    batch: int | None = None
    result: int | None = None

    def __post_init__(self):
        self.keep("count")


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("task.")] == []


def start(overlap=True, **settings):
    return Task().start(async_mode=overlap, max_lag=1, ctx=Counts(), **settings)


def raises(error, stage, at=3, half=1):
    @contract(stage=stage)
    def broken(ctx):
        if half == 2:
            yield
        if ctx.total_step == at:
            raise error

    return broken


def watches(stage, log):
    """A generator that tells how each of its iterations ended: with None, or with an error."""

    @contract(stage=stage)
    def watch(ctx):
        try:
            yield
        except BaseException as error:
            log.append((ctx.total_step, stage, error))
            raise
        log.append((ctx.total_step, stage, None))

    return watch


@MODES
@ON_EACH_LANE
@pytest.mark.parametrize("half", [1, 2])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit])
def test_run_raises_the_error_with_a_note_that_names_middleware_and_iteration(overlap, who, half, kind):
    error, log = kind("broken on purpose"), []
    with start(overlap) as loop:
        for stage in STAGES:
            loop.use(watches(stage, log))
        loop.use(raises(error, who, half=half))
        with pytest.raises(BaseException) as caught:  # noqa: PT011  any kind
            loop.run(50)

    shown = (
        caught.value if caught.value is error else caught.value.__cause__
    )  # Python's own rule, of StopIteration in generators
    assert shown is error
    assert (caught.value is error) or kind is StopIteration
    place = "raises (second half)" if half == 2 else "raises"
    assert any(f"in middleware {place} ({__file__}" in note and "iteration 3 of" in note for note in caught.value.__notes__)
    assert (3, who) in [(k, stage) for k, stage, seen in log if seen is caught.value]
    assert all(seen in (None, caught.value) for *_, seen in log)
    assert len(log) == len({entry[:2] for entry in log})


@MODES
@ON_EACH_LANE
def test_the_error_of_a_listener_comes_out_of_the_middleware_that_emits(overlap, who):
    error = ValueError("heard badly")

    def listen(step):
        if step == 2:
            raise error

    with start(overlap) as loop:
        loop.on("tick", listen)
        for stage in STAGES:
            loop.use(contract(stage=stage)(lambda ctx: None))
        loop.use(contract(stage=who)(lambda ctx: loop.emit("tick", ctx.total_step)))
        with pytest.raises(ValueError, match="heard badly") as caught:
            loop.run(9)
    assert caught.value is error
    assert "raised by a listener of the event 'tick'" in caught.value.__notes__
    assert "iteration 2 of the task" in caught.value.__notes__[-1]


@ON_EACH_LANE
def test_generators_that_still_wait_when_the_run_fails_see_the_error_and_others_have_ended(who):
    log, barrier = [], threading.Barrier(3, timeout=30)

    def meet(ctx):
        if ctx.total_step == 0:  # a later iteration may never come on the lane that fails
            barrier.wait()

    with start() as loop:
        for stage in STAGES:
            loop.use(watches(stage, log))
        for stage in STAGES:
            loop.use(contract(stage=stage)(functools.partial(meet)))
        loop.use(contract(writes=("batch",), stage=who)(raises(ValueError("seen by all"), who, at=0)))
        for stage in STAGES:  # nobody gets to its second half without what the one that fails gives
            loop.use(contract(reads=("batch",), stage=stage)(lambda ctx: None))
        with pytest.raises(ValueError, match="seen by all") as caught:
            loop.run(9)
    ended = {(step, stage): error for step, stage, error in log}
    assert len(ended) == len(log)
    assert ended[0, who] is caught.value
    assert {stage for step, stage in ended if step == 0} == set(STAGES)
    assert {ended[0, stage] for stage in STAGES} <= {caught.value, None}


class Handling:
    """A pipeline of three lanes, one middleware of which fails, and a generator before it that handles the error."""

    def __init__(self, who, half):
        self.who, self.half, self.log = who, half, []

    def run(self, overlap):
        with start(overlap) as loop:
            loop.use(self._handler())
            loop.use(self._step("evaluate", ("count",), (), 0))
            loop.use(self._step("collect", ("count",), ("batch",), 1))
            loop.use(self._step("learn", ("batch", "count"), ("count", "result"), 2))
            loop.use(self._step("record", ("result",), (), 3))
            loop.run(6)
            return sorted(self.log, key=str), loop.ctx.count, loop.ctx.total_step

    def _handler(self):
        @contract(stage=self.who)
        def handle(ctx):
            try:
                yield
            except ZeroDivisionError:
                self.log.append((ctx.total_step, "handled"))

        return handle

    def _step(self, stage, reads, writes, place):
        @contract(reads, writes, stage=stage)
        def step(ctx):
            if self.half == 2:
                yield
            self.log.append((ctx.total_step, stage, tuple(getattr(ctx, name) for name in reads)))
            if (stage, ctx.total_step) == (self.who, 2):
                raise ZeroDivisionError
            for name in writes:
                setattr(ctx, name, ctx.total_step * 10 + place)

        return step


@ON_EACH_LANE
@pytest.mark.parametrize("half", [1, 2])
def test_a_generator_on_the_same_lane_handles_an_error_and_the_run_goes_on_as_on_one_thread(who, half):
    wanted = Handling(who, half).run(overlap=False)
    got = Handling(who, half).run(overlap=True)

    assert got == wanted
    assert (2, "handled") in wanted[0]
    assert wanted[2] == 5
    depends = {"evaluate": set(), "collect": {"learn", "record"}, "learn": {"record"}}[who]
    ran = {entry[1] for entry in wanted[0] if entry[0] == 2}
    if half == 1:
        assert ran.isdisjoint(depends)
        assert ran == {"handled", "evaluate", "collect", "learn", "record"} - depends


@ON_EACH_LANE
def test_a_generator_that_handles_an_error_may_ask_whether_its_iteration_is_the_last(who):
    answers = []

    @contract(stage=who)
    def saves(ctx):
        try:
            yield
        except ValueError:
            pass
        finally:
            answers.append(loop.finish)

    @contract(stage="learn")
    def finishes(ctx):
        if ctx.total_step == 1:
            loop.finish = True

    with start() as loop:
        for stage in STAGES:
            loop.use(contract(stage=stage)(lambda ctx: None))
        loop.use(finishes).use(saves).use(raises(ValueError(), who, at=1))
        loop.run(9)
        assert loop.ctx.total_step == 1
    assert answers[:2] == [False, True]


class TestTwo:
    @pytest.mark.parametrize("pair", [("evaluate", "collect"), ("collect", "learn"), ("evaluate", "learn")])
    @pytest.mark.parametrize("watched", [False, True])
    def test_the_first_error_is_raised_and_the_other_noted(self, pair, watched):
        log, meet, errors = [], threading.Barrier(2, timeout=30), [ValueError("one"), KeyError("two")]

        def fails(stage, error):
            @contract(stage=stage)
            def fail(ctx):
                meet.wait()
                raise error

            return fail

        with start() as loop:
            for stage, error in zip(pair, errors):
                if watched:
                    loop.use(watches(stage, log))
                loop.use(fails(stage, error))
            with pytest.raises((ValueError, KeyError)) as caught:
                loop.run(9)
        assert caught.value is errors[0]
        assert "another lane also raised KeyError: 'two'" in caught.value.__notes__

    def test_an_error_counts_from_where_it_was_raised_not_from_where_its_generators_let_it_through(self):
        collect_has_failed, errors = threading.Event(), [ValueError("one"), KeyError("two")]

        @contract(stage="evaluate")
        def lets_through(ctx):
            try:
                yield
            finally:
                assert collect_has_failed.wait(30)

        @contract(stage="evaluate")
        def fails_first(ctx):
            raise errors[0]

        @contract(stage="collect")
        def sees_the_end(ctx):
            try:
                yield
            finally:
                collect_has_failed.set()

        @contract(stage="collect")
        def fails_too(ctx):
            raise errors[1]

        with start() as loop:
            for each in (lets_through, fails_first, sees_the_end, fails_too):
                loop.use(each)
            with pytest.raises((ValueError, KeyError)) as caught:
                loop.run(9)
        assert caught.value is errors[0]

    @MODES
    @pytest.mark.parametrize("kind", ["raised", "when copied"])
    def test_an_error_after_a_handled_one_counts_from_where_it_began_itself(self, overlap, kind):
        @contract(writes=("count",), stage="collect")
        def fails_at_its_end(ctx):
            yield
            if kind == "raised":
                raise KeyError("late")
            ctx.count = threading.Lock()

        @contract(stage="collect")
        def handles(ctx):
            with contextlib.suppress(ZeroDivisionError):
                yield

        @contract(stage="collect")
        def fails(ctx):
            raise ZeroDivisionError

        @contract(stage="evaluate")
        def fails_between(ctx):
            while overlap and loop._network.error is None:
                threading.Event().wait(0.001)
            raise ValueError("between")

        with start(overlap) as loop:
            for each in (fails_at_its_end, handles, fails, fails_between):
                loop.use(each)
            loop.use(contract(("count",), stage="learn")(lambda ctx: None))
            with pytest.raises(ValueError, match="between") as caught:
                loop.run(9)
        if overlap:
            assert any("another lane also raised" in note for note in caught.value.__notes__)


class TestWaiting:
    @MODES
    @pytest.mark.parametrize("watched", [False, True])
    def test_an_error_ends_the_wait_for_an_event_on_another_lane(self, overlap, watched):
        waiting, log = threading.Event(), []

        @contract(stage="collect")
        def waits(ctx):
            if ctx.total_step == 1:
                waiting.set()
                loop.wait_for("never", 30.0 if overlap else 0)

        @contract(stage="learn")
        def fails(ctx):
            assert not overlap or waiting.wait(30)
            raise ValueError("lets go")

        with start(overlap) as loop:
            loop.use(waits)
            if watched:
                loop.use(watches("learn", log))
            loop.use(fails)
            with pytest.raises(ValueError, match="lets go"):
                loop.run(9)

    @ON_EACH_LANE
    @pytest.mark.parametrize("is_part", [False, True])
    @MODES
    def test_waiting_for_an_event_without_a_timeout_is_refused_where_iterations_overlap(self, who, overlap, is_part):
        with start(overlap) as loop:
            for stage in STAGES:
                loop.use(contract(stage=stage)(lambda ctx: None))
            waits = contract(stage=who)(lambda ctx: loop.wait_for("never") and None)
            loop.use(loop.parallel(waits) if is_part else waits)
            with pytest.raises(RuntimeError, match=r"task.wait_for\('never'\) (may|would) block for ever: .* Set a timeout"):
                loop.run(9)

    def test_an_event_that_another_lane_emits_is_waited_for(self):
        got = []
        with start() as loop:
            loop.use(
                contract(stage="collect")(lambda ctx: got.append(loop.wait_for("trained", 30)) if ctx.total_step == 1 else None)
            )

            @contract(stage="learn")
            def learn(ctx):
                while ctx.total_step == 0 and not loop._events._listeners.get("trained"):
                    threading.Event().wait(0.001)
                loop.emit("trained", ctx.total_step)

            loop.use(learn)
            loop.run(3)
        assert got == [((0,), {})]


@pytest.mark.filterwarnings("ignore:asynchronous mode knows")
@pytest.mark.parametrize("barrier", ["one object", "a plain function"])
def test_a_pipeline_that_cannot_overlap_runs_in_order_with_the_same_result(barrier):
    def run(overlap):
        thing, log = object(), []

        def step(stage):
            terms = {"uses": (thing,)} if barrier == "one object" else {}
            return contract(("count",), ("count",), stage=stage, **terms)(lambda ctx: work(ctx, stage))

        def work(ctx, stage):
            log.append((ctx.total_step, stage, ctx.count))
            ctx.count += 1

        with start(overlap) as loop:
            for stage in ("learn", "collect", "evaluate", "record"):
                loop.use(step(stage))
            if barrier == "a plain function":
                loop.use(lambda ctx: work(ctx, "plain"))
            loop.run(10)
            return log, loop.ctx.count

    assert run(overlap=True) == run(overlap=False)


@MODES
@ON_EACH_LANE
@pytest.mark.parametrize("is_handled", [True, False])
def test_what_wrap_began_sees_the_error_of_the_middleware_that_left_it_waiting(overlap, who, is_handled):
    seen = []

    def inner(ctx):
        try:
            yield
        except ZeroDivisionError as error:
            seen.append((ctx.total_step, error))
            if not is_handled:
                raise

    with start(overlap) as loop:
        begin = loop.wrap(inner)

        @contract(stage=who)
        def outer(ctx):
            begin(ctx)
            if ctx.total_step == 2:
                raise ZeroDivisionError

        for stage in STAGES:
            loop.use(contract(stage=stage)(lambda ctx: None))
        loop.use(outer)
        if is_handled:
            loop.run(5)
            assert loop.ctx.total_step == 4
        else:
            with pytest.raises(ZeroDivisionError) as caught:
                loop.run(5)
            assert seen[0][1] is caught.value
    assert [step for step, _ in seen] == [2]


@MODES
def test_a_kept_value_that_cannot_be_copied_for_another_lane_is_named(overlap):
    @contract(writes=("count",), stage="collect")
    def collect(ctx):
        ctx.count = threading.Lock()

    with start(overlap) as loop:
        loop.use(collect).use(contract(("count",), stage="learn")(lambda ctx: None))
        with pytest.raises(TypeError, match="cannot pickle") as caught:
            loop.run(3)
    assert "when ctx.count was copied for another lane" in caught.value.__notes__[0]


@MODES
def test_a_second_half_before_the_last_handler_of_an_error_runs_however_late_its_lane_is(overlap):
    has_left, log = threading.Event(), []

    @contract(stage="learn")
    def handles(ctx):
        try:
            yield
        finally:  # sees the error, and is the last that might handle it
            has_left.set()

    @contract(stage="collect")
    def late(ctx):
        if overlap and ctx.total_step == 1:
            has_left.wait(10)
            time.sleep(0.05)  # until the run has failed
        try:
            yield
            log.append((ctx.total_step, None))
        except ValueError as error:
            log.append((ctx.total_step, str(error)))
            raise

    @contract(stage="learn")
    def fails(ctx):
        if ctx.total_step == 1:
            has_left.clear()
            raise ValueError("one")

    with start(overlap) as loop:
        loop.use(handles).use(late).use(fails)
        with pytest.raises(ValueError, match="one"):
            loop.run(3)
    assert log[:2] == [(0, None), (1, None)]
