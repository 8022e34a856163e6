"""RunRecord: run.json and error.txt in the folder of a run."""

import json
import math
import os
import random
import socket
import sys
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from ding_lite.basics import FolderInUseError, RunRecord, WriteError, add_note, json_ready


def content(folder):
    return json.loads((folder / "run.json").read_text())


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.fixture
def record(tmp_path):
    record = RunRecord(tmp_path)
    record.begin(False, 0)
    yield record
    record.end()


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_a_session_says_which_process_did_what(tmp_path, record):
    record.count(7)
    record.end()
    (session,) = content(tmp_path)["sessions"]

    assert session["pid"] == os.getpid()
    assert session["host"] == socket.gethostname()
    assert session["start"] == content(tmp_path)["start"]
    assert session["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert session["versions"]["numpy"] == np.__version__
    assert sys.orig_argv[-1] in session["command"]
    assert (session["from_iteration"], session["iterations"]) == (0, 7)


def test_runs_have_different_ids_also_from_the_same_seeds(tmp_path):
    found = set()
    for number in range(20):
        random.seed(0)
        record = RunRecord(tmp_path / str(number))
        record.begin(False, 0)
        found.add(record.run_id)
        assert content(tmp_path / str(number))["id"] == record.run_id
        record.end()

    assert len(found) == 20
    assert {len(run_id) for run_id in found} == {12}


def test_a_resumed_run_keeps_its_id_and_gets_a_session(tmp_path, record):
    run_id = record.run_id
    record.count(7)
    record.end()
    record.begin(True, 5)
    record.count(9)
    record.end()

    assert content(tmp_path)["id"] == run_id
    assert [(one["from_iteration"], one["iterations"]) for one in content(tmp_path)["sessions"]] == [(0, 7), (5, 4)]
    assert names(tmp_path) == ["run.json"]


def test_a_new_run_in_the_folder_renames_the_files_of_the_last_one(tmp_path, record):
    run_id = record.run_id
    record.note_error(raised(ValueError("no")))
    (tmp_path / "run.log").touch()
    record.end()
    record.begin(False, 0)

    assert record.run_id != run_id
    assert json.loads((tmp_path / "run.1.json").read_text())["id"] == run_id
    assert names(tmp_path) == ["error.1.txt", "run.1.json", "run.1.log", "run.json"]


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"id": 3, "sessions": []}', '{"id": "a"}'])
def test_a_run_whose_record_is_damaged_gets_a_new_one(tmp_path, record, damaged):
    record.end()
    (tmp_path / "run.json").write_text(damaged)
    record.begin(True, 3)

    assert len(content(tmp_path)["sessions"]) == 1
    assert (tmp_path / "run.1.json").read_text() == damaged


def test_records_of_one_process_make_one_session(tmp_path, record):
    other = RunRecord(tmp_path / ".")
    other.begin(False, 0)
    record.count(1)
    other.count(2)
    record.end()
    other.end()

    assert other.run_id == ""
    assert content(tmp_path)["sessions"][0]["iterations"] == 2
    assert names(tmp_path) == ["run.json"]


class Owner:
    running = True


def test_a_session_of_a_closed_task_ends_when_another_one_begins(tmp_path):
    first, mine, theirs = RunRecord(tmp_path), Owner(), Owner()
    first.begin(False, 0, owner=mine)
    with pytest.raises(FolderInUseError, match="a task of this process that is still open writes to the folder"):
        RunRecord(tmp_path).begin(False, 0, owner=theirs)
    assert first.is_begun
    mine.running = False
    second = RunRecord(tmp_path)
    second.begin(False, 0, owner=theirs)
    first.count(5)
    first.save()
    first.note_error(raised(ValueError("no")))
    first.end()

    assert second.is_begun
    assert content(tmp_path)["id"] == second.run_id
    assert names(tmp_path) == ["run.1.json", "run.json"]
    second.end()


def test_whether_a_folder_has_the_run_that_was_begun_or_loaded_last(tmp_path, record):
    other = RunRecord(tmp_path)
    assert (other.has_run, other.last_id) == (False, None)
    record.end()
    assert (record.has_run, record.other_id) == (True, None)
    other.continue_from(record.last_id)
    assert other.has_run
    other.continue_from("")  # unknown
    assert other.has_run
    other.continue_from("another")
    assert (other.has_run, other.other_id) == (False, record.last_id)
    (tmp_path / "run.json").unlink()
    assert other.has_run


