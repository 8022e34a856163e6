"""Finding runs, and reading what there is of them."""

import math

import pytest

from ding_lite.reports import ReportError, find_runs, load_run
from ding_lite.sinks import JsonLines


def test_a_folder_of_runs_gives_them_all_in_natural_order_and_each_once(tmp_path, write_run):
    for seed in (10, 9, 1):
        write_run(tmp_path / "runs" / "deep" / f"dqn_{seed}", seed=seed, iterations=2)

    found = find_runs([tmp_path / "runs" / "deep" / "dqn_9", tmp_path / "runs", tmp_path])
    assert [run.folder.name for run in found] == ["dqn_9", "dqn_1", "dqn_10"]


def test_what_lies_inside_a_run_is_not_another(tmp_path, write_run):
    folder = write_run(tmp_path / "dqn", iterations=2)
    write_run(folder / "ckpt" / "old", iterations=2)

    assert [run.folder for run in find_runs([tmp_path])] == [folder]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "there is no folder .*/place"),
        (lambda path: path.write_text(""), "is a file, expected a folder"),
        (
            lambda path: path.mkdir(),
            "place is not a run, and contains none: there is no metrics.jsonl in it or its subfolders, the file",
        ),
    ],
)
def test_what_is_no_run_is_refused_with_what_was_looked_for(tmp_path, make, message):
    make(tmp_path / "place")
    with pytest.raises(ReportError, match=message):
        find_runs([tmp_path / "place"])


def test_no_folder_at_all_is_refused():
    with pytest.raises(ReportError, match="no folder was given"):
        find_runs([])


def test_a_run_that_was_killed_in_the_middle_of_a_line_is_read_up_to_there(tmp_path, write_run):
    folder = write_run(tmp_path / "dqn", iterations=5)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"env_step": 99')
    run = load_run(folder)

    assert run.columns.count == 5
    assert run.notes == ()


@pytest.mark.parametrize(
    ("name", "content", "note"),
    [
        ("config.json", None, "there is no config.json."),
        ("config.json", '{"seed": ', "config.json cannot be read"),
        ("config.json", "[1]", "config.json is not a JSON object."),
        ("config.json", "\xff" * 4, "config.json cannot be read"),
        ("metrics.jsonl", "", "metrics.jsonl has no row yet."),
        ("metrics.jsonl", "nonsense\n{}\n", "1 lines of metrics.jsonl are not rows"),
    ],
)
def test_what_cannot_be_read_is_said_and_the_rest_is_read(tmp_path, write_run, name, content, note):
    folder = write_run(tmp_path / "dqn", iterations=2)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content.encode("latin-1"))
    run = load_run(folder)

    assert any(note in told for told in run.notes)
    assert run.name in ("runs/dqn", str(folder))


def test_numbers_that_are_not_finite_are_left_out_of_curves_and_said(tmp_path):
    sink = JsonLines(tmp_path / "run" / "metrics.jsonl")
    for step, loss in enumerate([1.0, math.nan, math.inf, None, 2.0]):
        sink.write({"env_step": step, "learn/loss": loss})
    (run,) = find_runs([tmp_path])

    assert "NaN or infinite values, which are not drawn: learn/loss (2 of 5 rows)." in run.notes
    assert [it.tolist() for it in run.series("learn/loss", "env_step")] == [[0, 4], [1, 2]]


def test_a_metric_of_the_name_of_the_wall_time_is_no_axis_of_evaluations(tmp_path):
    """As evaluate/env_step is, the step of the weights."""
    sink = JsonLines(tmp_path / "run" / "metrics.jsonl")
    for i in range(3):
        sink.write(
            {"env_step": 8 * i, "time_s": i, "evaluate/score": i, "evaluate/time_s": 0.5, "evaluate/env_step": 8 * i - 4}
        )
    (run,) = find_runs([tmp_path])

    assert run.series("evaluate/score", "time_s")[0].tolist() == [0, 1, 2]
    assert run.series("evaluate/score", "env_step")[0].tolist() == [-4, 4, 12]


def test_an_infinite_option_is_a_number(tmp_path, write_run):
    folder = write_run(tmp_path / "dqn", iterations=1)
    (folder / "config.json").write_text('{"log": {"every_s": "Infinity"}}')

    assert load_run(folder).option("log.every_s") == math.inf


def test_options_are_found_by_their_dotted_name(tmp_path, write_run):
    run = load_run(write_run(tmp_path / "dqn", iterations=1))

    assert run.option("env.id") == "CartPole-v1"
    assert run.option("env.no_such") is None
    assert run.option("seed.deeper") is None


def test_runs_behind_links_are_found_once_and_circles_end(tmp_path, write_run):
    folder = write_run(tmp_path / "elsewhere" / "dqn_2", iterations=2)
    inside = write_run(tmp_path / "runs" / "dqn_1", iterations=2)
    for name, target in (("a_latest", inside), ("linked", folder), ("up", tmp_path / "runs"), ("gone", tmp_path / "none")):
        (tmp_path / "runs" / name).symlink_to(target)

    assert [run.folder for run in find_runs([tmp_path / "runs"])] == [inside, tmp_path / "runs" / "linked"]
    assert [run.folder.name for run in find_runs([tmp_path])] == ["dqn_2", "dqn_1"]

    (tmp_path / "runs" / "around").symlink_to(tmp_path)
    write_run(tmp_path / "others" / "run")
    assert [run.folder for run in find_runs([tmp_path / "runs"])] == [inside, tmp_path / "runs" / "linked"]
