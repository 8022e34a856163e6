"""Several middleware as one: in series, or side by side on threads; functions and objects, errors and second halves."""

import dataclasses
import threading

import pytest
from forked_scripts import run_script

from ding_lite.engine import Context, PipelineError, Task, contract, contract_of


@dataclasses.dataclass
class Mine(Context):
    data: object = None
    result: object = None
    other: object = None


@dataclasses.dataclass(slots=True)
class Slotted(Context):
    data: object = None
    result: object = None


class Counter:
    def __init__(self, trace, name):
        self.trace, self.name = trace, name

    def __call__(self, ctx):
        self.trace.append(f"{self.name} begins")
        yield
        self.trace.append(f"{self.name} ends")


def notes(error):
    return "\n".join(getattr(error, "__notes__", []))


def run_once(make, **start):
    with Task().start(**start) as loop:
        loop.use(make(loop))
        loop.run(max_step=1)


class TestSerial:
    def test_it_runs_in_order_and_the_second_halves_in_reverse(self):
        trace = []
        parts = [lambda ctx: trace.append("begin"), Counter(trace, "a"), lambda ctx: trace.append("mid"), Counter(trace, "b")]
        run_once(lambda loop: loop.serial(*parts))

        assert trace == ["begin", "a begins", "mid", "b begins", "b ends", "a ends"]

    def test_its_second_halves_wait_for_the_rest_of_the_pipeline(self):
        trace = []
        with Task().start() as loop:
            loop.use(loop.serial(Counter(trace, "a"))).use(lambda ctx: trace.append("later"))
            loop.run(max_step=1)

        assert trace == ["a begins", "later", "a ends"]

    def test_it_may_stand_inside_itself_and_be_run_again_and_again(self):
        trace = []
        with Task().start() as loop:
            loop.use(loop.serial(loop.serial(Counter(trace, "a")), Counter(trace, "b")))
            loop.run(max_step=2)

        assert trace == ["a begins", "b begins", "b ends", "a ends"] * 2

    def test_an_error_of_a_part_is_thrown_into_those_before_it(self):
        seen = []

        def guards(ctx):
            try:
                yield
            except ValueError as error:
                seen.append(str(error))

        def breaks(ctx):
            raise ValueError("broken")

        run_once(lambda loop: loop.serial(guards, breaks, lambda ctx: seen.append("not reached")))

        assert seen == ["broken"]

    def test_empty_it_does_nothing(self):
        run_once(lambda loop: loop.serial())


class TestParallel:
    def test_forward_steps_run_at_the_same_time(self):
        line = threading.Barrier(3)
        run_once(lambda loop: loop.parallel(*[lambda ctx: line.wait(timeout=30) and None] * 3))

        assert not line.broken

    def test_parts_of_a_context_with_slots_write_at_the_same_time(self):
        lines = [threading.Barrier(2) for _ in range(2)]

        def part(name):
            @contract(writes=(name,))
            def write(ctx):
                for number, line in enumerate(lines):
                    line.wait(timeout=30)
                    setattr(ctx, name, number)

            return write

        with Task().start(ctx=Slotted()) as loop:
            loop.use(loop.parallel(part("data"), part("result")))
            loop.run(1)
            assert (loop.ctx.data, loop.ctx.result) == (1, 1)

    def test_no_more_threads_than_asked_for_are_at_work(self):
        line, broken = threading.Barrier(2), []

        def meets(ctx):
            try:
                line.wait(timeout=0.2)
            except threading.BrokenBarrierError:
                broken.append(1)

        run_once(lambda loop: loop.parallel(meets, meets), n_async_workers=1)

        assert len(broken) == 2

    def test_more_parts_than_threads_all_run(self):
        ran = []
        run_once(lambda loop: loop.parallel(*[lambda ctx, n=n: ran.append(n) for n in range(10)]), n_async_workers=2)

        assert sorted(ran) == list(range(10))

    def test_it_waits_for_all_before_the_pipeline_goes_on(self):
        trace, gate = [], threading.Event()

        def slow(ctx):
            assert gate.wait(timeout=30)
            trace.append("slow")

        def fast(ctx):
            trace.append("fast")
            gate.set()

        with Task().start() as loop:
            loop.use(lambda ctx: trace.append("begin")).use(loop.parallel(slow, fast)).use(lambda ctx: trace.append("end"))
            loop.run(max_step=1)

        assert trace == ["begin", "fast", "slow", "end"]

    def test_second_halves_run_in_reverse_on_the_thread_of_the_run(self):
        trace, threads = [], []

        def halves(number):
            def run(ctx):
                yield
                trace.append(number)
                threads.append(threading.current_thread())

            return run

        run_once(lambda loop: loop.parallel(halves(0), lambda ctx: None, halves(1), halves(2)))

        assert trace == [2, 1, 0]
        assert set(threads) == {threading.current_thread()}

    def test_objects_and_functions_and_series_mix(self):
        trace = []
        run_once(lambda loop: loop.parallel(loop.serial(Counter(trace, "a"), Counter(trace, "b")), lambda ctx: None))

        assert trace == ["a begins", "b begins", "b ends", "a ends"]

    def test_the_first_error_in_order_leaves_with_the_others_as_notes_and_all_have_run(self):
        ran, gate = [], threading.Event()

        def fails_late(ctx):
            assert gate.wait(timeout=30)
            raise ValueError("first in order")

        def fails_early(ctx):
            gate.set()
            raise KeyError("first in time")

        def works(ctx):
            ran.append(1)

        with pytest.raises(ValueError, match="first in order") as caught:
            run_once(lambda loop: loop.parallel(fails_late, fails_early, works))

        assert "side by side with it, KeyError: 'first in time'" in notes(caught.value)
        assert ran == [1]

    def test_an_error_of_one_is_thrown_into_the_others_that_yielded(self):
        seen = []

        def guards(ctx):
            try:
                yield
            except ValueError as error:
                seen.append(str(error))

        def breaks(ctx):
            raise ValueError("broken")

        run_once(lambda loop: loop.parallel(breaks, guards))

        assert seen == ["broken"]

    def test_its_threads_are_gone_after_the_stop(self):
        names = []
        before = threading.active_count()
        run_once(lambda loop: loop.parallel(lambda ctx: names.append(threading.current_thread().name)))

        assert names[0].startswith("task.parallel")
        assert threading.active_count() == before

    @pytest.mark.parametrize("workers", [1, 3])
    def test_it_may_stand_inside_itself_without_blocking_for_ever(self, workers):
        script = NESTED.format(workers=workers)
        ended = run_script(script, timeout=20, check=True)

        assert ended.stdout.split() == [str(2 * workers)]


