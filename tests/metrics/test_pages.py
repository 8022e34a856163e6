"""What the documents of MetricsLogger show, with the values that they print, and the values where they contradict themselves.

The examples are those of RLlib's pages on the MetricsLogger, before and after version 2.52.
"""

import math

import gymnasium as gym
import pytest

from ding_lite.metrics import MetricsLogger, metrics_loggers, throughputs


def a_clock(monkeypatch) -> list[float]:
    """The time that the room reads from here on."""
    now = [0.0]
    for file in (throughputs, metrics_loggers):
        monkeypatch.setattr(file, "perf_counter", lambda: now[0])
    return now


def test_a_mean_over_a_window():
    logger = MetricsLogger()
    for value in (0.01, 0.02, 0.03, 0.04, 0.05):
        logger.log_value("loss", value, reduce="mean", window=2)
    assert logger.peek("loss") == pytest.approx(0.045)


def test_settings_need_not_be_repeated():
    logger = MetricsLogger()
    logger.log_value("loss", 0.01, reduce="mean", window=2)
    for value in (0.02, 0.03, 0.04, 0.05):
        logger.log_value("loss", value)
    assert logger.peek("loss") == pytest.approx(0.045)


def test_a_nested_key():
    logger = MetricsLogger()
    logger.log_value(("some", "nested", "key"), -1.0)
    assert logger.peek(("some", "nested", "key")) == -1.0
    assert logger.peek("some") == {"nested": {"key": -1.0}}


def test_a_maximum_until_the_next_reduce():
    logger = MetricsLogger()
    logger.log_value(key="max_value", value=0.0, reduce="max")
    for i in range(1000, 0, -1):
        logger.log_value(key="max_value", value=float(i))
    assert logger.peek("max_value") == 1000.0
    logger.reduce()
    assert math.isnan(logger.peek("max_value"))
    logger.log_value("max_value", 3.0)
    assert logger.peek("max_value") == 3.0


def test_items():
    logger = MetricsLogger()
    logger.log_value("some_items", value="a", reduce="item_series")
    logger.log_value("some_items", value="b", reduce="item_series")
    logger.log_value("an_item", value="c", reduce="item")
    logger.log_value("an_item", value="d", reduce="item")
    assert logger.peek("some_items") == ["a", "b"]
    assert logger.peek("an_item") == "d"
    logger.reduce()
    assert logger.peek("some_items") == []
    assert logger.peek("an_item") is None


def test_no_reduction_as_it_was_once_spelt():
    logger = MetricsLogger()
    with pytest.warns(DeprecationWarning, match="item_series"):
        logger.log_value("some_items", value="a", reduce=None, clear_on_reduce=True)
    for value in "bcd":
        logger.log_value("some_items", value=value)
    assert logger.peek("some_items") == ["a", "b", "c", "d"]
    logger.reduce()
    assert logger.peek("some_items") == []


def test_a_dict_of_values():
    logger = MetricsLogger()
    logger.log_dict({"player1": 100.0, "player2": 105.0}, key="mean_scores", reduce="mean", window=10)
    logger.log_dict({"player1": 150.0, "player2": 110.0}, key="mean_scores")
    assert logger.peek(("mean_scores", "player1")) == 125.0
    assert logger.peek("mean_scores") == {"player1": 125.0, "player2": 107.5}


@pytest.mark.filterwarnings("ignore:.*render")
def test_what_is_no_number():
    logger, env = MetricsLogger(), gym.make("CartPole-v1")
    obs, _ = env.reset()
    logger.log_value("some_images", value=env.render(), reduce="item_series")
    for action in (0, 1):
        env.step(action)
        logger.log_value("some_images", value=env.render(), reduce="item_series")
    logger.log_value("some_obs", value=obs, reduce="item_series")
    env.close()
    wanted, obs[:] = obs.copy(), 7.0
    assert logger.peek("some_images") == [None, None, None]  # the page's environment has no render mode
    assert logger.peek("some_obs")[0].tolist() == wanted.tolist()  # as it was when it was logged


@pytest.mark.parametrize("old", [False, True], ids=["ema", "mean with ema_coeff"])
def test_a_timer(old, monkeypatch):
    now = a_clock(monkeypatch)
    logger = MetricsLogger()

    def block(seconds, **settings):
        with logger.log_time("my_block_to_be_timed", **settings):
            now[0] += seconds

    if old:
        with pytest.warns(DeprecationWarning, match="reduce='ema'"):
            block(1.0, reduce="mean", ema_coeff=0.1)
    else:
        block(1.0, reduce="ema", ema_coeff=0.1)
    assert logger.peek("my_block_to_be_timed") == pytest.approx(1.0)
    block(2.0)
    assert logger.peek("my_block_to_be_timed") == pytest.approx(1.1)


def test_a_counter():
    logger = MetricsLogger()
    logger.log_value("my_counter", 50, reduce="sum")
    logger.log_value("my_counter", 25, reduce="sum")
    assert logger.peek("my_counter") == 75
    logger.reduce()
    assert logger.peek("my_counter") == 0


def test_a_counter_without_a_window_and_a_temporary_one():
    logger = MetricsLogger()
    logger.log_value("my_counter", 50, reduce="sum", window=None)
    logger.log_value("my_counter", 25)
    with pytest.warns(DeprecationWarning, match="clear_on_reduce"):
        logger.log_value("my_temp_counter", 50, reduce="sum", window=None, clear_on_reduce=True)
    logger.log_value("my_temp_counter", 25)
    assert logger.peek("my_temp_counter") == 75
    logger.reduce()
    assert logger.peek("my_counter") == logger.peek("my_temp_counter") == 0


