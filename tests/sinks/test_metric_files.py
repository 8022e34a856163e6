"""Files that survive whatever happens."""

import csv
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from forked_scripts import Script, run_script
from hypothesis import given
from hypothesis import strategies as st

from ding_lite.basics import WriteError
from ding_lite.sinks import Csv, JsonLines, SinkGroup, read_row, read_rows


def rows_of(path):
    """The rows of either file, numbers as numbers."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with open(path, newline="") as file:
        return [{name: json.loads(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file, strict=True)]


@pytest.fixture(params=[JsonLines, Csv])
def make(request):
    """Either class of files."""
    return request.param


@pytest.fixture
def path(make, tmp_path):
    return tmp_path / ("metrics.jsonl" if make is JsonLines else "metrics.csv")


def strictly(line):
    """By the letter of the standard, which knows neither NaN nor Infinity."""
    return json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_each_line_is_an_object_and_numbers_that_json_does_not_know_are_text(tmp_path):
    sink = JsonLines(tmp_path / "deep" / "metrics.jsonl")
    row = {
        "step": 1,
        "loss": math.nan,
        "best": -math.inf,
        "name": "a",
        "all": [1.5, math.inf],
        "in": {"a": math.nan},
        "no": None,
    }
    sink.write(row)
    sink.write({"step": 2})

    lines = (tmp_path / "deep" / "metrics.jsonl").read_text().splitlines()
    first = {"loss": "NaN", "best": "-Infinity", "name": "a", "all": [1.5, "Infinity"], "in": {"a": "NaN"}, "no": None}
    assert [strictly(line) for line in lines] == [{"step": 1, **first}, {"step": 2}]
    assert repr([read_row(line) for line in lines]) == repr([row, {"step": 2}])


@pytest.mark.slow
@given(st.dictionaries(st.text(), st.recursive(st.none() | st.integers(-9, 9) | st.floats(), st.lists, max_leaves=8)))
def test_every_row_is_read_back_as_it_was_written(row):
    with tempfile.TemporaryDirectory() as folder:
        sink = JsonLines(Path(folder) / "metrics.jsonl")
        sink.write(row)
        line = sink.path.read_bytes()

    strictly(line)
    assert repr(read_row(line)) == repr(row)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", "expected an object, got a list"),
        ("3", "expected an object, got a int"),
        ("{", "Expecting"),
        ('{"a": Na', "Expecting"),
        ("[" * 100_000, "too deeply"),
    ],
)
def test_what_is_no_row_is_refused(line, words):
    with pytest.raises(ValueError, match=words):
        read_row(line)


def test_a_table_has_a_line_of_names_and_is_written_anew_where_a_row_brings_a_new_one(tmp_path):
    sink = Csv(tmp_path / "deep" / "metrics.csv")
    sink.write({"step": 1, "loss": 0.25, "name": 'a "b", c'})
    sink.write({"step": 2, "name": None})
    sink.write({"step": 3, "loss": float("inf"), "returns": [1.5, float("nan")], "note": "two\nlines"})
    sink.write({"step": 4, "is_last": True})

    assert (tmp_path / "deep" / "metrics.csv").read_text() == (
        "step,loss,name,returns,note,is_last\n"
        '1,0.25,"a ""b"", c",,,\n'
        "2,,,,,\n"
        '3,inf,,"[1.5, ""NaN""]","""two\\nlines""",\n'
        "4,,,,,True\n"
    )
    assert [one.name for one in (tmp_path / "deep").iterdir()] == ["metrics.csv"]


def test_an_empty_row_before_the_first_name_is_left_out_of_a_table(tmp_path):
    sink = Csv(tmp_path / "metrics.csv")
    sink.write({})
    sink.write({"env_step": 1, "loss": 2.0})
    sink.write({})
    assert (tmp_path / "metrics.csv").read_text() == "env_step,loss\n1,2.0\n,\n"

    Csv(tmp_path / "metrics.csv", after=1).write({"env_step": 2})
    assert (tmp_path / "metrics.csv").read_text() == "env_step,loss\n1,2.0\n,\n2,\n"


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters()), st.lists(st.floats(0, 1)))
ROWS = st.lists(st.dictionaries(st.text(min_size=1), VALUES), max_size=8)


def cell_of(value):
    """What the table is said to hold for a value, written out."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, list) or not str(value).isprintable() else str(value)


