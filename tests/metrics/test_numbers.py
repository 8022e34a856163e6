"""Numbers of any size and spelling: each kind against exact arithmetic, and what one odd number may cost."""

import math
import warnings
from collections import deque
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import case_count

from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import EpisodeResult
from ding_lite.metrics import DEFAULT_STATS_CLS_LOOKUP, MetricsLogger, StatsBase
from ding_lite.metrics.outputs import Outputs
from ding_lite.middleware.evaluators import mean_return
from ding_lite.rollout import summarize_episodes
from ding_lite.rollout.metrics_aggregators import MetricsAggregator

LARGEST = Fraction(float(np.finfo(np.float64).max))
WANTED = [0, 12.5, 50, 75, 90, 100]

odd = st.sampled_from(
    [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 5e-324, 10**400, -(10**400), 10**308, Fraction(10**400, 3)]
)
numbers = st.one_of(st.integers(-1000, 1000), st.floats(-1e6, 1e6), st.floats(), odd, odd)
lists = st.lists(numbers, max_size=12) | st.lists(st.integers(-1000, 1000) | st.floats(-1e6, 1e6), max_size=12)


def exact(value):
    """The number as a fraction, or infinite where no float can hold it."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    value = Fraction(value)
    return value if abs(value) <= LARGEST else math.copysign(math.inf, value.numerator > 0 or -1)


def exact_sum(values):
    endless = {value for value in values if isinstance(value, float)}
    if endless:
        return endless.pop() if len(endless) == 1 else math.nan
    return sum(values)


def exact_ema(values, coeff):
    old = None
    for value in values:
        if old is None or coeff == 1:
            old = value
        elif isinstance(old, float) or isinstance(value, float):
            old = exact_sum([old, value])
        else:
            old = (1 - coeff) * old + coeff * value
    return math.nan if old is None else old


def exact_percentile(values, wanted):
    values = sorted(values)
    if not values:
        return math.nan
    place = Fraction(wanted) * (len(values) - 1) / 100
    low, high = values[math.floor(place)], values[math.ceil(place)]
    if low == high:
        return low
    share = place - math.floor(place)
    return exact_sum([low, high]) if isinstance(low, float) or isinstance(high, float) else (1 - share) * low + share * high


def oracle(kind, values, coeff=Fraction(1, 100)):
    values = [value for value in map(exact, values) if value == value]
    if kind == "sum":
        return exact_sum(values)
    if kind == "percentiles":
        return [exact_percentile(values, wanted) for wanted in WANTED]
    if kind == "ema":
        return exact_ema(values, coeff)
    if not values:
        return math.nan
    total = exact_sum(values)
    mean = total if isinstance(total, float) else total / len(values)
    return {"mean": mean, "min": min(values), "max": max(values)}[kind]


def agrees(found, wanted, values, kind):
    """Whether a result is the exact one, to what a float can hold; only a sum may be more than that, and infinite."""
    seen = [abs(value) for value in map(exact, values) if value == value and not isinstance(value, float)]
    if isinstance(wanted, float):
        return found == wanted or (math.isnan(found) and (math.isnan(wanted) or (kind == "sum" and sum(seen) > LARGEST)))
    if not math.isfinite(found):
        return kind == "sum" and sum(seen) > LARGEST
    return abs(Fraction(found) - wanted) <= Fraction(1, 10**9) * max(seen, default=0) + Fraction(1, 10**300)


def check(found, kind, values, **how):
    wanted = oracle(kind, values, **how)
    pairs = zip(found.values(), wanted) if kind == "percentiles" else [(found, wanted)]
    for one, other in pairs:
        assert agrees(one, other, values, kind), (kind, values, one, other)


def settings_of(kind, window=None):
    more = {"percentiles": WANTED} if kind == "percentiles" else {}
    return {"reduce": kind, **more, **({"window": window} if window else {})}


KINDS = ["mean", "sum", "min", "max", "percentiles", "ema"]


@pytest.mark.few
@pytest.mark.parametrize("kind", KINDS)
@given(values=lists, window=st.none() | st.integers(1, 5))
@settings(deadline=None, max_examples=case_count(60))
def test_a_kind_is_exact_arithmetic_on_the_numbers_that_count(kind, values, window):
    window = None if kind == "ema" else window
    logger = MetricsLogger()
    for value in values:
        logger.log_value("x", value, **settings_of(kind, window))
    if values:
        check(logger.peek("x"), kind, values[-window:] if window else values)
        logger.compile()


@pytest.mark.few
@pytest.mark.parametrize("kind", ["mean", "sum", "min", "max", "percentiles"])
@given(parts=st.lists(lists, min_size=1, max_size=4), window=st.none() | st.integers(1, 5))
@settings(deadline=None, max_examples=case_count(40))
def test_merged_numbers_are_exact_arithmetic_too(kind, parts, window):
    root = MetricsLogger(root=True)
    loggers = [MetricsLogger() for _ in parts]
    for logger, part in zip(loggers, parts):
        logger.log_values("x", part, **settings_of(kind, window))
    root.aggregate([logger.reduce() for logger in loggers])
    seen = [value for part in parts for value in (part[-window:] if window else part)]
    if seen:
        check(root.compile()["x"], kind, seen)


HUGE = (
    [1e308, 1e308, 1e308],
    [1.7e308, 1.7e308, -1.7e308],
    [-1.7e308] * 9 + [1.7e308] * 8,
    [float(LARGEST)] * 200,
    [10**308] * 5,
)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("values", HUGE)
def test_a_mean_is_right_where_no_float_holds_the_sum_also_of_several_workers_and_in_a_saved_state(values, window):
    how = settings_of("mean", window)
    one_by_one, at_once, root, again = MetricsLogger(), MetricsLogger(), MetricsLogger(root=True), MetricsLogger(root=True)
    for value in values:
        one_by_one.log_value("x", value, **how)
    at_once.log_values("x", values, **how)
    window_of = values[-window:] if window else values
    check(one_by_one.peek("x"), "mean", window_of)
    check(at_once.peek("x"), "mean", window_of)

    root.aggregate([one_by_one.reduce(), at_once.reduce()])
    again.set_state(root.get_state())
    check(root.compile()["x"], "mean", window_of * 2)
    check(again.compile()["x"], "mean", window_of * 2)


@pytest.mark.parametrize("values", HUGE)
@pytest.mark.parametrize("coeff", [0.01, 0.3, 0.5, 0.999])
def test_an_ema_of_several_workers_is_right_where_no_float_holds_the_sum(values, coeff):
    root, loggers = MetricsLogger(root=True), [MetricsLogger(), MetricsLogger()]
    for logger in loggers:
        logger.log_values("x", values, reduce="ema", ema_coeff=coeff)
        check(logger.peek("x"), "ema", values, coeff=Fraction(coeff))
    root.aggregate([logger.reduce() for logger in loggers])

    check(root.compile()["x"], "ema", values, coeff=Fraction(coeff))


def test_the_mean_of_episodes_and_of_what_a_learner_gave_is_right_where_no_float_holds_the_sum():
    episodes = [EpisodeResult(0, 0, 1.2e308, 3, info={"gold": 1.5e308}) for _ in range(4)]
    summary = summarize_episodes(episodes)
    assert (summary["episode_return_mean"], summary["custom_metrics"]["gold_mean"]) == (1.2e308, 1.5e308)
    assert mean_return(episodes) == 1.2e308

    logger = MetricsLogger()
    Outputs(logger).log([{"wide": torch.full((4,), 1e308, dtype=torch.float64), "loss": np.full(4, 3e38, np.float32)}])
    found = logger.compile()
    assert found["wide"] == 1e308
    assert found["loss"] == pytest.approx(3e38)


@pytest.mark.few
@pytest.mark.parametrize("coeff", [1, 1.0, np.float64(0.25), 0.999999, 1e-20])
@given(values=lists)
@settings(deadline=None, max_examples=case_count(60))
def test_an_ema_is_its_formula_with_any_coefficient(coeff, values):
    logger = MetricsLogger()
    for value in values:
        logger.log_value("x", value, reduce="ema", ema_coeff=coeff)
    if values:
        check(logger.peek("x"), "ema", values, coeff=Fraction(float(coeff)))


def test_an_ema_does_not_begin_anew_behind_an_infinity():
    logger = MetricsLogger()
    found = []
    for value in (1.0, math.inf, 2.0, -math.inf, 3.0):
        logger.log_value("x", value, reduce="ema", ema_coeff=0.5)
        found.append(logger.peek("x"))
    assert found[:3] == [1.0, math.inf, math.inf]
    assert all(map(math.isnan, found[3:]))


def test_percentiles_on_a_value_are_that_value_whatever_its_neighbour_is():
    logger = MetricsLogger()
    logger.log_values("x", [1.0, 2.0, math.inf], reduce="percentiles", percentiles=[0, 50, 75, 100])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert logger.peek("x") == {0: 1.0, 50: 2.0, 75: math.inf, 100: math.inf}


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0, 2.0, math.inf]),
        np.array([3, 4], np.int32),
        np.array([], np.float32),
        np.ones((2, 1)),
        torch.tensor([1.0, 2.0], requires_grad=True),
        torch.tensor([1, 2, 3]),
        torch.tensor([]),
        deque([1.0, 2.0]),
        (value for value in (1.0, 2.0)),
        range(3),
    ],
    ids=lambda values: type(values).__name__,
)
@pytest.mark.parametrize("kind", ["mean", "sum", "max", "ema", "percentiles"])
def test_several_values_may_come_as_anything_that_holds_them(kind, values):
    values = [1.0, 2.0] if not isinstance(values, (np.ndarray, torch.Tensor, deque, range)) else values
    one, other = MetricsLogger(), MetricsLogger()
    one.log_values("x", values, reduce=kind)
    for value in values:
        other.log_value("x", value, reduce=kind)
    assert one.peek() == other.peek()


def test_several_values_may_come_from_a_generator():
    logger = MetricsLogger()
    logger.log_values("x", (value for value in (1.0, 3.0)))
    assert logger.peek("x") == 2.0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            3.0,
            r"log_values\(\) wants several values, as a list, an array or a tensor, got 3.0 of type float: log_value\(\) takes",
        ),
        (np.array(3.0), r"got array\(3\.\) of type ndarray: log_value\(\) takes a single one"),
        (torch.tensor(3.0), r"got tensor\(3\.\) of type Tensor: log_value\(\) takes a single one"),
        ({"a": 1.0}, r"got {'a': 1.0} of type dict: log_dict\(\) takes names with their values"),
        ("words", "got 'words' of type str"),
        (None, "got None of type NoneType"),
    ],
)
def test_what_is_not_several_values_is_refused_by_name(values, words):
    with pytest.raises(TypeError, match=words):
        MetricsLogger().log_values("x", values)


@pytest.mark.parametrize("spell", [np.array, torch.tensor, list, tuple, np.float32])
def test_percentiles_may_come_as_an_array_and_need_not_be_repeated_alike(spell):
    logger = MetricsLogger()
    for value in (1.0, 2.0, 3.0):
        logger.log_value("x", value, reduce="percentiles", percentiles=spell([0, 50]))
        logger.log_value("x", value, reduce="percentiles", percentiles=[0, 50])
        logger.log_value("x", value)
    assert logger.peek("x") == {0: 1.0, 50: 2.0}


@pytest.mark.parametrize(
    ("key", "how", "words"),
    [
        (["a", "b"], {}, r"\['a', 'b'\] of type list is not a key: a key is a name, or a tuple of names: write \('a', 'b'\)"),
        (("a", ["b"]), {}, r"\('a', \['b'\]\) of type tuple is not a key: a key is a name, or a tuple of names\."),
        ({"a": 1}, {}, "of type dict is not a key"),
        (
            "x",
            {"reduce": "ema", "window": 3},
            "reduce='ema' has no setting 'window', it has ema_coeff: leave window=3 out, or use",
        ),
        (
            "x",
            {"reduce": "mean", "with_throughput": True},
            "no setting 'with_throughput', it has window: .* or use 'sum' or 'life",
        ),
        (
            "x",
            {"reduce": "max", "percentiles": [5]},
            r"no setting 'percentiles', it has window: .*=\[5\] out, or use 'percentiles'",
        ),
        ("x", {"reduce": "item", "colour": "red"}, r"no setting 'colour', it has none: leave colour='red' out\."),
        ("x", {"reduce": ["mean"]}, r"unknown reduce=\['mean'\]"),
        ("x", {"window": "a"}, "window='a', expected an integer above 0"),
        ("x", {"window": np.array([1, 2])}, r"window=array\(\[1, 2\]\), expected an integer above 0"),
        ("x", {"reduce": "ema", "ema_coeff": "a"}, "ema_coeff='a', expected a number in"),
        ("x", {"reduce": "ema", "ema_coeff": math.nan}, "ema_coeff=nan, expected a number in"),
        (
            "x",
            {"reduce": "percentiles", "percentiles": 90},
            r"percentiles=90, expected numbers from 0 to 100 such as \[50, 90\]",
        ),
        ("x", {"reduce": "percentiles", "percentiles": "90"}, "percentiles='90', expected numbers"),
        ("x", {"reduce": "percentiles", "percentiles": [True]}, r"percentiles=\[True\], expected numbers"),
        ("x", {"reduce": "percentiles", "percentiles": []}, r"percentiles=\[\], expected numbers"),
    ],
)
def test_a_key_or_a_setting_that_cannot_be_is_refused_in_words_of_its_own(key, how, words):
    for log in (lambda it: it.log_value(key, 1.0, **how), lambda it: it.log_values(key, [1.0], **how)):
        logger = MetricsLogger()
        with pytest.raises((TypeError, ValueError), match=words):
            log(logger)
        assert logger.peek() == {}


def test_a_list_is_no_key_of_a_timer_nor_of_a_look():
    for use in (MetricsLogger().log_time, MetricsLogger().peek, MetricsLogger().__contains__):
        with pytest.raises(TypeError, match=r"\['a'\] of type list is not a key"):
            use(["a"])


@pytest.mark.parametrize("value", [np.int64(3), np.array(3), torch.tensor(3), 3.0])
def test_a_window_may_be_spelt_as_any_whole_number(value):
    logger = MetricsLogger()
    logger.log_values("x", [9.0, 1.0, 2.0, 3.0], window=value)
    logger.log_value("x", 4.0, window=3)
    assert logger.peek("x") == 3.0


@pytest.mark.parametrize("value", [torch.tensor(1j), np.complex64(1), 1j, "words", None, object()])
def test_what_is_no_real_number_is_refused(value):
    with pytest.raises(TypeError, match="reduce='mean' wants numbers"):
        MetricsLogger().log_value("x", value)


@pytest.mark.parametrize("value", [torch.tensor(True), np.bool_(True), True, Decimal(1), Fraction(1), np.float16(1)])
def test_a_number_of_another_type_is_that_number(value):
    logger = MetricsLogger()
    for kind in KINDS:
        logger.log_value(kind, value, reduce=kind)
        found = logger.peek(kind)
        assert found == (dict.fromkeys((0, 50, 75, 90, 95, 99, 100), 1.0) if kind == "percentiles" else 1.0)


def row_of(*fields):
    """What a run's row has, where each learner of an iteration logged these fields."""
    aggregator, ctx = MetricsAggregator(), OnlineRLContext()
    for given_ in fields:
        ctx.learn_metrics.append(given_)
    aggregator.take(ctx)
    return aggregator.row(ctx)


