"""Whole runs with compiled steps: asynchronous ones are those of one thread, and those with processes are those without."""

import pytest
import torch
from example_runs import small
from states import same

pytestmark = [pytest.mark.compiled, pytest.mark.timeout(600)]


def checkpoints(name, folder, **settings):
    """The checkpoints of a run, without how the policy was made and its metrics."""
    module, cfg = small(name, folder, **{"policy.learn.compile": "on", **settings})
    module.main(cfg)
    files = [torch.load(path, weights_only=True) for path in sorted((folder / "ckpt").glob("*.pt"))]
    return [{key: it for key, it in file.items() if key not in ("made_with", "metrics")} for file in files]


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_schedule_and_backend_change_no_bit(name, tmp_path):
    oracle = checkpoints(name, tmp_path / "oracle", max_lag=1)
    assert oracle
    assert same(checkpoints(name, tmp_path / "async", max_lag=1, async_mode=True), oracle)

    pieces = checkpoints(name, tmp_path / "pieces", **{"env.workers": 2})
    assert same(checkpoints(name, tmp_path / "processes", **{"env.workers": 2, "env.backend": "process"}), pieces)

    plain = checkpoints(name, tmp_path / "plain", **{"max_lag": 1, "policy.learn.compile": "off"})
    assert not same([file["model"] for file in plain], [file["model"] for file in oracle])  # steps were compiled
