"""MetricsLogger: kinds, merging, what it refuses, and its state."""

import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import case_count

from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.metrics import DEFAULT_STATS_CLS_LOOKUP, MetricsLogger, StatsBase

KINDS = ["mean", "min", "max", "sum", "lifetime_sum", "percentiles", "item_series", "ema"]
EMPTY = {"mean": math.nan, "ema": math.nan, "min": math.nan, "max": math.nan, "sum": 0, "lifetime_sum": 0, "item_series": []}


def logged(values, **how):
    logger = MetricsLogger()
    for value in values:
        logger.log_value("x", value, **how)
    return logger


def same(found, wanted):
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return found == pytest.approx(wanted, nan_ok=True) if isinstance(wanted, (int, float)) else found == wanted


def by_hand(kind, values):
    """What a reader of the table of kinds would compute."""
    numbers = [value for value in values if not math.isnan(value)]
    if kind == "item_series":
        return list(values)
    if kind == "percentiles":
        wanted = (0, 50, 75, 90, 95, 99, 100)
        return {p: float(np.percentile(numbers, p)) if numbers else math.nan for p in wanted}
    if kind in ("sum", "lifetime_sum"):
        return sum(numbers)
    if not numbers:
        return math.nan
    if kind == "ema":
        ema = numbers[0]
        for value in numbers[1:]:
            ema = 0.99 * ema + 0.01 * value
        return ema
    return {"mean": np.mean, "min": min, "max": max}[kind](numbers)


numbers = st.one_of(st.integers(-1000, 1000), st.floats(-1e6, 1e6), st.just(math.nan))
spelt = st.sampled_from([lambda x: x, float, np.float32, np.float64, torch.tensor, lambda x: torch.tensor([x])])


@pytest.mark.few
@pytest.mark.parametrize("kind", KINDS)
@given(values=st.lists(st.tuples(st.floats(-1000, 1000, width=16) | st.just(math.nan), spelt), max_size=20))
@settings(deadline=None, max_examples=case_count(60))
def test_a_kind_is_what_it_says_whatever_a_number_is_spelt_as(kind, values):
    logger = logged([spell(value) for value, spell in values], reduce=kind)
    wanted = by_hand(kind, [value for value, _ in values])
    if not values:
        return
    found, compiled = logger.peek("x"), logger.compile()["x"]
    if kind == "item_series":
        found, compiled = ([np.asarray(value).item() for value in series] for series in (found, compiled))
    assert same(found, wanted)
    assert same(compiled, wanted)


@pytest.mark.few
@pytest.mark.parametrize("kind", ["mean", "min", "max", "sum", "percentiles", "item_series"])
@given(values=st.lists(numbers, min_size=1, max_size=20), window=st.integers(1, 6))
@settings(deadline=None, max_examples=case_count(40))
def test_a_window_is_the_last_values(kind, values, window):
    assert same(logged(values, reduce=kind, window=window).peek("x"), by_hand(kind, values[-window:]))


@st.composite
def groupings(draw):
    """Values of several components, empty ones among them, a window, and a tree in which the components are merged."""
    parts = draw(st.lists(st.lists(numbers, max_size=6), min_size=1, max_size=6))
    tree = [*range(len(parts))]
    while len(tree) > 1 and draw(st.booleans()):
        start = draw(st.integers(0, len(tree) - 2))
        stop = draw(st.integers(start + 1, len(tree)))
        tree[start:stop] = [tuple(tree[start:stop])]
    return parts, draw(st.sampled_from([None, 1, 3])), tree


@pytest.mark.few
@pytest.mark.parametrize("kind", [*KINDS, "item"])
@given(case=groupings())
@settings(deadline=None, max_examples=case_count(30))
def test_loggers_merged_in_any_grouping_equal_one_logger_that_saw_all_values(kind, case):
    parts, window, tree = case
    how = {"reduce": kind} if kind in ("ema", "lifetime_sum", "item") or window is None else {"reduce": kind, "window": window}

    def reduced(node):
        if isinstance(node, int):
            return pickle.loads(pickle.dumps(logged(parts[node], **how).reduce()))
        middle = MetricsLogger()
        middle.aggregate([reduced(inner) for inner in node])
        return middle.reduce()

    root = MetricsLogger(root=True)
    root.aggregate([reduced(node) for node in tree], key="all")
    seen = [part[-window:] if "window" in how else part for part in parts]
    everything = [value for part in seen for value in part]
    if not everything:
        assert "all" not in root
        return
    found = root.peek(("all", "x"))
    if kind == "item":
        assert same(found, everything[-1])
    elif kind == "ema":
        counts = [sum(not math.isnan(v) for v in part) for part in seen]
        emas = [by_hand("ema", part) for part in seen]
        total = sum(n * ema for n, ema in zip(counts, emas) if n)
        assert same(found, total / sum(counts) if sum(counts) else math.nan)
    else:
        assert same(found, by_hand(kind, everything))


