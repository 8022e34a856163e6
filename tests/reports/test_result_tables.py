"""The table of a report, against numbers that can be counted by hand."""

import json

import pytest

from ding_lite.reports import find_runs, group_runs, load_run
from ding_lite.reports.result_tables import summarize

EVALUATED = "evaluate/episode_return_mean"


def summary(folder, steps="env_step"):
    (experiment,) = group_runs(find_runs([folder]))
    return {cell.column: (cell.text, cell.aside) for cell in summarize(experiment, steps)}


def rows(folder, *values):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in values))


def test_three_seeds_come_to_what_can_be_counted_by_hand(tmp_path, write_run):
    for seed, last in enumerate((100, 490, 480)):
        rows(
            write_run(tmp_path / f"dqn_{seed}", seed=seed),
            {"env_step": 0, "time_s": 0, EVALUATED: 10},
            {"env_step": 1000 * (seed + 1), "time_s": 20, EVALUATED: 500 - seed * 100},
            {"env_step": 4000, "time_s": 40, EVALUATED: last},
            {"env_step": 5000, "time_s": 50},
        )

    assert summary(tmp_path) == {
        "seeds": ("3", "0, 1, 2"),
        "last evaluation": ("418.3", "100 to 490"),  # (100 + 4 * 480 + 490) / 6
        "best evaluation": ("490", "480 to 500"),
        "steps to goal": ("4,000", "475 by 3 of 3, in 0:40"),
        "environment steps": ("5,000", ""),
        "wall time": ("0:50", ""),
        "steps a second": ("100", ""),
    }


@pytest.mark.parametrize("content", ["", '{"env_step": 1}\n'])
def test_a_run_that_has_nothing_to_tell_has_dashes(tmp_path, write_run, content):
    (write_run(tmp_path / "dqn") / "metrics.jsonl").write_text(content)

    cells = summary(tmp_path)
    assert cells["last evaluation"] == ("-", "")
    assert cells["steps to goal"] == ("-", "475 by 0 of 1")
    assert cells["wall time"] == ("-", "")


def test_without_a_stop_value_there_is_no_goal(tmp_path, write_run):
    write_run(tmp_path / "dqn", iterations=20, changes={"env.stop_value": None})

    assert summary(tmp_path)["steps to goal"] == ("-", "")


def test_an_offline_run_counts_gradient_steps(tmp_path, write_run):
    rows(write_run(tmp_path / "bc"), {"train_iter": 300, "train_epoch": 2, "time_s": 3, EVALUATED: 480})

    cells = summary(tmp_path, "train_iter")
    assert cells["gradient steps"] == ("300", "")
    assert cells["steps to goal"] == ("300", "475 by 1 of 1, in 3.0 s")


def test_the_goal_is_compared_with_the_score_of_runs_that_have_one(tmp_path, write_run):
    values = [{"env_step": 100 * i, "time_s": i, "evaluate/score": 0.2 * i, EVALUATED: -15.0 + i} for i in range(6)]
    rows(write_run(tmp_path / "her", changes={"env.stop_value": 0.9}), *values)
    rows(write_run(tmp_path / "dqn", changes={"env.stop_value": -12.0}), *({**row, "evaluate/score": None} for row in values))

    her, dqn = ({cell.column: cell for cell in summarize(it)} for it in group_runs([load_run(tmp_path / it) for it in RUNS]))
    assert (her["steps to goal"].text, her["steps to goal"].aside) == ("500", "0.9 by 1 of 1, in 5.0 s")
    assert (dqn["steps to goal"].text, dqn["steps to goal"].aside) == ("300", "-12 by 1 of 1, in 3.0 s")


def test_a_run_with_scores_alone_shows_them_as_evaluations(tmp_path, write_run):
    rows(write_run(tmp_path / "own"), *({"train_iter": i, "time_s": i, "evaluate/score": 100.0 * i} for i in (1, 6, 5)))

    cells = summary(tmp_path, None)
    assert (cells["last evaluation"][0], cells["best evaluation"][0]) == ("500", "600")
    assert cells["steps to goal"] == ("5", "475 by 1 of 1, in 5.0 s")


def test_each_experiment_counts_its_own_steps(tmp_path, write_run):
    counters = {"cql": ("train_iter",), "dqn": ("train_iter", "env_step"), "own": ("total_step",)}
    for place, (name, names) in enumerate(counters.items()):
        values = [{**dict.fromkeys(names, 100 * i), "time_s": i, EVALUATED: 100.0 * i} for i in range(6)]
        rows(write_run(tmp_path / name, changes={"max_step": 100 + place}), *values)
    found = [
        {cell.column: (cell.text, cell.aside) for cell in summarize(experiment, is_mixed=True)}
        for experiment in group_runs([load_run(tmp_path / name) for name in counters])
    ]

    assert [cells["steps"] for cells in found] == [("500", it) for it in ("gradient steps", "environment steps", "iterations")]
    for cells in found:
        assert (cells["last evaluation"][0], cells["best evaluation"][0]) == ("500", "500")
        assert cells["steps to goal"] == ("500", "475 by 1 of 1, in 5.0 s")


def test_a_goal_is_reached_also_where_no_counter_says_when(tmp_path, write_run):
    rows(write_run(tmp_path / "dqn"), {"env_step": 8, "time_s": 1}, {"time_s": 2, EVALUATED: 480})

    assert summary(tmp_path)["steps to goal"] == ("-", "475 by 1 of 1, in 2.0 s")
    assert summary(tmp_path)["last evaluation"][0] == "480"


RUNS = ("her", "dqn")
