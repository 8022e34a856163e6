"""Values belong to one lane, and nobody changes in place what another middleware may still read."""

import contextlib
import copy
import dataclasses
import functools
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from contract_runs import MODES, OVERLAPPING, Data, run
from start_values import KINDS, Box, bump, made, number

from ding_lite.contexts import AgentsContext, OnlineRLContext
from ding_lite.engine import Context, ContractError, Task, contract
from ding_lite.middleware import part
from ding_lite.pipeline.guards import CHECKED_ITERATIONS


@pytest.mark.filterwarnings("ignore:Kept keeps")
@pytest.mark.parametrize("kind", KINDS)
class TestLanes:
    @pytest.mark.parametrize("how", ["given", "factory"])
    @OVERLAPPING
    def test_start_values_that_change_in_place_are_each_lanes_own(self, mode, kind, how):
        @dataclasses.dataclass
        class Kept(Context):
            value: Any = dataclasses.field(default_factory=functools.partial(made, kind))

            def __post_init__(self) -> None:
                self.keep("value")

        def learns(ctx):
            bump(ctx.value)

        seen = []
        evaluates = contract(("value",), stage="evaluate")(lambda ctx: seen.append(number(ctx.value)))
        ctx = Kept(made(kind)) if how == "given" else Kept()
        run(evaluates, contract(("value",), ("value",), stage="learn")(learns), mode=mode, ctx=ctx, steps=6)
        assert seen == [0, 0, 1, 2, 3, 4]

    @MODES
    @pytest.mark.parametrize("reused", ["by the middleware", "in a kept field"])
    def test_a_value_that_its_writer_goes_on_changing_names_the_writer(self, mode, kind, reused):
        @dataclasses.dataclass
        class Kept(Context):
            value: Any = dataclasses.field(default_factory=functools.partial(made, kind))
            batch: Any = None

            def __post_init__(self) -> None:
                self.keep("value")

        own = made(kind)

        @contract(("value",), ("value", "batch"), stage="collect")
        def collects(ctx):
            value = own if reused == "by the middleware" else ctx.value
            bump(value)
            ctx.batch = value

        learns = contract(("batch",), stage="learn")(lambda ctx: None)
        with pytest.raises(ContractError, match=r"collects .* wrote ctx.batch in iteration \d and changed that value"):
            run(collects, learns, mode=mode, ctx=Kept(), steps=5)

    @MODES
    def test_a_new_value_each_iteration_is_fine(self, mode, kind):
        @contract(("count",), ("count", "batch"), stage="collect")
        def collects(ctx):
            ctx.count += 1
            ctx.batch = made(kind)
            bump(ctx.batch)

        seen = []
        learns = contract(("batch",), stage="learn")(lambda ctx: seen.append(number(ctx.batch)))
        run(collects, learns, mode=mode, steps=7)
        assert seen == [1] * 7

    @MODES
    def test_the_same_value_each_iteration_is_fine_while_nobody_changes_it(self, mode, kind):
        constant = made(kind)

        @contract(writes=("batch",), stage="collect")
        def collects(ctx):
            ctx.batch = constant

        run(collects, contract(("batch",), stage="learn")(lambda ctx: None), mode=mode, steps=7)

    @MODES
    def test_who_changes_what_it_only_reads_is_named(self, mode, kind):
        @contract(writes=("batch",), stage="collect")
        def collects(ctx):
            ctx.batch = made(kind)

        @contract(("batch",), stage="learn")
        def meddles(ctx):
            bump(ctx.batch)

        with pytest.raises(
            ContractError, match=r'meddles .* changed ctx.batch.* in place.*@contract\(..., writes=\("batch",\)\)'
        ):
            run(collects, meddles, mode=mode)

    @MODES
    def test_who_declares_that_it_writes_may_change_in_place(self, mode, kind):
        @contract(writes=("batch",), stage="collect")
        def collects(ctx):
            ctx.batch = made(kind)

        @contract(("batch",), ("batch",), stage="process")
        def enhances(ctx):
            bump(ctx.batch)

        seen = []
        learns = contract(("batch",), stage="learn")(lambda ctx: seen.append(number(ctx.batch)))
        run(collects, enhances, learns, mode=mode, steps=7)
        assert seen == [1] * 7

    @OVERLAPPING
    def test_what_would_carry_over_in_a_field_that_is_not_kept_is_refused(self, mode, kind):
        @contract(("batch",), ("batch",), stage="collect")
        def piles_up(ctx):
            bump(ctx.batch)

        with pytest.raises(ContractError, match=r"piles_up .* changed ctx.batch.*default_factory, or keep\(\) it"):
            run(piles_up, mode=mode, ctx=Data(batch=made(kind)))