@pytest.mark.slow
@given(rows=ROWS, after=st.integers(-1, 8))
def test_whatever_the_rows_the_table_holds_them_and_can_be_gone_on_with(tmp_path_factory, rows, after):
    path = tmp_path_factory.mktemp("table") / "metrics.csv"
    rows = [{**row, "env_step": step} for step, row in enumerate(rows)]
    sink = Csv(path)
    for row in rows:
        sink.write(row)
    Csv(path, after=after).write({"env_step": 9})

    names = list(dict.fromkeys(name for row in rows for name in row) or ["env_step"])
    kept = [row for row in rows if row["env_step"] <= after] + [{"env_step": 9}]
    with open(path, newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file, strict=True)
    assert header == [cell_of(name) for name in names]
    assert lines == [[cell_of(row.get(name)) for name in names] for row in kept]


def test_a_process_that_is_killed_loses_no_line_that_was_written(make, path):
    code = (
        f"import os, pathlib, sys\nfrom ding_lite.sinks import {make.__name__}\n"
        f"sink = {make.__name__}(pathlib.Path({str(path)!r}))\n"
        "for step in range(1000): sink.write({'step': step})\nos.kill(os.getpid(), 9)"
    )
    assert run_script(code).returncode == -9

    assert [row["step"] for row in rows_of(path)] == list(range(1000))


WRITER = """
import pathlib, sys
from ding_lite import sinks
sink = getattr(sinks, sys.argv[1])(pathlib.Path(sys.argv[2]))
print("ready", flush=True)
step = 0
while True:
    step += 1
    sink.write({"env_step": step, f"of_{step // 20}": 1 / step, "many": [0] * (step % 500)})
"""


def test_a_process_that_is_killed_at_any_moment_leaves_lines_that_parse_except_for_the_last(make, path):
    draw = random.Random(0)
    for _ in range(6):
        with Script(WRITER, make.__name__, path, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(0.1 * draw.random())
            process.kill()
        whole = path.read_bytes()[: path.read_bytes().rfind(b"\n") + 1] if path.exists() else b""
        (cut := path.with_stem("cut")).write_bytes(whole)
        steps = [row["env_step"] for row in rows_of(cut)]
        assert steps == list(range(1, len(steps) + 1))
        cut.unlink()

        after = draw.randint(0, len(steps))
        make(path, after=after).write({"env_step": after + 1})
        assert [row["env_step"] for row in rows_of(path)] == list(range(1, after + 2))
        path.unlink()


def test_going_on_cuts_what_lies_beyond_and_a_line_that_was_never_finished(make, path):
    sink = make(path)
    for step in (10, 20, None, 30, 25):
        sink.write({"env_step": step, "x": 1})
    with open(path, "ab") as file:
        file.write(path.read_bytes().splitlines()[-1][:-1])
    make(path, after=25).write({"env_step": 30})

    assert [row.get("env_step") for row in rows_of(path)] == [10, 20, None, 25, 30]
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_going_on_may_keep_all_rows(make, path):
    for steps in ((10, 20), (5,)):
        sink = make(path, after=math.inf)
        for step in steps:
            sink.write({"env_step": step})
    assert [row["env_step"] for row in rows_of(path)] == [10, 20, 5]


def test_where_their_number_is_known_the_first_rows_are_kept_whatever_their_steps(make, path):
    sink = make(path)
    for step in (90, 80, 70, 70, 60, None):
        sink.write({"env_step": step, "x": 1})
    assert sink.rows == 6
    sink = make(path, after=70, rows=3)
    assert sink.rows == 3
    sink.write({"env_step": 50})

    assert sink.rows == 4
    assert [row["env_step"] for row in rows_of(path)] == [90, 80, 70, 50]


@pytest.mark.parametrize("name", ["a\u00a0metric", "two\nlines", '"quoted"', '"', "π", "[1]", "12"])
def test_a_table_that_is_gone_on_with_has_each_name_once(tmp_path, name):
    path = tmp_path / "metrics.csv"
    Csv(path).write({"env_step": 1, name: 1.0})
    Csv(path, after=1).write({"env_step": 2, name: 2.0})
    with open(path, newline="") as file:
        names, *rows = csv.reader(file)
    assert (len(names), rows) == (2, [["1", "1.0"], ["2", "2.0"]])


def test_going_on_without_a_file_begins_one(make, path):
    make(path, after=100).write({"env_step": 101})
    assert rows_of(path) == [{"env_step": 101}]


def test_a_table_that_a_spreadsheet_saved_can_be_gone_on_with(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"env_step,loss\r\n1,0.5\r\n2,0.25\r\n")
    Csv(path, after=1).write({"env_step": 2, "kl": 0.1})

    assert path.read_bytes() == b"env_step,loss,kl\n1,0.5,\n2,,0.1\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.jsonl", '{"env_step": 1}\nno json\n{"env_step": 2}\n'),
        ("metrics.jsonl", "[1]\n"),
        ("metrics.jsonl", '{"env_step": "one"}\n'),
        ("metrics.csv", "env_step,x\n1,2\n3\n"),
        ("metrics.csv", "env_step,x\none,2\n"),
        ("metrics.csv", 'env_step,x\n1,"2\n'),
    ],
)
def test_a_file_that_is_no_file_of_metrics_is_left_as_it_is(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"line \d of .*{name} is not a row of metrics .* correct the line, or move"):
        (Csv if name.endswith("csv") else JsonLines)(path, after=1)
    assert path.read_text() == text