# As many parts as threads, all at work before the first of them asks for more.
NESTED = """
import threading
from ding_lite.engine import Task
ran, line = [], threading.Barrier({workers})
with Task().start(n_async_workers={workers}) as loop:
    def meet(ctx):
        line.wait(timeout=30)
    inner = loop.parallel(ran.append, ran.append)
    loop.use(loop.parallel(*[loop.serial(meet, inner)] * {workers}))
    loop.run(max_step=1)
print(len(ran))
"""


@pytest.mark.parametrize("kind", ["serial", "parallel"])
class TestBoth:
    def test_the_name_tells_what_is_inside(self, kind):
        def first(ctx):
            return None

        with Task().start() as loop:
            table = loop.use(getattr(loop, kind)(first, Counter([], "a"))).describe()

        assert f"{kind}(first, Counter)" in table

    def test_what_cannot_be_called_is_refused_at_once(self, kind):
        match = rf"task\.{kind}\(\) wants a function of the context, got None of type NoneType"
        with Task().start() as loop, pytest.raises(TypeError, match=match):
            getattr(loop, kind)(lambda ctx: None, None)

    @pytest.mark.parametrize(
        ("part", "words"), [(Counter, "class"), (lambda: None, "argument"), (lambda a, b: None, "argument")]
    )
    def test_what_use_would_refuse_is_refused_at_once_inside_too(self, kind, part, words):
        with Task().start() as loop, pytest.raises(TypeError, match=words):
            getattr(loop, kind)(lambda ctx: None, part)

    def test_a_factory_that_was_not_called_is_found_out(self, kind):
        def factory(cfg=None):
            return lambda ctx: None

        with pytest.raises(TypeError, match=r"factory \(.*\) returned the function .* call it first"):
            run_once(lambda loop: getattr(loop, kind)(factory))

    def test_one_part_without_a_contract_leaves_the_whole_without(self, kind):
        with Task().start() as loop:
            known = contract(reads=("data",))(lambda ctx: None)

            assert contract_of(getattr(loop, kind)(known, lambda ctx: None)) is None

    def test_the_contract_joins_those_of_the_parts(self, kind):
        first_thing, shared = object(), object()
        first = contract(writes=("data",), uses=(first_thing, shared), may_read=("other",), stage="collect")(lambda ctx: None)
        second = contract(writes=("result",), uses=(shared,), stage="learn", writes_after=("other",))(lambda ctx: None)
        with Task().start() as loop:
            terms = contract_of(getattr(loop, kind)(first, second))

        assert (terms.writes, terms.may_read, terms.writes_after) == (("data", "result"), ("other",), ("other",))
        assert terms.uses == (first_thing, shared)
        assert terms.stage == "collect"

    def test_what_its_parts_need_is_checked_from_outside(self, kind):
        with Task().start(ctx=Mine()) as loop:
            loop.use(getattr(loop, kind)(contract(reads=("data",))(lambda ctx: None)))
            with pytest.raises(PipelineError, match=r"reads ctx\.data, but no earlier middleware writes it"):
                loop.run(max_step=1)

    def test_what_its_parts_write_is_there_for_those_after_it(self, kind):
        with Task().start(ctx=Mine()) as loop:
            loop.use(getattr(loop, kind)(contract(writes=("data",))(lambda ctx: None)))
            loop.use(contract(reads=("data",))(lambda ctx: None))
            loop.run(max_step=1)


class TestFieldsBetweenParts:
    def pipeline(self, kind):
        with Task().start(ctx=Mine()) as loop:
            writes, reads = contract(writes=("data",))(lambda ctx: None), contract(reads=("data",))(lambda ctx: None)
            loop.use(getattr(loop, kind)(writes, reads))
            loop.run(max_step=1)

    def test_in_series_a_part_may_read_what_one_before_it_writes(self):
        self.pipeline("serial")

    def test_side_by_side_a_part_may_not_read_what_its_neighbour_writes(self):
        with pytest.raises(PipelineError, match=r"ctx\.data"):
            self.pipeline("parallel")


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_an_error_inside_names_a_line_of_the_script(kind):
    def fails(ctx):
        raise OSError("the disk is gone")

    with Task().start() as loop, pytest.raises(OSError, match="disk is gone") as raised:
        loop.use(getattr(loop, kind)(fails, lambda ctx: None)).run(1)
    assert f"({__file__}:{fails.__code__.co_firstlineno})" in raised.value.__notes__[-1]
