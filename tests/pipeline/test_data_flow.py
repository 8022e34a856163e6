"""What goes through objects and settings: a pipeline in which nothing can come through is refused, by name, with the fix."""

import dataclasses

import pytest

from ding_lite.engine import Context, NestedContext, PipelineError, Task, contract, contract_of


@dataclasses.dataclass
class Inner(Context):
    rows: object = None
    result: object = None
    settings: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Outer(Context):
    rows: object = dataclasses.field(default=None, metadata={"provider": "a collector"})
    result: object = None
    settings: dict = dataclasses.field(default_factory=dict)
    parts: dict = None


class Store(list):
    """Something that is filled and drawn from."""


class Queue:
    """One whose length nobody knows."""


def middleware(name, **terms):
    @contract(**terms)
    def run(ctx):
        return None

    run.__name__ = run.__qualname__ = name
    return run


def inside(name, *fns, side_by_side=False):
    """A middleware that runs others on the context of ctx.parts[name]."""
    run = middleware(f"inside({name!r})", reads=("parts",), writes=("parts",))
    run.inner_middleware, run.within, run.side_by_side = fns, ("parts", name), side_by_side
    return run


def makes(*names):
    made = [NestedContext("parts", name, Inner, ("rows",), f"inside({name!r}, ...)") for name in names]
    return middleware("collect", writes=("parts",), creates=made)


def fill_of(store, flag=True):
    """A filler made by a factory, of one flag."""

    @contract(reads=("rows",), fills=(store,))
    def fill_it(ctx):
        store.append(flag)

    return fill_it


def problems_of(*pipeline, ctx=None):
    """What is wrong with it, without the places; none where it runs."""
    with Task().start(ctx=ctx or Outer(rows="given")) as loop:
        for fn in pipeline:
            loop.use(fn(loop) if getattr(fn, "__name__", "") == "<lambda>" else fn)
        try:
            loop.run(max_step=1)
        except PipelineError as error:
            lines = str(error).split("\n")[1:]
            assert all(__file__ in line for line in lines)
            return [line.strip().rpartition(" (task.use at ")[0] for line in lines]
    return []


class TestTerms:
    def test_what_is_filled_or_drawn_from_counts_as_used_once(self):
        first, second, third = Store(), Store(), Store()
        terms = contract_of(middleware("m", uses=(third, first), fills=(first,), draws=(second,)))

        assert [id(thing) for thing in terms.uses] == [id(first), id(second), id(third)]

    @pytest.mark.parametrize("term", ["uses", "fills", "draws"])
    @pytest.mark.parametrize(("given", "kind"), [(Queue(), "Queue"), ("text", "str"), ({"a": Queue()}, "dict")])
    def test_one_object_where_several_were_meant_is_refused(self, term, given, kind):
        with pytest.raises(
            TypeError, match=rf"contract\({term}=...\) wants several objects, got one {kind}: write {term}=\(it,\)"
        ):
            contract(**{term: given})

    @pytest.mark.parametrize("name", ["eps", ".eps", "settings."])
    def test_a_setting_without_a_field_and_a_key_is_refused(self, name):
        with pytest.raises(ValueError, match=r"contract\(needs=...\) wants settings as 'field.key'"):
            contract(reads=("settings",), needs=(name,))

    def test_a_setting_of_a_field_that_the_contract_does_not_touch_is_refused(self):
        with pytest.raises(ValueError, match=r"refers to ctx.settings: add 'settings' to reads"):
            contract(writes=("settings",), needs=("settings.eps",))
        with pytest.raises(ValueError, match=r"refers to ctx.settings: add 'settings' to writes"):
            contract(reads=("settings",), provides=("settings.eps",))

    def test_several_as_one_fill_draw_need_and_provide_what_each_of_them_does(self):
        store, other = Store(), Store()
        first = middleware("first", writes=("settings",), fills=(store,), provides=("settings.a",))
        second = middleware("second", reads=("settings",), draws=(store, other), needs=("settings.b",))
        with Task().start(ctx=Outer()) as loop:
            terms = contract_of(loop.serial(first, second))

        assert [list(map(id, things)) for things in (terms.fills, terms.draws)] == [[id(store)], [id(store), id(other)]]
        assert (terms.needs, terms.provides) == (("settings.b",), ("settings.a",))


