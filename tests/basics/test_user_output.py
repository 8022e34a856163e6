"""Output for the user is shown if it can be, and ends nothing."""

import io
import os
import subprocess
import sys

import pytest
from forked_scripts import Script, run_script

from ding_lite.basics.user_output import EnduringStream, is_closed, show, tell, without_closed_stderr

TELLS = "import sys\nfrom ding_lite.basics.user_output import drop_unwritable_output, show, tell\n"


@pytest.fixture(autouse=True)
def _buffered(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


class Reentered(io.StringIO):
    def write(self, text):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter>")


@pytest.mark.parametrize("stream", [None, closed(), Reentered(), object()], ids=["none", "closed", "reentered", "no stream"])
def test_without_a_stream_that_can_be_written_nothing_is_raised(stream, monkeypatch):
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    show("one")
    tell("two")


def test_a_line_goes_to_its_stream(capsys):
    show("one")
    tell("two")
    assert tuple(capsys.readouterr()) == ("one\n", "two\n")


def test_characters_that_the_encoding_lacks_are_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    show("runs/é → 1")
    assert written.getvalue() == b"runs/\\xe9 \\u2192 1\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "koi8-r"])
def test_every_character_can_be_written_in_every_encoding(encoding):
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding)
    problems = []
    print("aé→\U0001f600", file=EnduringStream(stream, problems.append), flush=True)
    assert (written.getvalue()[:1], problems) == (b"a", [])


@pytest.mark.parametrize(
    ("stream", "problem"), [(None, "there is none"), (closed(), "it is closed"), (Reentered(), "reentrant call")]
)
def test_what_is_lost_is_reported(stream, problem):
    problems = []
    print("text", file=EnduringStream(stream, problems.append), flush=True)
    assert problems
    assert problem in problems[0]


@pytest.mark.parametrize("output", ["tell('x')", "tell('x' * 100_000)", "sys.stderr.write('x')\ndrop_unwritable_output()"])
@pytest.mark.parametrize("stderr", ["full", "pipe"])
def test_a_standard_error_that_cannot_be_written_changes_no_exit_status(output, stderr):
    if stderr == "full":
        stream = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, stream = os.pipe()
        os.close(reader)
    done = Script(f"{TELLS}{output}\nsys.exit(130)", stderr=stream)
    os.close(stream)
    assert done.wait() == 130


def test_what_can_be_written_again_is_written(tmp_path):
    """A disk is full only for a while."""
    code = """
import os
before = os.dup(2)
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
tell("lost")
os.dup2(before, 2)
tell("kept")
"""
    done = run_script(TELLS + code, check=True)
    assert done.stderr == "kept\n"


def test_output_that_nobody_reads_changes_no_exit_status():
    code = f"{TELLS}print('x' * 100)\nsys.stdin.readline()\ndrop_unwritable_output()\nsys.exit(143)"
    with Script(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stderr.read() == b""
    assert process.returncode == 143


def test_warnings_are_dropped_where_standard_error_is_closed(monkeypatch):
    stream = closed()
    monkeypatch.setattr(sys, "stderr", stream)
    with without_closed_stderr():
        assert sys.stderr is None
    assert sys.stderr is stream
    with without_closed_stderr():
        sys.stderr = other = io.StringIO()
    assert sys.stderr is other
    assert not is_closed(other)
