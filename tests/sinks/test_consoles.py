"""Consoles: lines that can be read, and a live view that leaves the terminal as it was. Terminals are real ones (pty)."""

import fcntl
import io
import math
import os
import pty
import re
import signal
import struct
import subprocess
import termios

import pytest
from forked_scripts import Script, run_script

from ding_lite.sinks import Console, LiveConsole, format_duration, make_console, sparkline

HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"

ROW = {
    "total_step": 7,
    "env_step": 12800,
    "time_s": 3.5,
    "evaluate/episode_return_mean": 187.34,
    "evaluate/episode_return_min": 9.0,
    "evaluate/episode_return_max": 500.0,
    "collect/env_steps_throughput": 1234.5,
    "learn/loss": 0.02134,
    "learn/histogram": [1, 2, 3],
    "mine/text": "two\nlines",
}

BEGIN = f"""
import os, signal, sys, time, warnings
from ding_lite.sinks import make_console
ROW = {ROW!r}
console = make_console(every_s=0)
"""


class Terminal:
    """A terminal of 100 columns and 40 lines with a script on it; `screen` is what somebody sees of what came so far."""

    def __init__(self, code, columns=100, **streams):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        size = ("COLUMNS", "LINES")  # of the terminal of the tests, which they would take for their own
        env = {name: value for name, value in os.environ.items() if name not in size}
        env |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs, **streams}
        self.process = Script(BEGIN + code, env=env, **streams)
        os.close(theirs)
        self.output = b""

    def read_until(self, text):
        while text not in self.output:
            part = self._read()
            assert part, self.output
            self.output += part

    def finish(self):
        while part := self._read():
            self.output += part
        os.close(self.ours)
        return self.process.wait()

    def _read(self):
        try:
            return os.read(self.ours, 1 << 16)
        except OSError:  # there is nobody at the other end any more
            return b""

    @property
    def screen(self):
        lines, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[[?\d;]*[a-zA-Z]|[\r\n]|[^\x1b\r\n]+", self.output.decode()):
            if part == "\r":
                column = 0
            elif part == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif part == "\x1b[2K":
                lines[row] = ""
            elif part.startswith("\x1b[") and part.endswith("A"):
                row -= int(part[2:-1])
            elif not part.startswith("\x1b"):
                line = lines[row].ljust(column)
                lines[row], column = line[:column] + part + line[column + len(part) :], column + len(part)
        return [line.rstrip() for line in lines]


def on_a_terminal(code, **settings):
    terminal = Terminal(code, **settings)
    terminal.code = terminal.finish()
    return terminal


def test_the_console_leaves_out_what_there_is_not_and_writes_numbers_for_people():
    stream = io.StringIO()
    Console(stream=stream).write(
        {"step": 12800, "return": 187.34, "eval": None, "loss": 0.02134, "time left": "0:21"}, ROW, 0.5
    )

    assert stream.getvalue() == "step 12,800  return 187.3  loss 0.0213  time left 0:21\n"


TAKES_OVER = "a\x1b[2J\x1b]0;taken\x07\u202e"


def test_nothing_that_is_printed_commands_the_terminal():
    stream = io.StringIO()
    console = Console(stream=stream)
    console.write({"step": 1, "loss": TAKES_OVER})
    console.say(f"everything is in runs/{TAKES_OVER}\nand above")
    assert stream.getvalue() == "step 1  loss a?[2J?]0;taken??\neverything is in runs/a?[2J?]0;taken??\nand above\n"


def test_names_and_values_of_a_live_view_command_no_terminal():
    terminal = Terminal(
        f"console.write({{}}, {{{TAKES_OVER!r} + '/x' + {TAKES_OVER!r}: 1, 'learn/text': {TAKES_OVER!r}}})\n"
        f"console.say({TAKES_OVER!r})\nconsole.close()"
    )
    assert terminal.finish() == 0
    assert b"taken" in terminal.output
    assert [part for part in (b"\x1b[2J", b"\x1b]0;", b"\x07") if part in terminal.output] == []


def test_numbers_of_any_size_are_shown():
    values = "(1.7e308, -1.7e308, 10**400, float('inf'), float('nan'), *[1.7e308] * 40)"
    code = f"for value in {values}: console.write({{}}, {{'collect/episode_return_mean': value}})"
    terminal = Terminal(f"{code}\nconsole.close()")
    assert terminal.finish() == 0
    assert any("episode_return 1.7e+308 " in line for line in terminal.screen)
    assert sparkline([-1.7e308, 0.0, 1.7e308]) == "▁▅█"
    assert sparkline([math.inf, 1.0, -math.inf]) == "█▅▁"


@pytest.mark.parametrize("kind", [Console, LiveConsole])
def test_a_console_is_due_at_its_interval(monkeypatch, kind):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    console = kind(every_s=2.0, stream=io.StringIO())
    assert console.due()
    console.write({})
    now[0] = 101.9
    assert not console.due()
    now[0] = 102.0
    assert console.due()
    console.close()


def test_a_closed_pipe_does_not_stop_a_run():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    Console(stream=Closed()).write({"step": 1})


def test_a_run_whose_reader_goes_away_ends_as_if_it_had_stayed():
    code = BEGIN + "for step in range(20000): console.write({'step': step})\nprint('mine')\nconsole.close()"
    with Script(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"step 0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


# What the standard output of a run may be when nothing can be written to it.
UNWRITABLE = {
    "none": ("sys.stdout = None", "there is none"),
    "closed": ("sys.stdout.close()", "it is closed"),
    "full": ("os.dup2(os.open('/dev/full', os.O_WRONLY), 1)", "No space left on device"),
}


@pytest.mark.few
@pytest.mark.parametrize(("before", "problem"), UNWRITABLE.values(), ids=UNWRITABLE)
@pytest.mark.parametrize("is_made_before", [True, False])
def test_an_output_that_cannot_be_written_is_one_warning(before, problem, is_made_before, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    made = "console = make_console(every_s=0)\n"
    code = BEGIN + (f"{made}{before}\n" if is_made_before else f"{before}\n{made}")
    done = run_script(code + "for n in range(3): console.write({'step': n})\nconsole.say('the end')\nconsole.close()")
    assert done.stderr.count(f"standard output cannot be written to ({problem}), so lines") == 1
    assert done.stderr.count("Warning") == 1
    assert "Error" not in done.stderr
    assert done.returncode == (120 if "full" in before else 0)  # Python's own status for output that is lost


def test_a_live_view_whose_output_is_closed_is_one_warning():
    code = (
        "stream = os.fdopen(os.dup(1), 'w', encoding='utf-8')\nconsole = make_console(0, stream)\nconsole.write({}, ROW)\n"
        "stream.close()\nconsole.write({}, ROW)\nconsole.say('end')\nconsole.close()"
    )
    terminal = Terminal(code, stderr=subprocess.PIPE)
    terminal.read_until(b"episode_return")
    _, errors = terminal.process.communicate()
    os.close(terminal.ours)
    assert terminal.process.returncode == 0
    assert errors.count(b"the output of the console cannot be written to (it is closed)") == errors.count(b"Warning") == 1


def test_characters_that_the_output_lacks_are_escaped():
    written = io.BytesIO()
    console = Console(stream=io.TextIOWrapper(written, encoding="ascii"))
    console.write({"step": 1, "naïve": 2.0})
    console.say("curve: runs/é/metrics.jsonl")
    assert written.getvalue() == b"step 1  na\\xefve 2\ncurve: runs/\\xe9/metrics.jsonl\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.4, "0:59"), (60, "1:00"), (3599.6, "1:00:00"), (90061, "25:01:01")]
)
def test_times_are_readable(seconds, text):
    assert format_duration(seconds) == text


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


def test_the_view_is_live_only_where_it_can_be(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert type(make_console(stream=io.StringIO())) is Console
    assert type(make_console(2.5, stream=Screen())) is LiveConsole
    assert make_console(2.5, stream=Screen()).every_s == 2.5
    monkeypatch.setattr(Screen, "encoding", "ascii")
    assert type(make_console(stream=Screen())) is Console
    monkeypatch.setattr(Screen, "encoding", "utf-8")
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_console(stream=Screen())) is Console
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert type(make_console(stream=Screen())) is Console
    with pytest.raises(
        ImportError, match=r"LiveConsole\(\) needs rich, which is not installed: pip install 'ding_lite\[cli\]'"
    ):
        LiveConsole()


def test_a_stream_that_is_only_written_to_gets_lines(monkeypatch):
    class Tee:
        def __init__(self):
            self.text = ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    tee = Tee()
    make_console(stream=tee).write({"step": 1})
    assert tee.text == "step 1\n"


def test_in_a_pipe_there_are_lines_and_nothing_else():
    code = BEGIN + "console.write({'step': 1, 'loss': None}, ROW, 0.5); console.say('the end'); console.close()"
    done = run_script(code, check=True)
    assert (done.stdout, done.stderr) == ("step 1\nthe end\n", "")


def test_the_view_shows_how_far_the_run_is_and_the_newest_numbers_in_groups():
    terminal = on_a_terminal("console.write({}, ROW, 0.25); time.sleep(0.01); console.write({}, {'learn/loss': 3.0}, 0.75)")
    bar, *groups = [line for line in terminal.screen if line]

    assert re.fullmatch(r"━{45}─{15}  75%  0:0\d elapsed, 0:00 left", bar)  # a busy machine takes seconds
    assert [re.split("  +", line) for line in groups] == [
        ["counters", "total_step 7", "env_step 12,800"],
        ["evaluate", "episode_return 187.3 (9 to 500.0) ▁"],
        ["collect", "env_steps_throughput 1234.5"],
        ["learn", "loss 3"],
        ["mine", "text two lines"],
    ]
    assert terminal.code == 0


def test_where_nobody_knows_how_long_a_run_takes_there_is_no_bar():
    terminal = on_a_terminal("console.write({'step': 5})")
    assert [line for line in terminal.screen if line] == ["0:00 elapsed", "counters  step 5"]


def test_the_time_left_is_that_of_the_part_that_this_process_does(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stream = io.StringIO()
    console = LiveConsole(stream=stream)
    console.write({}, done=0.5)  # a run that goes on from a checkpoint
    now[0] = 60.0
    console.write({}, done=0.6)
    console.close()

    assert "60%  1:00 elapsed, 4:00 left" in stream.getvalue()


@pytest.mark.parametrize(("count", "bars"), [(1, "▁"), (3, "▁▅█"), (1000, None)])
def test_the_curve_of_the_return_holds_the_whole_run_in_a_few_bars(count, bars):
    write = "console.write({}, {'collect/episode_return_mean': float(n)})"
    curve = on_a_terminal(f"console.every_s = 9\nfor n in range({count}): {write}").screen[1].split()[-1]

    assert curve == bars or (bars is None and 16 <= len(curve) < 32)
    assert list(curve) == sorted(curve)
    assert curve[0] == "▁"
    assert len(curve) == 1 or curve[-1] == "█"


def test_what_other_code_prints_stands_above_the_view_whole():
    terminal = on_a_terminal(
        "for n in range(3):\n"
        "    console.write({}, ROW, n / 3)\n"
        "    print(f'print {n}'); sys.stderr.write(f'error {n}\\n'); console.say(f'said [bold] {n} ' + 'x' * 150)\n"
        "warnings.warn('careful')\n"
        "console.close()\nprint('after')\n"
    )
    lines = [line for line in terminal.screen if line]

    told = [line for n in range(3) for line in (f"print {n}", f"error {n}", f"said [bold] {n} " + "x" * 150)]
    assert lines[:9] == told
    assert "UserWarning: careful" in lines[9]
    view = next(index for index, line in enumerate(lines) if "elapsed" in line)
    assert sum("elapsed" in line for line in lines) == 1
    assert len(lines) - view == 7
    assert lines[-1] == "after"


def test_a_stream_that_leads_into_a_file_goes_on_to_do_so():
    terminal = Terminal("console.write({}, ROW); print('error', file=sys.stderr); console.close()", stderr=subprocess.PIPE)
    errors = terminal.process.stderr.read()
    assert terminal.finish() == 0
    assert errors == b"error\n"
    assert "error" not in "".join(terminal.screen)


def test_closing_leaves_the_last_numbers_gives_the_cursor_back_and_may_be_done_twice():
    terminal = on_a_terminal(
        "console.every_s = 100\nfor n in range(5): console.write({}, {'env_step': n})\n"
        "console.close()\nconsole.close()\nprint('between')\n"
        "console.write({}, {'train_iter': 77})\nconsole.close()"
    )
    lines = [line for line in terminal.screen if line]

    assert lines == ["0:00 elapsed", "counters  env_step 4", "between", "0:00 elapsed", "counters  train_iter 77"]
    assert terminal.output.count(HIDDEN) == terminal.output.count(SHOWN) == 2
    assert terminal.output.rindex(SHOWN) > terminal.output.rindex(HIDDEN)


@pytest.mark.parametrize("ending", ["raise ValueError('in the middle')", "sys.exit(3)", "os.kill(os.getpid(), signal.SIGINT)"])
def test_the_terminal_is_given_back_however_the_run_ends(ending):
    terminal = on_a_terminal(f"console.write({{}}, ROW, 0.5)\n{ending}")
    lines = [line for line in terminal.screen if line]

    assert terminal.code in (1, 3, -signal.SIGINT)
    assert terminal.output.count(HIDDEN) == 1
    assert terminal.output.rindex(SHOWN) > terminal.output.rindex(HIDDEN)
    assert sum("elapsed" in line for line in lines) == 1
    if "ValueError" in ending:
        assert "ValueError: in the middle" in lines


@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_terminal_that_is_closed_does_not_stop_a_run(is_buffered, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "" if is_buffered else "1")
    code = (
        "console.write({}, ROW)\nsys.stdin.readline()\n"
        "for n in range(100): console.write({}, ROW)\n"
        f"console.close()\nopen({str(tmp_path / 'done')!r}, 'w').close()"
    )
    terminal = Terminal(code, stdin=subprocess.PIPE)
    terminal.read_until(b"episode_return")
    os.close(terminal.ours)
    terminal.process.communicate(b"\n")

    assert terminal.process.returncode == 0
    assert (tmp_path / "done").exists()


def test_a_narrow_terminal_shows_one_thing_a_line():
    terminal = on_a_terminal("console.write({}, ROW, 0.5)", columns=40)
    lines = [line for line in terminal.screen if line]

    assert max(map(len, lines)) <= 40
    assert lines[1:3] == ["counters  total_step 7", "          env_step 12,800"]
