"""Context: its fields are declared and nowhere else, every iteration has a new one, and only what is kept carries over."""

import contextlib
import dataclasses
import functools
import typing
import warnings

import numpy as np
import pytest
import torch

from ding_lite.engine import Context, Task, UndeclaredFieldError, contract


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

    @property
    def thousand_steps(self):
        return self.env_step / 1000

    @thousand_steps.setter
    def thousand_steps(self, value):
        self.env_step = round(value * 1000)


# The custom context of the source document, word for word, which does not call super().__post_init__().
SEED = """
@dataclasses.dataclass
class MyContext(Context):

    # common
    total_step: int = 0
    var1: int = 0
    var2: int = 0
    var3: Union[Dict, List] = None
    var4: List = None

    def __post_init__(self):
        self.keep('var1', 'var2')
"""


def test_the_custom_context_of_the_source_document_works_as_printed():
    names = {"dataclasses": dataclasses, "Context": Context, **{n: getattr(typing, n) for n in ("Dict", "List", "Union")}}
    exec(SEED, names)
    ctx = names["MyContext"]()
    ctx.var1, ctx.var2, ctx.var3, ctx.var4 = 1, 2, {"a": 1}, [3]

    ctx = ctx.renew().renew()

    assert (ctx.total_step, ctx.var1, ctx.var2, ctx.var3, ctx.var4) == (2, 1, 2, None, None)


class TestFields:
    def test_setting_an_undeclared_field_raises_and_names_the_nearest(self):
        with pytest.raises(AttributeError, match=r"cannot set Mine\.env_stpe.* did you mean 'env_step'\? Declare it in Mine"):
            Mine().env_stpe = 1

    def test_reading_an_undeclared_field_raises_and_names_the_nearest(self):
        with pytest.raises(AttributeError, match=r"cannot read Mine\.bacth.* did you mean 'batch'\?"):
            _ = Mine().bacth

    def test_a_field_that_resembles_none_gets_no_wild_guess(self):
        with pytest.raises(UndeclaredFieldError, match=r"declares no such field\. Declare it in Mine"):
            Mine().zzzzz = 1

    def test_hasattr_tells_declared_from_undeclared(self):
        assert hasattr(Mine(), "batch")
        assert not hasattr(Mine(), "nope")

    def test_a_field_born_in_post_init_is_refused_too(self):
        @dataclasses.dataclass
        class Born(Context):
            def __post_init__(self):
                self.extra = 1

        with pytest.raises(UndeclaredFieldError, match=r"Born\.extra"):
            Born()

    def test_a_renewed_context_is_as_strict_as_the_first(self):
        with pytest.raises(UndeclaredFieldError):
            Mine().renew().env_stpe = 1

    @pytest.mark.parametrize("access", [lambda c: c["env_step"], lambda c: c.__setitem__("env_step", 1)])
    def test_access_by_string_is_refused_and_says_why(self, access):
        with pytest.raises(TypeError, match=r"write ctx\.env_step"):
            access(Mine())

    def test_a_declared_field_that_was_never_set_says_so(self):
        @dataclasses.dataclass
        class Late(Context):
            late: int = dataclasses.field(init=False)

        with pytest.raises(UndeclaredFieldError, match=r"Late\.late is declared, but was never set"):
            _ = Late().late

    def test_a_property_can_be_read_and_set(self):
        ctx = Mine()
        ctx.thousand_steps = 2

        assert (ctx.env_step, ctx.thousand_steps) == (2000, 2.0)

    def test_a_subclass_without_the_decorator_is_refused_and_told_which(self):
        class Forgot(Context):
            seen: int = 0

        with pytest.raises(TypeError, match=r"Forgot declares fields, but is not a dataclass: put @dataclasses\.dataclass"):
            Forgot()

    def test_a_subclass_that_adds_only_methods_needs_no_decorator(self):
        class WithMethod(Mine):
            def double(self):
                return 2 * self.env_step

        ctx = WithMethod()
        ctx.env_step = 4

        assert ctx.renew().double() == 8


def keep_and_renew(ctx, name, times):
    for _ in range(times):
        ctx.keep(name)
        ctx = ctx.renew()
    return ctx


