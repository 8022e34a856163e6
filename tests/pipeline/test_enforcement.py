"""Contracts are enforced: what a middleware touches beyond its contract is an error at that line, in each mode and step."""

import abc
import contextlib
import copy
import dataclasses
import gc
import pickle
import sys
import threading
import warnings
import weakref
from typing import Generic, TypeVar

import pytest
from contract_runs import MODES, OVERLAPPING, Data, Slotted, run

from ding_lite.contexts import MultiAgentContext, OnlineRLContext
from ding_lite.engine import Context, ContractError, PendingWork, Task, UndeclaredFieldError, contract
from ding_lite.middleware import for_policy
from ding_lite.pipeline.contract_guards import CHECKED_ITERATIONS
from ding_lite.pipeline.properties import fields_behind

Value = TypeVar("Value")


def line_here() -> int:
    return sys._getframe(1).f_lineno


class TestRefusals:
    @MODES
    def test_a_read_is_refused_at_its_line_with_the_term_to_add(self, mode):
        where = []

        @contract(reads=("count",), stage="learn")
        def peeks(ctx):
            where.append(line_here() + 1)
            return ctx.batch

        with pytest.raises(ContractError) as caught:
            run(peeks, mode=mode)
        assert f"peeks ({__file__}:" in str(caught.value)
        assert f"reads ctx.batch at {__file__}:{where[0]}, and its contract does not name it." in str(caught.value)
        assert 'Add it: @contract(..., reads=("count", "batch")).' in str(caught.value)

    def test_a_field_that_the_pipeline_leaves_none_may_be_read_with_the_advice_of_the_error(self):
        class Whole(Data):
            @property
            def both(self):
                return self.rows, self.more

        outer = contract(reads=("rows",), stage="learn")(lambda ctx: ctx.both)
        with pytest.raises(ContractError, match=r"If it may be None, as it is now, name it in may_read instead\."):
            run(outer, mode={}, ctx=Whole())
        run(contract(reads=("rows",), may_read=("more",), stage="learn")(lambda ctx: ctx.both), mode={}, ctx=Whole())
        with pytest.raises(ContractError) as caught:
            run(outer, mode={}, ctx=Whole(more=1))
        assert "may_read" not in str(caught.value)

    @MODES
    def test_a_read_by_a_thread_of_the_script_is_not_blamed_on_the_middleware_that_runs(self, mode):
        kept, errors = [], []

        def looks():
            try:
                assert kept[0].count >= 0
                assert kept[0].batch is None
            except ContractError as error:
                errors.append(str(error))
                raise

        @contract(reads=("count",), stage="learn")
        def waits(ctx):
            kept.append(ctx)
            thread = threading.Thread(target=looks, name="a thread of mine")
            thread.start()
            thread.join()

        hook, threading.excepthook = threading.excepthook, lambda args: None
        try:
            with pytest.raises(ContractError) as caught:
                run(waits, mode=mode)
        finally:
            threading.excepthook = hook
        assert str(caught.value) == errors[0]
        assert errors[0].startswith(f"the thread 'a thread of mine' reads ctx.batch at {__file__}:")
        assert "read the value there, and pass it." in errors[0]
        assert "Add it" not in errors[0]

    @MODES
    def test_a_thread_of_a_function_without_a_contract_may_read_the_context(self, mode):
        seen = []

        def starts(ctx):
            thread = threading.Thread(target=lambda: seen.append(ctx.count))
            thread.start()
            thread.join()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(starts, mode=mode)
        assert seen

    @MODES
    @pytest.mark.parametrize("verb", ["set", "delete"])
    def test_a_write_is_refused(self, mode, verb):
        @contract(reads=("count", "rows"), stage="collect")
        def writes(ctx):
            if verb == "set":
                ctx.rows = [1]
            else:
                del ctx.rows

        with pytest.raises(ContractError, match=r"writes ctx.rows at .*Add it: @contract\(..., writes=\(\"rows\",\)\)."):
            run(writes, mode=mode)

    @MODES
    def test_what_is_only_written_may_be_read_once_it_is_written(self, mode):
        @contract(writes=("batch",), stage="collect")
        def makes(ctx):
            ctx.batch = [ctx.total_step]
            ctx.batch.append(1)

        seen = []
        run(makes, contract(("batch",), stage="learn")(lambda ctx: seen.append(list(ctx.batch))), mode=mode)
        assert seen == [[0, 1], [1, 1], [2, 1]]

        @contract(writes=("batch",), stage="collect")
        def looks_first(ctx):
            assert ctx.batch is None

        with pytest.raises(ContractError, match="looks_first .* reads ctx.batch"):
            run(looks_first, mode=mode)

    @MODES
    @pytest.mark.parametrize(
        "ways", [lambda c: hasattr(c, "batch"), lambda c: getattr(c, "batch", 0)], ids=["hasattr", "getattr"]
    )
    def test_asking_whether_it_is_there_hides_nothing(self, mode, ways):
        with pytest.raises(ContractError, match="reads ctx.batch"):
            run(contract(stage="record")(ways), mode=mode)

    @MODES
    def test_a_field_that_the_class_does_not_have_is_told_apart(self, mode):
        seen = []

        @contract(stage="record")
        def asks(ctx):
            seen.append(getattr(ctx, "no_such_field", "none"))
            with pytest.raises(UndeclaredFieldError, match="cannot set Data.no_such_field"):
                ctx.no_such_field = 1

        run(asks, mode=mode)
        assert seen == ["none"] * 3

    @MODES
    def test_with_slots_it_is_the_same(self, mode):
        @contract(("count",), ("count",), stage="collect")
        def counts(ctx):
            ctx.count += 1

        @contract(("count",), stage="learn")
        def learns(ctx):
            return ctx.batch

        assert run(counts, mode=mode, ctx=Slotted()).count == 3
        with pytest.raises(ContractError, match="learns .* reads ctx.batch"):
            run(counts, learns, mode=mode, ctx=Slotted())

        @contract(writes=("batch",), stage="learn")
        def writes(ctx):
            ctx.batch = 1
            assert ctx.batch == 1

        run(writes, mode=mode, ctx=Slotted())

    @MODES
    @pytest.mark.parametrize("whole", [copy.copy, copy.deepcopy, pickle.dumps, dataclasses.asdict, dataclasses.replace])
    def test_a_copy_of_the_context_reads_all_of_it(self, mode, whole):
        with pytest.raises(ContractError, match=r"batch"):
            run(contract(("count",), stage="record")(lambda ctx: whole(ctx) and None), mode=mode)
        copies = []
        names = ("count", "batch", "more", "rows")
        run(contract((), stage="record", may_read=names)(lambda ctx: copies.append(whole(ctx))), mode=mode)
        assert len(copies) == 3

    @MODES
    def test_vars_and_repr_show_what_may_be_read(self, mode):
        seen = []

        @contract(("count",), stage="record")
        def shows(ctx):
            seen.append((repr(ctx), set(vars(ctx)) - {"_lineage"}))
            for change in (
                lambda it: it.__setitem__("batch", 1),
                lambda it: it.update(batch=1),
                lambda it: it.setdefault("batch", 1),
                lambda it: it.__ior__({"batch": 1}),
                lambda it: it.pop("count"),
                lambda it: it.__delitem__("count"),
            ):
                with pytest.raises(TypeError, match="vars"):
                    change(vars(ctx))

        run(shows, mode=mode, steps=1)
        assert seen == [("Data(total_step=0, count=0)", {"total_step", "count"})]

    @MODES
    def test_outside_of_the_middleware_the_context_is_whole(self, mode):
        held = []
        ctx = run(contract(("count",), stage="learn")(lambda ctx: held.append(ctx)), mode=mode)
        assert [type(one) for one in held] == [Data] * 3
        assert (held[-1].batch, ctx.rows) == (None, [])


