"""Runs that are killed in the middle and resumed: everything is as after the unbroken run. `make chaos` tries many more."""

import importlib.util
import signal
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def chaos():
    spec = importlib.util.spec_from_file_location("chaos", ROOT / "benchmarks" / "chaos.py")
    module = sys.modules["chaos"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "mode"), [("dqn", "sync"), ("ppo", "async, workers")])
def test_a_run_that_is_killed_or_told_to_end_goes_on_as_if_it_had_not_been(chaos, name, mode, tmp_path):
    """Killed as soon as there is a saved state, told to end by SIGTERM soon after, then left alone."""
    given = chaos.arguments(name, mode)
    status, _ = chaos.run(name, [*given, "--exp-name", str(tmp_path / "whole")])
    wanted = chaos.outcome(tmp_path / "whole", status)

    folder = tmp_path / "killed"
    killed = chaos.run(name, [*given, "--exp-name", str(folder)], folder / "run" / "manifest.json")[0]
    ended = chaos.run(name, ["--resume", str(folder)], folder / "run.log", signal.SIGTERM)[0]
    status, _ = chaos.run(name, ["--resume", str(folder)])
    found = chaos.outcome(folder, status)

    assert killed == -signal.SIGKILL
    assert ended in (0, 143, -signal.SIGTERM)
    assert [field for field in found._fields if not chaos.is_same(getattr(found, field), getattr(wanted, field))] == []
