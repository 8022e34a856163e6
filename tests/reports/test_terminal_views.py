"""Watching a run that begins, goes on, is cut, moved aside and begins anew; in a terminal and in a pipe."""

import io
import json
import math
import os
import pty
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from rich.console import Console

from ding_lite.reports import ReportError, watch_run
from ding_lite.reports.terminal_views import Watch, history
from ding_lite.sinks import JsonLines


def shown(watch, width=100):
    terminal = Console(file=io.StringIO(), width=width, highlight=False)
    terminal.print(watch.view())
    return terminal.file.getvalue()


def append(folder, *rows):
    with open(folder / "metrics.jsonl", "a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_is_waited_for_and_followed(tmp_path, write_run):
    watch = Watch(tmp_path / "run")
    assert not watch.look()
    assert f"waiting for {tmp_path / 'run' / 'metrics.jsonl'}: the folder does not exist yet" in shown(watch, 300)

    folder = write_run(tmp_path / "run", iterations=200)
    content = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text("")
    assert not watch.look()
    assert "has no row yet" in shown(watch, 300)

    (folder / "metrics.jsonl").write_text(content)
    assert watch.look()
    words = shown(watch)
    for expected in ("runs/run", "CartPole-v1", "seed 0", "200 rows, the last one 0:00 ago", "10% of 2,000 iterations"):
        assert expected in words
    for name in ("loss", "q_value", "memory_mb", "env_step 12,736", "mean return at evaluation", "█"):
        assert name in words
    assert not watch.look()
    append(folder, {"env_step": 99_999})
    assert watch.look()
    assert "env_step 99,999" in shown(watch)


def test_the_newest_value_is_told_also_where_it_is_no_finite_number(tmp_path):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    sink.write({"env_step": 1, "learn/loss": 0.5, "learn/q_mean": 1.0, "learn/q_max": 2.0, "learn/never": math.nan})
    sink.write({"env_step": 2, "learn/loss": math.nan, "learn/q_mean": 1.0, "learn/q_min": -math.inf, "learn/q_max": math.inf})
    watch = Watch(tmp_path)
    watch.look()

    words = shown(watch)
    for expected in ("loss nan", "never nan", "q_mean 1 (-inf to inf)"):
        assert expected in words
    assert watch.columns.last("learn/loss") == 0.5


def test_a_run_that_begins_anew_is_followed_from_its_beginning(tmp_path, write_run):
    folder = write_run(tmp_path / "run", iterations=20)
    watch = Watch(folder)
    watch.look()
    (folder / "metrics.jsonl").rename(folder / "metrics.1.jsonl")
    assert not watch.look()
    assert "does not exist any more: waiting for a new one" in shown(watch, 300)

    (folder / "config.json").write_text('{"exp_name": "second", "max_step": 10}')
    append(folder, {"total_step": 4, "learn/new": 5.0})
    assert watch.look()
    words = shown(watch)
    assert "second" in words
    assert "50% of 10 iterations" in words
    assert "loss" not in words
    assert "1 rows" in words


def test_a_run_that_has_not_written_for_long_may_have_ended(tmp_path, write_run):
    folder = write_run(tmp_path / "run", iterations=2)
    os.utime(folder / "metrics.jsonl", (time.time() - 4000,) * 2)
    watch = Watch(folder)
    watch.look()

    assert "2 rows, the last one 1:06:40 ago: the run is slow, or it has ended" in shown(watch)


def test_a_folder_of_runs_points_at_one_of_them(tmp_path, write_run):
    folder = write_run(tmp_path / "runs" / "dqn_0", iterations=2)

    assert f"there is a run in {folder}: watch that one?" in shown(Watch(tmp_path / "runs"), 300)


def test_nothing_in_a_file_commands_the_terminal(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"exp_name": "a\x1b[2Jb[red]c", "env": {"id": "\x07"}, "seed": "\x9b"}))
    append(tmp_path, {"\x1b]0;taken\x07/[bold]x": 1.0, "plain\x1b": 2.0})
    watch = Watch(tmp_path)
    watch.look()
    words = shown(watch)

    assert not {"\x1b", "\x07", "\x9b"} & set(words)
    assert "a?[2Jb[red]c" in words
    assert "[bold]x" in words
    assert "\x1b" not in shown(Watch(tmp_path / "not\x1bthere"))


@pytest.mark.parametrize("config", [{}, {"max_step": 0}, {"max_step": "many"}, {"env": 3, "seed": None}])
@pytest.mark.parametrize("row", [{}, {"total_step": 3}, {"total_step": 10**12, "time_s": 0}, {"time_s": 1e300}])
def test_whatever_a_run_leaves_out_the_rest_is_shown(tmp_path, config, row):
    (tmp_path / "config.json").write_text(json.dumps(config))
    append(tmp_path, row)
    watch = Watch(tmp_path)
    watch.look()

    assert "1 rows" in shown(watch)


def test_one_look_prints_a_snapshot_that_a_pipe_can_take(tmp_path, write_run):
    terminal = Console(file=io.StringIO(), width=100)
    watch_run(write_run(tmp_path / "run", iterations=20), once=True, terminal=terminal)

    assert "20 rows" in terminal.file.getvalue()
    assert "\x1b" not in terminal.file.getvalue()


