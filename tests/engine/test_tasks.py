"""The task: opened once, closed clean, and driven by hand."""

import dataclasses
import pickle
import threading
import warnings

import psutil
import pytest
from torch import nn

import ding_lite
from ding_lite.engine import Context, Task, contract, contract_of, current_task, task
from ding_lite.engine.tasks import opened_for
from ding_lite.middleware import CkptSaver


@dataclasses.dataclass
class Trace(Context):
    pipeline: list = dataclasses.field(default_factory=list)
    kept: int = 0

    def __post_init__(self):
        self.keep("kept")


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


class ByKey:
    """Looks up unknown attributes in a dict, which raises KeyError."""

    def __init__(self):
        self.entries = {"n": 0}

    def __getattr__(self, name):
        return self.__dict__["entries"][name]


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


class TestStart:
    def test_a_second_start_is_refused_and_the_first_stays_usable_to_its_end(self):
        with Task().start(ctx=Trace()) as loop:
            loop.use(appends(0))
            with pytest.raises(RuntimeError, match=r"opened at .*test_tasks\.py:\d+ is still running: .* does not nest"):
                loop.start(ctx=Context())
            loop.run(max_step=2)
            assert (loop.ctx.total_step, loop.ctx.pipeline) == (1, [0])
        assert not loop.running

    @pytest.mark.parametrize("max_lag", [-1, 1.5, True, "2"])
    def test_a_lag_that_is_no_number_of_iterations_is_refused(self, max_lag):
        with pytest.raises(ValueError, match=rf"max_lag={max_lag!r}\) wants a whole number of iterations, 0 or more"):
            Task().start(max_lag=max_lag)

    @pytest.mark.parametrize(("ctx", "fix"), [(Trace, r"write ctx=Trace\(\)"), ({}, "pass an instance of a Context subclass")])
    def test_an_object_that_is_no_context_is_refused_with_the_fix(self, ctx, fix):
        with pytest.raises(TypeError, match=rf"task\.start\(ctx=\.\.\.\) wants a context, got .*: {fix}"):
            Task().start(ctx=ctx)

    def test_without_a_context_it_makes_one(self):
        with Task().start() as loop:
            loop.use(lambda ctx: None)
            loop.run(max_step=2)
            assert type(loop.ctx) is Context

    def test_no_worker_at_all_is_refused(self):
        with pytest.raises(ValueError, match=r"n_async_workers=0\): at least 1"):
            Task().start(n_async_workers=0)

    @pytest.mark.parametrize(("given", "end"), [(Trace(), ": write ctx=."), ("3", "."), (True, ".")], ids=str)
    def test_a_number_of_workers_of_another_type_is_refused_by_name(self, given, end):
        with pytest.raises(TypeError, match=r"n_async_workers=.*\) wants a whole number, 1 or more") as caught:
            Task().start(False, given)
        assert str(caught.value).endswith(f"1 or more{end}")

    @pytest.mark.parametrize("given", [Trace(), Trace])
    def test_a_context_as_the_first_argument_is_refused(self, given):
        with pytest.raises(TypeError, match=r"task\.start\(async_mode=.*\) wants True or False: write ctx=\.$"):
            Task().start(given)

    def test_after_the_with_block_the_error_says_that_the_task_is_closed(self):
        loop = Task()
        with pytest.raises(RuntimeError, match=r"^task\.run\(\) before task\.start\(\): .*OnlineRLContext\(\)\):`\.$"):
            loop.run(1)
        with loop.start():
            pass
        with pytest.raises(RuntimeError, match=r"^task\.run\(\) .* It was open and is closed: its `with` block has ended"):
            loop.run(1)

    def test_a_pipeline_without_middleware_is_a_warning(self):
        with Task().start() as loop, pytest.warns(UserWarning, match=r"nothing to do: add middleware with task\.use\(\) first"):
            loop.run(max_step=2)

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

    @pytest.mark.parametrize("failing", ["release", "wait"])
    def test_every_object_is_released_also_after_an_error_or_a_signal(self, failing, monkeypatch):
        class Holder:
            __module__ = "ding_lite.holders"  # only those of the library are released

            def __init__(self, name):
                self.name = name
                contract(uses=(self,), stage="record")(self)

            def __call__(self, ctx):
                pass

            def release(self):
                released.append(self.name)
                if failing == "release" and self.name == "first":
                    raise ConnectionError("the other end is gone")

        def interrupted():
            raise KeyboardInterrupt

        released, loop = [], Task()
        loop.start().use(Holder("first")).use(Holder("second"))
        if failing == "wait":  # for deferred work
            monkeypatch.setattr(loop._deferrals, "close", interrupted)
        with pytest.raises(ConnectionError if failing == "release" else KeyboardInterrupt):
            loop.stop()
        assert released == ["first", "second"]

    @pytest.mark.parametrize("async_mode", [False, True])
    def test_an_object_whose_getattr_raises_any_error_may_be_used_saved_and_resumed(self, async_mode, tmp_path):
        def run(max_step, resume=None):
            settings, seen = ByKey(), []
            step = contract(uses=(settings, seen), stage="learn")(lambda ctx: settings.entries.update(n=settings.n + 1))
            with Task().start(async_mode=async_mode, resume=resume) as loop:
                loop.use(contract(uses=(settings,), stage="collect")(lambda ctx: settings.n)).use(step)
                loop.use(lambda ctx: seen.append(settings.n)).use(CkptSaver(nn.Linear(1, 1), tmp_path, train_freq=1))
                loop.describe()
                loop.run(max_step)
            return seen

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what these objects remember is not saved
            assert run(2) == [1, 2]
            assert run(4, resume=tmp_path) == [1, 2]

    def test_two_hundred_starts_and_stops_leave_no_thread_and_no_file_behind(self):
        process, loop = psutil.Process(), Task()

        def cycle():
            with loop.start(ctx=Trace()):
                loop.on("tick", lambda: None)
                loop.use(appends_twice(0), lock=True).use(loop.parallel(appends(1), appends(2)))
                loop.run(max_step=2)
                loop.emit("tick")

        cycle()
        threads, files, active = process.num_threads(), process.num_fds(), threading.active_count()
        for _ in range(200):
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


class TestBuildingForAnotherTask:
    def test_use_of_the_global_task_adds_to_the_other_one_within_the_block(self):
        with Task().start() as other:
            with opened_for(other):
                task.use(lambda ctx: None)
                task.use_wrapper(lambda fn: fn)
                Task().start().use(lambda ctx: None).stop()
            assert len(other.middleware) == 1
            assert not task.running
            with pytest.raises(RuntimeError, match=r"before task.start\(\)"):
                task.use(lambda ctx: None)

    def test_the_global_task_is_pickled_by_its_name_and_no_other_task(self):
        assert pickle.loads(pickle.dumps(task)) is task
        with pytest.raises(TypeError, match="a Task cannot be pickled: make one in the other process"):
            pickle.dumps(Task())


def test_a_misspelt_argument_of_start_is_refused_with_the_nearest_one():
    with pytest.raises(TypeError, match=r"Task\.start\(\) has no argument 'asyncmode': did you mean 'async_mode'\?"):
        Task().start(asyncmode=True)
