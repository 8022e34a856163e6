"""The checks of a pipeline: every problem by name, with its fix, before anything runs."""

import dataclasses
import re
import warnings

import gymnasium
import numpy as np
import pytest

from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import Context, PipelineError, Task, contract
from ding_lite.middleware import data_pusher, gae_estimator, multistep_trainer, termination_checker
from ding_lite.policy import PPOPolicy


@dataclasses.dataclass
class Mine(Context):
    kept: int = None
    data: object = None
    result: object = None
    zero: int = 0
    rows: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.keep("kept")

    @property
    def pair(self):
        return [self.data, self.data]


def middleware(name, **terms):
    @contract(**terms)
    def run(ctx):
        return None

    run.__name__ = run.__qualname__ = name
    return run


def run_of(*pipeline, ctx=None, max_step=1, **mode):
    """Run this pipeline; what it raises leaves here."""
    with Task().start(ctx=ctx or Mine(), **mode) as loop:
        for fn in pipeline:
            loop.use(fn)
        loop.run(max_step=max_step)
    return loop


def problems_of(*pipeline, ctx=None):
    with pytest.raises(PipelineError) as caught:
        run_of(*pipeline, ctx=ctx)
    headline, *lines = str(caught.value).split("\n")
    assert headline.startswith("this pipeline cannot run")
    found = [re.fullmatch(rf"  (.*) \(task\.use at {re.escape(__file__)}:\d+\)", line) for line in lines]
    return [match.group(1) for match in found]


def ppo():
    cfg = PPOConfig()
    spaces = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32), gymnasium.spaces.Discrete(2)
    return cfg, PPOPolicy(cfg.policy, *spaces)


class TestTheLibrarysOwnMiddleware:
    def test_an_estimator_without_a_collector_is_told_in_the_designs_words(self):
        cfg, policy = ppo()

        assert problems_of(gae_estimator(cfg, policy.collect_mode), ctx=OnlineRLContext()) == [
            "gae_estimator reads ctx.trajectories, but no earlier middleware writes it: "
            "add a collector such as StepCollector before it."
        ]

    def test_every_problem_is_in_the_one_error(self):
        cfg, policy = ppo()
        trainer, estimator = multistep_trainer(cfg, policy.learn_mode), gae_estimator(cfg, policy.collect_mode)

        assert problems_of(trainer, estimator, data_pusher(DQNConfig(), ReplayBuffer(10)), ctx=OnlineRLContext()) == [
            "multistep_trainer reads ctx.train_data, but no earlier middleware writes it: "
            "move gae_estimator, which does, before it.",
            "gae_estimator reads ctx.trajectories, but no earlier middleware writes it: "
            "add a collector such as StepCollector before it.",
            "data_pusher reads ctx.trajectories, but no earlier middleware writes it: "
            "add a collector such as StepCollector before it.",
        ]

    def test_a_middleware_of_online_learning_is_refused_on_the_context_of_offline_learning(self):
        (problem,) = problems_of(termination_checker(max_env_step=1), ctx=OfflineRLContext())

        assert problem.startswith("termination_checker reads ctx.env_step, but OfflineRLContext declares no such field")
        assert problem.endswith("OnlineRLContext does: pass ctx=OnlineRLContext() to task.start(), or a subclass of your own.")


