"""Runs that are killed in the middle and resumed: the result is that of an uninterrupted run. `make chaos` tries many more."""

import importlib
import runpy
import signal
import sys
from pathlib import Path

import pytest
import torch
from example_runs import EXAMPLES

pytestmark = pytest.mark.timeout(240)
SHORT = ["--env.n-evaluator-episode", "2", "--env.evaluator-env-num", "2", "--env.max-episode-steps", "100", "--max-step"]
BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def chaos():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("chaos")


@pytest.fixture
def run_here(monkeypatch):
    """Runs an example in this process, which has imported torch already. Returns the exit status."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the programs that are killed

    def run(name, arguments):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return ended.value.code

    yield run
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("name", "mode", "iterations"), [("ppo", "workers", 16)])
def test_a_run_that_is_killed_and_interrupted_ends_like_an_uninterrupted_one(chaos, run_here, name, mode, iterations, tmp_path):
    """It is killed soon after its first save, gets SIGTERM soon after it is resumed, and is resumed again."""
    variant = chaos.Variant(name, "own", mode)
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    log = folder / "run.log"
    status = run_here(name, [*variant.arguments(whole), *SHORT, str(iterations)])
    wanted = chaos.outcome(whole, status)

    saved = folder / "run" / "manifest.json"
    killed = chaos.run_example(name, [*variant.arguments(folder), *SHORT, str(iterations)], saved, [(0.1, signal.SIGKILL)])
    unreadable = chaos.unreadable(folder)
    interrupted = chaos.run_example(name, ["--resume", str(folder)], log, [(0.1, signal.SIGTERM)])
    resumed = chaos.run_example(name, ["--resume", str(folder)], log)

    assert wanted.status == 0
    assert (killed.status, interrupted.status) == (-signal.SIGKILL, 143)
    assert unreadable == []
    assert chaos.differences(chaos.outcome(folder, resumed.status), wanted) == []