@pytest.mark.few
@pytest.mark.parametrize("kind", ["mean", "min", "max", "sum"])
@given(parts=st.lists(st.lists(st.integers(-100, 100), max_size=5), min_size=1, max_size=5), order=st.randoms())
@settings(deadline=None, max_examples=case_count(40))
def test_merging_in_any_order_is_the_same(kind, parts, order):
    results = []
    for _ in range(2):
        root = MetricsLogger(root=True)
        root.aggregate([logged(part, reduce=kind).reduce() for part in parts])
        results.append(root.peek("x", None))
        order.shuffle(parts)
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", [*EMPTY])
def test_a_cycle_begins_empty(kind):
    logger = logged([1.0, 2.0], reduce=kind)
    result = logger.compile()["x"]
    again = logger.peek("x")
    assert same(again, result if kind == "ema" else EMPTY[kind])  # a moving average moves on


def test_lifetime_sums_are_kept_at_the_root_and_handed_on_elsewhere():
    root, leaf = MetricsLogger(root=True), MetricsLogger()
    for amount in (10, 20, 10):
        leaf.log_value("steps", amount, reduce="lifetime_sum")
        root.aggregate([leaf.reduce()])
        assert leaf.peek("steps") == 0
        root.reduce()
    assert root.peek("steps") == 40


def test_who_logged_nothing_hands_nothing_on():
    leaf = logged([3.0], reduce="ema")
    assert leaf.reduce()
    assert leaf.reduce() == {}
    assert leaf.peek("x") == 3.0


def test_only_the_last_merge():
    root = MetricsLogger(root=True)
    root.aggregate([logged([1.0, 3.0]).reduce()])
    root.aggregate([logged([10.0]).reduce()])
    assert root.peek("x") == pytest.approx(14 / 3)
    assert root.peek("x", latest_merged_only=True) == 10.0
    root.aggregate([])
    assert math.isnan(root.peek("x", latest_merged_only=True))
    with pytest.raises(ValueError, match="was logged here"):
        logged([1.0]).peek("x", latest_merged_only=True)


class Elsewhere(torch.Tensor):
    """A tensor whose value one would have to wait for; counts how often somebody did."""

    is_cpu = False
    waits = 0

    def tolist(self):
        type(self).waits += 1
        return super().tolist()


def elsewhere(*values, **options):
    return [torch.tensor(float(value), **options).as_subclass(Elsewhere) for value in values]


@pytest.mark.parametrize(("kind", "result"), [("mean", 4.0), ("sum", 20.0), ("min", 1.0), ("max", 7.0)])
def test_a_device_is_waited_for_once_when_somebody_looks_at_the_root(kind, result):
    before = Elsewhere.waits
    leaves = [logged([*elsewhere(1, 3), 2.0], reduce=kind), logged(elsewhere(7, 7), reduce=kind)]
    root = MetricsLogger(root=True)
    root.aggregate([leaf.reduce() for leaf in leaves])
    assert Elsewhere.waits == before
    assert root.peek("x") == result
    assert Elsewhere.waits == before + 1


@pytest.mark.parametrize("kind", ["mean", "ema", "sum", "min", "max"])
def test_a_component_without_the_device_gets_numbers(kind):
    sent = pickle.dumps(logged(elsewhere(1, 3), reduce=kind).reduce())
    before = Elsewhere.waits
    received = pickle.loads(sent)["x"]
    assert received.peek() == logged([1.0, 3.0], reduce=kind).peek("x")
    assert Elsewhere.waits == before


