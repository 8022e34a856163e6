"""Environments that write down their progress, and how that reads."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ding_lite.envs import LocalVectorEnv
from ding_lite.envs.progress import ProgressVectorEnv, describe_progress, progress_size

KEYS = spaces.Dict(force=spaces.Box(-9, 9, (2,), np.float32), key=spaces.Tuple((spaces.Discrete(5),)))


class Looking(gymnasium.Env):
    """Reads the progress whenever something is done to it."""

    observation_space = spaces.Discrete(2)

    def __init__(self, action_space, look):
        self.action_space, self.look = action_space, look

    def reset(self, *, seed=None, options=None):
        self.look()
        return 0, {}

    def step(self, action):
        self.look()
        return 0, 0.0, bool(np.ravel(next(iter(action.values())) if isinstance(action, dict) else action)[0] == 3), False, {}


def watched(action_space, num_envs=2, first_env=4):
    progress, seen = np.zeros(progress_size(num_envs), np.int64), []

    def read():
        return describe_progress(progress, num_envs, first_env)

    def make():
        seen.append(read())
        return Looking(action_space, lambda: seen.append(read()))

    envs = ProgressVectorEnv([make] * num_envs, 0, first_env, progress)
    return envs, seen, read


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (spaces.Discrete(5), np.array([3, 1]), [", action 3", ", action 1"]),
        (
            spaces.Box(-9, 9, (2,), np.float32),
            np.array([[3, 0.5], [-1, 2]], np.float32),
            [", action [3, 0.5]", ", action [-1, 2]"],
        ),
        (spaces.Box(-9, 9, (), np.float32), np.array([3, 0.25], np.float32), [", action 3", ", action 0.25"]),
        (spaces.MultiBinary((2, 2)), np.array([[[1, 0], [0, 1]]] * 2, np.int8), [", action [1, 0, 0, 1]"] * 2),
        (
            KEYS,
            {"force": np.array([[3, 1], [2, 2]], np.float32), "key": {"0": np.array([4, 0])}},
            [", action [3, 1, 4]", ", action [2, 2, 0]"],
        ),
        (spaces.Box(-9, 9, (8, 8), np.float32), np.ones((2, 8, 8), np.float32), [f", action {[1] * 64}"] * 2),
        (spaces.Box(-9, 9, (65,), np.float32), np.ones((2, 65), np.float32), ["", ""]),
    ],
)
def test_the_progress_tells_environment_episode_step_and_action(space, action, expected):
    envs, seen, read = watched(space)
    assert seen == ["environments 4 to 5, being made"] * 2
    envs.begin(envs.new_obs())
    assert seen[2:] == ["environment 4, episode 0, in its reset", "environment 5, episode 0, in its reset"]
    assert read() == "environments 4 to 5, between two steps"
    for step in range(2):
        del seen[:]
        envs.advance(action, envs.new_obs())
        assert read() == "environments 4 to 5, between two steps"
        first = 0 if "3" in expected[0] else step  # an action of 3 ends the episode
        episode = step if "3" in expected[0] else 0
        assert seen[:2] == [
            f"environment 4, episode {episode}, step {first} of it{expected[0]}",
            f"environment 5, episode 0, step {step} of it{expected[1]}",
        ]
        assert seen[2:] == ([f"environment 4, episode {step + 1}, in its reset"] if "3" in expected[0] else [])


def test_the_way_back_of_a_restored_episode_is_told():
    envs, seen, read = watched(spaces.Discrete(5))
    envs.begin(envs.new_obs())
    for action in ([1, 3], [2, 1], [1, 1]):
        envs.advance(np.array(action), envs.new_obs())
    state = envs.state_dict()
    restored, seen, read = watched(spaces.Discrete(5))
    del seen[:]
    restored.load_state_dict(state)

    assert seen == [
        *(f"environment 4, episode 0, in step {step} of its replay" for step in (0, 0, 1, 2)),
        *(f"environment 5, episode 1, in step {step} of its replay" for step in (0, 0, 1)),
    ]
    assert read() == "environments 4 to 5, between two steps"
    del seen[:]
    restored.advance(np.array([0, 0]), restored.new_obs())
    assert seen == ["environment 4, episode 0, step 3 of it, action 0", "environment 5, episode 1, step 2 of it, action 0"]


@pytest.mark.parametrize("wrong", [np.array([1]), np.array([1, 2, 3]), np.array([0.5, 1]), np.array(["a", "b"])])
def test_wrong_actions_are_refused_as_they_are_without_a_trace(wrong):
    envs, _, read = watched(spaces.Discrete(5))
    plain = LocalVectorEnv([lambda: Looking(spaces.Discrete(5), lambda: None)] * 2)
    messages = []
    for one in (envs, plain):
        one.begin(one.new_obs())
        with pytest.raises((TypeError, ValueError)) as caught:
            one.advance(wrong, one.new_obs())
        messages.append((caught.type, str(caught.value)))
    assert messages[0] == messages[1]
    assert read() == "environments 4 to 5, between two steps"


def test_an_error_leaves_no_trace_that_misleads_later():
    def look():
        if envs_made:
            raise ValueError("no")

    envs_made = []
    progress = np.zeros(progress_size(1), np.int64)
    envs = ProgressVectorEnv([lambda: Looking(spaces.Discrete(5), look)], 0, 0, progress)
    envs.begin(envs.new_obs())
    envs_made.append(True)
    for call in (lambda: envs.advance(np.array([1]), envs.new_obs()), lambda: envs.begin(envs.new_obs())):
        with pytest.raises(ValueError, match="no"):
            call()
        assert describe_progress(progress, 1, 0) == "environments 0 to 0, between two steps"
