"""Whole runs with compiled steps: asynchronous ones are those of one thread, those with processes are those without, and saved
ones continue as if they had not been saved.
"""

import finished_runs
import pytest
import saved_runs
import torch
from example_runs import NAMES, small
from interpreted_steps import interpreting
from states import same

from ding_lite.compiling.compiled_steps import CompiledSteps

pytestmark = pytest.mark.timeout(600)
ALWAYS = {"dqn", "r2d2", "td3"}
"""The other examples run with `make test-compiled`."""
CASES = [
    pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.compiled)
    for name in NAMES
    if name != "ppo_ddp"  # its processes exchange gradients within a step, which is not compiled
]
SETTINGS = {
    "policy.learn.compile": "on",
    "policy.collect.n_sample": 40,
    "policy.learn.burn_in": 2,  # each step of a sequence is traced
    "policy.learn.unroll_len": 5,
    "policy.model.encoder_hidden_size_list": [8],
}


@pytest.fixture
def steps(monkeypatch):
    """Programs are run operation by operation; a list with an item for each gradient step, whether it was compiled."""
    found, before = [], CompiledSteps.take

    def take(self, policy, *args):
        result = before(self, policy, *args)
        found.append(result is not None or self.refused)
        return result

    monkeypatch.setattr(CompiledSteps, "take", take)
    with interpreting():
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_asynchronous_run_equals_the_one_on_one_thread(name, steps, tmp_path):
    oracle = finished_runs.run(name, tmp_path / "oracle", async_mode=False, max_lag=1, **SETTINGS)
    assert set(steps) == {True}
    found = finished_runs.run(name, tmp_path / "async", async_mode=True, max_lag=1, **SETTINGS)
    assert set(steps) == {True}

    assert oracle.counters[3] > 0
    assert same(found, oracle)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_equals_the_run_that_was_saved(name, steps, tmp_path, monkeypatch):
    saved, settings = [], {**saved_runs.MODES["async"], **SETTINGS}
    saving = saved_runs.run(name, tmp_path / "saving", monkeypatch, saved=saved, **settings)
    continued = saved_runs.run(name, tmp_path / "continued", monkeypatch, state=saved[0], **settings)

    assert set(steps) == {True}
    assert saved_runs.difference(continued, saving) is None


def checkpoints(name, folder, **settings):
    """The checkpoints of a run, without how the policy was made and its metrics."""
    module, cfg = small(name, folder, **{"policy.learn.compile": "on", **settings})
    module.main(cfg)
    files = [torch.load(path, weights_only=True) for path in sorted((folder / "ckpt").glob("*.pt"))]
    return [{key: it for key, it in file.items() if key not in ("made_with", "metrics")} for file in files]


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_with_a_compiler_schedule_and_backend_change_no_bit(name, tmp_path):
    oracle = checkpoints(name, tmp_path / "oracle", max_lag=1)
    assert oracle
    assert same(checkpoints(name, tmp_path / "async", max_lag=1, async_mode=True), oracle)

    pieces = checkpoints(name, tmp_path / "pieces", **{"env.workers": 2})
    assert same(checkpoints(name, tmp_path / "processes", **{"env.workers": 2, "env.backend": "process"}), pieces)

    plain = checkpoints(name, tmp_path / "plain", **{"max_lag": 1, "policy.learn.compile": "off"})
    assert not same([file["model"] for file in plain], [file["model"] for file in oracle])  # steps were compiled
