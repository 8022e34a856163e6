"""Every algorithm's example in asynchronous mode: the same run as on one thread with that lag."""

import json
from typing import NamedTuple

import pytest
import torch
from example_runs import EXAMPLES, config_of, load_example, override_known

from ding_lite import task

OTHER = {"custom_context", "dqn_async", "ppo_continuous", "ippo", "rock_paper_scissors"}  # tested elsewhere
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in OTHER)
SMALL = {
    "env.collector_env_num": 4,
    "env.evaluator_env_num": 2,
    "env.n_evaluator_episode": 2,
    "env.max_episode_steps": 60,
    "env.stop_value": None,
    "policy.eval.evaluator.eval_freq": 5,
    "policy.collect.n_sample": 64,
    "policy.collect.n_episode": 4,
    "policy.learn.batch_size": 8,
    "policy.learn.update_per_collect": 3,
    "policy.learn.learning_starts": 8,
    "policy.learn.epoch_per_collect": 2,
    "policy.random_collect_size": 32,
}
ITERATIONS = 6

pytestmark = pytest.mark.timeout(240)


def small(name, folder, **settings):
    """The example's own configuration, with less of everything that it has."""
    module = load_example(name)
    cfg = config_of(module)
    override_known(cfg, {**SMALL, "exp_name": str(folder), "seed": 3, "max_step": ITERATIONS, **settings})
    cfg.log.every_s = cfg.log.show_every_s = 1e9
    return module, cfg


def run(name, folder, **settings):
    """Everything that a run comes to: checkpoints, counters, what was evaluated, and what is left of what it worked with."""
    module, cfg = small(name, folder, **settings)
    made = spied(module)
    module.main(cfg)
    ctx = task.ctx
    counters = [getattr(ctx, it) for it in ("total_step", "env_step", "env_episode", "train_iter", "last_eval_iter")]
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


def spied(module):
    """What the example makes from here on of what has a state: environments, policies, buffers."""
    made = []

    def spy(make):
        def making(*args, **kwargs):
            made.append(make(*args, **kwargs))
            return made[-1]

        return making

    for name in ("make_envs", *(name for name in vars(module) if name.endswith(("Policy", "Buffer")))):
        setattr(module, name, spy(getattr(module, name)))
    return made


def same(one, other):
    """Bit for bit, whatever they are made of."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())
    return one == other or (one != one and other != other)


@pytest.mark.parametrize("name", NAMES)
def test_an_asynchronous_run_equals_the_one_on_one_thread(name, tmp_path):
    oracle = run(name, tmp_path / "oracle", async_mode=False, max_lag=1)
    found = run(name, tmp_path / "async", async_mode=True, max_lag=1)

    assert oracle.counters[3] > 0  # it learned
    assert len(oracle.files) >= 2
    assert len(oracle.left) >= 3
    assert found.counters == oracle.counters
    assert same(found, oracle)


@pytest.mark.parametrize("name", NAMES)
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