class TestReads:
    def test_a_field_that_nobody_writes_is_refused(self):
        assert problems_of(middleware("learn", reads=("data",))) == [
            "learn reads ctx.data, but no earlier middleware writes it: "
            "add one that does before it, or give the field a default."
        ]

    def test_a_writer_that_comes_later_is_named_as_the_one_to_move(self):
        assert problems_of(middleware("learn", reads=("data",)), middleware("collect", writes=("data",))) == [
            "learn reads ctx.data, but no earlier middleware writes it: move collect, which does, before it."
        ]

    def test_what_a_middleware_writes_itself_does_not_serve_its_own_reading(self):
        assert len(problems_of(middleware("both", reads=("data",), writes=("data",)))) == 1

    def test_one_that_reads_the_field_itself_is_not_the_one_to_move_before(self):
        both, other = (
            middleware("both", reads=("data",), writes=("data",)),
            middleware("other", reads=("data",), writes=("data",)),
        )
        start = "both reads ctx.data, but no earlier middleware writes it: "

        assert problems_of(both, both) == [f"{start}add one that does before its first place, or give the field a default."]
        assert problems_of(both, other) == [f"{start}add one that does before it, or give the field a default."]
        assert problems_of(both, both, middleware("writes", writes=("data",))) == [
            f"{start}move writes, which does, before it."
        ]

    def test_nor_for_a_setting_that_it_needs_itself(self):
        terms = {"reads": ("rows",), "writes": ("rows",), "needs": ("rows.eps",), "provides": ("rows.eps",)}
        (problem,) = problems_of(*[middleware("both", **terms)] * 2)

        assert "no earlier middleware sets it: add one that does before it" in problem

    @pytest.mark.parametrize("name", ["kept", "zero", "rows", "total_step"])
    def test_a_field_that_is_kept_or_has_a_value_to_start_with_may_be_read(self, name):
        run_of(middleware("learn", reads=(name,)))

    def test_a_field_given_to_the_constructor_may_be_read(self):
        run_of(middleware("learn", reads=("data",)), ctx=Mine(data="given"))

    def test_a_field_kept_at_run_time_may_be_read(self):
        ctx = Mine()
        ctx.keep("data")
        run_of(middleware("learn", reads=("data",)), ctx=ctx)

    def test_a_field_that_an_earlier_one_writes_may_be_read(self):
        run_of(middleware("collect", writes=("data",)), middleware("learn", reads=("data",)))

    def test_a_field_that_post_init_fills_may_be_read(self):
        @dataclasses.dataclass
        class Filled(Context):
            rows: list = None
            size: int = dataclasses.field(init=False)

            def __post_init__(self):
                self.rows, self.size = [], 3

        run_of(middleware("learn", reads=("rows", "size")), ctx=Filled())

    def test_a_property_may_be_read(self):
        @dataclasses.dataclass
        class WithProperty(Context):
            @property
            def doubled(self):
                return 2 * self.total_step

        run_of(middleware("learn", reads=("doubled",)), ctx=WithProperty())

    def test_an_init_var_before_the_field_does_not_shift_what_was_given(self):
        @dataclasses.dataclass
        class Scaled(Context):
            scale: dataclasses.InitVar[object]
            data: object = None

            def __post_init__(self, scale):
                pass

        run_of(middleware("learn", reads=("data",)), ctx=Scaled(None, "given"))

    def test_a_field_that_is_merely_read_where_it_is_there_needs_nobody(self):
        run_of(middleware("log", may_read=("data", "no_such_field")))

    def test_a_field_that_is_merely_written_where_it_is_there_counts_as_written(self):
        run_of(middleware("collect", may_write=("data", "no_such_field")), middleware("learn", reads=("data",)))
        run_of(middleware("save", reads_after=("data",)), middleware("collect", may_write=("data",)))


class TestSecondHalves:
    def test_what_only_the_second_half_reads_may_be_written_by_any_first_half(self):
        run_of(middleware("save", reads_after=("data",)), middleware("collect", writes=("data",)))

    def test_what_only_the_second_half_reads_may_be_written_by_a_later_ones_second_half(self):
        run_of(middleware("save", reads_after=("data",)), middleware("learn", writes_after=("data",)))

    def test_what_nobody_writes_is_refused_to_the_second_half_too(self):
        assert len(problems_of(middleware("save", reads_after=("data",)))) == 1

    def test_what_a_second_half_writes_comes_too_late_for_a_first_half(self):
        assert len(problems_of(middleware("early", writes_after=("data",)), middleware("learn", reads=("data",)))) == 1

    def test_what_an_earlier_ones_second_half_writes_comes_too_late_since_they_run_in_reverse(self):
        assert len(problems_of(middleware("early", writes_after=("data",)), middleware("save", reads_after=("data",)))) == 1


