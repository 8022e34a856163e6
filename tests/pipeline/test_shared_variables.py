"""Variables that a middleware on one lane sets, and one on another lane reads, are warned of; and so are global generators."""

import dataclasses
import random  # noqa: F401  code in strings uses it
import re
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from contract_runs import OVERLAPPING, Data, run
from numpy.random import rand  # noqa: F401  code in strings uses it

from ding_lite.config import Config
from ding_lite.engine import Task, contract

LIMIT = 3
total = 0
config = types.ModuleType("config_of_test")
config.n = 0
sys.modules["config_of_test"] = config


class Stats:
    count = 0
    rows = []

    @classmethod
    def add(cls):
        cls.count += 1

    def add_one(self):
        type(self).count += 1

    def seen(self):
        return self.count


class Setting(Stats):
    @property
    def shown(self):
        return Setting.count

    @shown.setter
    def shown(self, value):
        Setting.count = value


SETTING = Setting()


class MoreStats(Stats):
    """Derived from it."""


class OtherStats(Stats):
    """Also, with no count of its own."""


def warned(collects, learns, mode=None, uses=((), ()), stages=("collect", "learn")):
    """The warnings of a run of two middleware."""
    first = contract(writes=("batch",), uses=uses[0], stage=stages[0])(collects)
    second = contract(reads=("batch",), uses=uses[1], stage=stages[1])(learns)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(first, second, mode={"max_lag": 1} if mode is None else mode, steps=7)
    return [str(one.message) for one in caught if "which is faster" in str(one.message)]


def counters():
    """Two middleware of which one counts, and the other reads the count."""
    steps = 0

    def collects(ctx):
        nonlocal steps
        steps += 1
        ctx.batch = steps

    def learns(ctx):
        return ctx.batch > steps and None

    return collects, learns


def counters_through_helpers():
    steps = 0

    def count():
        nonlocal steps
        steps = steps + 1

    def collects(ctx):
        count()
        ctx.batch = 1

    def learns(ctx):
        return sum(steps for _ in range(2)) and None

    return collects, learns


def both_set():
    last = None

    def collects(ctx):
        nonlocal last
        ctx.batch = last = 1

    def learns(ctx):
        nonlocal last
        last = 2

    return collects, learns


def global_counters():
    def collects(ctx):
        global total
        total += 1
        ctx.batch = 1

    def learns(ctx):
        return total and None

    return collects, learns


def of_statement(statement, expression, **variables):
    """Two middleware of which one runs a statement, and the other evaluates an expression."""
    code = f"""
def make({", ".join(variables) or "_=None"}):
    def collects(ctx):
        {statement}
        ctx.batch = 1
    def learns(ctx):
        return {expression} and None
    return collects, learns
"""
    space = {**globals()}
    exec(code, space)
    return space["make"](**variables)


SHARED = {
    "nonlocal": (counters, "steps"),
    "through helpers": (counters_through_helpers, "steps (through count)"),
    "both set": (both_set, "last"),
    "global": (global_counters, "total"),
    "class": (lambda: of_statement("Stats.count += 1", "Stats.count"), "Stats.count"),
    "class in a closure": (lambda: of_statement("kind.count = 1", "kind.count", kind=Stats), "Stats.count"),
    "derived class": (lambda: of_statement("MoreStats.count = 1", "MoreStats.count"), "MoreStats.count"),
    "of a parent": (lambda: of_statement("Stats.count = 1", "OtherStats.count"), "Stats.count"),
    "through an object": (lambda: of_statement("Stats.count = 1", "it.count", it=Stats()), "Stats.count"),
    "through its method": (lambda: of_statement("Stats.count = 1", "it.seen()", it=Stats()), "Stats.count"),
    "by its method": (lambda: of_statement("it.add_one()", "Stats.count", it=Stats()), "Stats.count (through add_one)"),
    "by a property": (lambda: of_statement("it.shown = 1", "Setting.count", it=Setting()), "Setting.count (through shown)"),
    "by a class method": (lambda: of_statement("Stats.add()", "Stats.count"), "Stats.count (through add)"),
    "setattr": (lambda: of_statement('setattr(Stats, "count", 1)', "Stats.count"), "Stats.count"),
    "module": (lambda: of_statement("config.n += 1", "config.n"), "config.n"),
    "function": (lambda: of_statement("warned.n = 1", "warned.n"), "warned.n"),
}


