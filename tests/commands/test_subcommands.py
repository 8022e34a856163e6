"""The commands, as they are typed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ding_lite.commands import main


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    """A folder with two small runs, and the folder above it as the working directory."""
    for seed in range(2):
        folder = tmp_path / "runs" / f"dqn_{seed}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"exp_name": f"runs/dqn_{seed}", "seed": seed, "env": {"id": "A-v0"}}))
        rows = [{"env_step": step, "time_s": step, "evaluate/episode_return_mean": step + seed} for step in range(5)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.mark.slow
def test_each_command_does_its_work_and_says_where(runs, capsys):
    assert main(["report", "runs"]) == 0
    assert main(["report", "runs/dqn_0", "runs/dqn_1", "--out", "deep/page.html", "--videos", "0"]) == 0
    assert main(["plot", "runs", "--x", "time_s", "--smooth", "2", "--out", "curve.svg"]) == 0
    assert capsys.readouterr().out == "report.html\ndeep/page.html\ncurve.svg\n"
    assert all(Path(name).stat().st_size > 1000 for name in ("report.html", "deep/page.html", "curve.svg"))

    assert main(["watch", "runs/dqn_0", "--once"]) == 0
    assert "5 rows" in capsys.readouterr().out


@pytest.mark.few
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["report", "nowhere"], "there is no folder nowhere."),
        (["report"], "no folder was given"),
        (["plot", "runs", "--metric", "evaluate/episode_return"], "did you mean 'evaluate/episode_return_mean'?"),
        (["plot", "runs", "--out", "curve.gif"], "expected .png, .svg or .pdf."),
        (["plot", "runs", "--out", "runs/dqn_0/config.json/curve.png"], "config.json"),
        (["watch", "nowhere", "--once"], "there is no folder nowhere."),
        (["watch", "nowhere"], "there is no folder nowhere. ding-lite watch nowhere --wait waits until a run begins there."),
        (["watch", "runs"], "runs is not a run. There is one in runs/dqn_0: ding-lite watch runs/dqn_0 follows it."),
        (["watch", "runs/dqn_0/config.json", "--wait"], "runs/dqn_0/config.json is a file, expected a folder: pass the"),
        (["watch", "runs/dqn_0", "--every", "-1"], "expected more than 0 seconds"),
        (["watch", "runs/dqn_0", "--every", "nan"], "expected more than 0 seconds"),
        (["watch", "runs/dqn_0", "--every", "inf"], "expected more than 0 seconds, and at most 1e+09."),
        (["replay", "nowhere.pt"], "there is no checkpoint nowhere.pt"),
        (["replay", "runs/dqn_0/config.json"], "runs/dqn_0/config.json"),
    ],
)
def test_a_mistake_is_one_line_on_standard_error_and_status_2(runs, capsys, argv, message):
    assert main(argv) == 2
    output = capsys.readouterr()

    assert output.out == ""
    assert output.err.startswith("ding-lite: ")
    assert message in output.err
    assert output.err.count("\n") == 1


def test_a_warning_is_one_line_without_a_place_in_the_code(runs, capsys):
    (runs / "dqn_1" / "metrics.jsonl").write_text('{"train_iter": 1, "evaluate/episode_return_mean": 2.0}\n')
    assert main(["plot", "runs"]) == 0

    words = "runs/dqn_1: not drawn, because no row has both evaluate/episode_return_mean and env_step."
    assert capsys.readouterr().err == f"ding-lite: {words}\n"


@pytest.mark.parametrize("argv", [["frobnicate"], [], ["plot", "runs", "--smoth", "2"], ["report", "runs", "--videos", "many"]])
def test_what_is_no_command_or_option_is_explained_with_status_2(runs, capsys, argv):
    assert main(argv) == 2
    output = capsys.readouterr()

    assert output.out == ""
    assert "Traceback" not in output.err
    assert "--help" in output.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (None, ["report", "plot", "watch", "eval", "play", "replay", "Show runs"]),
        ("report", ["RUN_DIR ...", "--out", "report.html", "--videos"]),
        ("plot", ["RUN_DIR ...", "--metric", "--x", "--out", "--smooth", "learn/loss"]),
        ("watch", ["RUN_DIR", "--once", "--every", "--wait"]),
        ("eval", ["RUN_DIR ...", "--episodes", "--which", "--seed", "--env", "--policy-class", "--explore", "--out"]),
        ("play", ["RUN_DIR", "--video", "--episodes", "--env"]),
        ("replay", ["FILE", "env_error.pt"]),
    ],
)
def test_help_explains_every_option(capsys, command, words):
    assert main([*filter(None, [command]), "--help"]) == 0
    output = capsys.readouterr().out

    assert [word for word in words if word not in output] == []


def run(*command, **settings):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, **settings)


def run_each(*commands, **settings):
    """These commands, one after the other in one process, with the arguments that it was started with."""
    code = (
        "import itertools, sys; from ding_lite.commands import main; "
        "sys.exit(max(main([*argv]) for ends, argv in itertools.groupby(sys.argv[1:], ';'.__eq__) if not ends))"
    )
    return run("-c", code, *(part for command in commands for part in (*command, ";")), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["ding_lite", "ding_lite.commands"])
def test_the_module_is_the_command(runs, module):
    done = run("-m", module, "watch", "runs/dqn_1", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert "runs/dqn_1" in done.stdout

    done = run("-m", module, "report", "nowhere")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "ding-lite: there is no folder nowhere.\n")


@pytest.mark.slow
def test_a_terminal_that_knows_few_letters_and_a_folder_that_no_letters_spell_are_no_reason_to_end(runs):
    strange = os.fsdecode(b"runs/\xff")
    (runs / "dqn_0" / "config.json").unlink()
    (runs / "dqn_0").rename(strange)
    commands = ["watch", strange, "--once"], ["report", "runs", "--out", os.fsdecode(b"\xff.html")], ["plot", "runs"]
    done = run_each(*commands, env={**os.environ, "PYTHONIOENCODING": "ascii"})

    assert (done.returncode, done.stderr) == (0, "")
    assert Path(os.fsdecode(b"\xff.html")).is_file()


def test_reading_the_package_and_the_commands_loads_none_of_what_draws():
    done = run("-W", "error", "-c", "import sys, ding_lite, ding_lite.reports, ding_lite.commands; print(*sys.modules)")

    assert done.returncode == 0, done.stderr
    assert not {"matplotlib", "rich", "jinja2", "tyro", "torch", "playwright"} & set(done.stdout.split())


@pytest.mark.few
@pytest.mark.parametrize(
    ("blocked", "argv", "extra"),
    [
        ("tyro", ["--help"], "cli"),
        ("rich", ["watch", "runs/dqn_0", "--once"], "cli"),
        ("jinja2", ["report", "runs"], "plot"),
        ("matplotlib", ["report", "runs"], "plot"),
        ("matplotlib", ["plot", "runs"], "plot"),
    ],
)
def test_a_missing_extra_is_named(runs, blocked, argv, extra):
    program = f"import sys\nsys.modules[{blocked!r}] = None\nfrom ding_lite.commands import main\nsys.exit(main({argv!r}))"
    done = run("-c", program)

    assert done.returncode == 2
    assert f"pip install 'ding_lite[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_no_traceback(runs):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "ding_lite.commands", "watch", "runs/dqn_0", "--once"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)

    assert "Traceback" not in done.stderr


STRANGE = "a\x1b[2J\x1b]0;taken\x07"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plot", "runs", "--metric", "b"], "They have "),
        (["plot", STRANGE, "--metric", "learn/b"], "They have "),
        (["plot", "runs", "--out", f"{STRANGE}.gif"], "a?[2J"),
        (["report", f"nowhere{STRANGE}"], "nowherea?[2J"),
        (["watch", f"nowhere{STRANGE}", "--once"], "nowherea?[2J"),
    ],
)
def test_no_name_of_a_file_or_a_metric_commands_the_terminal(runs, capsys, argv, message):
    (runs / "dqn_0").rename(STRANGE)
    row = {"env_step": 1, f"learn/{STRANGE}": 2.0}
    for folder in (Path(STRANGE), runs / "dqn_1"):
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert main(argv) == 2
    error = capsys.readouterr().err

    assert message in error
    assert not {"\x1b", "\x07"} & set(error)


@pytest.mark.slow
def test_what_is_drawn_of_strange_names_commands_no_terminal(runs):
    (runs / "dqn_0" / "config.json").write_text(json.dumps({"exp_name": STRANGE, "env": {"id": STRANGE}}))
    row = {"env_step": 1, f"learn/{STRANGE}": 2.0}
    (runs / "dqn_0" / "metrics.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "env_step": 2}) + "\n")
    endings = ("png", "svg", "pdf")
    plots = [["plot", "runs", "--metric", f"learn/{STRANGE}", "--out", f"{STRANGE}.{ending}"] for ending in endings]
    done = run_each(*plots, ["report", "runs", "--out", f"{STRANGE}.html"])

    assert (done.returncode, done.stdout) == (0, "".join(f"a?[2J?]0;taken?.{ending}\n" for ending in (*endings, "html")))
    assert not {"\x1b", "\x07"} & set(done.stderr)
    assert "\x1b" not in Path(f"{STRANGE}.svg").read_text()
