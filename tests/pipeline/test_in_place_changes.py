"""Values belong to one lane, and nobody changes in place what another middleware may still read."""

import contextlib
import copy
import dataclasses
import functools
import io
import itertools
import random
import re
import threading
import weakref
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from contract_runs import MODES, OVERLAPPING, Data, run
from start_values import KINDS, Box, bump, made, number

from ding_lite.contexts import MultiAgentContext, OnlineRLContext
from ding_lite.data import tree
from ding_lite.engine import Context, ContractError, Task, contract
from ding_lite.middleware import for_policy
from ding_lite.pipeline.contract_guards import CHECKED_ITERATIONS
from ding_lite.pipeline.fingerprints import changed, fingerprint


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

    @MODES
    def test_what_would_carry_over_in_a_field_that_is_not_kept_is_refused(self, mode, kind):
        @contract(("batch",), ("batch",), stage="collect")
        def piles_up(ctx):
            bump(ctx.batch)

        with pytest.raises(ContractError, match=r"piles_up .* changed ctx.batch.*default_factory, or keep\(\) it"):
            run(piles_up, mode=mode, ctx=Data(batch=made(kind)))


class TestStartValues:
    @OVERLAPPING
    @pytest.mark.filterwarnings("ignore:asynchronous mode knows")
    def test_a_function_without_a_contract_that_changes_one_in_place_is_named(self, mode):
        def piles_up(ctx):
            ctx.batch.append(1)

        with pytest.raises(ContractError, match=r"piles_up .* changed ctx.batch in place.*default_factory, or keep\(\) it"):
            run(piles_up, mode=mode, ctx=Data(batch=[7]))

    def test_in_a_plain_loop_it_is_warned_of_once(self):
        lengths = []

        def piles_up(ctx):
            ctx.batch.append(1)
            lengths.append(len(ctx.batch))

        with pytest.warns(UserWarning, match=r"piles_up .* changed ctx.batch in place.*default_factory, or keep") as caught:
            run(piles_up, mode={}, ctx=Data(batch=[7]), steps=7)
        assert len(caught) == 1
        assert lengths == [2, 3, 4, 5, 6, 7, 8]

    @MODES
    def test_what_belongs_to_the_class_is_no_way_to_hand_something_over(self, mode):
        @dataclasses.dataclass
        class Listed(Data):
            rows_of_all: ClassVar[list] = []

        @contract(("count",), ("count",), stage="collect")
        def piles_up(ctx):
            ctx.count += 1
            ctx.rows_of_all.append(ctx.count)

        with pytest.raises(ContractError, match=r"piles_up .* changed Listed.rows_of_all in place.* Declare a field"):
            run(piles_up, mode=mode, ctx=Listed())

    @MODES
    def test_a_table_that_belongs_to_the_class_may_be_read(self, mode):
        @dataclasses.dataclass
        class Tabled(Data):
            table: ClassVar[dict] = {0: [1]}

        seen = []
        run(contract(stage="collect")(lambda ctx: seen.append(ctx.table[0])), mode=mode, ctx=Tabled(), steps=7)
        assert seen == [[1]] * 7

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

    def test_a_reader_may_fill_a_cache_while_its_writer_makes_the_next_value(self):
        begun, filled = threading.Event(), threading.Event()

        @contract(writes=("batch",), stage="collect")
        def collects(ctx):
            if ctx.total_step == 1:
                begun.set()
                filled.wait(20)
            ctx.batch = Lazy()

        @contract(("batch",), stage="learn")
        def learns(ctx):
            begun.wait(20)
            ctx.batch.get()
            filled.set()

        run(collects, learns, mode={"async_mode": True})

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

        run(
            contract(writes=("parts",), stage="collect")(makes),
            for_policy("one", shapes),
            mode=mode,
            ctx=MultiAgentContext(),
            steps=6,
        )


def alone(value):
    """The value itself."""
    return value


def in_a_list(value):
    """A new list that holds it."""
    return [value]


def a_part_of_it(value):
    """A view of some of its elements."""
    return value[1:]


def first(value):
    """The array in it."""
    return value[0] if isinstance(value, list) else value


