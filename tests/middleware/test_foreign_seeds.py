"""Vector environments made elsewhere are seeded from the run's configuration, unless they were reset before."""

import warnings

import gymnasium
import numpy as np
import pytest

from ding_lite.config import PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.middleware import EpisodeCollector, StepCollector
from ding_lite.policy import PPOPolicy
from ding_lite.rollout import LocalWorker

MODES = ["sync", "async", "vector_entry_point"]


def made(mode, seed=3):
    cfg = PPOConfig().override({"seed": seed, "policy.collect": {"n_sample": 16, "n_episode": 3}})
    cfg.override({"policy.model.encoder_hidden_size_list": [8]})
    envs = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode=mode)
    return cfg, envs, PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)


def first_obs(mode, reset=None, seed=3, collector=StepCollector, evaluates=False):
    cfg, envs, policy = made(mode, seed)
    if reset is not None:
        envs.reset(**reset)
    try:
        if evaluates:
            worker = LocalWorker(envs, policy.eval_mode)
            worker.begin()
            return worker.env.current.tolist()
        ctx = OnlineRLContext()
        collector(cfg, policy.collect_mode, envs)(ctx)
        found = ctx.trajectories if ctx.episodes is None else ctx.episodes
        return np.asarray(found.columns["obs"])[:4].tolist()
    finally:
        envs.close()


@pytest.mark.few
@pytest.mark.parametrize(("mode", "collector"), [*((mode, StepCollector) for mode in MODES), ("sync", EpisodeCollector)])
def test_equal_runs_in_foreign_environments_are_equal(mode, collector):
    first = first_obs(mode, collector=collector)
    assert first_obs(mode, collector=collector) == first
    assert first_obs(mode, collector=collector, seed=4) != first


def test_an_evaluator_has_another_seed_than_the_collector():
    evaluated = first_obs("sync", evaluates=True)
    assert first_obs("sync", evaluates=True) == evaluated
    assert evaluated != first_obs("sync")[0]


@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_what_the_user_has_reset_goes_on_from_there_with_a_warning(mode):
    with pytest.warns(UserWarning, match=r"was reset before the run.*seed of the policy.*env.reset\(seed=3\)"):
        first = first_obs(mode, reset={"seed": 8})
    with pytest.warns(UserWarning, match="was reset before the run"):
        assert first_obs(mode, reset={"seed": 8}) == first
    assert first != first_obs(mode)


def test_what_the_worker_began_with_a_seed_keeps_it():
    _, envs, policy = made("sync")
    worker = LocalWorker(envs, policy.collect_mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        worker.begin(seed=8)
        begun = worker.env.current.tolist()
        worker.begin()
    assert begun == gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync").reset(seed=8)[0].tolist()
    assert worker.env.current.tolist() != begun


class DrawsWhenMade(gymnasium.Env):
    """Draws a random number in its constructor, before any reset."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.level = self.np_random.integers(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2).astype(np.float32), {}


def begun(seed, reset=None):
    spec = gymnasium.envs.registration.EnvSpec("DrawsWhenMade-v0", entry_point=DrawsWhenMade)
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(spec)] * 2)
    if reset is not None:
        envs.reset(seed=reset)
    cfg = PPOConfig().override({"seed": seed})
    worker = LocalWorker(envs, PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space).collect_mode)
    worker.begin()
    return worker.env.current.tolist()


def test_environments_that_draw_random_numbers_when_they_are_made_are_seeded():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = begun(seed=3)
        assert begun(seed=3) == first
        assert begun(seed=4) != first
    with pytest.warns(UserWarning, match="was reset before the run"):
        begun(seed=3, reset=8)