def test_one_look_at_nothing_and_no_time_between_looks_are_refused(tmp_path):
    with pytest.raises(ReportError, match=r"there is no folder .*/run\.$"):
        watch_run(tmp_path / "run", once=True)
    with pytest.raises(ReportError, match="--once shows the current state, and --wait waits for a run: use only one of them"):
        watch_run(tmp_path, once=True, wait=True)
    with pytest.raises(ReportError, match="--every 0: expected more than 0"):
        watch_run(tmp_path, every_s=0)


WATCH = [sys.executable, "-m", "ding_lite.commands", "watch"]


def read_until(stream, wanted, seconds=60):
    """What a process wrote, up to these words."""
    found, end = b"", time.monotonic() + seconds
    while wanted not in found and select.select([stream], [], [], max(end - time.monotonic(), 0))[0]:
        try:
            piece = os.read(stream, 65536)
        except OSError:  # the other end of a terminal is closed
            break
        found += piece
        if not piece:
            break
    assert wanted in found, found
    return found


@pytest.mark.slow
def test_in_a_terminal_it_lives_until_ctrl_c_and_gives_the_terminal_back(tmp_path, write_run):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    command = [*WATCH, "run", "--every", "0.05", "--wait"]
    watching = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment, cwd=tmp_path)
    os.close(theirs)
    try:
        assert b"\x1b[?25l" in read_until(ours, b"the folder does not exist yet")  # the cursor is hidden
        folder = write_run(tmp_path / "run", iterations=20)
        read_until(ours, b"20 rows")
        append(folder, {"env_step": 77_777})
        read_until(ours, b"77,777")
        watching.send_signal(signal.SIGINT)
        read_until(ours, b"\x1b[?25h")  # and shown again
        assert watching.wait(30) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)


def test_in_a_pipe_it_prints_whenever_there_is_news_and_nothing_else(tmp_path, write_run):
    folder = write_run(tmp_path / "run", iterations=20)
    watching = subprocess.Popen([*WATCH, str(folder), "--every", "0.05"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output = read_until(watching.stdout.fileno(), b"memory_mb")
        append(folder, {"env_step": 77_777})
        output += read_until(watching.stdout.fileno(), b"77,777")
        watching.send_signal(signal.SIGINT)
        rest, errors = watching.communicate(timeout=30)
        assert (watching.returncode, errors) == (0, b"")
        assert (output + rest).count(b"rows, the last one") == 2
        assert b"\x1b" not in output + rest
    finally:
        watching.kill()
        watching.wait()


def test_in_a_pipe_it_says_what_it_waits_for_if_asked_to_wait(tmp_path):
    command = [*WATCH, "run", "--wait", "--every", "0.05"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path)
    try:
        read_until(watching.stdout.fileno(), b"waiting for run/metrics.jsonl: the folder does not exist yet")
        (tmp_path / "run").mkdir()
        append(tmp_path / "run", {"env_step": 77_777})
        read_until(watching.stdout.fileno(), b"77,777")
    finally:
        watching.kill()
        watching.wait()
        watching.stdout.close()


def test_a_run_that_goes_on_with_more_iterations_shows_how_many(tmp_path):
    watch = Watch(tmp_path)
    for most in (10, 20):
        (tmp_path / "config.json").write_text(json.dumps({"max_step": most}))
        append(tmp_path, {"total_step": 9, "time_s": 9.0})
        watch.look()
        assert f"{10 / most:.0%} of {most} iterations" in shown(watch)


PLACES = {
    "nothing": (
        lambda path: None,
        r"there is no folder .*/run\. ding-lite watch .*/run --wait waits until a run begins there\.$",
    ),
    "a name that is nearly one": (
        lambda path: (path.parent / "runs").mkdir(),
        "there is no folder .*/run: did you mean '.*/runs'",
    ),
    "an empty folder": (
        lambda path: path.mkdir(),
        "is not a run: it has no metrics.jsonl, the file that .* writes. .* --wait waits",
    ),
    "a file": (lambda path: path.write_text(""), "/run is a file, expected a folder: pass the folder of this file"),
    "a folder of runs": (
        lambda path: JsonLines(path / "dqn" / "metrics.jsonl").write({"env_step": 1}),
        "is not a run. There is one in .*/run/dqn: ding-lite watch .*/run/dqn follows it",
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_folder_in_which_there_is_no_run_is_refused_at_once(tmp_path, place):
    make, message = PLACES[place]
    make(tmp_path / "run")
    with pytest.raises(ReportError, match=message):
        watch_run(tmp_path / "run")


@pytest.mark.parametrize("seed", range(5))
def test_a_sparkline_is_low_where_the_values_are_low(seed):
    values = np.random.default_rng(seed).normal(size=20)
    bars = history(values, 30)

    assert len(bars) == 20
    assert bars[int(values.argmin())] == "▁"
    assert bars[int(values.argmax())] == "█"
    assert len(history(np.repeat(values, 50), 30)) == 30
    assert history(np.ones(3), 30) == "▁▁▁"


@pytest.mark.filterwarnings("error")
def test_a_history_of_the_largest_numbers_is_drawn():
    assert history(np.array([1.7e308] * 60 + [0.0] * 60), 4) == "██▁▁"
