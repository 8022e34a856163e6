"""Task.run: iterations, the last of them, and what a middleware raises."""

import dataclasses
import warnings

import pytest

from ding_lite.engine import Context, Task
from ding_lite.engine.tasks import opened_for


@dataclasses.dataclass
class Trace(Context):
    pipeline: list = dataclasses.field(default_factory=list)
    kept: int = 0

    def __post_init__(self):
        self.keep("kept")


def notes(error):
    return "\n".join(getattr(error, "__notes__", []))


def appends(number):
    def step(ctx):
        ctx.pipeline.append(number)

    return step


def appends_twice(number):
    def step(ctx):
        ctx.pipeline.append(number)
        yield
        ctx.pipeline.append(number)

    return step


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Wordless(Exception):
    def __str__(self):
        return self.there_is_none


MODES = pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "one thread", "threads"])


@MODES
def test_an_error_that_is_one_object_and_handled_again_and_again_does_not_collect_notes(mode):
    error, meant = ValueError("always the same"), []

    def handles(ctx):
        try:
            yield
        except ValueError as caught:
            meant.append(caught is error)

    def fails(ctx):
        raise error

    def listens(ctx):
        try:
            loop.emit("tick", ctx.total_step)
        except ValueError as caught:
            meant.append(caught is error)

    def fails_late(step):
        raise KeyError(step)

    with warnings.catch_warnings(), Task().start(ctx=Trace(), **mode) as loop:
        warnings.simplefilter("ignore")
        loop.on("tick", fails)
        loop.on("tick", fails_late)
        loop.use(listens).use(handles).use(loop.parallel(fails, lambda ctx: fails_late(ctx.total_step)))
        loop.run(10)
    assert meant == [True] * 20
    assert len(error.__notes__) == 4
    assert "iteration 9 of the task" in notes(error)


class TestRun:
    def test_after_three_iterations_the_count_stands_at_two(self):
        with Task().start(ctx=Trace()) as loop:
            loop.use(appends_twice(0)).use(appends_twice(1))
            loop.run(max_step=3)
            assert loop.ctx.total_step == 2
            assert loop.ctx.pipeline == [0, 1, 1, 0]

    def test_a_second_run_goes_on_where_the_first_ended(self):
        steps = []
        with Task().start(ctx=Trace()) as loop:
            loop.use(lambda ctx: (steps.append((ctx.total_step, ctx.kept)), setattr(ctx, "kept", ctx.kept + 10))[0])
            loop.run(max_step=2)
            loop.run(max_step=3)
            loop.run(max_step=1)

        assert steps == [(step, 10 * step) for step in range(6)]

    def test_a_renewal_by_hand_between_two_runs_is_not_done_twice(self):
        steps = []
        with Task().start(ctx=Trace()) as loop:
            loop.use(lambda ctx: steps.append((ctx.total_step, list(ctx.pipeline))))
            loop.run(max_step=1)
            loop.renew()
            loop.ctx.pipeline.append("by hand")
            loop.run(max_step=1)

        assert steps == [(0, []), (1, ["by hand"])]

    def test_no_iteration_and_no_middleware_do_nothing(self):
        with Task().start(ctx=Trace()) as loop:
            loop.run(max_step=3)
            loop.use(appends(0))
            loop.run(max_step=0)
            assert str(loop.end_reason) == "max_step=0 was reached"
            assert (loop.ctx.total_step, loop.ctx.pipeline) == (0, [])
            loop.run(max_step=1)
            assert (loop.ctx.total_step, loop.ctx.pipeline) == (0, [0])

    @pytest.mark.parametrize("max_step", [-1, 2.5, 1e6, "3", None, True])
    def test_a_number_of_iterations_that_is_none_is_refused(self, max_step):
        with Task().start() as loop:
            loop.use(lambda ctx: None)
            with pytest.raises(ValueError, match=r"task\.run\(max_step=.*\) wants a whole number of iterations, 0 or more"):
                loop.run(max_step=max_step)

    def test_a_run_inside_a_run_is_refused(self):
        with Task().start() as loop:
            loop.use(lambda ctx: loop.run(max_step=1))
            with pytest.raises(RuntimeError, match=r"task\.run\(\) inside one of its own middleware"):
                loop.run(max_step=1)

    def test_what_is_set_on_the_context_before_the_first_run_is_there(self):
        seen = []
        with Task().start(ctx=Trace()) as loop:
            loop.ctx.pipeline.append("set")
            loop.use(lambda ctx: seen.append(list(ctx.pipeline)))
            loop.run(max_step=2)

        assert seen == [["set"], []]

    def test_a_middleware_added_during_the_run_belongs_to_it(self):
        steps, loop = [], Task()

        def add(ctx):
            if ctx.total_step == 0:
                loop.use(lambda ctx: steps.append(ctx.total_step))

        with loop.start():
            loop.use(add)
            loop.run(max_step=3)

        assert steps[-2:] == [1, 2]

    def test_stopping_the_task_inside_a_middleware_ends_the_run(self):
        loop = Task()
        loop.start(ctx=Trace())
        loop.use(lambda ctx: loop.stop())
        try:
            loop.run(max_step=3)
        finally:
            assert loop.ctx.total_step == 0
            assert not loop.running

    def test_the_iterations_left_are_told(self):
        left = []
        with Task().start() as loop:
            loop.use(lambda ctx: left.append(loop.steps_left))
            loop.run(max_step=3)

        assert left == [2, 1, 0]