class TestStartValues:
    def test_what_cannot_be_copied_is_refused_by_name_where_two_lanes_touch_it(self):
        class Holds:
            def __init__(self):
                self.lock = threading.Lock()

        reads = [contract(("batch",), stage=stage)(lambda ctx: None) for stage in ("collect", "learn")]
        with pytest.raises(ValueError, match=r"Data.batch starts with a Holds, which cannot be copied .*in the uses"):
            run(*reads, mode={"max_lag": 1}, ctx=Data(batch=Holds()))

    def test_a_lane_that_does_not_touch_it_needs_no_copy(self):
        thing = Box(threading.Lock())
        seen = []
        collects = contract(writes=("more",), stage="collect")(lambda ctx: setattr(ctx, "more", 1))
        run(
            collects,
            contract(("batch",), stage="learn")(lambda ctx: seen.append(ctx.batch)),
            mode={"max_lag": 1},
            ctx=Data(batch=thing),
        )
        assert seen == [thing] * 3

    def test_nothing_is_held_on_to_behind_the_checked_iterations(self):
        class Value(list):
            """A list that can be referred to weakly."""

        alive = weakref.WeakSet()

        class Tag:
            """Something of each value that can be counted."""

        @contract(writes=("batch",), stage="collect")
        def collects(ctx):
            value = Value([Tag()])
            alive.add(value[0])
            ctx.batch = value

        for mode in ({}, {"max_lag": 2}):
            with contextlib.suppress(KeyError):
                alive.clear()
            with Task().start(ctx=Data(), **mode) as loop:
                loop.use(collects).use(contract(("batch",), stage="learn")(lambda ctx: None))
                loop.run(CHECKED_ITERATIONS + 10)
                assert len(alive) <= 4


class Private:
    """Something whose state nobody sees from outside."""

    def __init__(self):
        self._value = 0

    def count(self):
        self._value += 1


def rotate(things, _):
    """Put the first key of a dict last."""
    first = next(iter(things))
    things[first] = things.pop(first)


class Lazy:
    """Fills a cache when it is first asked."""

    def __init__(self):
        self._cache = self.cache = None

    def get(self):
        self._cache = self.cache = 5


class TestLessObviousBreaches:
    @MODES
    @pytest.mark.parametrize(
        ("value", "change"),
        [
            (bytearray(2), lambda it, k: it.__setitem__(0, k + 1)),
            (np.random.default_rng(0), lambda it, k: it.random()),
            (Private(), lambda it, k: it.count()),
            (type("Rows", (list,), {})(), lambda it, k: it.append(k)),
            ({"a": 1, "b": 2}, rotate),
        ],
        ids=["bytearray", "generator", "private attribute", "list subclass", "order of a dict"],
    )
    def test_reuse_of_such_values_names_the_writer(self, mode, value, change):
        own = copy.deepcopy(value)

        @contract(writes=("batch",), stage="collect")
        def collects(ctx):
            change(own, ctx.total_step)
            ctx.batch = own

        with pytest.raises(ContractError, match="collects .* wrote ctx.batch"):
            run(collects, contract(("batch",), stage="learn")(lambda ctx: None), mode=mode, steps=5)

    @MODES
    def test_a_reader_may_fill_a_cache(self, mode):
        collects = contract(writes=("batch",), stage="collect")(lambda ctx: setattr(ctx, "batch", Lazy()))
        run(collects, contract(("batch",), stage="learn")(lambda ctx: ctx.batch.get()), mode=mode, steps=5)

    @pytest.mark.parametrize("lag", [1, 2, 3])
    @pytest.mark.parametrize("overlap", [False, True])
    def test_a_ring_of_buffers_may_be_used_again(self, lag, overlap):
        ring, seen = [[0] for _ in range(lag + 1)], []

        @contract(writes=("batch",), stage="collect")
        def collects(ctx):
            ctx.batch = ring[ctx.total_step % len(ring)]
            ctx.batch[0] = ctx.total_step

        learns = contract(("batch",), stage="learn")(lambda ctx: seen.append(ctx.batch[0]))
        run(collects, learns, mode={"max_lag": lag, "async_mode": overlap}, steps=12)
        assert seen == list(range(12))

    @MODES
    def test_the_parts_of_several_agents_may_be_changed_in_place(self, mode):
        def makes(ctx):
            ctx.parts = {"one": OnlineRLContext(trajectories=np.zeros(3))}

        @contract(("trajectories",), ("trajectories",), stage="process")
        def shapes(ctx):
            ctx.trajectories += 1

        run(contract(writes=("parts",), stage="collect")(makes), part("one", shapes), mode=mode, ctx=AgentsContext(), steps=6)