class TestObjects:
    def test_drawing_from_what_is_empty_and_nothing_fills_is_refused_with_the_usual_filler(self):
        store = Store()
        draw = middleware("draw", draws=(store,), hints={"draws": "fill(cfg, store)"})

        assert problems_of(draw) == [
            "draw draws from the Store, which is empty, and no middleware fills it: add task.use(fill(cfg, store)) before it."
        ]
        assert problems_of(middleware("draw", draws=(store,))) == [
            "draw draws from the Store, which is empty, and no middleware fills it: "
            "add one that does before it, with fills=(...,) in its contract."
        ]

    def test_what_holds_something_or_has_no_length_may_be_drawn_from(self):
        assert problems_of(middleware("draw", draws=(Store([1]), Queue()))) == []

    def test_what_an_earlier_one_fills_may_be_drawn_from(self):
        store = Store()
        assert problems_of(middleware("fill", fills=(store,)), middleware("draw", draws=(store,))) == []
        assert problems_of(middleware("both", fills=(store,), draws=(store,))) == []

    def test_a_drawer_before_the_only_filler_is_refused(self):
        store = Store()

        assert problems_of(middleware("draw", draws=(store,)), middleware("fill", fills=(store,))) == [
            "draw draws from the Store, which is empty, and no earlier middleware fills it: move fill, which does, before it."
        ]

    def test_side_by_side_nothing_is_filled_in_time(self):
        store = Store()
        fill, draw = middleware("fill", fills=(store,)), middleware("draw", draws=(store,))
        (problem,) = problems_of(lambda loop: loop.parallel(fill, draw))

        assert problem == (
            "draw in parallel(fill, draw) draws from the Store, which is empty, and no earlier middleware fills it: "
            "fill in parallel(fill, draw), which does, runs at the same time: put it before, as with task.serial()."
        )
        assert problems_of(lambda loop: loop.serial(fill, draw)) == []

    def test_a_filler_and_a_drawer_of_two_objects_are_both_named(self):
        one, other = Store(), Store()

        assert problems_of(middleware("fill", fills=(one,)), middleware("draw", draws=(other,))) == [
            "draw draws from the Store 2, which is empty, and no middleware fills it: fill fills another, the Store 1. "
            "Pass the same object to both."
        ]

    def test_a_plain_function_counts_as_filling_everything(self):
        def plain(ctx):
            return None

        store = Store()
        assert problems_of(plain, middleware("draw", draws=(store,))) == []
        assert problems_of(middleware("draw", draws=(store,)), plain) == []
        assert len(problems_of(middleware("draw", draws=(store,)), middleware("fill", fills=(store,)), plain)) == 1

    def test_one_that_merely_uses_the_object_may_fill_it(self):
        store = Store()
        draw = middleware("draw", draws=(store,))

        assert problems_of(middleware("touch", uses=(store,)), draw) == []
        assert len(problems_of(middleware("another", draws=(store,)), draw)) == 2

    def test_what_two_stages_need_for_themselves_is_refused_by_name(self):
        env = Store()
        collect = middleware("collect", exclusive=(env,), stage="collect")
        (problem,) = problems_of(collect, middleware("evaluate", exclusive=(env,), stage="evaluate"))

        assert problem.startswith("evaluate has the same Store as collect (task.use at ")
        assert problem.endswith("), so each would continue where the other stopped: make one for each of them.")
        assert problems_of(collect, middleware("more", exclusive=(env,), stage="collect")) == []
        assert problems_of(collect, middleware("changes", uses=(env,), stage="process")) == []
        assert problems_of(collect, middleware("evaluate", exclusive=(Store(),), stage="evaluate")) == []

    def test_filling_twice_with_the_same_is_refused_with_both_places(self):
        store = Store()
        (problem,) = problems_of(fill_of(store), fill_of(store))

        assert problem.startswith("fill_of fills the Store with ctx.rows again, which fill_of (task.use at ")
        assert problem.endswith(") has done before it, so all data would be stored twice: leave one of them out.")

    @pytest.mark.parametrize(
        "pipeline",
        [
            lambda store: (fill_of(store), fill_of(Store())),
            lambda store: (fill_of(store), fill_of(store, flag=False)),
            lambda store: (fill_of(store), middleware("collect", writes=("rows",)), fill_of(store)),
            lambda store: (fill_of(store), lambda loop: loop.serial(lambda ctx: None), fill_of(store)),
            lambda store: (makes("a", "b"), inside("a", fill_of(store)), inside("b", fill_of(store))),
        ],
        ids=["two objects", "other settings", "another value", "perhaps another value", "two parts"],
    )
    def test_filling_twice_with_something_else_is_no_repetition(self, pipeline):
        assert problems_of(*pipeline(Store())) == []