class TestHalves:
    @MODES
    def test_each_half_has_its_own_terms(self, mode):
        def middle(after):
            @contract(("count",), reads_after=("rows",), writes_after=("batch",), stage="learn")
            def both(ctx):
                assert ctx.count == 0
                yield
                after(ctx)

            return both

        def fine(ctx):
            assert ctx.rows == []
            ctx.batch = 1

        run(middle(fine), mode=mode)
        with pytest.raises(ContractError, match=r"reads ctx.more .*reads_after=\(\"rows\", \"more\"\)"):
            run(middle(lambda ctx: ctx.more), mode=mode)
        with pytest.raises(ContractError, match=r"writes ctx.more .*writes_after=\(\"batch\", \"more\"\)"):
            run(middle(lambda ctx: setattr(ctx, "more", 1)), mode=mode)

    @MODES
    def test_the_forward_step_has_not_the_terms_of_the_second(self, mode):
        @contract(reads_after=("rows",), stage="learn")
        def both(ctx):
            len(ctx.rows)
            yield

        with pytest.raises(ContractError, match="reads ctx.rows"):
            run(both, mode=mode)

    @MODES
    def test_what_the_forward_step_wrote_the_second_reads_by_contract_only(self, mode):
        @contract(writes=("batch",), stage="learn")
        def both(ctx):
            ctx.batch = 1
            yield
            return ctx.batch

        with pytest.raises(ContractError, match="reads ctx.batch"):
            run(both, mode=mode)

    @MODES
    def test_a_handler_of_errors_is_under_its_contract_too(self, mode):
        @contract(stage="learn")
        def handles(ctx):
            try:
                yield
            except ZeroDivisionError:
                ctx.batch = 1

        with pytest.raises(ContractError, match="handles .* writes ctx.batch"):
            run(handles, contract(stage="learn")(lambda ctx: 1 / 0), mode=mode)

    @MODES
    @pytest.mark.parametrize(("name", "message"), [("count", "reads ctx.count .*Taking"), ("more", "writes ctx.more")])
    def test_taking_a_remainder_sees_what_it_writes(self, mode, name, message):
        def take(ctx):
            ctx.batch = 1
            if name == "count":
                return ctx.count
            ctx.more = 1

        asks = contract(("count",), writes_late=("batch",), stage="collect")(lambda ctx: PendingWork(take, lambda: None))
        with pytest.raises(ContractError, match=message):
            run(asks, mode=mode)

    @MODES
    def test_a_wrapper_counts_as_part_of_what_it_wraps(self, mode):
        def logs(fn):
            def wrapped(ctx):
                fn(ctx)
                return ctx.more

            return wrapped

        with pytest.raises(ContractError, match="reads ctx.more"):
            run(contract(stage="learn")(lambda ctx: None), mode=mode, wrapper=logs)