class TestUndeclared:
    @pytest.mark.parametrize("term", ["reads", "reads_after"])
    def test_reading_a_field_that_the_context_lacks_is_refused_with_the_nearest(self, term):
        assert problems_of(middleware("learn", **{term: ("dtaa",)})) == [
            "learn reads ctx.dtaa, but Mine declares no such field: did you mean 'data'? Add `dtaa` with a default to Mine."
        ]

    @pytest.mark.parametrize("term", ["writes", "writes_after"])
    def test_writing_a_field_that_the_context_lacks_is_refused_with_the_nearest(self, term):
        assert problems_of(middleware("collect", **{term: ("reslut",)})) == [
            "collect writes ctx.reslut, but Mine declares no such field: did you mean 'result'? "
            "Add `reslut` with a default to Mine."
        ]


class TestPlainFunctions:
    def test_a_plain_function_is_legal_and_counts_as_writing_anything(self):
        run_of(lambda ctx: None, middleware("learn", reads=("data",)), middleware("save", reads_after=("result",)))

    def test_a_plain_function_that_comes_later_writes_nothing_for_those_before_it(self):
        assert len(problems_of(middleware("learn", reads=("data",)), lambda ctx: None)) == 1

    def test_a_plain_function_does_not_excuse_a_field_that_is_not_declared(self):
        assert len(problems_of(lambda ctx: None, middleware("learn", reads=("no_such_field",)))) == 1


class TestWhen:
    def test_nothing_has_run_when_a_pipeline_is_refused(self):
        ran = []
        first = contract(stage="collect")(lambda ctx: ran.append(ctx))
        with Task().start(ctx=Mine()) as loop:
            loop.use(first).use(middleware("learn", reads=("data",)))
            ctx = loop.ctx
            with pytest.raises(PipelineError, match="one problem"):
                loop.run(max_step=3)
            assert ran == []
            assert loop.ctx is ctx

    def test_the_number_of_problems_is_told(self):
        with pytest.raises(PipelineError, match="it has 2 problems:"):
            run_of(middleware("learn", reads=("data", "result")))

    def test_a_second_run_is_checked_as_well(self):
        with Task().start(ctx=Mine()) as loop:
            loop.use(contract()(lambda ctx: None))
            loop.run(max_step=2)
            loop.use(middleware("learn", reads=("data",)))
            with pytest.raises(PipelineError, match=r"learn reads ctx\.data"):
                loop.run(max_step=2)
            assert loop.ctx.total_step == 1

    def test_a_middleware_added_during_the_run_is_checked_where_it_is_added(self):
        def add(ctx):
            loop.use(middleware("learn", reads=("no_such_field",)))

        with Task().start(ctx=Mine()) as loop:
            loop.use(add)
            with pytest.raises(PipelineError, match=r"learn reads ctx\.no_such_field"):
                loop.run(max_step=1)

    def test_a_middleware_that_was_refused_during_the_run_is_no_part_of_it(self):
        ran = []

        def add(ctx):
            with pytest.raises(PipelineError):
                loop.use(contract(reads=("no_such_field",))(lambda ctx: ran.append(ctx)))

        with Task().start(ctx=Mine()) as loop:
            loop.use(add)
            loop.run(max_step=2)

        assert ran == []

    def test_the_line_of_the_script_is_told_for_each(self):
        with Task().start(ctx=Mine()) as loop:
            loop.use(middleware("first", reads=("data",)))
            loop.use(loop.serial(middleware("second", reads=("data",)))).use(middleware("third", reads=("data",)))
            with pytest.raises(PipelineError) as caught:
                loop.run(max_step=1)

        line = self.test_the_line_of_the_script_is_told_for_each.__func__.__code__.co_firstlineno
        places = [
            re.search(r"(\w+) .*\(task\.use at (.*):(\d+)\)$", text).groups() for text in str(caught.value).split("\n")[1:]
        ]
        assert places == [(name, __file__, str(line + row)) for name, row in (("first", 2), ("second", 3), ("third", 3))]


WRITES = {"writes": ("data",)}
READS = {"reads": ("data",)}


