"""Every algorithm with discrete actions, in an environment that raises an error if an action is not allowed."""

import pytest
from example_runs import small, spied
from masked_envs import MaskedEnv
from slow_cases import mostly_slow
from states import same

from ding_lite.basics import load_checkpoint
from ding_lite.envs import make_envs

pytestmark = pytest.mark.timeout(240)
MASKED = {"env.id": "MaskedInInfo-v0", "env.action_mask": True, "max_step": 3}
NAMES = ("a2c", "c51", "dqn", "impala", "iqn", "ppo", "ppo_lstm", "qrdqn", "r2d2", "rainbow", "reinforce")


def run(name, folder, **settings):
    """The final checkpoint, and what the example made."""
    module, cfg = small(name, folder, **{**MASKED, **settings})
    made = spied(module)
    module.main(cfg)
    return load_checkpoint(folder / "ckpt/final.pt"), made


def test_the_environment_refuses_actions_that_are_not_allowed():
    envs = make_envs(MaskedEnv, 1, seed=0)
    obs, _ = envs.reset()
    with pytest.raises(RuntimeError, match="is allowed"):
        envs.step(obs["action_mask"].argmin(-1) + 2)


@pytest.mark.few
@pytest.mark.parametrize("name", NAMES)
def test_no_action_is_taken_that_is_not_allowed(name, tmp_path):
    _, made = run(name, tmp_path)
    policy = next(thing for thing in made if hasattr(thing, "train_iter"))

    assert policy.train_iter > 0
    assert policy.collect_mode.masks is not None


@pytest.mark.few
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo", {"env.id": "MaskedMulti-v0"}),
        ("ppo_lstm", {"env.id": "MaskedMulti-v0"}),
        ("ppo", {"policy.collect.n_sample": 4}),  # one step
        ("rainbow", {"env.id": "Masked-v0", "env.action_mask": False}),
    ],
    ids=str,
)
def test_nor_in_other_settings(name, settings, tmp_path):
    run(name, tmp_path, **settings)


@pytest.mark.parametrize("name", mostly_slow(["dqn", "ppo_lstm"], "dqn"))
def test_an_asynchronous_run_equals_the_one_on_one_thread(name, tmp_path):
    one = run(name, tmp_path / "one", max_lag=1, max_step=4)[0]
    assert same(run(name, tmp_path / "async", max_lag=1, max_step=4, async_mode=True)[0], one)


def test_worker_processes_equal_workers_in_this_process(tmp_path):
    local = run("dqn", tmp_path / "local", **{"env.workers": 2, "max_step": 2})[0]
    assert same(run("dqn", tmp_path / "process", **{"env.workers": 2, "max_step": 2, "env.backend": "process"})[0], local)


@pytest.mark.slow
def test_a_run_that_is_saved_and_resumed_equals_one_longer_run(tmp_path):
    name = "r2d2"
    run(name, tmp_path / "run", max_step=3)
    resumed = run(name, tmp_path / "run", max_step=5, resume=str(tmp_path / "run"))[0]
    assert same(resumed, run(name, tmp_path / "whole", max_step=5)[0])
