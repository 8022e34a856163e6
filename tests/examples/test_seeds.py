"""The result of an example depends only on its seed, not on the hashes of strings, which differ between programs."""

import json
import os
import subprocess
import sys

import pytest
from example_runs import small
from states import same

from ding_lite.engine import load_checkpoint

NAMES = ["dqn", "ppo"]
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from example_runs import small
for name in sys.argv[3:]:
    module, cfg = small(name, Path(sys.argv[2]) / name)
    module.main(cfg)
print(hash("a string"))
"""


def outcome(folder):
    """The weights, the optimizer and the counters at the end, and the rows of metrics but for times and memory."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = ("time/", "system/", "collect/env_steps_throughput", "learn/gradient_steps_throughput", "time_s")
    kept = [{name: value for name, value in row.items() if not name.startswith(measured)} for row in rows]
    return load_checkpoint(folder / "ckpt/final.pt"), kept


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The outcomes of a program in which strings have other hashes."""
    folder = tmp_path_factory.mktemp("elsewhere")
    helpers = os.path.join(os.path.dirname(os.path.dirname(__file__)), "helpers")
    other = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    command = [sys.executable, "-c", PROGRAM, helpers, str(folder), *NAMES]
    done = subprocess.run(command, env=other, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] != str(hash("a string"))
    return {name: outcome(folder / name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_run_in_another_program(name, elsewhere, tmp_path):
    module, cfg = small(name, tmp_path)
    module.main(cfg)
    here = outcome(tmp_path)

    assert here[1]
    assert same(here, elsewhere[name])