class TestFinish:
    def test_it_is_true_during_the_whole_last_iteration_and_in_no_other(self):
        seen, loop = [], Task()

        def halves(ctx):
            seen.append((ctx.total_step, "first", loop.finish))
            yield
            seen.append((ctx.total_step, "second", loop.finish))

        with loop.start():
            loop.use(halves)
            for _ in range(2):
                loop.run(max_step=2)

        assert seen == [(step, half, step % 2 == 1) for step in range(4) for half in ("first", "second")]

    def test_the_iteration_that_sets_it_completes_in_full(self):
        loop = Task()

        def finishes(ctx):
            ctx.pipeline.append("sets")
            loop.finish = True

        with loop.start(ctx=Trace()):
            loop.use(appends_twice("before")).use(finishes).use(appends_twice("after"))
            loop.run()
            assert loop.ctx.total_step == 0
            assert loop.ctx.pipeline == ["before", "sets", "after", "after", "before"]

    def test_a_second_half_may_set_it(self):
        loop = Task()

        def finishes(ctx):
            yield
            loop.finish = ctx.total_step == 4

        with loop.start():
            loop.use(finishes)
            loop.run()
            assert loop.ctx.total_step == 4

    def test_a_listener_may_set_it(self):
        with Task().start() as loop:
            loop.on("enough", lambda: setattr(loop, "finish", True))
            loop.use(lambda ctx: loop.emit("enough") if ctx.total_step == 2 else None)
            loop.run()
            assert loop.ctx.total_step == 2

    def test_a_run_after_one_that_finished_early_goes_on(self):
        loop = Task()
        with loop.start():
            loop.use(lambda ctx: setattr(loop, "finish", loop.finish or ctx.total_step == 1))
            loop.run(max_step=100)
            assert loop.ctx.total_step == 1
            loop.run(max_step=3)
            assert loop.ctx.total_step == 4

    def test_set_before_a_run_it_leaves_one_iteration(self):
        with Task().start() as loop:
            loop.use(lambda ctx: None)
            loop.finish = True
            loop.run(max_step=5)
            assert loop.ctx.total_step == 0
            loop.finish = True
            loop.run(max_step=5)
            assert loop.ctx.total_step == 1

    def test_a_new_start_forgets_it(self):
        loop = Task()
        for _ in range(2):
            with loop.start():
                loop.use(lambda ctx: None)
                assert not loop.finish
                loop.run(max_step=2)
            assert loop.finish


