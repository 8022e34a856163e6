"""Work that defers work, and what the thread of deferred work takes over: modes of torch, context variables."""

import contextlib
import contextvars
import threading

import pytest
import torch
from deferred_runs import MODES, Counts, collector, learner, threads

from ding_lite.engine import Task, WorkCancelled, contract

pytestmark = pytest.mark.timeout(60)


class TestWorkThatDefersWork:
    @MODES
    def test_it_has_its_results_also_when_the_run_has_ended(self, mode):
        def inner(x):
            threading.Event().wait(0.01)
            return x * x

        def outer(x):
            saved.append(loop.defer(inner, x).result())

        saved = []
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(contract(stage="learn")(lambda ctx: loop.defer(outer, ctx.total_step) and None)).run(4)
        assert sorted(saved) == [0, 1, 4, 9]
        assert threads() == []

    @MODES
    def test_it_is_used_in_end_run_with_the_work_around_it(self, mode):
        def inner():
            threading.Event().wait(0.01)
            return 7

        class Takes:
            def __call__(self, ctx):
                if ctx.total_step == 1:
                    self.work = loop.defer(lambda: loop.defer(inner).result())
                    self.work.used_in_end_run = True

            def end_run(self, ctx):
                got.append(self.work.result())

        got = []
        for _ in range(20):
            with Task().start(ctx=Counts(), **mode) as loop:
                loop.use(collector).use(contract(stage="learn")(Takes())).run(2)
        assert got == [7] * 20

    @MODES
    def test_between_slices_an_error_of_the_inner_work_is_for_its_result(self, mode):
        def inner():
            raise ValueError("no score")

        def outer():
            between.wait(0.2)
            try:
                loop.defer(inner).result()
            except ValueError:
                return "handled"

        @contract(stage="learn")
        def learn(ctx):
            if ctx.total_step == 0:
                works.append(loop.defer(outer))
            if ctx.total_step == 3:
                works.append(works.pop().result())

        works, between = [], threading.Event()
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(learn).run(2, final=False)
            between.set()
            while mode["async_mode"] and not works[0].done:
                threading.Event().wait(0.01)
            loop.run(2)
        assert works == ["handled"]

    @MODES
    def test_a_task_of_its_own_runs_inside_work(self, mode):
        def trains():
            own, seen = Task(), []
            with own.start(ctx=Counts()):
                own.use(lambda ctx: seen.append((own.ctx.total_step == ctx.total_step, own.stopping))).run(2)
            return seen

        works = []

        @contract(stage="learn")
        def learn(ctx):
            if ctx.total_step == 0:
                works.append(loop.defer(trains))
            if ctx.total_step == 2:
                works.append(works.pop().result())

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(learn).run(3)
        assert works == [[(True, False)] * 2]

    @MODES
    @pytest.mark.parametrize("first_is_slow", [True, False])
    def test_of_errors_that_works_ask_for_the_first_begun_is_raised(self, mode, first_is_slow):
        def asks(number):
            threading.Event().wait(0.05 * (number == 0) * first_is_slow)
            loop.raise_at_end(ValueError(str(number)))

        @contract(stage="learn")
        def learn(ctx):
            if ctx.total_step == 0:
                loop.defer(asks, 0), loop.defer(asks, 1)

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(learn)
            with pytest.raises(ValueError, match="^0"):
                loop.run(2)

    @MODES
    def test_a_context_variable_that_work_sets_stays_its_own(self, mode):
        variable = contextvars.ContextVar("variable", default=0)

        @contract(stage="learn")
        def learn(ctx):
            loop.defer(variable.set, 1)
            seen.append(variable.get())

        seen = []
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(learn).run(2)
        assert seen == [0, 0]

    @MODES
    def test_a_cancellation_that_work_raises_itself_is_an_error(self, mode):
        def raises():
            raise WorkCancelled("my own")

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(contract(stage="learn")(lambda ctx: loop.defer(raises) and None))
            with pytest.raises(WorkCancelled, match="my own"):
                loop.run(1)


AROUND = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "device": lambda: torch.device("meta"),
}


def modes_of_torch():
    x = torch.full((2, 2), 1 / 3)
    made = torch.nn.Parameter(x.clone()) * 2
    return str((x @ x).dtype), made.requires_grad, made.is_inference(), str(made.device)


@MODES
@pytest.mark.parametrize("around", [*AROUND, None])
def test_modes_of_torch_hold_on_all_lanes_in_parts_and_in_work(mode, around):
    @contract(stage="evaluate")
    def evaluate(ctx):
        if ctx.total_step == 0:
            works.append(loop.defer(modes_of_torch))
        if ctx.total_step == 2:
            seen.append(works[0].result())

    works, seen = [], []
    looks = contract(uses=(seen,), stage="collect")(lambda ctx: seen.append(modes_of_torch()))
    with AROUND[around]() if around else contextlib.nullcontext():
        wanted = modes_of_torch()
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(evaluate).use(looks).use(loop.parallel(lambda ctx: seen.append(modes_of_torch()))).use(learner).run(3)
    assert set(seen) == {wanted}
    assert len(seen) == 7