@pytest.mark.parametrize("make", [torch.tensor, lambda value: elsewhere(value)[0]])
@pytest.mark.parametrize("kind", ["mean", "sum", "max"])
def test_a_tensor_that_changes_in_place_was_logged_as_it_was(kind, make):
    alpha = make(2.0)
    logger = logged([alpha], reduce=kind)
    alpha += 5
    assert logger.peek("x") == 2.0


def test_tensors_are_detached():
    weight = torch.ones((), requires_grad=True)
    logger = logged([weight * 2, 4.0, *elsewhere(6, requires_grad=True)], reduce="mean")
    assert [getattr(value, "requires_grad", False) for value in logger._stats[("x",)]._waiting] == [False]
    assert logger.peek("x") == 4.0
    item = logged([weight * 3], reduce="item")
    assert item.peek("x") == 3.0
    assert isinstance(logged([torch.ones(2)], reduce="item_series").reduce()["x"].peek()[0], np.ndarray)


def test_many_tensors_do_not_pile_up():
    logger = logged((elsewhere(1.0)[0] for _ in range(2500)), reduce="sum")
    assert len(logger._stats[("x",)]._waiting or ()) <= 1000
    root = MetricsLogger(root=True)
    for _ in range(3):
        root.aggregate([logged(elsewhere(*[1.0] * 900), reduce="sum").reduce()])
        assert len(root._stats[("x",)]._waiting or ()) <= 1000
    assert logger.peek("x") + root.peek("x") == 2500 + 2700


def test_many_values_at_once_are_as_each_on_its_own():
    here = list(torch.tensor([1.0, 0.1, 3.0], requires_grad=True))
    mixed = [torch.tensor(4.0), 1.0, 2, float("nan"), *elsewhere(3), torch.tensor([2.0])]
    for values in ([], here, [torch.tensor([1.0]), torch.tensor([2.0])], mixed, mixed[::-1], elsewhere(1, 2)):
        for how in ({}, {"reduce": "sum"}, {"reduce": "max", "window": 2}, {"reduce": "ema"}):
            one, other = logged(values, **how), MetricsLogger()
            other.log_values("x", values, **how)
            if values:
                assert other.peek("x") == one.peek("x")
            else:
                assert "x" not in other


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"reduce": "mean", "window": 2}, {"reduce": "max"}, "reduce='mean', window=2"),
        ({"reduce": "mean", "window": 2}, {"window": 3}, "window=3"),
        ({}, {"ema_coeff": 0.5}, "reduce='mean'"),
        ({"reduce": "ema"}, {"reduce": "ema", "ema_coeff": 0.5}, "ema_coeff=0.5"),
        ({"reduce": "sum"}, {"with_throughput": True}, "with_throughput=True"),
        ({"reduce": "sum"}, {"reduce": "smu"}, "did you mean|Did you mean"),
    ],
)
def test_other_settings_for_a_key_are_refused(first, second, message):
    logger = logged([1.0], **first)
    with pytest.raises(ValueError, match=message):
        logger.log_value("x", 2.0, **second)
    logger.log_value("x", 3.0, **first)
    logger.log_value("x", 3.0)


@pytest.mark.parametrize(
    "how",
    [
        {"reduce": "median"},
        {"window": 0},
        {"window": -1},
        {"window": 1.5},
        {"window": True},
        {"reduce": "ema", "window": 3, "ema_coeff": 0.1},
        {"reduce": "ema", "ema_coeff": 0.0},
        {"reduce": "ema", "window": 3},
        {"reduce": "mean", "colour": "red"},
        {"reduce": "percentiles", "percentiles": [101]},
        {"reduce": "percentiles", "percentiles": False},
    ],
)
def test_settings_that_make_no_sense_are_refused(how):
    logger = MetricsLogger()
    with pytest.raises(ValueError, match=".+"):
        logger.log_value("x", 1.0, **how)
    assert "x" not in logger


def test_an_endless_window_is_none():
    assert logged([1.0, 3.0], reduce="mean", window=math.inf).peek("x") == 2.0


def test_values_and_groups_are_told_apart():
    logger = MetricsLogger()
    logger.log_value("a", 1.0)
    logger.log_value(("b", "c"), 1.0)
    with pytest.raises(ValueError, match=", which is a value"):
        logger.log_value(("a", "b"), 1.0)
    with pytest.raises(ValueError, match="is a prefix of other keys"):
        logger.log_value("b", 1.0)
    with pytest.raises(ValueError, match="empty"):
        logger.log_value((), 1.0)
    assert "a" in logger
    assert ("b", "c") in logger
    assert "b" in logger
    assert ("b", "d") not in logger


