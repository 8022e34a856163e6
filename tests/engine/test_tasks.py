"""Task: open, run, end. What scripts of DI-engine may rely on, and what they could not."""

import dataclasses
import threading

import psutil
import pytest

import ding_lite
from ding_lite.engine import Context, Task, contract, contract_of, current_task, task


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


class TestByHand:
    def test_forward_runs_one_after_the_other_and_renew_begins_again(self):
        with Task().start(ctx=Trace()) as loop:
            for _ in range(2):
                loop.forward(appends(0))
                loop.forward(appends(1))
            assert loop.ctx.pipeline == [0, 1, 0, 1]

            assert loop.renew() is loop
            assert loop.ctx.total_step == 1
            loop.forward(appends(0))
            loop.forward(appends(1))
            assert loop.ctx.pipeline == [0, 1]

    def test_backward_runs_the_second_halves_and_only_once(self):
        with Task().start(ctx=Trace()) as loop:
            assert loop.forward(appends_twice(0)) is not None
            assert loop.forward(appends(1)) is None
            loop.backward()
            loop.backward()
            loop.sync()
            assert loop.ctx.pipeline == [0, 1, 0]

    def test_backward_of_an_empty_list_leaves_the_tasks_own_generators_waiting(self):
        with Task().start(ctx=Trace()) as loop:
            loop.forward(appends_twice(0))
            loop.backward([])
            assert loop.ctx.pipeline == [0]
            loop.backward()
            assert loop.ctx.pipeline == [0, 0]

    def test_backward_of_a_list_runs_just_those_last_first_and_empties_it(self):
        with Task().start(ctx=Trace()) as loop:
            stack = [loop.forward(appends_twice(number)) for number in (1, 2)]
            loop.backward(stack)
            assert stack == []
            assert loop.ctx.pipeline == [1, 2, 2, 1]

    def test_forward_takes_another_context_as_well(self):
        with Task().start(ctx=Trace()) as loop:
            other = Trace()
            loop.forward(appends_twice(0), other)
            loop.backward()
            assert (loop.ctx.pipeline, other.pipeline) == ([], [0, 0])

    def test_what_waits_by_hand_before_a_run_ends_with_its_first_iteration(self):
        with Task().start(ctx=Trace()) as loop:
            loop.forward(appends_twice(0))
            loop.use(appends_twice(1))
            loop.run(max_step=1)
            assert loop.ctx.pipeline == [0, 1, 1, 0]

    def test_a_generator_that_still_waits_at_the_stop_is_closed(self):
        ended = []

        def waits(ctx):
            try:
                yield
                ended.append("went on")
            finally:
                ended.append("closed")

        with Task().start() as loop:
            loop.forward(waits)

        assert ended == ["closed"]

    @pytest.mark.parametrize("call", ["forward", "use", "use_wrapper", "run"])
    def test_before_the_start_it_is_refused_with_the_line_to_write(self, call):
        arguments = [] if call == "run" else [appends(0)]
        with pytest.raises(RuntimeError, match=rf"task\.{call}\(.*\) before task\.start\(\): open .* `with task\.start\(ctx="):
            getattr(Task(), call)(*arguments)


class TestNested:
    def test_a_wrapped_middleware_runs_inside_another(self):
        result = []

        def child(ctx):
            result.append(3 * ctx.total_step)
            yield
            result.append(2 + 3 * ctx.total_step)

        with Task().start() as loop:
            wrapped = loop.wrap(child)

            def mother(ctx):
                back = wrapped(ctx)
                result.append(1 + 3 * ctx.total_step)
                back()

            loop.use(mother)
            loop.run(2)

        assert result == [0, 1, 2, 3, 4, 5]

    def test_whoever_does_not_end_it_leaves_that_to_the_end_of_the_iteration(self):
        with Task().start(ctx=Trace()) as loop:
            wrapped = loop.wrap(appends_twice(1))
            loop.use(lambda ctx: wrapped(ctx) and None).use(appends(2))
            loop.run(max_step=1)
            assert loop.ctx.pipeline == [1, 2, 1]

    def test_ending_it_twice_or_ending_a_plain_function_does_nothing(self):
        def mother(ctx):
            for wrapped in (plain, halves):
                back = wrapped(ctx)
                back()
                back()

        with Task().start(ctx=Trace()) as loop:
            plain, halves = loop.wrap(appends(1)), loop.wrap(appends_twice(2))
            loop.use(mother)
            loop.run(max_step=1)
            assert loop.ctx.pipeline == [1, 2, 2]

    def test_an_error_of_the_mother_is_thrown_into_the_child(self):
        seen = []

        def child(ctx):
            try:
                yield
            except ValueError as error:
                seen.append(str(error))

        with Task().start(ctx=Trace()) as loop:
            wrapped = loop.wrap(child)

            def mother(ctx):
                wrapped(ctx)
                raise ValueError("mother")

            loop.use(mother)
            loop.run(max_step=1)

        assert seen == ["mother"]

    def test_it_keeps_name_and_contract(self):
        with Task().start() as loop:
            wrapped = loop.wrap(contract(reads=("kept",))(appends(1)))

        assert contract_of(wrapped).reads == ("kept",)
        assert wrapped.__name__ == "appends"

    def test_what_is_no_middleware_is_refused_at_once(self):
        with Task().start() as loop, pytest.raises(TypeError, match="None"):
            loop.wrap(None)


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
            assert (loop.ctx.total_step, loop.ctx.pipeline) == (0, [])
            loop.run(max_step=1)
            assert (loop.ctx.total_step, loop.ctx.pipeline) == (0, [0])

    @pytest.mark.parametrize("max_step", [-1, 2.5, 1e6, "3", None])
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
        assert f"test_tasks.py:{line})" in notes(error)
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


