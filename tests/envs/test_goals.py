"""The reward function of environments with goals, and the environment of bits to be flipped."""

from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ding_lite.envs import BitFlip, goal_rewards, make_envs
from ding_lite.envs.bit_flip import BIT_FLIP

BOX = spaces.Box(-1, 1, (2,), np.float64)


class Reach(gymnasium.Env):
    """An environment with goals, whose functions the test gives."""

    action_space = spaces.Discrete(2)

    def __init__(self, reward=None, terminated=None, goal=BOX, desired=None):
        parts = {"observation": BOX, "achieved_goal": goal, "desired_goal": desired or goal}
        self.observation_space = spaces.Dict(parts)
        functions = {"compute_reward": reward, "compute_terminated": terminated}
        self.__dict__.update({name: it for name, it in functions.items() if it is not None})


def fetch(achieved, desired, info):
    """As the environments Fetch of gymnasium-robotics."""
    return -(np.linalg.norm(achieved - desired, axis=-1) > 0.05).astype(np.float32)


def made(**functions):
    return make_envs(partial(Reach, **functions), 2)


@pytest.mark.parametrize("backend", ["local", "process"])
def test_rewards_are_those_of_the_environment_wherever_it_is_stepped(backend):
    envs = make_envs(BIT_FLIP, 2, seed=1, env_config={"n_bits": 5}, workers=2, backend=backend)
    rewards = goal_rewards(envs)
    obs, _ = envs.reset()
    goals = np.stack([obs["achieved_goal"][0], obs["desired_goal"][0]])
    envs.close()

    assert rewards.rewards(goals, goals, {}).tolist() == [0, 0]
    assert rewards.rewards(goals, goals[::-1], {}).tolist() == [-1, -1]
    assert rewards.terminated(goals, goals[[0, 0]], {}).tolist() == [True, False]
    assert rewards.name == BIT_FLIP


def test_the_functions_of_gymnasium_robotics_fit():
    rewards = goal_rewards(made(reward=fetch, terminated=lambda achieved, desired, info: False))
    goals = np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 1.01]])

    assert rewards.rewards(goals, goals[[1, 1, 1]], {}).tolist() == [-1, 0, 0]
    assert rewards.terminated(goals, goals, {}).tolist() == [False] * 3


def test_a_wrapper_may_compute_the_rewards():
    class Doubled(gymnasium.Wrapper):
        def compute_reward(self, achieved, desired, info):
            return 2 * self.env.get_wrapper_attr("compute_reward")(achieved, desired, info)

    rewards = goal_rewards(make_envs(partial(Reach, reward=fetch), 1, wrappers=[Doubled]))

    assert rewards.rewards(np.zeros((1, 2)), np.ones((1, 2)), {}).tolist() == [-2]


def test_goals_may_be_nested_and_infos_recorded():
    goal = spaces.Dict({"a": BOX, "b": spaces.Discrete(3)})

    def reward(achieved, desired, info):
        return (achieved["b"] == desired["b"]) + info["speed"]

    envs = make_envs(partial(Reach, reward=reward, goal=goal), 1, info_columns=("speed",))
    goals = {"a": np.zeros((2, 2)), "b": np.array([1, 2])}

    assert goal_rewards(envs).rewards(goals, goals, {"speed": np.array([0.5, 1.5])}).tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (lambda: SimpleNamespace(), "goal_rewards wants environments of make_envs"),
        (lambda: make_envs("CartPole-v1", 1), "an environment with goals has a Dict with 'observation', 'achieved_goal'"),
        (lambda: made(), "Reach has no compute_reward"),
        (lambda: made(reward=fetch, desired=spaces.Discrete(2)), "can only replace another one in the same space"),
        (lambda: made(reward=lambda a, d, info: -float(np.linalg.norm(a - d) > 1)), r"compute over the last axis"),
        (lambda: made(reward=lambda a, d, info: a - d), r"returned float64 \(3, 2\) for 3 goals"),
        (lambda: made(reward=lambda a, d, info: info["speed"]), r"info_columns=\('speed',\)"),
        (lambda: made(reward=lambda a, d: a[:, 0]), "positional arguments"),
    ],
)
def test_environments_without_the_interface_are_refused_with_the_fix(env, words):
    with pytest.raises((TypeError, ValueError, KeyError), match=words):
        goal_rewards(env())


def test_an_error_for_many_goals_has_a_note_with_the_fix():
    with pytest.raises(TypeError) as caught:
        goal_rewards(made(reward=lambda a, d, info: -1.0 if float(a[0]) > 1 else 0.0))

    assert "pass your own function, HERLearner(cfg, policy, buffer_, compute_reward)" in " ".join(caught.value.__notes__)


def test_bits_are_flipped_until_they_are_those_of_the_goal():
    env = BitFlip(6)
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        wrong = np.flatnonzero(obs["observation"] != obs["desired_goal"])
        assert len(wrong)
        for left, bit in enumerate(wrong, 1 - len(wrong)):
            obs, reward, terminated, truncated, info = env.step(int(bit))
            assert obs in env.observation_space
            assert (reward, terminated, info) == (-1.0 if left else 0.0, left == 0, {"is_success": left == 0})
            assert reward == env.compute_reward(obs["achieved_goal"], obs["desired_goal"], info)
        assert truncated == (len(wrong) == 6)


def test_an_episode_of_bits_ends_after_as_many_steps():
    env = BitFlip(4)
    obs, _ = env.reset(seed=1)
    right = (
        int(np.flatnonzero(obs["observation"] == obs["desired_goal"])[0])
        if (obs["observation"] == obs["desired_goal"]).any()
        else 0
    )
    ends = [env.step(right)[2:4] for _ in range(4)]

    assert ends == [(False, False)] * 3 + [(False, True)]


def test_the_goal_of_a_single_bit_is_the_other_one():
    env = BitFlip(1)
    assert all(env.reset(seed=seed)[0]["desired_goal"] != env.reset(seed=seed)[0]["observation"] for seed in range(8))


def test_bits_have_a_number():
    with pytest.raises(ValueError, match="at least 1 bit"):
        BitFlip(0)


def test_worker_processes_know_the_environment_and_give_the_same_episodes():
    here, there = (
        make_envs(BIT_FLIP, 2, seed=4, env_config={"n_bits": 7}, workers=2, backend=backend) for backend in ("local", "process")
    )
    np.testing.assert_equal(here.reset()[0], there.reset()[0])
    for step in range(9):
        one, other = here.step(np.array([step % 7, 0])), there.step(np.array([step % 7, 0]))
        np.testing.assert_equal(one[:4], other[:4])
    there.close()
    assert isinstance(here.recipe, dict)


def test_the_extra_of_robots_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"make_envs\('FetchReach-v4'\) needs gymnasium_robotics.*ding_lite\[robotics\]"):
        make_envs("FetchReach-v4", 1)


def test_reaching_a_goal_is_learned_by_a_robot():
    pytest.importorskip("gymnasium_robotics")
    rewards = goal_rewards(make_envs("FetchReach-v4", 1))

    assert rewards.rewards(np.zeros((2, 3)), np.array([[0, 0, 0], [0, 0, 1.0]]), {}).tolist() == [0, -1]