class TestValuesThatAreLost:
    @pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag", "threads"])
    @pytest.mark.parametrize("second", [WRITES, {"writes_late": ("data",)}], ids=["at once", "late"])
    def test_who_sets_a_field_anew_before_it_was_read_is_warned_of_with_both_names(self, mode, second):
        with Task().start(ctx=Mine(), **mode) as loop:
            loop.use(middleware("first", **WRITES)).use(middleware("between", writes=("result",)))
            loop.use(middleware("second", **second)).use(middleware("reader", **READS))
            with pytest.warns(
                UserWarning, match=r"^first \(task.use at .*\) sets ctx.data, and second \(task.* is lost: put"
            ) as caught:
                loop.run(1)
        assert sum("is lost" in str(one.message) for one in caught) == 1

    @pytest.mark.parametrize(
        "pipeline",
        {
            "read at the end by one between": (WRITES, {"reads_after": ("data",)}, WRITES),
            "read at the end by one behind": (WRITES, WRITES, {"reads_after": ("data",)}),
            "read at the end by one before": ({"reads_after": ("data",)}, WRITES, WRITES),
        }.values(),
    )
    def test_a_second_half_reads_the_second_value_wherever_it_stands(self, pipeline):
        with pytest.warns(UserWarning, match=r"^step\d .* sets ctx.data, and step\d .* is lost: put"):
            run_of(*[middleware(f"step{k}", **terms) for k, terms in enumerate(pipeline)])

    @pytest.mark.parametrize("place", [0, 1, 2, 3])
    @pytest.mark.parametrize("at_end", [True, False])
    @pytest.mark.parametrize("copied", [True, False])
    def test_an_optional_reader_counts_for_a_field_whose_writers_may_copy_their_values(self, place, at_end, copied):
        @dataclasses.dataclass
        class Copying(Mine):
            data: object = dataclasses.field(default=None, metadata={"copied_to": "result"})

        copy = {"may_write": ("result",)} if copied else {}
        first, between = middleware("first", **WRITES, **copy), middleware("between", may_read=("zero",))
        looking = middleware("looking", may_read=("data",))
        looking.reads_at_end = at_end
        pipeline = [first, between, middleware("second", **WRITES)]
        pipeline.insert(place, looking)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run_of(*pipeline, ctx=Copying())
        lost = [str(one.message) for one in caught if "is lost" in str(one.message)]
        assert len(lost) == ((at_end or place == 3) and not copied)

    @pytest.mark.parametrize(
        "pipeline",
        {
            "read between": (WRITES, READS, WRITES, READS),
            "may be read between": (WRITES, {"may_read": ("data",)}, WRITES, READS),
            "read by its property": (WRITES, {"reads": ("size",)}, WRITES, READS),
            "unknown between": (WRITES, None, WRITES, READS),
            "read by the second": (WRITES, {**READS, **WRITES}, READS),
            "read by the first, at the end": ({**WRITES, "reads_after": ("data",)}, WRITES, READS),
            "not always set": (WRITES, {"may_write": ("data",)}, READS),
            "not read at all": (WRITES, WRITES),
            "kept": ({"writes": ("kept",)}, {"writes": ("kept",)}, {"reads": ("kept",)}),
        }.values(),
    )
    @pytest.mark.filterwarnings("error")
    def test_otherwise_there_is_no_warning(self, pipeline):
        @dataclasses.dataclass
        class Sized(Mine):
            @property
            def size(self):
                return self.data

        fns = [(lambda ctx: None) if terms is None else middleware(f"step{k}", **terms) for k, terms in enumerate(pipeline)]
        run_of(*fns, ctx=Sized())


