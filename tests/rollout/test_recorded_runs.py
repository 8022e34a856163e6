"""Recorded runs: noise on the greedy actions of a saved policy."""

import numpy as np
import pytest

from ding_lite import task
from ding_lite.commands import main
from ding_lite.config import DQNConfig, TD3Config
from ding_lite.contexts import OnlineRLContext
from ding_lite.datasets import DatasetError, OfflineDataset
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver, interaction_evaluator
from ding_lite.policy import DQNPolicy, TD3Policy, load_policy
from ding_lite.rollout import evaluate_run, record_run


def saved(config, policy_class, folder):
    """A run that has saved its policy, before it learned."""
    cfg = config().override(
        {"exp_name": str(folder), "env.n_evaluator_episode": 1, "policy.model.encoder_hidden_size_list": [8]}
    )
    envs = make_envs(cfg.env.id, 1, seed=0)
    policy = policy_class(cfg.policy, envs.single_observation_space, envs.single_action_space)
    with task.start(ctx=OnlineRLContext()):
        task.use(interaction_evaluator(cfg, policy.eval_mode, envs))
        task.use(CkptSaver(policy, cfg.exp_name))
        task.run(max_step=1)
    return str(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return saved(TD3Config, TD3Policy, tmp_path_factory.mktemp("td3") / "run")


@pytest.mark.slow
def test_noise_is_that_of_the_settings_and_what_is_recorded_is_what_was_done(run, tmp_path):
    dataset = record_run(run, tmp_path / "noisy", 4000, "final", seed=3, deterministic=True, noise_sigma=0.1)
    rows = dataset.rows()
    action, _, _ = load_policy(run, "final").eval_mode.forward(rows["obs"])
    noise, high = rows["action"] - action, dataset.action_space.high
    inside = np.abs(action) < high - 4 * 0.1 * high
    assert inside.sum() > 500
    assert abs(noise[inside].std() - 0.1 * 2) < 0.01  # actions of Pendulum-v1 are torques of -2 to 2
    assert abs(noise[inside].mean()) < 0.02
    assert rows["action"].dtype == np.float32

    th, thdot = np.arctan2(rows["obs"][:, 1], rows["obs"][:, 0]), rows["obs"][:, 2]
    cost = th**2 + 0.1 * thdot**2 + 0.001 * rows["action"][:, 0] ** 2  # the reward is that of the noisy action
    np.testing.assert_allclose(rows["reward"], -cost, rtol=1e-3, atol=1e-3)

    wide = record_run(run, tmp_path / "wide", 400, "final", seed=3, deterministic=True, noise_sigma=1.0).rows()["action"]
    assert (np.abs(wide) <= high).all()
    assert (np.abs(wide) == high).any()


@pytest.mark.slow
def test_noise_is_seeded_and_noted(run, tmp_path, capsys):
    def recorded(name, sigma=0.2, seed=3, **options):
        return record_run(run, tmp_path / name, 200, "final", seed=seed, deterministic=True, noise_sigma=sigma, **options)

    first, again, other, greedy = recorded("a"), recorded("b"), recorded("c", seed=4), recorded("d", sigma=None)
    np.testing.assert_array_equal(first.rows()["action"], again.rows()["action"])
    assert (first.rows()["action"] != other.rows()["action"]).any()
    assert first.sources[0]["noise_sigma"] == 0.2
    assert "noise_sigma" not in greedy.sources[0]
    with pytest.raises(DatasetError, match="has episodes of .* with seed 3 already"):
        recorded("a", append=True)
    assert recorded("a", sigma=0.3, append=True).num_episodes == 2 * first.num_episodes

    out = str(tmp_path / "e")
    command = ["collect", run, "--out", out, "--steps", "200", "--which", "final", "--seed", "3"]
    assert main([*command, "--greedy", "--noise-sigma", "0.2"]) == 0
    np.testing.assert_array_equal(OfflineDataset(out).rows()["action"], first.rows()["action"])
    assert main([*command, "--append", "--noise-sigma", "0.2"]) == 2
    assert "pass deterministic=True, on the command line --greedy" in capsys.readouterr().err


@pytest.mark.few
@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf"), "0.1", True, 10**400])
def test_noise_that_is_no_number_above_0_is_refused(run, tmp_path, sigma):
    with pytest.raises(ValueError, match="noise_sigma = .*expected a number above 0"):
        record_run(run, tmp_path / "data", 9, "final", deterministic=True, noise_sigma=sigma)
    assert not (tmp_path / "data").exists()


def test_numbers_of_numpy_are_numbers(run, tmp_path):
    one = record_run(run, tmp_path / "a", np.int64(20), "final", deterministic=True, noise_sigma=np.float32(0.25))
    other = record_run(run, tmp_path / "b", 20, "final", deterministic=True, noise_sigma=0.25)
    np.testing.assert_array_equal(one.rows()["action"], other.rows()["action"])
    assert one.sources[0]["noise_sigma"] == 0.25
    for steps in (0, np.int64(0), True, 2.0, "9"):
        with pytest.raises(ValueError, match="at least 1 step is needed, a whole number"):
            record_run(run, tmp_path / "c", steps, "final")


def test_noise_on_other_actions_is_refused(tmp_path):
    run = saved(DQNConfig, DQNPolicy, tmp_path / "dqn")
    with pytest.raises(ValueError, match=r"finite bounds, and this DQNPolicy has Discrete\(2\): leave it out"):
        record_run(run, tmp_path / "data", 9, "final", deterministic=True, noise_sigma=0.1)
    assert not (tmp_path / "data").exists()


def test_eps_is_noted_and_refused_with_greedy_actions(tmp_path, capsys):
    run = saved(DQNConfig, DQNPolicy, tmp_path / "dqn")
    assert record_run(run, tmp_path / "explored", 30, "final", eps=0.25).sources[0]["settings"] == {"eps": 0.25}
    with pytest.raises(ValueError, match=r"eps = 0.25 has no effect on greedy actions: leave it out"):
        record_run(run, tmp_path / "greedy", 30, "final", deterministic=True, eps=0.25)
    with pytest.raises(ValueError, match=r"explores by eps, which has no effect on greedy actions"):
        evaluate_run(run, 1, "final", eps=0.25)
    for call, who in ((lambda **how: record_run(run, tmp_path / "greedy", 30, "final", **how), "record_run"),
                      (lambda **how: evaluate_run(run, 1, "final", deterministic=False, **how), "evaluate_run")):  # fmt: skip
        for eps in (True, "0.1", 2, float("nan"), -0.5):
            with pytest.raises(ValueError, match=rf"{who}\(eps=.*expected a probability, a number in \[0, 1\]"):
                call(eps=eps)
        with pytest.raises(ValueError, match=rf"{who}\(eps=0.1, settings=.'eps': 0.2.\): give it once"):
            call(eps=0.1, settings={"eps": 0.2})
    assert main(["collect", run, "--out", str(tmp_path / "greedy"), "--greedy", "--eps", "0.1", "--which", "final"]) == 2
    assert "leave --greedy out" in capsys.readouterr().err
    assert not (tmp_path / "greedy").exists()