class TestOneMemoryUnderTwoFields:
    @staticmethod
    def pipeline(make, share, also=()):
        @contract(writes=("batch",), stage="collect")
        def makes(ctx):
            ctx.batch = make()

        @contract(("batch",), ("more",), stage="collect")
        def shares(ctx):
            ctx.more = share(ctx.batch)

        @contract(("more", *also), ("more", *also), stage="learn")
        def scales(ctx):
            values = first(ctx.more)
            values *= 10

        return makes, shares, scales

    @MODES
    @pytest.mark.parametrize("make", [lambda: np.ones(3), lambda: torch.ones(3)], ids=["array", "tensor"])
    @pytest.mark.parametrize("share", [alone, in_a_list, a_part_of_it])
    def test_who_changes_the_other_field_with_its_own_is_named(self, mode, make, share):
        with pytest.raises(
            ContractError,
            match=r"changed ctx.more in place.* and with it ctx.batch, which .* wrote: both hold the same "
            r'memory.*writes=\("more", "batch"\)',
        ):
            run(*self.pipeline(make, share), mode=mode)

    @MODES
    def test_who_names_both_may_change_both(self, mode):
        run(*self.pipeline(lambda: np.ones(3), alone, also=("batch",)), mode=mode, steps=7)

    @MODES
    @pytest.mark.parametrize(
        "share", [np.copy, lambda it: it[::2].copy(), lambda it: it + 0], ids=["copy", "copy of a part", "sum"]
    )
    def test_a_copy_has_memory_of_its_own(self, mode, share):
        run(*self.pipeline(lambda: np.ones(3), share), mode=mode, steps=7)

    @MODES
    def test_two_columns_of_one_array_are_no_memory_in_common(self, mode):
        @contract(writes=("batch", "more"), stage="collect")
        def makes(ctx):
            both = np.ones((3, 2))
            ctx.batch, ctx.more = both[:, 0], both[:, 1]

        @contract(("more",), ("more",), stage="learn")
        def scales(ctx):
            ctx.more *= 10

        run(makes, scales, mode=mode, steps=7)

    @MODES
    def test_memory_in_common_may_be_read_and_replaced(self, mode):
        makes, shares, _ = self.pipeline(lambda: np.ones(3), alone)

        @contract(("more",), ("more",), stage="learn")
        def replaces(ctx):
            ctx.more = ctx.more * 10

        run(makes, shares, replaces, mode=mode, steps=7)

    @MODES
    @pytest.mark.filterwarnings("ignore:Data keeps")
    def test_a_kept_field_counts_as_well(self, mode):
        @contract(("count",), ("count", "batch"), stage="collect")
        def makes(ctx):
            ctx.count = np.ones(2)
            ctx.batch = ctx.count

        @contract(("batch",), ("batch",), stage="learn")
        def scales(ctx):
            ctx.batch *= 10

        with pytest.raises(ContractError, match="scales .* and with it ctx.count"):
            run(makes, scales, mode=mode)


def remove_leaf(data):
    """Take a leaf away."""
    del data["reward"]


class TestWhatIsAddedOrTakenAway:
    @MODES
    @pytest.mark.parametrize(
        "change",
        [
            lambda data: setattr(data, "bonus", torch.ones(1)),
            lambda data: setattr(data.inner, "bonus", torch.ones(1)),
            remove_leaf,
        ],
        ids=["added", "added to a branch", "removed"],
    )
    def test_a_reader_of_a_tree_that_does_is_named(self, mode, change):
        @contract(writes=("batch",), stage="collect")
        def collects(ctx):
            ctx.batch = tree({"reward": torch.ones(2), "inner": {"obs": torch.ones(2)}})

        @contract(("batch",), stage="learn")
        def meddles(ctx):
            change(ctx.batch)

        with pytest.raises(ContractError, match=r"meddles .* changed ctx.batch.* in place"):
            run(collects, meddles, mode=mode)

    @MODES
    @pytest.mark.parametrize("change", [lambda box: setattr(box, "bonus", 1), lambda box: delattr(box, "value")])
    def test_a_reader_of_an_object_that_does_is_named(self, mode, change):
        collects = contract(writes=("batch",), stage="collect")(lambda ctx: setattr(ctx, "batch", Box([0])))

        @contract(("batch",), stage="learn")
        def meddles(ctx):
            change(ctx.batch)

        with pytest.raises(ContractError, match=r"meddles .* changed ctx.batch in place"):
            run(collects, meddles, mode=mode)

    @MODES
    @pytest.mark.parametrize("make", [lambda: iter([1, 2, 3]), lambda: squares(), lambda: zip("ab", [1, 2])])
    def test_who_takes_from_an_iterator_writes_it(self, mode, make):
        collects = contract(writes=("batch",), stage="collect")(lambda ctx: setattr(ctx, "batch", make()))
        takes = contract(("batch",), ("batch",), stage="process")(lambda ctx: next(ctx.batch))
        run(collects, takes, mode=mode, steps=7)
        with pytest.raises(ContractError, match=r"changed ctx.batch.* in place"):
            run(collects, contract(("batch",), stage="learn")(lambda ctx: next(ctx.batch)), mode=mode)

    @pytest.mark.few
    @pytest.mark.parametrize("lag", [1, 2])
    @pytest.mark.parametrize(
        "make", [iter, lambda it: iter(it.items()), lambda it: iter(set(it)), enumerate, lambda it: zip(it, it)]
    )
    def test_an_iterator_that_is_made_in_each_iteration_may_be_taken_from(self, make, lag):
        def collects(ctx):
            ctx.batch = make({number: number for number in range(40)})
            next(ctx.batch)

        takes = contract(("batch",), ("batch",), stage="process")(lambda ctx: next(ctx.batch))
        for _ in range(5):
            run(contract(writes=("batch",), stage="collect")(collects), takes, mode={"max_lag": lag}, steps=8)

    @MODES
    def test_a_cached_property_of_a_value_may_be_read(self, mode):
        class Total:
            @functools.cached_property
            def total(self):
                return 5

        collects = contract(writes=("batch",), stage="collect")(lambda ctx: setattr(ctx, "batch", Total()))
        run(collects, contract(("batch",), stage="learn")(lambda ctx: ctx.batch.total), mode=mode, steps=5)


