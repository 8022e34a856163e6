"""Runs that are killed in the middle and resumed: everything is as after the unbroken run. `make chaos` tries many more."""

import importlib
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)
BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def chaos():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("chaos")


@pytest.mark.parametrize(("name", "mode"), [("dqn", "sync"), ("ppo", "workers")])
def test_a_run_that_is_killed_and_interrupted_ends_like_an_uninterrupted_one(chaos, name, mode, tmp_path):
    """Killed as soon as there is a saved state, told to end by SIGTERM soon after, then left alone."""
    variant = chaos.Variant(name, "own", mode)
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    log, short = folder / "run.log", ["--max-step", "30"]
    unbroken = chaos.run_example(name, [*variant.arguments(whole), *short], whole / "run.log")
    wanted = chaos.outcome(whole, unbroken.status)

    saved = folder / "run" / "manifest.json"
    killed = chaos.run_example(name, [*variant.arguments(folder), *short], saved, [(0.1, signal.SIGKILL)])
    unreadable = chaos.unreadable(folder)
    told = chaos.run_example(name, ["--resume", str(folder)], log, [(0.1, signal.SIGTERM)])
    resumed = chaos.run_example(name, ["--resume", str(folder)], log)

    assert unbroken.status == 0
    assert (killed.status, told.status) == (-signal.SIGKILL, 143)
    assert unreadable == []
    assert chaos.differences(chaos.outcome(folder, resumed.status), wanted) == []