class TestVariables:
    @OVERLAPPING
    @pytest.mark.parametrize(("make", "name"), SHARED.values(), ids=SHARED)
    def test_one_that_a_lane_sets_and_another_reads_is_warned_of(self, make, name, mode):
        warned.n = 0
        (text,) = warned(*make(), mode=mode)

        assert re.search(rf"sets {re.escape(name)}, which .* (reads|sets as well), and their contracts name no object", text)
        owner = name.partition(" ")[0].rpartition(".")[0]
        fix = f"uses=({owner},)" if owner not in ("", "warned") else "`shared = {'"
        assert "Nothing orders the two, so the result depends on which is faster: " in text
        assert fix in text

    @pytest.mark.parametrize("make", [make for make, _ in SHARED.values()], ids=SHARED)
    def test_it_is_not_where_the_two_take_turns_or_nothing_overlaps(self, make):
        shared = {"n": 0}
        warned.n = 0
        assert warned(*make(), mode={}) == []
        assert warned(*make(), uses=((shared,), (shared,))) == []
        assert warned(*make(), stages=("learn", "learn")) == []
        assert warned(*make(), stages=("process", "process")) == []

    @pytest.mark.parametrize(
        ("statement", "expression"),
        [
            ("LIMIT", "LIMIT"),
            ("config.n", "config.n"),
            ("Stats.count", "Stats().seen()"),
            ("Stats.rows", "Stats.rows"),
            ("len(SHARED)", "len(SHARED)"),
            ("Stats.count += 1", "config.n"),
            ("Stats.count += 1", "Stats.rows"),
            ("SETTING.shown", "SETTING.shown"),
        ],
    )
    def test_what_both_read_or_only_one_touches_is_fine(self, statement, expression):
        assert warned(*of_statement(statement, expression)) == []

    def test_a_counter_of_one_middleware_is_fine(self):
        assert warned(counters()[0], counters()[1]) == []
        assert warned(counters()[0], lambda ctx: None) == []

    def test_a_lock_of_the_task_orders_them_too(self):
        collects, learns = counters()
        with warnings.catch_warnings(record=True) as caught, Task().start(ctx=Data(), max_lag=1) as loop:
            warnings.simplefilter("always")
            loop.use(contract(writes=("batch",), stage="collect")(collects), lock=True)
            loop.use(contract(reads=("batch",), stage="learn")(learns), lock=True)
            loop.run(3)
        assert [it for it in caught if "which is faster" in str(it.message)] == []

    def test_a_value_that_is_made_when_it_is_first_needed_is_fine(self):
        known = None

        def settings():
            nonlocal known
            if known is None:
                known = {"n": 1}
            return known

        def collects(ctx):
            ctx.batch = settings()["n"]

        assert warned(collects, lambda ctx: settings() and None) == []

    def test_a_mean_that_starts_as_none_is_not(self):
        mean = None

        def collects(ctx):
            nonlocal mean
            if mean is None:
                mean = 1.0
            else:
                mean = 0.9 * mean + 0.1
            ctx.batch = 1

        assert len(warned(collects, lambda ctx: mean and None)) == 1

    def test_methods_of_one_object_run_only_what_they_call(self):
        class Two:
            def collects(self, ctx):
                self._count()
                ctx.batch = 1

            def _count(self):
                global total
                total += 1

            def learns(self, ctx):
                return None

            def reads(self, ctx):
                return total and None

        two = Two()
        assert warned(lambda ctx: two.collects(ctx), lambda ctx: two.learns(ctx)) == []
        assert len(warned(lambda ctx: two.collects(ctx), lambda ctx: two.reads(ctx))) == 1

    def test_a_constructor_that_counts_runs_where_an_object_is_made_and_not_where_it_is_used(self):
        class Made:
            count = 0

            def __init__(self):
                Made.count += 1

            def look(self):
                return 1

        made = Made()
        assert warned(lambda ctx: setattr(ctx, "batch", made.look()), lambda ctx: Made.count and made and None) == []
        assert len(warned(lambda ctx: setattr(ctx, "batch", Made().look()), lambda ctx: Made.count and None)) == 1

    def test_a_function_of_which_only_an_attribute_is_read_does_not_run(self):
        def collects(ctx):
            collects.n = 1
            ctx.batch = 1

        (text,) = warned(collects, lambda ctx: collects.n and None)
        assert re.search(r"sets collects.n, which .* reads, and their contracts", text)

    def test_of_functions_in_a_table_each_middleware_may_call_another(self):
        def count():
            global total
            total += 1

        table = {"count": count, "look": lambda: total}
        assert warned(lambda ctx: setattr(ctx, "batch", table["count"]()), lambda ctx: "count" in table and None) == []

    @OVERLAPPING
    def test_a_list_that_is_an_attribute_of_a_class_is_an_object_as_any_other(self, mode):
        kind = type("Rows", (), {"rows": [], "__module__": __name__})
        (text,) = warned(*of_statement("kind.rows.append(1)", "len(kind.rows)", kind=kind), mode=mode)

        assert "hold the same list, kind.rows, which changes" in text


