"""Sinks: files that survive, lines that can be read."""

import io
import json
import random
import subprocess
import sys
import time
import warnings

import pytest

from ding_lite.metrics import Console, JsonLines, readable_time


def test_each_line_is_an_object_and_numbers_that_json_does_not_know_are_null(tmp_path):
    sink = JsonLines(tmp_path / "deep" / "metrics.jsonl")
    sink.write({"step": 1, "loss": float("nan"), "best": -float("inf"), "name": "a"})
    sink.write({"step": 2})

    lines = (tmp_path / "deep" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 1, "loss": None, "best": None, "name": "a"}, {"step": 2}]


def test_a_process_that_is_killed_loses_no_line_that_was_written(tmp_path):
    code = (
        "import os, pathlib, sys\nfrom ding_lite.metrics import JsonLines\n"
        f"sink = JsonLines(pathlib.Path({str(tmp_path / 'm.jsonl')!r}))\n"
        "for step in range(1000): sink.write({'step': step})\nos.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9

    assert [json.loads(line)["step"] for line in (tmp_path / "m.jsonl").read_text().splitlines()] == list(range(1000))


WRITER = """
import pathlib, sys
from ding_lite.metrics import JsonLines
sink = JsonLines(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
step = 0
while True:
    step += 1
    sink.write({"env_step": step, "loss": 1 / step, "text": "x" * (step % 5000)})
"""


def test_a_process_killed_at_any_instant_leaves_lines_that_parse_but_for_the_last(tmp_path):
    draw = random.Random(0)
    for run in range(20):
        path = tmp_path / f"{run}.jsonl"
        with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(0.1 * draw.random())
            process.kill()
        *lines, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
        assert [json.loads(line)["env_step"] for line in lines] == list(range(1, len(lines) + 1))

        after = draw.randint(0, len(lines))
        JsonLines(path, after=after).write({"env_step": after + 1})
        steps = [json.loads(line)["env_step"] for line in path.read_text().splitlines()]
        assert steps == list(range(1, after + 2))


def test_going_on_cuts_what_lies_beyond_and_a_line_that_was_never_finished(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path)
    for step in (10, 20, None, 30, 25):
        sink.write({"env_step": step, "x": 1})
    with open(path, "a") as file:
        file.write('{"env_step": 40, "x"')
    JsonLines(path, after=25).write({"env_step": 30})

    assert [json.loads(line)["env_step"] for line in path.read_text().splitlines()] == [10, 20, None, 25, 30]
    assert [one.name for one in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_going_on_without_a_file_begins_one(tmp_path):
    JsonLines(tmp_path / "metrics.jsonl", after=100).write({"env_step": 101})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"env_step": 101}\n'


def test_a_file_that_is_no_file_of_metrics_is_left_as_it_is(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for text in ('{"env_step": 1}\nno json\n{"env_step": 2}\n', "[1]\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"line \d of .*metrics.jsonl is no row of metrics"):
            JsonLines(path, after=1)
        assert path.read_text() == text


def test_an_earlier_file_is_kept_under_another_name(tmp_path):
    for run in range(3):
        JsonLines(tmp_path / "metrics.jsonl").write({"run": run})

    assert {path.name: json.loads(path.read_text())["run"] for path in tmp_path.iterdir()} == {
        "metrics.1.jsonl": 0,
        "metrics.2.jsonl": 1,
        "metrics.jsonl": 2,
    }


def test_a_disk_that_refuses_costs_one_warning_and_writing_goes_on_when_it_can(tmp_path):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl").mkdir()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sink.write({"step": 1})
        sink.write({"step": 2})
    (tmp_path / "metrics.jsonl").rmdir()
    sink.write({"step": 3})

    assert len(caught) == 1
    assert "metrics.jsonl" in str(caught[0].message)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 3}


def test_half_a_line_is_taken_back_when_the_disk_is_full(tmp_path):
    code = (
        "import pathlib, resource, sys\nfrom ding_lite.metrics import JsonLines\n"
        "sink = JsonLines(pathlib.Path(sys.argv[1]))\n"
        "_, most = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150, most))\n"
        "for step in range(20): sink.write({'step': step})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))\n"
        "sink.write({'step': 20})"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m.jsonl"], capture_output=True, text=True, check=True)

    steps = [json.loads(line)["step"] for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert steps[-1] == 20
    assert steps[:-1] == list(range(len(steps) - 1))
    assert 5 < len(steps) < 20
    assert done.stderr.count("are not written") == 1


def test_the_console_leaves_out_what_there_is_not_and_writes_numbers_for_people():
    stream = io.StringIO()
    Console(stream=stream).write({"step": 12800, "return": 187.34, "eval": None, "loss": 0.02134, "left": "<0:21"})

    assert stream.getvalue() == "step 12,800  return 187.3  loss 0.0213  left <0:21\n"


def test_the_console_is_due_at_its_interval(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    console = Console(every_s=2.0, stream=io.StringIO())
    assert console.due()
    console.write({})
    now[0] = 101.9
    assert not console.due()
    now[0] = 102.0
    assert console.due()


def test_a_closed_pipe_does_not_stop_a_run():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    Console(stream=Closed()).write({"step": 1})


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.4, "0:59"), (60, "1:00"), (3599.6, "1:00:00"), (90061, "25:01:01")]
)
def test_times_are_readable(seconds, text):
    assert readable_time(seconds) == text