class TestInside:
    @MODES
    @pytest.mark.parametrize("way", ["serial", "parallel"])
    def test_each_part_of_a_composite_has_its_own_contract(self, mode, way):
        @contract(("count",), ("batch",), stage="learn")
        def honest(ctx):
            ctx.batch = ctx.count

        @contract(("count",), stage="learn")
        def lies(ctx):
            ctx.batch = 2

        def together(loop):
            return getattr(loop, way)(honest, lies)

        together.wants_loop = True
        with pytest.raises(ContractError, match="lies .* writes ctx.batch"):
            run(together, mode=mode)

    @MODES
    @pytest.mark.parametrize("way", ["serial", "parallel"])
    def test_their_second_halves_too(self, mode, way):
        @contract(("count",), writes_after=("batch",), stage="learn")
        def honest(ctx):
            yield
            ctx.batch = 1

        @contract(("count",), stage="learn")
        def lies(ctx):
            yield
            return ctx.batch

        def together(loop):
            return getattr(loop, way)(honest, lies)

        together.wants_loop = True
        with pytest.raises(ContractError, match="lies .* reads ctx.batch"):
            run(together, mode=mode)

    @pytest.mark.parametrize("yields", [False, True])
    @MODES
    def test_the_parts_of_several_agents_too(self, mode, yields):
        def makes(ctx):
            ctx.parts = {"one": OnlineRLContext()}

        def lies(ctx):
            return ctx.train_data

        def lies_later(ctx):
            yield
            return ctx.train_data

        inner = contract(stage="learn")(lies_later if yields else lies)
        with pytest.raises(ContractError, match="lies.* reads ctx.train_data"):
            run(
                contract(writes=("parts",), stage="collect")(makes),
                for_policy("one", inner),
                mode=mode,
                ctx=MultiAgentContext(),
            )

    @MODES
    def test_what_a_middleware_runs_inside_itself_is_under_its_own_contract(self, mode):
        inner = contract(("batch",), stage="learn")(lambda ctx: ctx.batch)

        def outer(loop):
            begin = loop.wrap(inner)
            return contract(("count",), stage="learn")(lambda ctx: begin(ctx) and None)

        outer.wants_loop = True
        with pytest.raises(ContractError, match="reads ctx.batch"):
            run(outer, mode=mode)


