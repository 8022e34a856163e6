"""Renewal and copies of a context: what carries over, and what starts again."""

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ding_lite.engine import Context, UndeclaredFieldError


def fresh_rows():
    return ["fresh"]


@dataclasses.dataclass
class Mine(Context):
    env_step: int = 0
    gamma: float = 0.5
    batch: object = None
    rows: list = dataclasses.field(default_factory=fresh_rows)

    def __post_init__(self):
        self.keep("env_step")


class TestRenew:
    def test_the_count_goes_up_and_the_old_context_stays_as_it_was(self):
        old = Mine()
        old.env_step, old.batch = 5, "data"
        new = old.renew()

        assert type(new) is Mine
        assert (new.total_step, new.env_step, new.batch) == (1, 5, None)
        assert (old.total_step, old.env_step, old.batch) == (0, 5, "data")

    def test_values_given_to_the_constructor_survive(self):
        ctx = Mine(3, gamma=0.9, rows=["given"])
        ctx.gamma = 0.1

        assert (ctx.renew().gamma, ctx.renew().renew().rows) == (0.9, ["given"])

    def test_a_total_step_given_to_the_constructor_is_where_counting_starts(self):
        assert Mine(total_step=7).renew().renew().total_step == 9

    def test_required_fields_survive(self):
        @dataclasses.dataclass
        class Required(Context):
            name: str
            size: int = 1

        assert (Required("a", size=2).renew().renew().name, Required("a", 2).renew().size) == ("a", 2)

    def test_a_default_factory_makes_a_new_object_for_every_iteration(self):
        ctx = Mine()
        ctx.rows.append("more")
        renewed = ctx.renew()

        assert renewed.rows == ["fresh"]
        assert renewed.rows is not renewed.renew().rows

    def test_nothing_is_copied(self):
        class Uncopyable:
            def __copy__(self):
                raise AssertionError("copied")

            __deepcopy__ = __reduce_ex__ = __copy__

        given_, kept = Uncopyable(), Uncopyable()
        ctx = Mine(gamma=given_)
        ctx.keep("batch")
        ctx.batch = kept
        ctx = ctx.renew()

        assert ctx.gamma is given_
        assert ctx.batch is kept

    def test_a_dataclass_with_slots_keeps_and_forgets_like_any_other(self):
        @dataclasses.dataclass(slots=True)
        class Slotted(Context):
            seen: int = 0
            batch: object = None

            def __post_init__(self):
                self.keep("seen")

        ctx = Slotted(batch="given")
        ctx.seen, ctx.batch = 3, "data"
        ctx = ctx.renew().renew()

        assert (ctx.total_step, ctx.seen, ctx.batch) == (2, 3, "given")
        with pytest.raises(UndeclaredFieldError):
            ctx.other = 1

    def test_an_init_var_is_handed_to_post_init_every_time(self):
        @dataclasses.dataclass
        class Scaled(Context):
            scale: dataclasses.InitVar[int]
            size: int = 0
            step: int = 0

            def __post_init__(self, scale):
                self.size = scale * 2
                self.keep("step")

        ctx = Scaled(5)
        ctx.size, ctx.step = 0, 4
        ctx = ctx.renew().renew()

        assert (ctx.size, ctx.step) == (10, 4)

    def test_a_class_with_its_own_init_is_renewed_through_it(self):
        @dataclasses.dataclass(init=False)
        class Own(Context):
            half: int = 0
            step: int = 0

            def __init__(self, whole):
                self.total_step, self.half, self.step = 0, whole // 2, 0
                self.keep("step")

        ctx = Own(10)
        ctx.half, ctx.step = 0, 4
        ctx = ctx.renew().renew()

        assert (ctx.total_step, ctx.half, ctx.step) == (2, 5, 4)

    @pytest.mark.slow
    @given(data=st.data(), slots=st.booleans(), factories=st.booleans())
    def test_for_any_fields_the_kept_carry_over_and_the_others_start_again(self, data, slots, factories):
        names = [f"field_{position}" for position in range(4)]
        values = st.dictionaries(st.sampled_from(names), st.integers(1, 99))
        some = st.sets(st.sampled_from(names))
        default = {"default_factory": lambda: 0} if factories else {"default": 0}
        kept, given_ = data.draw(some, "kept"), data.draw(values, "given")
        cls = dataclasses.make_dataclass(
            "Drawn",
            [(name, int, dataclasses.field(**default)) for name in names],
            bases=(Context,),
            namespace={"__post_init__": lambda self: self.keep(*kept)},
            slots=slots,
        )
        start = {name: given_.get(name, 0) for name in names}
        ctx, expected = cls(**given_), dict(start)
        for step in range(data.draw(st.integers(1, 4), "renewals")):
            assert {name: getattr(ctx, name) for name in names} == expected
            assert ctx.total_step == step
            written, also_kept = data.draw(values, "written"), data.draw(some, "kept at run time")
            for name, value in written.items():
                setattr(ctx, name, value)
            ctx.keep(*also_kept)
            kept = kept | also_kept
            expected.update(written)
            expected = {name: expected[name] if name in kept else start[name] for name in names}
            ctx = ctx.renew()
        assert {name: getattr(ctx, name) for name in names} == expected


class TestCopies:
    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
    def test_a_copy_holds_the_same_and_renews_the_same(self, copied):
        ctx = Mine(gamma=0.9)
        ctx.keep("batch")
        ctx.env_step, ctx.batch = 5, "data"
        ctx = copied(ctx.renew())

        assert (ctx.total_step, ctx.env_step, ctx.batch, ctx.gamma) == (1, 5, "data", 0.9)
        ctx.gamma = 0.0
        renewed = ctx.renew()
        assert (renewed.total_step, renewed.env_step, renewed.batch, renewed.gamma) == (2, 5, "data", 0.9)

    def test_a_deep_copy_shares_nothing(self):
        ctx = Mine()
        twin = copy.deepcopy(ctx)
        twin.rows.append("twin")
        twin.keep("gamma")
        ctx.gamma = 0.1

        assert ctx.rows == ["fresh"]
        assert ctx.renew().gamma == 0.5

    @pytest.mark.parametrize("name", ["Slots", "Lambda"])
    def test_a_context_with_slots_or_with_a_lambda_for_a_default_can_be_pickled(self, name):
        ctx = globals()[name](seen=3)
        ctx.seen = 4
        ctx = pickle.loads(pickle.dumps(ctx))

        assert (ctx.seen, ctx.renew().seen) == (4, 3)


@dataclasses.dataclass(slots=True)
class Slots(Context):
    seen: int = 0


@dataclasses.dataclass
class Lambda(Context):
    seen: int = 0
    rows: list = dataclasses.field(default_factory=lambda: [0])
