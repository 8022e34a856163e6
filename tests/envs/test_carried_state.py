"""What environments carry from one episode to the next, which a replay does not restore, is named when the run is saved."""

import collections
import contextlib
import random
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ding_lite.envs import make_envs
from ding_lite.envs.carried_state import statistics_in


class Walk(gymnasium.Env):
    """Five steps to an observation that depends on the seed."""

    observation_space, action_space = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.goal = self.np_random.uniform()
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        return self._obs(), float(action) * self.goal, False, self.steps == 5, {}

    def _obs(self):
        return self.np_random.uniform(-9, 9, 2).astype(np.float32)


class OfEpisodes(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.episodes = 0

    def reset(self, **kwargs):
        self.episodes += 1
        return self.env.reset(**kwargs)


class OfSteps(gymnasium.Wrapper):
    count = 0

    def step(self, action):
        self.count = self.count + 1
        return self.env.step(action)


class OfRewards(gymnasium.RewardWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.sums = np.zeros(1)

    def reward(self, reward):
        self.sums += reward
        return reward / (1 + self.sums[0])


class OwnGenerator(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.noise = np.random.default_rng(0)

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, reward + self.noise.random(), *rest


class GlobalRandom(gymnasium.Wrapper):
    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, reward + random.random(), *rest


class NotSaved(OfSteps):
    not_saved = ("count",)


class Saved(OfSteps):
    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Fresh(gymnasium.Wrapper):
    """Has many attributes, and `reset` sets all that its steps depend on."""

    def __init__(self, env):
        super().__init__(env)
        self.frames, self.visits, self.previous = collections.deque(maxlen=3), np.zeros(2), 0.0

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed, options=options)
        self.noise = np.random.default_rng(seed)
        self.frames.extend([obs] * 3)
        self._clear()
        return obs, info

    def _clear(self):
        self.total, self.best = 0.0, float("-inf")
        self.visits[:] = 0

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        change, self.previous = reward - self.previous, reward
        self.frames.append(obs)
        self.total += reward
        self.best = max(self.best, reward)
        self.visits[action] += 1
        return obs, reward + self.noise.random() + 0 * change, *rest


class Corrected(gymnasium.Wrapper):
    """`reset` sets its goal, and corrects it in one statement that reads and sets it."""

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed, options=options)
        self.goal = int(np.random.default_rng(seed).integers(7))
        self.goal = min(self.goal, 5)
        return obs, info


class Wrapping(gymnasium.Wrapper):
    """`reset` sets its counter only sometimes."""

    count = 0

    def reset(self, *, seed=None, options=None):
        if self.env.unwrapped.np_random is None:
            self.count = 0
        self.count += 1
        return self.env.reset(seed=seed, options=options)


class Levels(gymnasium.Wrapper):
    """A method that the script calls changes it: such calls are repeated in a replay."""

    level = 0

    def advance(self):
        self.level += 1


def told(wrapper, steps, saves=1, change=None, count=2):
    """The warnings of saving these environments, that many times."""
    with contextlib.closing(make_envs(Walk, count, seed=0, wrappers=[wrapper])) as envs:
        envs.reset()
        for step in range(steps):
            if change is not None and step % 3 == 1:
                change(envs)
            envs.step(np.ones(count, np.int64))
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            for _ in range(saves):
                envs.state_dict()
            return [str(it.message) for it in shown]


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (OfEpisodes, "OfEpisodes.episodes is carried from one episode to the next"),
        (OfSteps, "OfSteps.count is carried from one episode to the next"),
        (Wrapping, "Wrapping.count is carried from one episode to the next"),
        (OfRewards, "OfRewards.sums is carried from one episode to the next"),
        (OwnGenerator, "OwnGenerator.noise is carried from one episode to the next"),
        (GlobalRandom, "GlobalRandom draw from the global random generator of random, with random.random"),
        (gymnasium.wrappers.NormalizeReward, "scale collected rewards with reward_normalizer()"),
        (gymnasium.wrappers.NormalizeObservation, "policy.model.normalize_obs = True"),
    ],
)
def test_what_a_wrapper_carries_is_named_once_when_the_run_is_saved(wrapper, words):
    (found,) = told(wrapper, 12, saves=3)
    assert words in found


@pytest.mark.parametrize(
    "wrapper", [Fresh, Corrected, NotSaved, Saved, gymnasium.wrappers.RecordEpisodeStatistics, gymnasium.Wrapper]
)
def test_wrappers_that_a_replay_restores_are_not_named(wrapper):
    assert told(wrapper, 12) == []


def test_nothing_is_named_in_the_first_episode_which_a_replay_restores():
    assert [told(wrapper, 3) for wrapper in (OfEpisodes, OfSteps, OwnGenerator)] == [[], [], []]


def test_calls_of_the_script_are_repeated_and_not_named():
    assert told(Levels, 12, change=lambda envs: envs.call("advance")) == []


def test_statistics_that_are_not_updated_are_not_named():
    def frozen(env):
        wrapped = gymnasium.wrappers.NormalizeReward(env)
        wrapped.update_running_mean = False
        return wrapped

    assert told(frozen, 12) == []


def test_what_environments_in_processes_carry_is_named_when_their_state_is_used_and_not_when_they_end(capfd):
    with contextlib.closing(make_envs(Walk, 2, seed=0, wrappers=[OfEpisodes], workers=2, backend="process")) as envs:
        envs.reset()
        for _ in range(12):
            envs.step(np.ones(2, np.int64))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            envs.release()
        assert "is carried" not in capfd.readouterr().err
        with pytest.warns(UserWarning, match="OfEpisodes.episodes is carried from one episode to the next"):
            envs.state_dict()


class Odd(gymnasium.Env):
    """An environment with attributes that look like those of a wrapper, or of a vector environment."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)

    def __init__(self, **attributes):
        vars(self).update(attributes)


@pytest.mark.parametrize("name", ["env", "envs"])
@pytest.mark.parametrize("value", ["name", 4, {"a": 1}, ["a"], np.zeros(3), np.random.default_rng(0), None])
def test_statistics_are_looked_for_in_wrappers_alone(name, value):
    wrapped = gymnasium.wrappers.NormalizeReward(Odd(**{name: value}))

    assert statistics_in(make_envs(lambda: Odd(**{name: value}), 1)) == []
    assert statistics_in(make_envs(lambda: wrapped, 1)) == ["NormalizeReward"]


def test_an_environment_that_refers_to_itself_ends_the_search():
    env = Odd()
    env.env = env

    assert statistics_in(env) == []