class TestWhen:
    @OVERLAPPING
    def test_where_iterations_overlap_always(self, mode):
        last = 3 * CHECKED_ITERATIONS

        @contract(("count",), stage="learn")
        def late_liar(ctx):
            return ctx.batch if ctx.total_step == last else None

        with pytest.raises(ContractError):
            run(late_liar, mode=mode, steps=last + 1)

    def test_otherwise_in_the_first_iterations_with_a_pipeline(self):
        touched = []

        @contract(("count",), stage="learn")
        def liar(ctx):
            if ctx.total_step >= CHECKED_ITERATIONS:
                touched.append(ctx.batch)

        with Task().start(ctx=Data()) as loop:
            loop.use(liar)
            loop.run(2 * CHECKED_ITERATIONS)
            assert len(touched) == CHECKED_ITERATIONS
            loop.run(CHECKED_ITERATIONS)
            assert len(touched) == 2 * CHECKED_ITERATIONS
            loop.use(contract(stage="record")(lambda ctx: None))
            with pytest.raises(ContractError):
                loop.run(1)

    def test_a_middleware_that_is_added_meanwhile_is_enforced_as_well(self):
        @contract(("count",), stage="learn")
        def adds(ctx):
            if ctx.total_step == 1:
                loop.use(contract(stage="learn")(lambda ctx: ctx.batch))

        with Task().start(ctx=Data()) as loop:
            loop.use(adds)
            with pytest.raises(ContractError, match="reads ctx.batch"):
                loop.run(4)

    def test_a_plain_function_may_touch_anything(self):
        def plain(ctx):
            ctx.batch, ctx.more = ctx.rows, ctx.count

        for mode in ({}, {"max_lag": 2}, {"async_mode": True}):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run(plain, mode=mode)


class TestViews:
    def test_equal_terms_share_their_view_and_a_class_that_goes_takes_it_along(self):
        seen = []

        def look():
            @contract(("count",), stage="learn")
            def looks(ctx):
                seen.append(weakref.ref(type(ctx)))

            return looks

        @dataclasses.dataclass
        class Short(Context):
            count: int = 0

        run(look(), look(), mode={}, ctx=Short())
        run(look(), mode={}, ctx=Short())
        assert len({ref() for ref in seen}) == 1
        gone = weakref.ref(Short)
        del Short
        gc.collect()
        assert gone() is None
        assert all(ref() is None for ref in seen)

    @MODES
    @pytest.mark.parametrize("slots", [False, True])
    @pytest.mark.parametrize("before", [(), (abc.ABC,), (Generic[Value],), (type("Plain", (), {}),)], ids=str)
    def test_a_class_that_registers_its_subclasses_does_not_see_them(self, mode, slots, before):
        made = []

        class Registry(*before, Context):
            def __init_subclass__(cls, *, key, **kwargs):
                super().__init_subclass__(**kwargs)
                made.append(key)

        @dataclasses.dataclass
        class Registered(Registry, key="mine"):
            seen: int = 0

            def __post_init__(self):
                self.keep("seen")

        registered = type("Slotted", (Registered,), {"__slots__": ("extra",)}, key="slots") if slots else Registered
        contexts = []
        reads = contract(("seen",), ("seen",), uses=(contexts,), stage="learn")(lambda ctx: setattr(ctx, "seen", ctx.seen + 1))
        keeps = contract(uses=(contexts,), stage="learn")(lambda ctx: contexts.append(ctx))
        ctx = run(reads, keeps, mode=mode, ctx=registered(), steps=7)

        assert ctx.seen == 7
        assert {type(ctx) for ctx in contexts} == {registered}
        assert made == ["mine", "slots"][: 1 + slots]

    @MODES
    @pytest.mark.parametrize("kind", [type, abc.ABCMeta])
    def test_nor_does_a_metaclass(self, mode, kind):
        made = []

        class Registry(kind):
            def __new__(cls, name, bases, attributes):
                made.append(name)
                return super().__new__(cls, name, bases, attributes)

        @dataclasses.dataclass
        class Registered(Context, metaclass=Registry):
            seen: int = 0

        kinds = []
        run(contract(("seen",), stage="learn")(lambda ctx: kinds.append(type(ctx))), mode=mode, ctx=Registered())
        assert made == ["Registered"]
        assert {type(kind) for kind in kinds} == {Registry}

    def test_a_wrapper_that_comes_in_a_checked_iteration_is_called_from_then_on(self):
        calls = []

        def wrapper(fn):
            def wrapped(ctx):
                calls.append(ctx.total_step)
                return fn(ctx)

            return wrapped

        @contract(("count",), stage="learn")
        def wraps(ctx):
            if ctx.total_step == 1:
                loop.use_wrapper(wrapper)

        with Task().start(ctx=Data()) as loop:
            loop.use(wraps).run(4)
        assert calls == [2, 3]