@pytest.mark.parametrize("value", ["a word", None, [1, 2], torch.ones(3), np.ones(2)])
def test_what_is_no_number_is_refused_by_name(value):
    with pytest.raises((TypeError, ValueError), match="reduce='mean' wants numbers"):
        logged([value])


def test_what_is_logged_here_is_not_aggregated_too():
    leaf = logged([1.0]).reduce()
    root = logged([1.0])
    with pytest.raises(ValueError, match="was logged here"):
        root.aggregate([leaf])
    root = MetricsLogger(root=True)
    root.aggregate([leaf])
    with pytest.raises(ValueError, match="is aggregated from other loggers"):
        root.log_value("x", 1.0)


def test_components_that_disagree_are_refused():
    root = MetricsLogger(root=True)
    with pytest.raises(ValueError, match="was logged as .* and as"):
        root.aggregate([logged([1.0]).reduce(), logged([1.0], reduce="max").reduce()])
    with pytest.raises(ValueError, match="was logged as .* and as"):
        root.aggregate([logged([1.0], window=2).reduce(), logged([1.0], window=3).reduce()])
    with pytest.raises(TypeError, match="results of reduce"):
        root.aggregate([{"x": 1.0}])
    other = MetricsLogger()
    other.log_value(("x", "y"), 1.0)
    with pytest.raises(ValueError, match="a prefix of others in another"):
        root.aggregate([logged([1.0]).reduce(), other.reduce()])


def test_a_missing_key_is_told_and_may_have_a_default():
    logger = logged([1.0])
    with pytest.raises(KeyError, match="nothing was logged as 'y'"):
        logger.peek("y")
    assert logger.peek("y", default=None) is None
    assert logger.peek("y", 0) == 0
    assert logger.peek() == {"x": 1.0}
    assert MetricsLogger().peek() == {}


def test_delete_and_reset():
    logger = MetricsLogger()
    logger.log_dict({"a": {"b": 1.0, "c": 2.0}, "d": 3.0})
    logger.delete("a", "b")
    assert logger.peek() == {"a": {"c": 2.0}, "d": 3.0}
    logger.delete("a")
    assert "a" not in logger
    logger.log_value("a", 5.0, reduce="max")
    with pytest.raises(KeyError, match="nothing"):
        logger.delete("z")
    logger.delete("z", key_error=False)
    logger.reset()
    assert logger.peek() == {}


def test_timers_nest_and_log_even_where_the_block_fails():
    logger = MetricsLogger()
    with logger.log_time("x", reduce="sum"), logger.log_time("x"):
        pass
    with pytest.raises(ZeroDivisionError), logger.log_time("y", reduce="item_series"):
        1 / 0  # noqa: B018
    assert logger.peek("x") > 0
    assert len(logger.peek("y")) == 1


@pytest.mark.few
@pytest.mark.parametrize("kind", [*KINDS, "item"])
@given(before=st.lists(numbers, max_size=8), after=st.lists(numbers, min_size=1, max_size=8), window=st.sampled_from([None, 3]))
@settings(deadline=None, max_examples=case_count(30))
def test_a_saved_logger_continues_where_it_was(kind, before, after, window):
    how = {"reduce": kind} if kind in ("ema", "lifetime_sum", "item") or window is None else {"reduce": kind, "window": window}
    logger = logged(before, **how)
    restored = MetricsLogger()
    restored.set_state(pickle.loads(pickle.dumps(logger.get_state())))
    for value in after:
        logger.log_value("x", value, **how)
        restored.log_value("x", value, **how)
    assert same(restored.peek("x"), logger.peek("x"))
    assert same(restored.compile(), logger.compile())
    assert same(restored.peek(), logger.peek())


