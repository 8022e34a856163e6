"""Observations outside the bounds of their Box: a warning by name, once, and the observation as it is."""

import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ding_lite.envs import make_envs, make_multi_agent_envs
from ding_lite.envs.vector_adapters import VectorEnvAdapter

BOX = spaces.Box(-1, 1, (2,), np.float32)


def played(envs, steps=4):
    """The warnings of so many steps, and what was observed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = [envs.reset()[0], *(envs.step(np.zeros(envs.num_envs, np.int64))[0] for _ in range(steps))]
    return [str(one.message) for one in caught], seen


@pytest.fixture
def second_outside(faulty_env):
    """Two environments, the second of which returns this observation at its `at`-th step."""

    def make(space, obs, at, **flags):
        made = iter([faulty_env(-1, observation_space=space), faulty_env(at, observation_space=space, obs=obs, **flags)])
        return make_envs(lambda: next(made), 2)

    return make


@pytest.mark.parametrize("is_last", [False, True], ids=["in an episode", "the last of an episode"])
def test_it_is_told_with_environment_element_value_bounds_fix_and_place(second_outside, is_last):
    envs = second_outside(BOX, np.array([0.5, 5], np.float32), 2, truncated=is_last)
    (message,), seen = played(envs)
    seed = envs.starts[1].start["seed"] if not is_last else message.split("{'seed': ")[1].split("}")[0]
    assert message == (
        "environment 1 (<FaultyEnv instance>) returned obs[1] = 5.0, its Box allows -1.0 to 1.0 there: correct the bounds of "
        "its observation_space, or scale or clip observations in a wrapper. Observations are used unchanged, and this warning "
        f"is given once. It was in step 1 of its episode 0, which began with {{'seed': {seed}}}, at the action np.int64(0)."
    )
    if not is_last:
        assert seen[2][1].tolist() == [0.5, 5]


def test_in_a_reset_it_is_told_as_that(second_outside):
    (message,), _ = played(second_outside(BOX, np.array([-3, 0], np.float32), 0))
    assert "obs[0] = -3.0" in message
    assert "It was in the reset for its episode 0, which began with {'seed': " in message


def test_it_is_told_once_however_many_environments_overstep_however_often():
    class Outside(gymnasium.Env):
        observation_space, action_space = BOX, spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.full(2, 9, np.float32), {}

        def step(self, action):
            return np.full(2, 9, np.float32), 0.0, True, False, {}

    messages, _ = played(make_envs(Outside, 5))
    assert [message.split(" (")[0] for message in messages] == ["environment 0"]


@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        (spaces.Box(0, 10, (2,), np.int64), np.array([3, 11]), "obs[1] = 11, its Box allows 0 to 10 there"),
        (spaces.Box(0, 200, (2, 2), np.uint8), np.full((2, 2), 201, np.uint8), "obs[0, 0] = 201, its Box allows 0 to 200"),
        (spaces.Box(np.array([-1, -np.inf]), np.array([1, np.inf])), np.array([1.5, 1e30]), "obs[0] = 1.5"),
        (spaces.Box(-1, 1, (), np.float64), np.array(1.001), "obs = 1.001"),
        (spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), BOX])), {"a": (1, np.array([0, 2]))}, "obs['a']['1'][1] = 2.0"),
        (spaces.Box(-1, 1, (5000,), np.float32), np.eye(1, 5000, 4999, dtype=np.float32) * 7, "obs[4999] = 7.0"),
    ],
    ids=str,
)
def test_every_box_of_the_space_is_held_to_its_bounds(second_outside, space, obs, words):
    obs = obs if isinstance(obs, dict) else obs.reshape(space.shape)
    (message,), _ = played(second_outside(space, obs, 1))
    assert words in message


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (BOX, np.array([1, -1], np.float32)),
        (spaces.Box(-0.1, 0.1, (2,), np.float64), np.array([0.1, -0.1])),
        (BOX, np.array([1.000001, -1], np.float32)),
        (spaces.Box(0, 1, (2,), np.float32), np.array([-0.0, 0.0], np.float32)),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0, 255], np.uint8)),
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), np.array([1e38, -1e38], np.float32)),
        (spaces.Box(0, np.inf, (2,), np.float32), np.array([0, 3e38], np.float32)),
    ],
    ids=str,
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_bound_itself_and_what_float32_rounds_it_to_are_inside(second_outside, space, obs, at):
    assert played(second_outside(space, obs, at))[0] == []


def test_each_environment_is_held_to_the_bounds_of_its_own(faulty_env):
    makers = iter([partial(faulty_env, -1, observation_space=spaces.Box(-n, n, (2,), np.float32)) for n in (1, 9)])
    envs = make_envs(lambda: next(makers)(), 2)
    envs.envs[1]._good = np.full(2, 8, np.float32)
    assert played(envs)[0] == []


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("is_last", [False, True])
def test_foreign_environments_are_held_to_them_in_every_mode(mode, is_last, faulty_env):
    faults = {"obs": np.array([0, 3], np.float32), "terminated": is_last}
    stepper = VectorEnvAdapter(SyncVectorEnv([partial(faulty_env, 2, observation_space=BOX, **faults)], autoreset_mode=mode))
    out = np.empty((1, 2), np.float32)
    stepper.begin(out, seed=7)
    stepper.advance(np.zeros(1, np.int64), out.copy())
    with pytest.warns(UserWarning, match=r"^environment 0 returned obs\[1\] = 3.0, its Box allows -1.0 to 1.0") as caught:
        stepper.advance(np.zeros(1, np.int64), out.copy())
    (warning,) = caught
    assert str(warning.message).endswith("It was in step 1 of its episode 0 since reset(seed=7), at the action np.int64(0).")


def test_each_agent_is_held_to_them():
    class Pair:
        possible_agents = agents = ("x", "y")

        def observation_space(self, agent):
            return BOX

        def action_space(self, agent):
            return spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            return {"x": np.zeros(2, np.float32), "y": np.full(2, 4, np.float32)}, {}

        def step(self, actions):
            return {}, {}, {}, {}, {}

    env = make_multi_agent_envs(Pair, 2)
    env.assign_slots(str, ("x", "y"))
    with pytest.warns(UserWarning, match=r"^agent 'y' of environment 0 returned obs\[0\] = 4.0, its Box allows -1.0 to 1.0"):
        env.begin()