def test_an_earlier_file_is_kept_under_another_name(make, path):
    for run in range(3):
        make(path).write({"run": run})

    runs = {one.name: rows_of(one)[0]["run"] for one in path.parent.iterdir()}
    assert runs == {path.with_stem("metrics.1").name: 0, path.with_stem("metrics.2").name: 1, path.name: 2}


def test_a_file_alone_says_what_the_disk_refused_and_goes_on_when_it_can(make, path):
    sink = make(path)
    path.mkdir()
    with pytest.raises(OSError, match=path.name):
        sink.write({"step": 1})
    path.rmdir()
    sink.write({"step": 2})

    assert rows_of(path) == [{"step": 2}]


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
def test_half_a_line_is_removed_when_the_disk_is_full(make, path, recwarn):
    import resource

    group, limits = SinkGroup([make(path)]), resource.getrlimit(resource.RLIMIT_FSIZE)
    group.write({"step": 0, "much": 10**59})
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, limits[1]))
    try:
        for step in range(1, 50):
            group.write({"step": step})
        group.write({"step": 49, "more": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    group.write({"step": 50, "more": 1})
    (warning,) = recwarn

    steps = [row["step"] for row in rows_of(path)]
    assert steps[-1] == 50
    assert steps[:-1] == list(range(len(steps) - 1))
    assert 3 < len(steps) < 50
    assert "is not written to" in str(warning.message)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
def test_a_limit_on_the_size_of_files_is_told_as_that(make, path):
    import resource

    sink = make(path)
    sink.write({"step": 1, "text": "a"})
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
    try:
        with pytest.raises(OSError, match=r"larger than a file may be here \(File too large\)\. Raise the limit \(ulimit -f\)"):
            sink.write({"step": 2, "text": "b" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    sink.write({"step": 3, "text": "c"})
    assert len(path.read_bytes()) > len(before)


@pytest.mark.parametrize("seed", range(10))
def test_lines_that_are_read_together_are_those_read_one_by_one(seed):
    rng = random.Random(seed)
    good = [b'{"a": 1, "b": 2.5}\n', b'{"a": "NaN", "b": {"c": "-Infinity"}}\n', b'{"a": "text"}\n', b"{}\n"]
    bad = [b"\n", b"[1]\n", b'{"a": 1}, {"b": 2}\n', b'{"a": \n', b"3\n", b"[" * 100_000 + b"\n", b'{"\xff": 1}\n']
    lines = [rng.choice(good if seed % 2 or rng.random() < 0.7 else bad) for _ in range(20)]

    expected = []
    for line in lines:
        try:
            expected.append(read_row(line))
        except ValueError:
            expected.append(None)
    assert repr(read_rows(lines)) == repr(expected)


def test_a_folder_with_the_name_of_the_file_is_renamed_by_a_new_run_and_refused_with_the_fix_by_a_continued_one(make, path):
    path.mkdir()
    with pytest.raises(WriteError, match=rf"{path.name} is a folder.*[Mm]ove it away"):
        make(path, after=3)
    make(path).write({"env_step": 4})
    assert path.is_file()
    assert path.with_name(f"metrics.1{path.suffix}").is_dir()