class TestSideBySide:
    @staticmethod
    def problem_of(one, other, kind="parallel"):
        with Task().start(ctx=Mine()) as loop:
            loop.use(middleware("before", writes=("data",)))
            loop.use(getattr(loop, kind)(middleware("one", **one), middleware("other", **other)))
            loop.run(1)

    @pytest.mark.parametrize(
        ("one", "other", "words"),
        [
            ({"writes": ("data",)}, {"writes": ("data",)}, "writes ctx.data, which other in .* writes"),
            (
                {"writes": ("kept",), "reads": ("kept",)},
                {"writes": ("kept",), "reads": ("kept",)},
                "writes ctx.kept, which other in .* writes",
            ),
            ({"writes": ("data",)}, {"reads": ("data",)}, "writes ctx.data, which other in .* reads"),
            ({"may_read": ("zero",)}, {"writes": ("zero",)}, "reads ctx.zero, which other in .* writes"),
            ({"uses": (run_of,)}, {"uses": (run_of,)}, "uses the function that other in .* uses"),
            ({"may_write": ("data",)}, {"writes_late": ("data",)}, "writes ctx.data, which other in .* writes"),
        ],
    )
    def test_what_one_changes_and_another_touches_is_refused(self, one, other, words):
        with pytest.raises(
            PipelineError, match=rf"^this pipeline cannot run, it has one problem:\n  one in .* {words}, and the two"
        ):
            self.problem_of(one, other)
        self.problem_of(one, other, kind="serial")

    def test_parts_of_parts_are_compared_with_those_beside_them_alone(self):
        with Task().start(ctx=Mine()) as loop:
            first, second = middleware("first", writes=("data",)), middleware("second", reads=("data",), writes=("data",))
            loop.use(loop.parallel(loop.serial(first, second), middleware("beside", writes=("result",))))
            loop.run(1)
            loop.use(loop.parallel(loop.serial(first, second), middleware("late", reads=("data",))))
            with pytest.raises(PipelineError, match="first in .* writes ctx.data, which late in .* reads"):
                loop.run(1)

    def test_both_may_read_the_same(self):
        self.problem_of({"reads": ("data",), "writes": ("rows",)}, {"reads": ("data",), "writes": ("result",)})


LATE = "changes ctx.data, and no middleware behind it reads it"


class AtEnd:
    """A logger: it reads at the end of the iteration."""

    reads_at_end = True

    def __init__(self, name, field):
        self.__name__, self._field, self.seen = name, field, []
        contract(may_read=(field,), uses=(self,), stage="record")(self)

    def __call__(self, ctx):
        yield
        self.seen.append(getattr(ctx, self._field))


def judging(field):
    @contract(writes_after=(field,), stage="learn")
    def judge(ctx):
        yield
        setattr(ctx, field, 7)

    return judge


def test_what_a_second_half_sets_after_a_logger_has_read_it_is_named_with_the_place_to_put_it():
    logger, saver = AtEnd("log", "data"), AtEnd("save", "data")
    words = r"^judging .* sets ctx.data after its yield, and is too late for log .* and save .*Put log and save before judging"
    with pytest.warns(UserWarning, match=words):
        run_of(judging("data"), logger, AtEnd("other", "rows"), saver)
    assert logger.seen == saver.seen == [None]


@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}])
def test_what_a_second_half_without_a_contract_sets_too_late_is_named_too(mode):
    logger, saver = AtEnd("log", "data"), AtEnd("save", "data")

    def judging(ctx):
        yield
        ctx.data = 7

    words = r"^judging .* sets ctx.data after its yield, and is too late for log .* and save .*Put log and save before judging"
    with pytest.warns(UserWarning, match=words) as found:
        run_of(judging, logger, AtEnd("other", "rows"), saver, max_step=3, **mode)
    assert sum("too late" in str(it.message) for it in found) == 1
    assert logger.seen == saver.seen == [None] * 3


@pytest.mark.parametrize("value", ["its own", None, "start value"])
def test_a_second_half_that_clears_a_field_or_leaves_it_is_not_named(value):
    def clearing(ctx):
        ctx.rows = [1]
        yield
        ctx.rows = {"its own": ctx.rows, "start value": []}.get(value)

    logger = AtEnd("log", "rows")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_of(clearing, logger, max_step=2)
    assert logger.seen == [[1]] * 2