generator, rng = torch.Generator(), np.random.default_rng(0)
x = torch.zeros(3)
DRAWS = {
    "np.random.rand()": "numpy.random",
    "np.random.shuffle([1, 2])": "numpy.random",
    "np.random.seed(0)": "numpy.random",
    "rand()": "numpy.random",
    "random.random()": "random",
    "random.choice([1, 2])": "random",
    "torch.rand(3)": "torch",
    "torch.randint(0, max(1, 2), (3,))": "torch",
    "torch.bernoulli(torch.full((2,), 0.5))": "torch",
    "torch.randperm(torch.zeros(3).numel())": "torch",
    "torch.nn.init.normal_(torch.zeros(3))": "torch",
}
DRAWS_WITHOUT_A_FUNCTION = {
    "torch.zeros(2).normal_()": "normal_",
    "torch.zeros(2).data.uniform_(0, 1)": "uniform_",
    "torch.nn.Linear(2, 2)": "Linear",
    "torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.ReLU())": "Conv2d",
    "torch.distributions.Categorical(logits=x).sample()": "Categorical.sample",
    "torch.distributions.Normal(x, 1.0).rsample((2,))": "Normal.sample",
}
OWN = [
    "rng.random()",
    "np.random.default_rng(0).random()",
    "random.Random(0).random()",
    "torch.rand(3, generator=generator)",
    "torch.randint(0, max(1, 2), (3,), generator=generator)",
    "torch.randperm(3 if LIMIT else 4, generator=generator)",
    "torch.normal(torch.zeros(3), torch.ones(3), generator=generator)",
    "torch.multinomial(torch.softmax(torch.zeros(3), -1), 1, generator=generator)",
    "torch.rand(3, **{'generator': generator})",
    "np.random.get_state()",
    "torch.initial_seed()",
    "torch.zeros(2).normal_(generator=generator)",
    "torch.distributions.Categorical(logits=x).log_prob(x)",
    "isinstance(x, torch.nn.Linear)",
    "torch.nn.ReLU()",
    "torch.nn.LayerNorm(2)",
    "rng.choice(3), torch.distributions.Categorical(logits=x).probs",
]


@dataclasses.dataclass
class Inner(Config):
    rate: float = 0.5


@dataclasses.dataclass
class Settings(Config):
    level: float = 0.0
    other: float = 0.0
    inner: Inner = dataclasses.field(default_factory=Inner)