class TestErrors:
    def test_it_leaves_the_run_as_itself_with_a_note_naming_middleware_place_and_iteration(self):
        error = ValueError("broken")

        def breaks(ctx):
            if ctx.total_step == 3:
                raise error

        line = breaks.__code__.co_firstlineno
        with Task().start() as loop:
            loop.use(lambda ctx: None).use(breaks)
            with pytest.raises(ValueError, match="broken") as caught:
                loop.run(max_step=9)

        assert caught.value is error
        assert "middleware breaks (" in notes(error)
        assert f"test_runs.py:{line})" in notes(error)
        assert "iteration 3 of the task" in notes(error)

    @pytest.mark.parametrize("way", ["used", "lock", "wrapper", "serial", "parallel"])
    @pytest.mark.parametrize("half", ["first", "second"])
    def test_the_note_names_the_middleware_and_the_iteration_whatever_is_around_it(self, half, way):
        def breaks(ctx):
            if half == "first":
                raise ValueError("broken")
            yield
            raise ValueError("broken")

        with Task().start() as loop:
            if way == "wrapper":
                loop.use_wrapper(lambda fn: lambda ctx: fn(ctx))
            loop.use(getattr(loop, way)(breaks) if way in ("serial", "parallel") else breaks, lock=way == "lock")
            with pytest.raises(ValueError, match="broken") as caught:
                loop.run(max_step=1)

        assert "breaks" in notes(caught.value)
        assert "iteration 0" in notes(caught.value)

    @MODES
    @pytest.mark.parametrize("way", ["used", "wrapper", "serial", "parallel", "forward"])
    @pytest.mark.parametrize("half", ["first", "second"])
    @pytest.mark.parametrize("error", [Frozen(3), Wordless()], ids=["refuses attributes", "has no text"])
    def test_it_leaves_as_itself_whatever_its_class_is_like(self, error, half, way, mode):
        def breaks(ctx):
            if half == "first":
                raise error
            yield
            raise error

        def waits(ctx):
            with opened_for(loop):
                yield

        def forwards(ctx):
            loop.forward(breaks, ctx)

        other = KeyError("other")

        def fails(ctx):
            raise other

        def tells(told):
            raise Wordless

        waits.note_error = tells
        with Task().start(**mode) as loop:
            if way == "wrapper":
                loop.use_wrapper(lambda fn: lambda ctx: fn(ctx))
            fn = {"serial": loop.serial(waits, breaks), "parallel": loop.parallel(breaks, fails), "forward": forwards}.get(way)
            loop.use(waits).use(fn or breaks)
            expected = other if (way, half) == ("parallel", "second") else error
            with pytest.raises(type(expected)) as caught:
                loop.run(max_step=2)
            assert loop.end_reason.kind == "error"

        assert caught.value is expected
        assert "iteration 0" in notes(expected)

    def test_a_waiting_generator_may_handle_it_and_the_run_goes_on(self):
        def guards(ctx):
            try:
                yield
            except ValueError:
                ctx.kept += 1

        def breaks(ctx):
            raise ValueError

        with Task().start(ctx=Trace()) as loop:
            loop.use(guards).use(breaks)
            loop.run(max_step=3)
            assert (loop.ctx.total_step, loop.ctx.kept) == (2, 3)

    def test_after_an_error_the_task_can_run_on(self):
        def breaks(ctx):
            ctx.pipeline.append(ctx.total_step)
            if ctx.total_step == 1:
                raise ValueError("once")

        with Task().start(ctx=Trace()) as loop:
            loop.use(breaks)
            with pytest.raises(ValueError, match="once"):
                loop.run(max_step=5)
            loop.run(max_step=2)
            assert (loop.ctx.total_step, loop.ctx.pipeline) == (3, [3])

    def test_an_error_inside_the_block_leaves_as_itself_and_closes_the_task(self):
        loop = Task()
        with pytest.raises(ValueError, match="in the script"), loop.start():
            raise ValueError("in the script")

        assert not loop.running

    def test_an_error_while_closing_does_not_hide_the_one_before(self):
        def tidies(ctx):
            try:
                yield
            finally:
                raise KeyError("while tidying")

        def script():
            with loop.start():
                loop.forward(tidies)
                raise ValueError("in the script")

        loop = Task()
        with pytest.raises(ValueError, match="in the script") as caught:
            script()

        assert "closing the task raised KeyError: 'while tidying'" in notes(caught.value)
        assert not loop.running