@pytest.mark.parametrize("bad", [[math.inf, -math.inf], [1.7e308] * 3, [1.7e308, 1.7e308, -1.7e308], [10**400], [10**308] * 9])
@pytest.mark.parametrize("kind", KINDS)
def test_a_number_of_any_size_costs_no_other_of_its_row(kind, bad):
    logger = MetricsLogger()
    logger.log_value("before", 1.0)
    logger.log_values("bad", bad, **settings_of(kind, None if kind == "ema" else 5))
    logger.log_values("also_bad", bad, reduce=kind)
    logger.log_value("after", 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = row_of(logger.reduce())
    assert (row["learn/before"], row["learn/after"]) == (1.0, 2.0)
    assert {"learn/bad", "learn/also_bad"} <= {"/".join(name.split("/")[:2]) for name in row}


class Fussy(StatsBase):
    """A kind of one's own that cannot do what it is for."""

    stats_cls_identifier = "fussy"

    def __init__(self):
        super().__init__()
        self.clear()

    def push(self, value):
        self.value = value

    def peek(self, compile=True):
        return 1 / self.value

    def clear(self):
        self.value = 1.0

    def merge(self, incoming_stats):
        self.value = incoming_stats[-1].value
        if self.value == 7:
            raise OverflowError("seven")


@pytest.mark.parametrize(("value", "words"), [(0, "ZeroDivisionError: division by zero"), (7, "OverflowError: seven")])
def test_a_kind_of_ones_own_that_raises_costs_its_own_value_and_no_other(value, words):
    lookup = {**DEFAULT_STATS_CLS_LOOKUP, "fussy": Fussy}
    leaf, root = MetricsLogger(stats_cls_lookup=lookup), MetricsLogger(True, lookup)
    for name in ("a", "z"):
        leaf.log_value(name, 1.0)
    leaf.log_value("m", value, reduce="fussy")
    with pytest.warns(UserWarning, match=rf"\('m',\) is lost, because Fussy raised {words}"):  # noqa: PT031
        root.aggregate([leaf.reduce()])
        looked = root.peek()
        found = root.compile()
    assert (looked["a"], looked["z"], found["a"], found["z"]) == (1.0, 1.0, 1.0, 1.0)
    assert math.isnan(found["m"]) or value == 7
    assert root.compile()["m"] == 1.0  # the next cycle begins anew


def test_a_name_that_does_not_fit_costs_none_beside_it():
    first, second = MetricsLogger(), MetricsLogger()
    first.log_dict({"loss": 1.0, "steps": 1.0})
    second.log_value("loss", 5.0, reduce="max")
    second.log_dict({"inner": {"own": 2.0}, "steps": 3.0})
    with pytest.warns(UserWarning, match="some metrics are lost: .*'loss'.* was first aggregated as reduce='mean'") as caught:
        row = row_of(first.reduce(), second.reduce())
    assert len(caught) == 1
    assert (row["learn/loss"], row["learn/steps"], row["learn/inner/own"]) == (1.0, 2.0, 2.0)


def test_emas_of_integers_that_overflow_together():
    root, loggers = MetricsLogger(root=True), [MetricsLogger(), MetricsLogger()]
    for logger in loggers:
        logger.log_value("x", 2**1023, reduce="ema", ema_coeff=1)
    root.aggregate([logger.reduce() for logger in loggers])

    assert root.compile()["x"] == float(2**1023)


def test_a_mean_of_an_older_state_goes_on():
    logger, again = MetricsLogger(), MetricsLogger()
    for value in (1.7e308, 1.7e308, 1.0):
        logger.log_value("x", value)
    state = logger.get_state()
    saved = state["stats"][0]["state"]
    for power in (64, None):  # before and after sums could be wide
        older = {name: it for name, it in saved.items() if name not in ("_wide", "_power")}
        older |= {"_sum": 3.4e308 * 2.0**-64, "_power": 64} if power else {"_sum": 6.0}
        again.set_state({"stats": [{**state["stats"][0], "state": older}]})
        again.log_value("x", 2.0)

        assert again.peek("x") == pytest.approx(3.4e308 / 4 if power else 2.0)