def test_an_error_is_written_with_everything_that_is_known(tmp_path, record):
    record.count(3)
    error = raised(ValueError("the cause"))
    add_note(error, "in middleware learn (train.py:7), iteration 3 of the task")
    record.note_error(error, {"env_step": 96, "learn/loss": 0.5})
    text = (tmp_path / "error.txt").read_text()

    assert text.startswith("ValueError: the cause\n  in middleware learn (train.py:7), iteration 3 of the task\n")
    for part in (
        f"{record.run_id}, after 3 iterations",
        f"{os.getpid()} on {socket.gethostname()}, since {content(tmp_path)['start']}",
        f"numpy {np.__version__}",
        sys.orig_argv[-1],
        "The last row of metrics:\n  env_step  96\n  learn/loss  0.5\n",
        "Traceback (most recent call last):",
        "    raise error\n",
    ):
        assert part in text
    assert text.count("in middleware learn") == 2  # also in the traceback


def test_a_second_record_of_the_process_keeps_the_row_of_the_first(tmp_path, record):
    other, error = RunRecord(tmp_path), raised(ValueError("no"))
    other.begin(False, 0)
    record.note_error(error, {"env_step": 96})
    other.note_error(error)

    assert "env_step  96" in (tmp_path / "error.txt").read_text()
    other.end()


def test_an_error_whose_text_cannot_be_made_is_written_too(tmp_path, record):
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    record.note_error(raised(Odd()))
    record.note_error(raised(ValueError("half a character: \ud800")))

    assert r"half a character: \ud800" in (tmp_path / "error.txt").read_text()


def test_an_error_is_written_also_if_the_working_directory_is_gone(tmp_path, record, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    record.note_error(raised(ValueError("the loss is nan")))

    lines = (tmp_path / "error.txt").read_text().splitlines()
    assert lines[0] == "ValueError: the loss is nan"
    assert "cwd       a folder that was removed" in lines


def test_an_error_that_cannot_be_written_is_a_warning(tmp_path, record):
    (tmp_path / "error.txt").mkdir()
    with pytest.warns(UserWarning, match=r"the error that ends the run is not written to .*error\.txt is a folder"):
        record.note_error(raised(ValueError("no")))


def test_a_record_that_cannot_be_written_is_an_error_of_writing_and_the_session_begins(tmp_path):
    (tmp_path / "file").touch()
    record = RunRecord(tmp_path / "file")
    with pytest.raises(WriteError, match="is a file, but a folder is needed there"):
        record.begin(False, 0)
    assert record.is_begun
    record.end()


def test_a_record_holds_the_lock_from_begin_to_end(tmp_path, record):
    assert (tmp_path / ".lock").exists()
    record.end()
    assert not (tmp_path / ".lock").exists()


def test_without_a_session_nothing_is_written(tmp_path):
    record = RunRecord(tmp_path)
    record.count(3)
    record.save()
    record.note_error(raised(ValueError("no")))
    record.end()

    assert list(tmp_path.iterdir()) == []


def test_a_refused_record_has_not_begun(tmp_path, monkeypatch):
    record = RunRecord(tmp_path)

    def refuse():
        raise FolderInUseError(16, "in use", str(tmp_path))

    monkeypatch.setattr(record.lock, "take", refuse)
    with pytest.raises(FolderInUseError):
        record.begin(False, 0)

    assert not record.is_begun
    assert list(tmp_path.iterdir()) == []


def test_data_for_json_has_numbers_of_python_and_paths_as_text():
    given = {
        "seed": np.int64(3),
        "rate": np.float32(0.5),
        "flag": np.bool_(True),
        "array": np.array([[1, 2]], np.uint8),
        "number": np.array(2.0),
        "path": Path("/a/b"),
        "limits": (math.inf, None, "text", [-np.float64("inf")]),
        7: MappingProxyType({"x": 1}),
    }
    found = json_ready(given)

    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found == {
        "seed": 3,
        "rate": 0.5,
        "flag": True,
        "array": [[1, 2]],
        "number": 2.0,
        "path": "/a/b",
        "limits": ["Infinity", None, "text", ["-Infinity"]],
        "7": {"x": 1},
    }


@pytest.mark.parametrize("value", [{1, 2}, b"x", 1j, object(), np.array([None, object()]), os.fsencode])
def test_what_json_does_not_have_is_named_with_its_place(value):
    with pytest.raises(TypeError, match=r"source\['policies'\]\[1\]\['seed'\](\[1\])? is .* of type .*, and JSON has only"):
        json_ready({"policies": [{}, {"seed": value}]}, "source")


def test_names_that_are_the_same_text_in_json_are_refused():
    with pytest.raises(TypeError, match=r"source\['x'\] has the names 1 and '1', and in JSON both are the same text: rename"):
        json_ready({"x": {1: 2, "y": 0, "1": 3}}, "source")


def test_data_for_json_that_contains_itself_is_named():
    data = {"a": 1}
    data["self"] = [data]

    with pytest.raises(TypeError, match=r"source\['self'\]\[0\].* is nested in more than 100 levels, or contains itself"):
        json_ready(data, "source")