class TestKeep:
    def test_a_list_of_names_is_refused(self):
        with pytest.raises(TypeError, match=r"keep\(\) wants names of fields, got \['env_step'\]: write keep\('env_step', "):
            Mine().keep(["env_step"])

    def test_keeping_an_unknown_name_is_refused_and_names_the_nearest(self):
        with pytest.raises(ValueError, match=r"Mine cannot keep 'env_stpe', it has no such field: did you mean 'env_step'\?"):
            Mine().keep("env_stpe")

    def test_a_name_kept_at_run_time_survives_every_later_renewal(self):
        ctx = Mine().renew()
        ctx.gamma = 0.9
        ctx.keep("gamma")

        for _ in range(3):
            ctx = ctx.renew()
            assert ctx.gamma == 0.9

    def test_a_subclass_keeps_what_its_parent_keeps_if_it_says_so(self):
        @dataclasses.dataclass
        class Child(Mine):
            train_iter: int = 0

            def __post_init__(self):
                super().__post_init__()
                self.keep("train_iter")

        ctx = Child()
        ctx.env_step, ctx.train_iter, ctx.gamma = 1, 2, 3.0
        ctx = ctx.renew().renew()

        assert (ctx.env_step, ctx.train_iter, ctx.gamma) == (1, 2, 0.5)

    @pytest.mark.parametrize(
        "heavy", [[1], {"a": 1}, {1}, np.zeros(2), torch.zeros(2), torch.nn.Linear(1, 1)], ids=lambda x: type(x).__name__
    )
    def test_keeping_a_container_or_tensor_or_module_warns_once_with_the_reason(self, heavy):
        ctx = Mine(batch=heavy)
        with pytest.warns(UserWarning, match=r"Mine keeps 'batch', a \w+: it stays in memory .* hides a dependency") as caught:
            renewed = keep_and_renew(ctx, "batch", times=3)

        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert renewed.batch is heavy

    def test_a_container_that_comes_later_warns_at_the_first_renewal_only(self):
        ctx = Mine()
        ctx.keep("batch")
        ctx.batch = [1]
        with pytest.warns(UserWarning, match="keeps 'batch', a list") as caught:
            ctx.renew().renew().renew()

        assert len(caught) == 1

    def test_a_context_with_slots_warns_once_as_well(self):
        @dataclasses.dataclass(slots=True)
        class Slotted(Context):
            rows: list = dataclasses.field(default_factory=list)

            def __post_init__(self):
                self.keep("rows")

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Slotted().renew().renew().renew()

        assert len(caught) == 1

    @pytest.mark.parametrize(
        "scalar", [1, 1.5, True, None, "text", (1, 2), np.int64(1), np.float32(1), np.bool_(True)], ids=repr
    )
    def test_a_scalar_is_kept_in_silence(self, scalar):
        ctx = Mine()
        ctx.batch = scalar
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ctx.keep("batch")
            assert ctx.renew().renew().batch is scalar

    def test_a_property_cannot_be_kept_because_it_holds_nothing(self):
        with pytest.raises(UndeclaredFieldError, match="thousand_steps"):
            Mine().keep("thousand_steps")

    def test_renewing_before_a_kept_field_was_ever_set_is_no_bare_key_error(self):
        @dataclasses.dataclass
        class Late(Context):
            late: int = dataclasses.field(init=False)

        ctx = Late()
        ctx.keep("late")
        with contextlib.suppress(UndeclaredFieldError):
            ctx.renew()


class TestStateOutsideOfFields:
    @pytest.mark.parametrize("key", ["keep", "keeps", "is_kept", "isKept", "was_kept", "_kept", "KEPT"])
    def test_a_misspelling_of_kept_is_refused(self, key):
        @dataclasses.dataclass
        class Missed(Context):
            count: int = dataclasses.field(default=0, metadata={key: True, "unit": "steps", "step": True})

        with pytest.raises(
            TypeError, match=rf'the field Missed.count has {key!r} in its metadata, .*metadata={{"kept": True}}'
        ):
            Missed()

    @pytest.mark.parametrize("name", ["renew", "keep", "_plan", "_lineage", "_view", "_refuse", "foreign_fields", "__eq__"])
    def test_a_field_with_the_name_of_an_attribute_of_contexts_is_refused(self, name):
        taken = dataclasses.make_dataclass("Taken", [(name, int, 1)], bases=(Mine,))
        with pytest.raises(TypeError, match=f"Taken declares a field '{name}', .* every context has: give the field another"):
            taken()

    def test_a_cached_property_is_refused_with_what_to_write(self):
        @dataclasses.dataclass
        class Cached(Mine):
            @functools.cached_property
            def total(self):
                return 2 * self.env_step

        with pytest.raises(TypeError, match=r"Cached.total is a functools.cached_property: .* stale .* Write @property, or"):
            Cached()

    def test_so_is_one_that_a_class_inherits(self):
        class Totals:
            total = functools.cached_property(lambda self: 2)

        @dataclasses.dataclass
        class Cached(Totals, Mine):
            more: int = 0

        with pytest.raises(TypeError, match="Cached.total is a functools.cached_property"):
            Cached()

    def test_what_is_put_beside_the_fields_by_a_middleware_under_contract_is_refused(self):
        def hides(ctx):
            vars(ctx)["hidden"] = 1

        with Task().start(ctx=Mine()) as loop:
            loop.use(contract(stage="learn")(hides))
            with pytest.raises(TypeError, match=r"vars\(ctx\)\['hidden'\] = ... would be no field.* declare `hidden` in Mine"):
                loop.run(1)
