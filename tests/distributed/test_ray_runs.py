"""Runs whose environments live on a Ray cluster: the hash of the run on this machine, also after a death."""

import json

import pytest
import torch
from example_runs import small, spied
from states import same

from ding_lite import task

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("cluster")]

NAMES = ["dqn", "ppo", "sac", "r2d2", "impala"]


def result(name, folder, backend, **settings):
    """Counters, checkpoints, evaluations, and the states of environments, policies and buffers at the end."""
    module, cfg = small(name, folder, **{"env.workers": 2, "env.backend": backend, **settings})
    made = spied(module)
    module.main(cfg)
    counters = [getattr(task.ctx, it, 0) for it in ("total_step", "env_step", "env_episode", "train_iter", "last_eval_iter")]
    files = [torch.load(path, weights_only=True) for path in sorted((folder / "ckpt").glob("*.pt"))]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [[value for key, value in sorted(row.items()) if key.startswith("evaluate/")] for row in rows]
    left = [thing.state_dict() for thing in made]
    return [counters, files, [row for row in evaluated if row], [_of_one_piece(state) for state in left]]


def _of_one_piece(state):
    """The state of environments in one piece, which are saved as pieces where they live elsewhere."""
    pieces = state.get("pieces", [])
    return pieces[0] if len(pieces) == 1 else state


@pytest.mark.parametrize("name", NAMES)
def test_an_asynchronous_run_on_the_cluster_is_the_run_on_one_thread(name, tmp_path):
    expected = result(name, tmp_path / "local", "local", max_lag=1)
    found = result(name, tmp_path / "ray", "ray", max_lag=1, async_mode=True)

    assert expected[0][3] > 0  # it learned
    assert same(found, expected)


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_run_on_the_cluster_is_the_run_in_this_process(name, tmp_path):
    assert same(result(name, tmp_path / "ray", "ray"), result(name, tmp_path / "local", "local"))