class TestProperties:
    @MODES
    @pytest.mark.parametrize(("name", "factor"), [("double", 2), ("quadruple", 4)])
    def test_a_property_counts_as_the_fields_that_it_reads(self, mode, name, factor):
        @contract(("count",), ("count",), stage="collect")
        def counts(ctx):
            ctx.count += 1

        seen = []
        run(counts, contract((name,), stage="learn")(lambda ctx: seen.append(getattr(ctx, name))), mode=mode)
        assert seen == [factor, 2 * factor, 3 * factor]

    @MODES
    def test_behind_an_undeclared_property_stands_the_field(self, mode):
        with pytest.raises(ContractError, match=r"reads ctx.count, through the property ctx.double, at .*test_enforcement"):
            run(contract(stage="learn")(lambda ctx: ctx.double), mode=mode)

    @MODES
    def test_a_setter_counts_as_the_fields_that_it_writes(self, mode):
        def sets(ctx):
            ctx.level = ctx.total_step + 1

        seen = []
        learns = contract(("count",), stage="learn")(lambda ctx: seen.append(ctx.count))
        run(contract(writes=("level",), stage="collect")(sets), learns, mode=mode)
        assert seen == [1, 2, 3]

    def test_fields_are_found_through_methods_comprehensions_and_strings(self):
        @dataclasses.dataclass
        class Odd(Context):
            a: int = 0
            b: int = 0
            c: int = 0
            d: int = 0

            def helper(self):
                return self.a

            @property
            def through_a_method(self):
                return self.helper() + sum(self.b for _ in range(2))

            @property
            def by_name(self):
                return self.c

        assert fields_behind(Odd, "through_a_method").reads == {"a", "b"}
        assert fields_behind(Odd, "by_name").reads == {"c"}
        assert fields_behind(Odd, "d") == (frozenset(), frozenset())

    def test_a_property_whose_code_cannot_be_read_is_refused(self):
        @dataclasses.dataclass
        class Odd(Context):
            length = property(len)

        with pytest.raises(TypeError, match="Odd.length is a property made of <built-in function len>.*name these fields"):
            fields_behind(Odd, "length")


class TestCaughtRefusals:
    @MODES
    def test_a_refusal_that_is_caught_is_raised_again(self, mode):
        @contract(("count",), stage="learn")
        def swallows(ctx):
            with contextlib.suppress(Exception):
                ctx.batch = 1

        with pytest.raises(ContractError, match="swallows .* writes ctx.batch"):
            run(swallows, mode=mode)

    @MODES
    def test_after_a_handled_refusal_the_next_iteration_is_judged_by_itself(self, mode):
        seen = []

        @contract(stage="learn")
        def handles(ctx):
            with contextlib.suppress(ContractError):
                yield
            seen.append(ctx.total_step)

        def reads_once(ctx):
            return ctx.batch if ctx.total_step == 1 else None

        run(handles, contract(stage="learn")(reads_once), mode=mode, steps=8)
        assert seen == list(range(8))