@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}])
def test_a_second_half_that_changes_a_value_in_place_too_late_is_named_unless_it_empties_it(mode):
    def adding(ctx):
        ctx.rows = [1]
        yield
        ctx.rows.append(2)

    def emptying(ctx):
        ctx.rows = [1]
        yield
        ctx.rows.clear()

    with pytest.warns(UserWarning, match=r"^adding .* sets ctx.rows after its yield, and is too late for log") as found:
        run_of(adding, AtEnd("log", "rows"), max_step=3, **mode)
    assert sum("too late" in str(it.message) for it in found) == 1
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run_of(emptying, AtEnd("log", "rows"), max_step=3, **mode)
    assert not [it for it in found if "too late" in str(it.message)]


def test_the_check_of_second_halves_draws_no_numbers_of_the_run():
    def noises(is_set):
        numbers = iter(range(100))

        @dataclasses.dataclass
        class Noisy(Context):
            noise: int = dataclasses.field(default_factory=lambda: next(numbers))

        def scaling(ctx):
            yield
            if is_set:
                ctx.noise = 10 * ctx.noise + 5

        logger, loop = AtEnd("log", "noise"), Task()
        with loop.start(ctx=Noisy()):
            loop.use(scaling).use(logger).run(7)
        return logger.seen

    with pytest.warns(UserWarning, match=r"scaling .* is too late for log"):
        assert noises(is_set=True) == noises(is_set=False)


@pytest.mark.parametrize("field", ["data", "kept"])
def test_what_a_second_half_without_a_contract_sets_in_time_is_not_named(field):
    def judging(ctx):
        yield
        setattr(ctx, field, 7)

    logger = AtEnd("log", field)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_of(*([logger, judging] if field == "data" else [judging, logger]), max_step=2)
    assert logger.seen[1] == 7


@pytest.mark.parametrize("field", ["data", "kept"])
def test_what_it_sees_there_or_in_the_next_iteration_is_not_named(field):
    logger = AtEnd("log", field)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_of(*([logger, judging(field)] if field == "data" else [judging(field), logger]), max_step=2)
    assert logger.seen[1] == 7


def test_a_change_after_the_last_reader_is_named_with_its_place():
    first, reads = middleware("collect", writes=("data",)), middleware("estimate", reads=("data",), writes=("result",))
    change, later = middleware("scale", reads=("data",), writes=("data",)), middleware("train", reads=("result",))
    words = rf"^scale .*{LATE}: estimate .* has read it before. If the change is for estimate, put scale before estimate"
    with pytest.warns(UserWarning, match=words):
        run_of(first, reads, change, later)


@pytest.mark.parametrize(
    "terms", [{"reads": ("data",)}, {"may_read": ("data",)}, {"reads": ("pair",)}, {"reads_after": ("pair",)}]
)
def test_a_change_that_a_second_half_reads_is_not_named(terms):
    seen = []

    @contract(**terms, uses=(seen,), stage="record")
    def note(ctx):
        yield
        seen.append(ctx.pair if "pair" in next(iter(terms.values())) else ctx.data)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_of(middleware("collect", writes=("data",)), note, middleware("scale", reads=("data",), writes=("data",)))
    assert seen


@pytest.mark.parametrize(
    "pipeline",
    [
        [("scale", {"reads": ("data",), "writes": ("data",)}), ("estimate", {"reads": ("data",)})],
        [
            ("estimate", {"reads": ("data",)}),
            ("scale", {"reads": ("data",), "writes": ("data",)}),
            ("use", {"reads": ("data",)}),
        ],
        [
            ("estimate", {"reads": ("data",)}),
            ("scale", {"reads": ("data",), "writes": ("data",)}),
            ("log", {"may_read": ("data",)}),
        ],
        [("log", {"reads": ("data",), "reads_after": ("data",)}), ("scale", {"reads": ("data",), "writes": ("data",)})],
        [("scale", {"reads": ("data",), "writes": ("data",)}), ("scale again", {"reads": ("data",), "writes": ("data",)})],
        [("estimate", {"reads": ("kept",)}), ("count", {"reads": ("kept",), "writes": ("kept",)})],
    ],
)
def test_a_change_that_may_be_read_is_not_named(pipeline):
    made = [middleware("collect", writes=("data", "kept")), *(middleware(name, **terms) for name, terms in pipeline)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_of(*made)