def test_a_lifetime_count_as_it_was_once_spelt():
    logger = MetricsLogger(root=True)
    with pytest.warns(DeprecationWarning, match="lifetime_sum"):
        logger.log_value("count", 50, reduce="sum", clear_on_reduce=False)
    logger.log_value("count", 25)
    logger.reduce()
    assert logger.peek("count") == 75


def test_throughput_until_the_first_reduce(monkeypatch):
    now = a_clock(monkeypatch)
    logger = MetricsLogger(root=True)
    for _ in range(3):
        logger.log_value("lifetime_sum", 5, reduce="sum", with_throughput=True)
    now[0] += 1.0
    assert logger.peek("lifetime_sum", throughput=True) == pytest.approx(15)


@pytest.mark.parametrize("reduce", ["sum", "lifetime_sum"])
@pytest.mark.parametrize("root", [False, True])
def test_throughput_of_the_last_whole_cycle(monkeypatch, reduce, root):
    now, seen = a_clock(monkeypatch), []
    logger = MetricsLogger(root=root)
    for _ in range(3):
        logger.log_value("lifetime_count", 5, reduce=reduce, with_throughput=True)
        logger.reduce()
        now[0] += 1.0
        seen.append(logger.peek("lifetime_count", throughput=True))
    assert math.isnan(seen[0])
    assert seen[1:] == pytest.approx([5, 5])


def test_what_is_compiled_has_the_throughput_beside_the_sum(monkeypatch):
    now = a_clock(monkeypatch)
    logger = MetricsLogger(root=True)
    for _ in range(2):
        logger.log_value(("env", "steps"), 8, reduce="lifetime_sum", with_throughput=True)
        now[0] += 2.0
        result = logger.compile()
    assert result == {"env": {"steps": 16, "steps_throughput": 4.0}}


@pytest.mark.parametrize("aggregated", [False, True])
def test_the_first_throughput_of_a_metric_is_that_of_the_cycle_in_which_it_is_first_logged(monkeypatch, aggregated):
    now = a_clock(monkeypatch)
    root = MetricsLogger(root=True)
    for seconds in (4.0, 2.0):
        worker = MetricsLogger() if aggregated else root
        now[0] += seconds
        worker.log_value(f"after_{seconds}", 8, reduce="sum", with_throughput=True)
        if aggregated:
            root.aggregate([worker.reduce()])
        assert root.compile(empty=False)[f"after_{seconds}_throughput"] == 8 / seconds


def test_of_each_iteration_in_a_row_the_values_in_the_window_count():
    root, learner = MetricsLogger(root=True), MetricsLogger()
    for first in (1.0, 3.0, 5.0):
        learner.log_values("loss", [first, first + 1], window=1)
        learner.log_values("latest", [first, first + 1], reduce="item")
        root.aggregate([learner.reduce()])
    assert root.compile() == {"loss": 4.0, "latest": 6.0}


def test_an_average_of_times_continues_and_a_mean_does_not():
    logger = MetricsLogger()
    for values in ([8.0], [2.0, 4.0]):
        logger.log_values("ema", values, reduce="ema", ema_coeff=0.5)
        logger.log_values("mean", values, reduce="mean")
        found = logger.compile()
    assert found == {"ema": 4.5, "mean": 3.0}


def test_a_custom_loss_and_a_training_step():
    logger = MetricsLogger()
    logger.log_value("special_loss_term", reduce="sum", value=1.5)
    logger.log_value("some_mean_result", 1.5, reduce="mean", window=5)
    with logger.log_time(("timers", "some_code")):
        pass
    assert logger.peek("special_loss_term") == logger.peek("some_mean_result") == 1.5
    assert logger.peek(("timers", "some_code")) > 0


def test_a_callbacks_metric_is_found_under_the_key_of_its_component():
    root, runners = MetricsLogger(root=True), [MetricsLogger(), MetricsLogger()]
    for runner, angles in zip(runners, ([1.0, 2.0], [6.0])):
        for angle in angles:
            runner.log_value("theta1_mean", angle, reduce="mean", window=50)
    root.aggregate([runner.reduce() for runner in runners], key="env_runners")
    assert root.peek(("env_runners", "theta1_mean")) == 3.0
    assert root.compile() == {"env_runners": {"theta1_mean": 3.0}}


def test_counts_of_two_components_under_the_earlier_name():
    root, first, second = MetricsLogger(root=True), MetricsLogger(), MetricsLogger()
    first.log_value("count", 2, reduce="sum")
    second.log_value("count", 3, reduce="sum")
    reduced = [first.reduce(), second.reduce()]
    assert MetricsLogger.peek_results(reduced[0]) == {"count": 2}
    with pytest.warns(DeprecationWarning, match="aggregate"):
        root.merge_and_log_n_dicts(reduced)
    assert root.peek("count") == 5


@pytest.mark.parametrize("reduce", ["sum", "lifetime_sum"])
def test_the_first_throughput_that_is_compiled_is_a_number_also_in_a_resumed_run(monkeypatch, reduce):
    now = a_clock(monkeypatch)
    logger = MetricsLogger(root=True)
    logger.log_value("steps", 8, reduce=reduce, with_throughput=True)
    now[0] += 2.0
    assert logger.compile()["steps_throughput"] == 4.0

    resumed = MetricsLogger(root=True)
    resumed.set_state(logger.get_state())
    resumed.log_value("steps", 9, reduce=reduce, with_throughput=True)
    now[0] += 3.0
    assert resumed.compile()["steps_throughput"] == 3.0