class TestWhatIsAllowed:
    @pytest.mark.filterwarnings("ignore:asynchronous mode knows")
    @MODES
    def test_a_function_without_a_contract_is_refused_nothing(self, mode):
        seen = []

        def plain(ctx):
            pickle.loads(pickle.dumps(ctx))
            copy.deepcopy(ctx)
            vars(ctx)["more"] = ctx.total_step
            seen.append((ctx.more, vars(ctx)["count"], "batch=None" in repr(ctx) or ctx.batch))

        run(plain, mode=mode, steps=7)
        assert [more for more, _, _ in seen] == list(range(7))


class TestTerms:
    def test_terms_that_cannot_be_meant_are_refused_where_they_are_written(self):
        with pytest.raises(TypeError, match=r"@contract above bare has no terms: write @contract\(reads=..."):

            @contract
            def bare(ctx):
                return None

        with pytest.raises(ValueError, match="the task counts iterations there; declare a counter of your own"):
            contract(writes=("total_step",))
        with pytest.raises(ContractError, match="writes ctx.total_step .* The task counts iterations there"):
            run(contract(stage="learn")(lambda ctx: setattr(ctx, "total_step", 3)), mode={})


@dataclasses.dataclass
class Adapted(Context):
    x: int = 0
    loss: float = 0.0


@pytest.mark.parametrize("mode", [{"max_lag": 1}, {"async_mode": True}, {"async_mode": True, "max_lag": 0}], ids=str)
def test_the_context_of_an_earlier_iteration_that_is_read_is_a_warning_and_after_the_run_it_is_whole(mode):
    contexts = []

    @contract(reads=("loss",), writes=("x",), uses=(contexts,), stage="collect")
    def adapt(ctx):
        ctx.x = ctx.total_step
        if contexts:
            seen.append(contexts[-1].loss)
        contexts.append(ctx)

    seen = []
    with Task().start(ctx=Adapted(), **mode) as loop:
        loop.use(adapt).use(contract(writes=("loss",), stage="learn")(lambda ctx: setattr(ctx, "loss", ctx.total_step + 0.5)))
        with pytest.warns(UserWarning, match=r"ctx.loss of iteration 0 was read in a later iteration.*Keep the value, not"):
            loop.run(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [ctx.x for ctx in contexts][:4] == [0, 1, 2, 3]
    assert {type(ctx) for ctx in contexts} == {Adapted}


def test_keeping_contexts_until_the_run_has_ended_is_fine(recwarn):
    contexts = []
    with Task().start(ctx=Adapted(), async_mode=True) as loop:
        loop.use(contract(stage="collect")(lambda ctx: None))
        loop.use(contract(writes=("loss",), uses=(contexts,), stage="learn")(lambda ctx: contexts.append(ctx))).run(8)
    assert [ctx.loss for ctx in contexts] == [0.0] * 8
    assert not [one for one in recwarn if "in a later iteration" in str(one.message)]


@pytest.mark.parametrize("async_mode", [False, True])
def test_fields_that_are_returned_are_named(async_mode):
    @contract(stage="collect")
    def collect(ctx):
        return {"trajectories": [1], "env_step": 1}

    task = Task().start(ctx=OnlineRLContext(), async_mode=async_mode)
    task.use(collect)
    with pytest.warns(UserWarning, match=r"collect \(.*\) returns a dict of fields \(trajectories, env_step\), which nothing"):
        task.run(max_step=3)


@pytest.mark.parametrize("returned", [None, {}, {"loss": 1.0}, 3, "trajectories"])
def test_other_results_of_a_middleware_are_its_own_business(returned):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = Task().start(ctx=OnlineRLContext())
        task.use(lambda ctx: returned)
        task.run(max_step=3)