def test_names_with_any_sign_keep_apart_in_a_state_that_json_can_hold():
    logger = MetricsLogger(root=True)
    logger.log_value(("a--b", "c"), 1.0)
    logger.log_value(("a", "b--c"), 2.0, reduce="max")
    logger.log_value((0, "x"), 3, reduce="lifetime_sum")
    root = MetricsLogger(root=True)
    root.set_state(logger.get_state())
    assert root.peek() == logger.peek() == {"a--b": {"c": 1.0}, "a": {"b--c": 2.0}, 0: {"x": 3}}
    assert [row["path"] for row in root.get_state()["stats"]] == [["a--b", "c"], ["a", "b--c"], [0, "x"]]
    assert json.dumps([row["path"] for row in root.get_state()["stats"]])


@pytest.mark.parametrize("kind", [*KINDS, "item"])
def test_a_checkpoint_holds_a_state(tmp_path, kind):
    how = {} if kind in ("ema", "lifetime_sum", "item") else {"window": 2}
    root, one, other = MetricsLogger(root=True), logged([1.0, 2.0, 3.0], reduce=kind, **how), logged([4.0], reduce=kind, **how)
    root.log_value("here", 5.0, reduce=kind, **how)
    root.aggregate([one.reduce(), other.reduce()])
    save_checkpoint(root.get_state(), tmp_path / "metrics.pt")
    again = MetricsLogger(root=True)
    again.set_state(load_checkpoint(tmp_path / "metrics.pt"))

    assert same(again.peek("x"), root.peek("x"))
    for logger in (root, again):
        logger.aggregate([logged([7.0], reduce=kind, **how).reduce()])
        logger.log_dict({"here": 8.0})
        logger.log_dict({"here": 9.0})
    assert same(again.compile(), root.compile())


def test_a_kind_of_ones_own():
    class Count(StatsBase):
        stats_cls_identifier = "count"

        def __init__(self):
            super().__init__()
            self.clear()

        def push(self, value):
            self.number += 1

        def peek(self, compile=True):
            return self.number

        def clear(self):
            self.number = 0

        def merge(self, incoming_stats):
            self.number += sum(other.number for other in incoming_stats)

    lookup = {**DEFAULT_STATS_CLS_LOOKUP, "count": Count}
    leaves, root = [MetricsLogger(stats_cls_lookup=lookup) for _ in range(2)], MetricsLogger(True, lookup)
    for leaf in leaves:
        leaf.log_value("calls", "anything", reduce="count")
        leaf.log_value("calls", "anything")
    root.aggregate([leaf.reduce() for leaf in leaves], key="leaf")
    assert root.peek(("leaf", "calls")) == 4
    again = MetricsLogger(True, lookup)
    again.set_state(root.get_state())
    assert again.compile() == {"leaf": {"calls": 4}}


@pytest.mark.parametrize("first", ["steps", "steps_throughput"])
def test_a_throughput_takes_nobodys_name(first):
    logger = MetricsLogger()
    for name in sorted(("steps", "steps_throughput"), key=lambda name: name != first):
        logger.log_value(name, 7, reduce="sum", with_throughput=name == "steps")
    assert logger.compile()["steps_throughput"] == 7


def test_what_nobody_logged_in_a_cycle_can_be_left_out():
    root = MetricsLogger(root=True)
    for name, kind in (("mean", "mean"), ("total", "lifetime_sum"), ("average", "ema"), ("last", "item")):
        root.log_value(name, 1.0, reduce=kind)
    assert root.compile(empty=False) == {"mean": 1.0, "total": 1.0, "average": 1.0, "last": 1.0}
    root.log_value("last", 2.0)
    assert root.peek(empty=False) == {"total": 1.0, "last": 2.0}
    assert root.compile(empty=False) == {"total": 1.0, "last": 2.0}
    assert set(root.compile()) == {"mean", "total", "average", "last"}


def test_of_what_is_refused_nothing_is_taken_in():
    root, good, bad = MetricsLogger(root=True), MetricsLogger(), MetricsLogger()
    root.aggregate([logged([1.0]).reduce()])
    for logger, kind in ((good, "sum"), (bad, "max")):
        logger.log_value("x", 5.0)
        logger.log_value("y", 5.0, reduce=kind)
    with pytest.raises(ValueError, match="was logged as .* and as"):
        root.aggregate([good.reduce(), bad.reduce()])
    assert root.peek() == {"x": 1.0}
    assert root.peek("x", latest_merged_only=True) == 1.0