def chain(length):
    """Objects, each in the one before it."""
    first = last = Box([0])
    for _ in range(length):
        last.next = Box(0)
        last = last.next
    return first


def nest(depth):
    """Lists in lists."""
    inner = [0]
    for _ in range(depth):
        inner = [inner]
    return inner


def subclass(kind, *args):
    """An instance of a subclass, with an attribute."""
    made = type(f"Own{kind.__name__}", (kind,), {})(*args)
    made.note = [0]
    return made


def with_attribute():
    """A function with an attribute."""

    def fn():
        """Nothing."""

    fn.seen = [0]
    return fn


def counting(in_default=False):
    """A function that counts its calls."""
    count = 0

    def fn(seen=[0]):  # noqa: B006  what it keeps is what is tested
        nonlocal count
        if in_default:
            seen[0] += 1
        else:
            count += 1

    return fn


def squares():
    """A generator function."""
    for root in range(9):
        yield root**2


class HashedBox(Box):
    """Can be an element of a set, by identity."""


class Slots:
    """Counts in a slot of its own."""

    __slots__ = ("__counts",)

    def __init__(self):
        self.__counts = np.zeros(1)

    def count(self):
        self.__counts += 1


class Private:
    """Holds something in an attribute of its own."""

    def __init__(self, inner):
        self._inner = inner


def module():
    """A torch module in another one."""
    return torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2))


CHANGES_OF_MODULES = {
    "mode": (lambda net: net.eval(), ".training"),
    "mode of a part": (lambda net: net[0].eval(), "[0].training"),
    "number of a part": (lambda net: setattr(net[0], "p", 0.1), "[0].p"),
    "what is trained": (lambda net: net.requires_grad_(False), "[1].weight.requires_grad"),
    "hook": (lambda net: net[1].register_forward_pre_hook(print), "[1]._forward_pre_hooks"),
    "weight": (lambda net: net[1].weight.data.add_(1), "[1].weight"),
    "part that is added": (lambda net: net.append(torch.nn.ReLU()), ""),
}


def sampled(space):
    """A space that has its random generator."""
    space.seed(0)
    return space