class TestStart:
    def test_a_second_start_is_refused_and_the_first_stays_usable_to_its_end(self):
        with Task().start(ctx=Trace()) as loop:
            loop.use(appends(0))
            with pytest.raises(RuntimeError, match=r"opened at .*test_tasks\.py:\d+ is still running: .* does not nest"):
                loop.start(ctx=Context())
            loop.run(max_step=2)
            assert (loop.ctx.total_step, loop.ctx.pipeline) == (1, [0])
        assert not loop.running

    def test_asynchronous_mode_is_refused_clearly_and_leaves_the_task_closed(self):
        loop = Task()
        with pytest.raises(RuntimeError, match=r"async_mode=True\): asynchronous mode does not exist.* Use async_mode=False"):
            loop.start(async_mode=True, ctx=Trace())

        assert not loop.running
        with loop.start(async_mode=False, ctx=Trace()):
            assert loop.running

    @pytest.mark.parametrize(("ctx", "mend"), [(Trace, r"write ctx=Trace\(\)"), ({}, "pass an instance of a Context subclass")])
    def test_what_is_no_context_is_refused_with_the_mend(self, ctx, mend):
        with pytest.raises(TypeError, match=rf"task\.start\(ctx=\.\.\.\) wants a context, got .*: {mend}"):
            Task().start(ctx=ctx)

    def test_without_a_context_it_makes_one(self):
        with Task().start() as loop:
            loop.use(lambda ctx: None)
            loop.run(max_step=2)
            assert type(loop.ctx) is Context

    def test_no_worker_at_all_is_refused(self):
        with pytest.raises(ValueError, match=r"n_async_workers=0\): at least 1"):
            Task().start(n_async_workers=0)

    def test_it_starts_empty_every_time(self):
        loop, ran = Task(), []
        with loop.start():
            loop.use(lambda ctx: ran.append("first"))
            loop.use_wrapper(lambda fn: lambda ctx: (ran.append("wrapper"), fn(ctx))[1])
        with loop.start():
            loop.use(lambda ctx: ran.append("second"))
            loop.run(max_step=1)

        assert ran == ["second"]

    def test_the_context_can_be_read_after_the_stop_and_stopping_again_does_nothing(self):
        with Task().start(ctx=Trace()) as loop:
            loop.use(appends(1))
            loop.run(max_step=2)
        loop.stop()

        assert (loop.ctx.total_step, loop.ctx.pipeline) == (1, [1])

    def test_the_global_task_is_one_and_the_same_everywhere(self):
        assert ding_lite.task is task
        assert type(task) is Task

    def test_a_thousand_starts_and_stops_leave_no_thread_and_no_file_behind(self):
        process, loop = psutil.Process(), Task()

        def cycle():
            with loop.start(ctx=Trace()):
                loop.on("tick", lambda: None)
                loop.use(appends_twice(0), lock=True).use(loop.parallel(appends(1), appends(2)))
                loop.run(max_step=2)
                loop.emit("tick")

        cycle()
        threads, files, active = process.num_threads(), process.num_fds(), threading.active_count()
        for _ in range(1000):
            cycle()

        assert process.num_threads() < threads + 10  # the system may still be clearing away the last ones
        assert (process.num_fds(), threading.active_count()) == (files, active)


class TestCurrentTask:
    def test_it_is_the_one_that_runs_the_middleware_in_both_halves(self):
        seen, loop = [], Task()

        def looks(ctx):
            seen.append(current_task())
            yield
            seen.append(current_task())

        with loop.start():
            loop.use(looks)
            loop.run(max_step=1)
            loop.forward(looks)
            loop.backward()

        assert len(seen) == 4
        assert all(found is loop for found in seen)

    def test_outside_of_any_middleware_it_is_the_global_one_also_after_an_error(self):
        def breaks(ctx):
            raise ValueError

        with Task().start() as loop:
            assert current_task() is task
            loop.use(breaks)
            with pytest.raises(ValueError):  # noqa: PT011
                loop.run(max_step=1)
            assert current_task() is task

    def test_a_task_run_by_a_middleware_of_another_is_the_current_one_meanwhile(self):
        seen, outer, inner = [], Task(), Task()

        def nests(ctx):
            with inner.start():
                inner.use(lambda ctx: seen.append(current_task()))
                inner.run(max_step=1)
            seen.append(current_task())

        with outer.start():
            outer.use(nests)
            outer.run(max_step=1)

        assert seen[0] is inner
        assert seen[1] is outer

    def test_it_finds_the_task_in_side_by_side_middleware_too(self):
        seen, loop = [], Task()
        with loop.start():
            loop.use(loop.parallel(*[lambda ctx: seen.append(current_task())] * 3))
            loop.run(max_step=1)

        assert len(seen) == 3
        assert all(found is loop for found in seen)
