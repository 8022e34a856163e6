"""Middleware begun by hand on the pool's threads, and what stands inside other middleware of a run whose iterations overlap."""

import dataclasses
import threading
from concurrent.futures import Future

import pytest

from ding_lite.engine import Context, Task, contract

pytestmark = pytest.mark.timeout(60)

STAGES = ["evaluate", "collect", "learn"]


@dataclasses.dataclass
class Trace(Context):
    trace: list = dataclasses.field(default_factory=list)
    count: int = 0

    def __post_init__(self):
        self.keep("count")


@dataclasses.dataclass
class Traces(Context):
    trace_1: int = 0
    trace_2: int = 0


def halves(number, wait=lambda: None):
    def step(ctx):
        wait()
        yield
        ctx.trace.append(number)

    return step


class TestForward:
    def test_it_returns_a_future_and_runs_on_a_thread_of_the_pool(self):
        names, go = [], threading.Event()

        def step(ctx):
            assert go.wait(30)
            names.append(threading.current_thread().name)

        with Task().start(ctx=Trace()) as loop:
            future = loop.forward(step, async_mode=True)
            assert isinstance(future, Future)
            assert not future.done()
            go.set()
            loop.sync()
            assert future.done()
            assert future.result() is None
        assert names[0].startswith("task.parallel")
        assert names[0] != threading.current_thread().name

    def test_it_may_be_given_another_context(self):
        other = Trace()
        with Task().start(ctx=Trace()) as loop:
            loop.forward(lambda ctx: ctx.trace.append(1), other, async_mode=True)
            loop.sync()
            assert (loop.ctx.trace, other.trace) == ([], [1])

    def test_second_halves_run_in_the_reverse_order_of_their_beginning_whichever_was_faster(self):
        done = [threading.Event() for _ in range(3)]

        def slow_first(number):  # the later one begins, the sooner its first half is done
            return lambda: done[number].set() if number == 2 else (done[number + 1].wait(30), done[number].set())

        with Task().start(ctx=Trace()) as loop:
            for number in range(3):
                loop.forward(halves(number, slow_first(number)), async_mode=True)
            loop.backward()
            assert loop.ctx.trace == [2, 1, 0]

    def test_backward_waits_for_what_is_still_under_way(self):
        started = threading.Event()

        def wait():
            started.set()
            threading.Event().wait(0.01)

        with Task().start(ctx=Trace()) as loop:
            loop.forward(halves(7, wait), async_mode=True)
            assert started.wait(30)
            loop.backward()
            assert loop.ctx.trace == [7]

    def test_errors_come_out_of_sync_the_first_raised_and_the_others_noted(self):
        errors = [ValueError("one"), KeyError("two"), OSError("three")]

        def fails(error):
            def step(ctx):
                raise error

            return step

        with Task().start(ctx=Trace()) as loop:
            loop.forward(halves("ran"), async_mode=True)
            for error in errors:
                loop.forward(fails(error), async_mode=True)
            with pytest.raises(ValueError, match="one") as caught:
                loop.sync()
            assert caught.value is errors[0]
            assert caught.value.__notes__ == ["beside it, KeyError: 'two'", "beside it, OSError: three"]
            loop.sync()
            loop.backward()
            assert loop.ctx.trace == ["ran"]

    def test_what_is_under_way_when_the_task_stops_leaves_no_thread(self):
        with Task().start(ctx=Trace()) as loop:
            for _ in range(5):
                loop.forward(halves(0), async_mode=True)
        assert [it.name for it in threading.enumerate() if it.name.startswith("task.")] == []


class TestDefaults:
    def test_by_hand_the_tasks_mode_decides(self):
        with Task().start(async_mode=True, ctx=Trace()) as loop:
            assert isinstance(loop.forward(lambda ctx: None), Future)
            assert loop.forward(lambda ctx: None, async_mode=False) is None
            loop.sync()
        with Task().start(ctx=Trace()) as loop:
            assert loop.forward(lambda ctx: None) is None

    @pytest.mark.parametrize("stage", STAGES)
    def test_inside_a_middleware_it_is_not_asynchronous_and_ends_with_the_iteration(self, stage):
        order = []

        def inner(ctx):
            order.append((ctx.total_step, 1, threading.current_thread().name))
            yield
            order.append((ctx.total_step, 2, threading.current_thread().name))

        @contract(stage=stage)
        def outer(ctx):
            assert not isinstance(loop.forward(inner), Future)
            order.append((ctx.total_step, "outer", threading.current_thread().name))

        with Task().start(async_mode=True, ctx=Trace()) as loop:
            loop.use(contract(stage="collect")(lambda ctx: None)).use(outer)
            loop.run(3)
        assert [entry[:2] for entry in order] == [(k, what) for k in range(3) for what in (1, "outer", 2)]
        assert len({entry[2] for entry in order}) == 1