SEEN_IN = {
    "list subclass": (lambda: subclass(list), lambda it: it.note.append(1)),
    "array subclass": (lambda: subclass(np.ndarray, 2), lambda it: it.note.append(1)),
    "attribute of a tensor": (lambda: subclass(torch.nn.Parameter, torch.ones(2)), lambda it: it.note.append(1)),
    "attribute of a function": (with_attribute, lambda it: it.seen.append(1)),
    "element of a set": (lambda: {HashedBox([0])}, lambda it: next(iter(it)).value.append(1)),
    "key of a dict": (lambda: {HashedBox([0]): 1}, lambda it: next(iter(it)).value.append(1)),
    "argument of a partial": (lambda: functools.partial(print, [0]), lambda it: it.args[0].append(1)),
    "generator of torch": (torch.Generator, lambda it: torch.rand(1, generator=it)),
    "old generator of numpy": (lambda: np.random.RandomState(0), lambda it: it.rand()),
    "sparse tensor": (lambda: torch.eye(2).to_sparse(), lambda it: it._values().mul_(2)),
    "compressed tensor": (lambda: torch.eye(2).to_sparse_csr(), lambda it: it.values().mul_(2)),
    "bytes in memory": (lambda: io.BytesIO(b"ab"), lambda it: it.write(b"c")),
    "text in memory": (lambda: io.StringIO("ab"), lambda it: it.read(1)),
    "generator function": (squares, next),
    "generator function at its end": (squares, list),
    "generator expression": (lambda: (it for it in [1, 2, 3]), next),
    "iterator of a list": (lambda: iter([1, 2, 3]), next),
    "iterator of a dict": (lambda: iter({1: 2, 3: 4}), next),
    "pairs": (lambda: zip(range(3), "abc"), next),
    "what is mapped": (lambda: map(str, [1, 2, 3]), next),
    "what is counted": (itertools.count, next),
    "closure": (counting, lambda it: it()),
    "default": (lambda: counting(in_default=True), lambda it: it()),
    "space that was sampled before": (lambda: sampled(gymnasium.spaces.Discrete(9)), lambda it: it.sample()),
    "private generator": (lambda: Private(random.Random(0)), lambda it: it._inner.random()),
    "exception": (lambda: ValueError([0]), lambda it: it.args[0].append(1)),
    "array of objects": (lambda: np.array([Box(0), Box(1)]), lambda it: setattr(it[0], "value", 5)),
    "module that takes its shape": (lambda: torch.nn.LazyLinear(2), lambda net: net(torch.ones(1, 3))),
    "mode of a private module": (lambda: Private(module()), lambda it: it._inner[0].eval()),
    "private slot": (Slots, lambda it: it.count()),
    "deep list": (lambda: nest(3000), lambda it: bottom(it).append(1)),
}


def bottom(nested):
    """The innermost list."""
    while isinstance(nested[0], list):
        nested = nested[0]
    return nested


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:Lazy modules are a new feature")
class TestWhatIsCompared:
    @pytest.mark.parametrize("kind", SEEN_IN)
    def test_a_change_is_seen_in(self, kind):
        make, change = SEEN_IN[kind]
        value = make()
        before = fingerprint(value)
        assert changed(before, fingerprint(value)) is None
        change(value)
        assert changed(before, fingerprint(value)) is not None

    @MODES
    @pytest.mark.parametrize("kind", CHANGES_OF_MODULES)
    def test_who_changes_what_a_torch_module_computes_is_named(self, mode, kind):
        change, way = CHANGES_OF_MODULES[kind]
        collects = contract(writes=("batch",), stage="collect")(lambda ctx: setattr(ctx, "batch", module()))
        meddles = contract(("batch",), stage="learn")(lambda ctx: change(ctx.batch))
        where = rf" \(at {re.escape(way)}\)" if way else ""
        with pytest.raises(ContractError, match=rf"changed ctx\.batch{where} in place"):
            run(collects, meddles, mode=mode)

    @MODES
    def test_who_only_asks_a_torch_module_is_fine(self, mode):
        collects = contract(writes=("batch",), stage="collect")(lambda ctx: setattr(ctx, "batch", module()))
        run(collects, contract(("batch",), stage="learn")(lambda ctx: ctx.batch(torch.ones(1, 2))), mode=mode)

    @pytest.mark.slow
    @pytest.mark.parametrize("make", [chain, nest])
    def test_a_value_may_be_nested_as_deeply_as_memory_allows(self, make):
        collects = contract(writes=("batch",), stage="collect")(lambda ctx: setattr(ctx, "batch", make(3_000)))
        run(collects, contract(("batch",), stage="learn")(lambda ctx: None), mode={}, steps=1)
        assert changed(fingerprint(make(15_000)), fingerprint(make(15_000))) is None


@MODES
def test_who_puts_one_part_in_the_place_of_another_is_named(mode):
    @contract(writes=("batch",), stage="collect")
    def collects(ctx):
        ctx.batch = {"old": np.zeros(2), "new": np.ones(2)}

    reads = contract(("batch",), stage="process")(lambda ctx: float(ctx.batch["new"].sum()))

    @contract(("batch",), stage="learn")
    def swaps(ctx):
        ctx.batch["new"] = ctx.batch["old"]

    with pytest.raises(ContractError, match=r"swaps .* changed ctx.batch .at \['new'\]. in place"):
        run(collects, reads, swaps, mode=mode)