class TestSettings:
    NEED = {"reads": ("settings",), "needs": ("settings.eps",)}

    def test_a_setting_that_nothing_provides_is_refused_with_the_advice(self):
        start = "act needs ctx.settings['eps'], and no earlier middleware sets it: "

        assert problems_of(middleware("act", **self.NEED, hints={"settings.eps": "do this."})) == [start + "do this."]
        assert problems_of(middleware("act", **self.NEED)) == [
            start + 'add one that does before it, with provides=("settings.eps",) in its contract.'
        ]

    def test_a_provider_behind_it_is_the_one_to_move(self):
        explore = middleware("explore", writes=("settings",), provides=("settings.eps",))

        assert problems_of(middleware("act", **self.NEED), explore) == [
            "act needs ctx.settings['eps'], and no earlier middleware sets it: move explore, which does, before it."
        ]
        assert problems_of(explore, middleware("act", **self.NEED)) == []

    def test_who_writes_the_field_and_names_no_setting_may_provide_any(self):
        assert problems_of(middleware("explore", writes=("settings",)), middleware("act", **self.NEED)) == []

    def test_who_provides_another_setting_does_not_provide_this_one(self):
        other = middleware("explore", writes=("settings",), provides=("settings.temperature",))

        assert len(problems_of(other, middleware("act", **self.NEED))) == 1

    def test_a_plain_function_or_the_start_value_may_provide_it(self):
        def plain(ctx):
            return None

        assert problems_of(plain, middleware("act", **self.NEED)) == []
        assert len(problems_of(middleware("act", **self.NEED), plain)) == 1
        assert problems_of(middleware("act", **self.NEED), ctx=Outer(settings={"eps": 0.1})) == []
        assert len(problems_of(middleware("act", **self.NEED), ctx=Outer(settings={"beta": 0.1}))) == 1