def test_of_names_that_clash_with_each_other_nothing_is_taken_in():
    for first, second in (("a/b", ("a", "b")), ("a", ("a", "b"))):
        one, other, root = MetricsLogger(), MetricsLogger(), MetricsLogger(root=True)
        one.log_value("before", 1.0)
        one.log_value(first, 1.0)
        other.log_value(second, 2.0)
        with pytest.raises(ValueError, match="the same name|is a value in one component"):
            root.aggregate([one.reduce(), other.reduce()])
        assert root.peek() == {}


@pytest.mark.parametrize(
    ("first", "second"),
    [("my/score", ("my", "score")), (("my", "score"), "my/score"), (("a", 1), ("a", "1")), ("a/1", ("a", 1))],
)
def test_two_keys_that_are_written_alike_are_refused(first, second):
    logger, root, other = MetricsLogger(), MetricsLogger(root=True), MetricsLogger()
    logger.log_value(first, 1.0)
    with pytest.raises(ValueError, match="in a row: take another name"):
        logger.log_value(second, 2.0)
    other.log_value(second, 2.0)
    root.aggregate([logger.reduce()])
    with pytest.raises(ValueError, match="in a row: take another name"):
        root.aggregate([other.reduce()])

    logger.delete(*(first if isinstance(first, tuple) else (first,)))
    logger.log_value(second, 2.0)
    assert logger.peek(second) == 2.0


@pytest.mark.parametrize("key", ["", None, ("a", ""), ("a", None), 1.5, ("a", True), ()])
def test_a_key_without_a_name_is_refused(key):
    with pytest.raises((ValueError, TypeError), match=r"a value needs a name|is not a key"):
        MetricsLogger().log_value(key, 1.0)


def test_a_throughput_takes_no_name_that_is_written_alike():
    logger = MetricsLogger()
    logger.log_value(("a", "steps"), 7, reduce="sum", with_throughput=True)
    logger.log_value("a/steps_throughput", 3.0)

    assert logger.compile() == {"a": {"steps": 7}, "a/steps_throughput": 3.0}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("order", [1, -1])
def test_a_throughput_of_another_owner_is_no_free_name(together, order):
    learner, other, root = MetricsLogger(owner="the learner"), MetricsLogger(), MetricsLogger(root=True)
    learner.log_value("steps", 3, reduce="sum", with_throughput=True)
    other.log_value("steps_throughput", -99.0)
    first, second = [learner.reduce(), other.reduce()][::order]
    if not together:
        root.aggregate([first], key="learn")
    with pytest.raises(ValueError, match=r"\('learn', 'steps_throughput'\) is logged by the learner, and also by"):
        root.aggregate([first, second] if together else [second], key="learn")


def test_what_two_owners_logged_under_one_name_is_not_put_together():
    learner, other, root = MetricsLogger(owner="the learner"), MetricsLogger(), MetricsLogger(root=True)
    learner.log_value("loss", 1.0)
    other.log_value("loss", -99.0)
    reduced = [learner.reduce(), other.reduce()]
    with pytest.raises(ValueError, match=r"\('loss',\) is logged by the learner, and also by .*: take another"):
        root.aggregate(reduced)
    root.aggregate(reduced[:1])
    with pytest.raises(ValueError, match="is logged by the learner"):
        root.aggregate(reduced[1:])
    assert root.peek("loss") == 1.0

    again = MetricsLogger(root=True)  # a run that goes on has other components
    again.set_state(root.get_state())
    successor = MetricsLogger(owner="its successor")
    successor.log_value("loss", 3.0)
    again.aggregate([successor.reduce()])
    assert again.peek("loss") == 2.0


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0)])
def test_two_owners_are_found_beside_one_that_is_unknown(order):
    unknown = MetricsLogger(root=True)
    unknown.log_value("loss", 1.0)
    restored = MetricsLogger(root=True)
    restored.set_state(unknown.get_state())
    loggers = [restored, MetricsLogger(owner="one"), MetricsLogger(owner="another")]
    for logger in loggers[1:]:
        logger.log_value("loss", 2.0)
    reduced = [logger.reduce() for logger in loggers]
    with pytest.raises(ValueError, match=r"is logged by (one|another), and also by (one|another)"):
        MetricsLogger().aggregate([reduced[at] for at in order])


@pytest.mark.parametrize("value", ["3", b"1", bytearray(b"1")])
def test_text_is_no_number(value):
    with pytest.raises(TypeError, match="wants numbers, got .*reduce='item'"):
        MetricsLogger().log_value("x", value)


