"""What environments remember beyond an episode: their own state is saved, and an attribute that is lost is named."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ding_lite.envs import make_envs


class Walk(gymnasium.Env):
    """Five steps to an observation that depends on the seed."""

    observation_space, action_space = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        return self._obs(), float(action), False, self.steps == 5, {}

    def _obs(self):
        return self.np_random.uniform(-9, 9, 2).astype(np.float32)


class Level(gymnasium.Wrapper):
    """Triples the reward from the third episode on."""

    def __init__(self, env):
        super().__init__(env)
        self.episodes = 0

    def reset(self, **kwargs):
        self.episodes += 1
        return self.env.reset(**kwargs)

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, reward * (3 if self.episodes > 2 else 1), *rest


class SavedLevel(Level):
    def state_dict(self):
        return {"episodes": self.episodes}

    def load_state_dict(self, state):
        self.episodes = state["episodes"]


def played(wrapper, steps, state=None, **options):
    """The rewards and observations of two environments, and their state afterwards."""
    envs = make_envs(Walk, 2, seed=0, wrappers=[wrapper], **options)
    if state is None:
        envs.reset()
    else:
        envs.load_state_dict(state)
    results = [envs.step(np.ones(2, np.int64)) for _ in range(steps)]
    state = envs.state_dict()
    envs.close()
    return [(obs.tolist(), reward.tolist()) for obs, reward, *_ in results], state


@pytest.mark.parametrize("options", [{}, {"workers": 2, "backend": "process"}], ids=["here", "processes"])
def test_a_wrapper_with_a_state_continues(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, _ = played(SavedLevel, 20, **options)
        first, state = played(SavedLevel, 12, **options)
        second, _ = played(SavedLevel, 8, state, **options)
    assert first + second == whole


def test_an_attribute_that_a_replay_does_not_restore_is_named():
    _, state = played(Level, 7)
    words = (
        r"environment 0 does not come back .*: Level\.episodes is 1 after the replay .* and was 2 when .* Give Level state_dict"
    )
    with pytest.warns(UserWarning, match=words):
        played(Level, 1, state)


def test_environments_that_remember_nothing_are_restored_without_a_word():
    _, state = played(gymnasium.Wrapper, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        played(gymnasium.Wrapper, 1, state)