class TestPool:
    @pytest.mark.parametrize("workers", [1, 2, 3])
    def test_n_async_workers_bounds_it(self, workers):
        lock, inside, most = threading.Lock(), [0], []
        meet = threading.Barrier(workers, timeout=30)

        def step(ctx):
            with lock:
                inside[0] += 1
                most.append(inside[0])
            meet.wait()  # passes only where so many run at the same time
            with lock:
                inside[0] -= 1

        with Task().start(n_async_workers=workers, ctx=Trace()) as loop:
            for _ in range(4 * workers):
                loop.forward(step, async_mode=True)
            loop.sync()
        assert max(most) == workers

    @pytest.mark.few
    @pytest.mark.parametrize("asks", ["is_certain", "finish", "a result", "an event"])
    @pytest.mark.parametrize("workers", [1, 2])
    def test_parts_that_wait_for_others_do_not_use_it_up(self, workers, asks):
        seen = []

        def part(stage, number):
            @contract(stage=stage)
            def run(ctx):
                if asks == "a result":
                    seen.append(loop.defer(pow, 2, 2).result() == 4)
                elif asks == "an event":
                    seen.append(loop.wait_for("never", timeout=0.001) is None)
                else:
                    seen.append(getattr(loop, asks) in (True, False))

            return run

        with Task().start(async_mode=True, ctx=Trace(), n_async_workers=workers, max_lag=2) as loop:
            for stage in STAGES:
                loop.use(loop.parallel(*[part(stage, number) for number in range(4)]))
            loop.run(6)
        assert seen == [True] * 6 * 4 * len(STAGES)

    def test_a_part_may_wait_for_an_event_of_one_that_has_no_place_yet(self):
        got = []
        with Task().start(n_async_workers=1, ctx=Trace()) as loop:
            emits = lambda ctx: loop.emit("tick", 1)  # noqa: E731
            loop.use(loop.parallel(lambda ctx: got.append(loop.wait_for("tick")), emits)).run(1)
        assert got == [((1,), {})]

    def test_what_forward_began_may_wait_for_what_it_began_later(self):
        got = []
        with Task().start(n_async_workers=1, ctx=Trace()) as loop:
            loop.forward(lambda ctx: got.append(loop.wait_for("tick")), async_mode=True)
            loop.forward(lambda ctx: loop.emit("tick", 2), async_mode=True)
            loop.sync()
        assert got == [((2,), {})]

    def test_what_forward_began_is_not_left_alone_by_a_script_that_still_emits(self):
        waiting, got = threading.Event(), []

        def waits(ctx):
            waiting.set()
            got.append(loop.wait_for("tick"))

        with Task().start(ctx=Trace()) as loop:
            loop.forward(waits, async_mode=True)
            assert waiting.wait(30)
            while not loop._events._listeners.get("tick"):
                threading.Event().wait(0.001)
            loop.emit("tick", 3)
            loop.sync()
            loop.forward(waits, async_mode=True)
            with pytest.raises(RuntimeError, match="would block for ever: nothing is left to emit it"):
                loop.sync()
        assert got == [((3,), {})]

    def test_parts_inside_parts_that_all_wait_are_refused(self):
        with Task().start(n_async_workers=2, ctx=Trace()) as loop:
            waits = [lambda ctx, name=name: loop.wait_for(name) and None for name in "abc"]
            loop.use(loop.parallel(loop.parallel(*waits[:2]), waits[2]))
            with pytest.raises(RuntimeError, match="would block for ever: nothing is left to emit it"):
                loop.run(1)


class TestInsideLanes:
    @pytest.mark.parametrize("stage", STAGES)
    def test_parallel_runs_side_by_side_on_the_lanes_context(self, stage):
        meet, seen = threading.Barrier(2, timeout=30), []

        def part(number):
            @contract((f"trace_{number}",), (f"trace_{number}",), reads_after=("trace_1", "trace_2"), stage=stage)
            def run(ctx):
                meet.wait()
                assert loop.ctx.total_step == ctx.total_step
                setattr(ctx, f"trace_{number}", number)
                assert getattr(loop.ctx, f"trace_{number}") == number
                yield
                seen.append((ctx.total_step, [ctx.trace_1, ctx.trace_2]))

            return run

        with Task().start(async_mode=True, ctx=Traces()) as loop:
            loop.use(contract(stage="collect")(lambda ctx: None))
            loop.use(loop.parallel(part(1), part(2)))
            loop.run(4)
        assert seen == [(k, [1, 2]) for k in range(4) for _ in (1, 2)]

    def test_all_lanes_may_have_parallel_parts_from_the_first_iteration_on(self):
        seen = []
        with Task().start(async_mode=True, ctx=Trace(), n_async_workers=2, max_lag=2) as loop:
            for stage in STAGES:
                parts = [contract(stage=stage)(lambda ctx, it=(stage, n): seen.append((ctx.total_step, it))) for n in (1, 2)]
                loop.use(loop.parallel(*parts))
            loop.run(30)
        assert sorted(seen) == sorted((k, (stage, n)) for k in range(30) for stage in STAGES for n in (1, 2))

    def test_a_lock_keeps_middleware_of_two_lanes_apart(self):
        inside, wrong = [0], []

        def step(stage):
            @contract(stage=stage)
            def work(ctx):
                inside[0] += 1
                wrong.extend([stage] * (inside[0] > 1))
                for _ in range(5):
                    threading.Event().wait(0.0001)
                inside[0] -= 1

            return work

        with Task().start(async_mode=True, ctx=Trace()) as loop:
            for stage in STAGES:
                loop.use(step(stage), lock=True)
            loop.run(20)
        assert wrong == []

    @pytest.mark.parametrize("stage", STAGES)
    def test_wrap_ends_where_it_is_told_to_or_with_the_iteration(self, stage):
        order = []

        def inner(ctx):
            order.append("begin")
            yield
            order.append("end")

        with Task().start(async_mode=True, ctx=Trace()) as loop:
            begin = loop.wrap(inner)

            @contract(stage=stage)
            def outer(ctx):
                end = begin(ctx)
                if ctx.total_step % 2:
                    end()
                order.append("after")

            loop.use(contract(stage="collect")(lambda ctx: None)).use(outer)
            loop.run(3)
        assert order == ["begin", "after", "end", "begin", "end", "after", "begin", "after", "end"]