def test_several_numbers_are_told_to_go_to_log_values():
    with pytest.raises(TypeError, match=r"or several numbers with log_values\(\)"):
        MetricsLogger().log_value("x", [1.0, 2.0])


@pytest.mark.parametrize("make", [lambda: torch.zeros(2), lambda: np.zeros(2), lambda: torch.zeros(()), lambda: np.zeros(())])
@pytest.mark.parametrize("nest", [lambda one: one, lambda one: [one, 1], lambda one: {"x": (one,)}])
def test_items_are_those_of_their_time_whatever_changes_them_later(make, nest):
    logger, value = MetricsLogger(), make()
    for number in range(3):
        value[...] = number
        logger.log_value("last", nest(value), reduce="item")
        logger.log_value("all", nest(value), reduce="item_series")
    value[...] = 100
    seen = [str(value) for value in (logger.peek("last"), *logger.peek("all"))]

    assert not any("100" in text for text in seen)
    assert seen[0] == seen[3]
    assert [sum(str(number) in text for text in seen[1:]) >= 1 for number in range(3)] == [True] * 3


def test_an_item_of_another_type_is_the_object_itself():
    logger, value = MetricsLogger(), object()
    logger.log_value("x", value, reduce="item")
    assert logger.peek("x") is value


def test_an_average_over_cycles_has_the_values_of_a_device_too():
    here, there = MetricsLogger(), MetricsLogger()
    for cycle in ([0.0, 0.0], [10.0], [2.0, 4.0]):
        for value, far in zip(cycle, elsewhere(*cycle)):
            here.log_value("x", value, reduce="ema", ema_coeff=0.5)
            there.log_value("x", far, reduce="ema", ema_coeff=0.5)
        assert here.reduce()["x"].peek() == there.reduce()["x"].peek()
    assert there.peek("x") == 0.5 * (0.5 * 5.0 + 0.5 * 2.0) + 0.5 * 4.0


def test_a_device_that_only_counts_in_this_cycle_is_not_waited_for_by_reduce():
    before = Elsewhere.waits
    for kind in ("mean", "sum", "max"):
        logged(elsewhere(1, 2), reduce=kind).reduce()
    assert Elsewhere.waits == before


class TestAveragesInPlaceOfOthers:
    """`aggregate(as_own=True)` of an "ema", as a policy with learners does after each batch."""

    def ema(self, values, logger=None, coeff=0.5):
        logger = logger or MetricsLogger()
        for value in values:
            logger.log_value("x", value, reduce="ema", ema_coeff=coeff)
        return logger

    def test_one_component_gives_its_own_average_however_often_it_is_merged(self):
        script, learner, own = MetricsLogger(), MetricsLogger(), MetricsLogger()
        for batch in ([0.0], [10.0, 4.0], [2.0]):
            self.ema(batch, script)
            own.aggregate([self.ema(batch, learner).reduce()], as_own=True)
            assert own.peek("x") == script.peek("x")
        root, other = MetricsLogger(root=True), MetricsLogger(root=True)
        root.aggregate([own.reduce()])
        other.aggregate([script.reduce()])
        assert root.peek("x") == other.peek("x") == own.peek("x") == script.peek("x")
        assert own.reduce() == {}
        own.aggregate([self.ema([6.0], learner).reduce()], as_own=True)
        assert own.peek("x") == self.ema([6.0], script).peek("x")

    def test_values_logged_here_count_with_their_number(self):
        own, learner = self.ema([1.0] * 10), self.ema([1.0] * 10)
        own.aggregate([learner.reduce()], as_own=True)
        assert own.peek("x") == 1.0
        own, learner = self.ema([8.0]), self.ema([2.0, 2.0, 2.0])
        for _ in range(2):  # the second merge replaces the first one
            own.aggregate([learner.reduce()], as_own=True)
            assert own.peek("x") == (8.0 + 3 * 2.0) / 4
            self.ema([2.0, 2.0, 2.0], learner).reduce()
        assert own.reduce()["x"].peek() == (8.0 + 3 * 2.0) / 4
        assert self.ema([4.0], own).peek("x") == 6.0  # its own average continues

    def test_several_components_are_weighted_by_their_values_in_the_cycle(self):
        learners, own = [MetricsLogger(), MetricsLogger()], MetricsLogger()
        for batches in (([0.0], [4.0]), ([0.0, 0.0], [4.0])):
            own.aggregate([self.ema(batch, learner).reduce() for batch, learner in zip(batches, learners)], as_own=True)
        assert own.peek("x") == (3 * 0.0 + 2 * 4.0) / 5

    def test_a_component_that_logs_nothing_in_a_batch_keeps_its_average(self):
        learners, own = [MetricsLogger() for _ in range(3)], MetricsLogger()
        for batches in (([1.0], [100.0], []), ([1.0], [], [7.0])):
            own.aggregate([self.ema(batch, it, coeff=1.0).reduce() for batch, it in zip(batches, learners)], as_own=True)
        assert own.peek("x") == (2 * 1.0 + 100.0 + 7.0) / 4
        again = MetricsLogger()
        again.load_state_dict(json.loads(json.dumps(own.state_dict())))
        for logger in (own, again):
            logger.aggregate([{}, self.ema([50.0], coeff=1.0).reduce(), {}], as_own=True)
            assert logger.peek("x") == (2 * 1.0 + 2 * 50.0 + 7.0) / 5

    def test_a_saved_state_goes_on(self):
        own = self.ema([8.0])
        own.aggregate([self.ema([2.0]).reduce()], as_own=True)
        again = MetricsLogger()
        again.load_state_dict(json.loads(json.dumps(own.state_dict())))
        assert again.peek("x") == own.peek("x") == 5.0
        for logger in (own, again):
            logger.reduce()
            self.ema([4.0], logger)
        assert again.peek("x") == own.peek("x") == 6.0