class TestConfigurations:
    @pytest.mark.parametrize(
        ("statement", "expression", "name"),
        [
            ("cfg.level += 1.0", "cfg.level", "cfg.level"),
            ("cfg.inner.rate = 0.1", "cfg.inner.rate", "cfg.inner.rate"),
            ("inner.rate = 0.1", "cfg.inner.rate", "inner.rate"),
            ("setattr(cfg, 'level', 1.0)", "holder.cfg.level", "cfg.level"),
        ],
    )
    def test_a_setting_that_one_lane_sets_and_another_reads_is_warned_of(self, statement, expression, name):
        cfg = Settings()
        it = types.SimpleNamespace(cfg=cfg) if "setattr" not in statement else Holder(cfg)
        (text,) = warned(*of_statement(statement, expression, cfg=cfg, inner=cfg.inner, holder=it))

        assert f"sets {name}, which" in text
        assert f"uses=({name.rpartition('.')[0]},)" in text

    def test_code_that_only_reads_or_reads_other_settings_is_fine(self):
        cfg = Settings()
        assert warned(*of_statement("cfg.level", "cfg.level", cfg=cfg)) == []
        assert warned(*of_statement("cfg.level += 1.0", "cfg.other + cfg.inner.rate", cfg=cfg)) == []
        assert warned(*of_statement("cfg.level += 1.0", "other.level", cfg=cfg, other=Settings())) == []
        assert warned(*of_statement("cfg.level += 1.0", "cfg.level", cfg=cfg), uses=((cfg,), (cfg,))) == []
        assert warned(*of_statement("cfg.level += 1.0", "cfg.level", cfg=cfg), stages=("learn", "learn")) == []


class Holder:
    def __init__(self, cfg):
        self.cfg = cfg


class TestGlobalGenerators:
    @pytest.mark.parametrize(("call", "module"), DRAWS.items())
    def test_draws_on_two_lanes_are_warned_of_with_the_fix(self, call, module):
        (text,) = warned(*of_statement(call, f"[{call}]"))

        assert f"draws from the global random generator of {module}, with {call.partition('(')[0]}, and " in text
        assert re.search(r"which is faster: give each a generator of its own, (rng|generator) = .*seed\), and draw with", text)

    @pytest.mark.parametrize(("call", "name"), DRAWS_WITHOUT_A_FUNCTION.items())
    def test_so_are_layers_samples_and_changes_in_place_of_torch(self, call, name):
        (text,) = warned(*of_statement(call, f"[{call}]"))

        assert f"draws from the global random generator of torch, with {name}, and " in text

    def test_so_is_a_sample_of_a_distribution_in_a_variable(self):
        def collects(ctx):
            dist = torch.distributions.Categorical(logits=x)
            ctx.batch = dist.sample()

        (text,) = warned(collects, lambda ctx: torch.rand(3) is None or None)
        assert "with Categorical.sample" in text

    @OVERLAPPING
    def test_so_are_those_of_helpers_in_each_mode(self, mode):
        def noise():
            return np.random.rand()  # noqa: NPY002

        def collects(ctx):
            ctx.batch = noise()

        (text,) = warned(collects, lambda ctx: noise() and None, mode=mode)
        assert "np.random.rand (through noise)" in text

    @pytest.mark.parametrize("call", OWN)
    def test_a_generator_of_ones_own_is_fine(self, call):
        draws = "np.random.rand(), random.random(), torch.rand(3)"

        assert [text for text in warned(*of_statement(call, f"({draws})")) if "global random generator" in text] == []

    def test_draws_of_one_lane_or_from_different_generators_are_fine(self):
        assert warned(*of_statement("np.random.rand()", "random.random()")) == []
        assert warned(*of_statement("np.random.rand()", "rng.random()")) == []
        assert warned(*of_statement("np.random.rand()", "np.random.rand()"), mode={}) == []
        assert warned(*of_statement("np.random.rand()", "np.random.rand()"), stages=("learn", "learn")) == []
