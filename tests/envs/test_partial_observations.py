"""CartPole without velocities: the same task, of which less is seen."""

import gymnasium
import numpy as np
import pytest

from ding_lite.envs import PartialObservation, make_envs


def test_positions_are_those_of_cartpole_and_all_else_is_the_same():
    seen, whole = make_envs("CartPoleNoVel-v1", 2, seed=3), make_envs("CartPole-v1", 2, seed=3)
    obs, expected = seen.reset()[0], whole.reset()[0]
    rng = np.random.default_rng(0)
    for _ in range(100):
        np.testing.assert_array_equal(obs, expected[:, [0, 2]])
        action = rng.integers(0, 2, 2)
        (obs, *rest), (expected, *others) = seen.step(action)[:4], whole.step(action)[:4]
        for one, other in zip(rest, others, strict=True):
            np.testing.assert_array_equal(one, other)


def test_it_is_known_by_its_id_with_its_limit_and_threshold():
    spec = gymnasium.spec("CartPoleNoVel-v1")
    env = make_envs("CartPoleNoVel-v1", 1)

    assert (spec.max_episode_steps, spec.reward_threshold) == (500, 475.0)
    assert env.single_observation_space.shape == (2,)
    assert env.single_observation_space.dtype == np.float32


def test_worker_processes_know_it_too():
    env = make_envs("CartPoleNoVel-v1", 2, seed=1, workers=2, backend="process")
    here = make_envs("CartPoleNoVel-v1", 2, seed=1)
    try:
        np.testing.assert_array_equal(env.reset()[0], here.reset()[0])
    finally:
        env.close()


@pytest.mark.parametrize("index", [(0,), (3, 1)])
def test_any_elements_can_be_shown(index):
    env = PartialObservation(gymnasium.make("CartPole-v1"), index)
    obs, _ = env.reset(seed=0)
    whole, _ = gymnasium.make("CartPole-v1").reset(seed=0)

    np.testing.assert_array_equal(obs, whole[list(index)])
    assert env.observation_space.contains(obs)