class TestInsideOfOthers:
    def test_in_series_the_one_to_blame_is_named(self):
        learn, save = middleware("learn", reads=("result",)), middleware("save", reads=("rows",))
        (problem,) = problems_of(lambda loop: loop.serial(save, learn))

        assert problem == (
            "learn in serial(save, learn) reads ctx.result, but no earlier middleware writes it: "
            "add one that does before it, or give the field a default."
        )

    def test_one_without_a_contract_does_not_hide_those_before_it(self):
        learn = middleware("learn", reads=("result",))

        def plain(ctx):
            return None

        assert len(problems_of(lambda loop: loop.serial(learn, plain))) == 1
        assert problems_of(lambda loop: loop.serial(plain, learn)) == []

    def test_on_a_context_inside_the_fields_of_that_context_count(self):
        learn = middleware("learn", reads=("rows", "result"))

        assert problems_of(makes("a"), inside("a", learn)) == [
            "inside('a') reads ctx.parts['a'].result, but no earlier middleware writes it: "
            "add one that does before it, or give the field a default."
        ]
        assert problems_of(makes("a"), inside("a", middleware("make", writes=("result",)), learn)) == []
        assert problems_of(makes("a"), inside("a", middleware("make", writes=("result",))), inside("a", learn)) == []

    def test_what_is_written_for_one_is_not_there_for_another(self):
        make, learn = middleware("make", writes=("result",)), middleware("learn", reads=("result",))
        pipeline = makes("a", "b"), inside("a", make), inside("a", learn), inside("b", learn)

        assert problems_of(*pipeline, middleware("outer", writes=("result",))) == [
            "inside('b') reads ctx.parts['b'].result, but no earlier middleware writes it: "
            "add one that does before it, or give the field a default."
        ]

    def test_what_stands_in_the_inner_contexts_is_not_there_outside(self):
        (problem,) = problems_of(makes("a", "b"), middleware("learn", reads=("rows",)), ctx=Outer())

        assert problem == (
            "learn reads ctx.rows, but no earlier middleware writes it: collect writes it in ctx.parts['a']; "
            "write inside('a', learn(...))."
        )

    def test_a_context_that_nobody_makes_is_refused_with_the_nearest(self):
        assert problems_of(makes("learned", "random"), inside("lerned", middleware("learn", reads=("rows",)))) == [
            "inside('lerned') finds no 'lerned' in ctx.parts: did you mean 'learned'? collect makes learned, random."
        ]

    def test_an_undeclared_field_is_told_of_the_inner_class(self):
        assert problems_of(makes("a"), inside("a", middleware("learn", reads=("reslut",)))) == [
            "inside('a') reads ctx.parts['a'].reslut, but Inner declares no such field: did you mean 'result'? "
            "Add `reslut` with a default to Inner."
        ]

    def test_contexts_made_by_who_does_not_say_so_are_not_judged(self):
        learn = inside("a", middleware("learn", reads=("rows", "no_such_field"), needs=()))

        assert problems_of(middleware("mine", writes=("parts",)), learn) == []

        def plain(ctx):
            return None

        assert problems_of(plain, learn) == []

    def test_contexts_given_at_the_start_are_looked_into(self):
        learn = inside("a", middleware("learn", reads=("rows",)))

        assert problems_of(learn, ctx=Outer(parts={"a": Inner(rows=1)})) == []
        assert len(problems_of(learn, ctx=Outer(parts={"a": Inner()}))) == 1


class TestForgottenContext:
    def test_it_is_one_message_with_the_class_that_the_middleware_were_written_for(self):
        @contract(reads=("rows",), writes=("result",))
        def first(ctx: Outer) -> None:
            return None

        @contract(reads=("rows",))
        def second(ctx: Outer | Inner) -> None:
            return None

        first.__annotations__["ctx"], second.__annotations__["ctx"] = Outer, Outer | Inner

        assert problems_of(first, second, middleware("third", writes=("no_such",)), ctx=Context()) == [
            "first reads ctx.rows, but Context declares no such field: pass a context of your own to task.start(ctx=...), "
            "a dataclass that declares rows, result, no_such."
        ]
        assert problems_of(first, second, ctx=Context()) == [
            "first reads ctx.rows, but Context declares no such field: pass ctx=Outer() to task.start()."
        ]
        assert problems_of(second, ctx=Context()) == [
            "second reads ctx.rows, but Context declares no such field: pass ctx=Outer() or ctx=Inner() to task.start()."
        ]


class TestShown:
    def pipeline(self, loop):
        one, other = Store(), Store()
        loop.use(middleware("fill", fills=(one,), stage="process")).use(middleware("refill", fills=(other, Queue())))
        return loop.use(middleware("draw", draws=(one, other)))

    def test_the_table_tells_what_is_filled_and_drawn_from(self):
        with Task().start(ctx=Outer()) as loop:
            header, _, *rows = self.pipeline(loop).describe().split("\n")

        column = header.index("objects")
        found = [row[column : header.index("lane")].strip() for row in rows]
        assert found == ["fills Store 1", "fills Store 2, Queue", "draws Store 1, Store 2"]

    def test_the_picture_tells_what_is_filled_and_drawn_from(self, tmp_path):
        with Task().start(ctx=Outer()) as loop:
            picture = self.pipeline(loop).draw(tmp_path / "pipeline.svg").read_text()

        for words in ("fills Store 1<", "fills Store 2, Queue<", "draws Store 1, Store 2<"):
            assert words in picture
