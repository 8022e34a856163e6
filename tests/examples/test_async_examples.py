"""Every algorithm's example in asynchronous mode: the same run as on one thread with that lag."""

import json
from typing import NamedTuple

import pytest
import torch
from example_runs import ASYNC_NAMES as NAMES
from example_runs import CHANGING, OFFLINE, REPLAYING, small, spied
from states import same

from ding_lite import task

pytestmark = pytest.mark.timeout(240)


def run(name, folder, **settings):
    """Everything that a run comes to: checkpoints, counters, what was evaluated, and what is left of what it worked with."""
    module, cfg = small(name, folder, **settings)
    made = spied(module)
    module.main(cfg)
    ctx = task.ctx
    counters = [getattr(ctx, it, 0) for it in ("total_step", "env_step", "env_episode", "train_iter", "last_eval_iter")]
    files = [torch.load(path, weights_only=True) for path in sorted((folder / "ckpt").glob("*.pt"))]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [[value for key, value in sorted(row.items()) if key.startswith("evaluate/")] for row in rows]
    left = [thing.state_dict() for thing in made]
    return Result([*counters, ctx.last_eval_value], files, [row for row in evaluated if row], left)


class Result(NamedTuple):
    """What a run comes to."""

    counters: list
    files: list
    evaluated: list
    left: list
    """States of environments, policies with their acting modes, and buffers."""


@pytest.mark.parametrize("name", NAMES)
def test_an_asynchronous_run_equals_the_one_on_one_thread(name, tmp_path):
    oracle = run(name, tmp_path / "oracle", async_mode=False, max_lag=1)
    found = run(name, tmp_path / "async", async_mode=True, max_lag=1)

    assert oracle.counters[3] > 0  # it learned
    assert len(oracle.files) >= 2
    assert len(oracle.left) >= (2 if name in OFFLINE else 3)
    assert found.counters == oracle.counters
    assert same(found, oracle)


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_statistics_of_observations_and_a_schedule_are_those_on_one_thread(name, tmp_path):
    oracle = run(name, tmp_path / "oracle", async_mode=False, max_lag=1, **CHANGING)
    found = run(name, tmp_path / "async", async_mode=True, max_lag=1, **CHANGING)

    assert oracle.files[0]["model"]["normalizer.count"] > 0
    assert same(found, oracle)


def test_recurrent_states_and_kept_rollouts_are_those_on_one_thread(tmp_path):
    oracle = run("impala", tmp_path / "oracle", async_mode=False, max_lag=2, **REPLAYING)
    found = run("impala", tmp_path / "async", async_mode=True, max_lag=2, **REPLAYING)

    assert len(oracle.files[-1]["attached"]["rollout_replay"]["rollouts"]) == 2
    assert same(found, oracle)


@pytest.mark.parametrize("name", ["bc", "dqn", "gail", "her", "impala", "ppo", "r2d2", "rnd", "sac"])
def test_an_asynchronous_run_that_reaches_its_stop_value_leaves_all_as_on_one_thread(name, tmp_path):
    ends = {"env.stop_value": -1e6, "max_step": 20, "max_lag": 2}
    oracle = run(name, tmp_path / "oracle", async_mode=False, **ends)
    found = run(name, tmp_path / "async", async_mode=True, **ends)

    assert oracle.counters[0] < 19  # it ended early
    assert found.counters == oracle.counters
    assert same(found, oracle)


@pytest.mark.parametrize("name", ["ppo_lstm", "rainbow"])
def test_without_lag_asynchronous_equals_synchronous(name, tmp_path):
    plain = run(name, tmp_path / "plain")
    found = run(name, tmp_path / "async", async_mode=True, max_lag=0)

    for mode in ("collect", "evaluate"):  # saved only where no other iteration can be under way; `left` has them
        plain.files[-1].pop(mode)
    assert found.counters == plain.counters
    assert same(found, plain)