@pytest.mark.parametrize("kind", ["item", "item_series"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_numbers_of_a_type_that_numpy_lacks_are_kept(kind, dtype):
    for read in (lambda it: it.compile()["x"], lambda it: it.reduce()["x"].peek(), lambda it: restored(it).peek("x")):
        found = read(logged([torch.tensor([1.0, 2.0]).to(dtype)], reduce=kind))
        assert np.asarray(found).ravel().tolist() == [1.0, 2.0]
    half = logged([torch.ones(2, dtype=torch.float16)], reduce=kind).compile()["x"]
    assert np.asarray(half).dtype == np.float16


def restored(logger):
    again = MetricsLogger()
    again.load_state_dict(logger.state_dict())
    return again


def test_a_tensor_that_is_no_array_stays_one():
    sparse = torch.eye(2).to_sparse()
    assert (logged([sparse], reduce="item").reduce()["x"].peek().to_dense() == torch.eye(2)).all()


def test_a_group_with_the_name_of_a_throughput_stays():
    logger, root = MetricsLogger(), MetricsLogger(root=True)
    logger.log_value("a", 1, reduce="sum", with_throughput=True)
    logger.log_value("b", 1, reduce="sum", with_throughput=True)
    logger.log_value(("a_throughput", "x"), 5.0)
    root.aggregate([logger.reduce()])
    found = root.compile()
    assert (found["a"], found["a_throughput"]) == (1, {"x": 5.0})
    assert found["b_throughput"] > 0


def test_a_median_is_a_percentile():
    with pytest.raises(ValueError, match=r"unknown reduce='median': a median is reduce='percentiles', percentiles=\[50\]"):
        MetricsLogger().log_value("x", 1.0, reduce="median")
    logger = MetricsLogger()
    logger.log_values("x", [1.0, 2.0, 9.0], reduce="percentiles", percentiles=[50])
    assert logger.peek("x") == {50: 2.0}


def test_a_kind_without_a_method_names_it():
    class Half(StatsBase):
        def push(self, value): ...

        def peek(self, compile=True): ...

        def clear(self): ...

    logger = MetricsLogger(stats_cls_lookup={"half": Half})
    with pytest.raises(TypeError, match="reduce='half' is a Half, which lacks merge: define these methods"):
        logger.log_value("x", 1.0, reduce="half")


@pytest.mark.parametrize("several", [np.ones(3), torch.ones(3)])
def test_several_numbers_are_for_log_values(several):
    with pytest.raises((TypeError, ValueError), match=r"log_values\(\)"):
        MetricsLogger().log_value("x", several)
