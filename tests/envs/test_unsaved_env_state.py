"""What environments remember beyond an episode: their own state is saved, and an attribute that is lost is named."""

import time
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from memory_runs import remembered

from ding_lite import contract
from ding_lite.envs import EnvDataError, make_envs


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


class Scaled(gymnasium.Wrapper):
    """Scales rewards by what earlier episodes have earned."""

    def __init__(self, env):
        super().__init__(env)
        self.totals = [1.0]

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        self.totals.append(self.totals[-1] + reward)
        return obs, reward / self.totals[-1], *rest


class ScaledObs(gymnasium.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.seen = [1.0]

    def observation(self, obs):
        self.seen.append(self.seen[-1] + 1)
        return (obs / self.seen[-1]).astype(np.float32)


class SavedScaled(Scaled):
    def state_dict(self):
        return {"totals": list(self.totals)}

    def load_state_dict(self, state):
        self.totals = list(state["totals"])


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (Scaled, r"to its rewards.* If Scaled or Walk remembers earlier episodes, give it state_dict\(\) and load_state_dict"),
        (ScaledObs, r"to its observation.* If ScaledObs or Walk remembers earlier episodes, give it state_dict\(\) and load"),
        (gymnasium.wrappers.NormalizeReward, r"NormalizeReward keeps statistics .*: remove it, and scale .* reward_normalizer"),
        (gymnasium.wrappers.NormalizeObservation, r"NormalizeObservation keeps statistics .*: remove it, and normalise in the"),
    ],
)
def test_the_refusal_of_a_replay_names_the_wrapper_and_its_fix(wrapper, words):
    _, state = played(wrapper, 7)
    with pytest.raises(EnvDataError, match=words):
        played(wrapper, 1, state)


def test_the_fix_that_the_refusal_names_works():
    whole, _ = played(SavedScaled, 20)
    first, state = played(SavedScaled, 12)
    assert first + played(SavedScaled, 8, state)[0] == whole


class Clock(gymnasium.Wrapper):
    def reset(self, **kwargs):
        self.begun_at = time.perf_counter()
        return self.env.reset(**kwargs)


class ClockLeftOut(Clock):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_a_clock_is_named_with_how_to_leave_it_out_and_that_works():
    _, state = played(Clock, 7)
    with pytest.warns(UserWarning, match=r"Clock\.begun_at .* do not depend on begun_at, as on a clock .* may return {}"):
        played(Clock, 1, state)
    _, state = played(ClockLeftOut, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        played(ClockLeftOut, 1, state)


class Episodes(gymnasium.Env):
    """Its observations show the number of episodes; its other attributes are those of one episode, or counts for a log."""

    observation_space, action_space = spaces.Box(-99, 99, (3,), np.float32), spaces.Discrete(2)

    def __init__(self):
        self.episodes, self.visits, self.grid = 0, 0, np.zeros(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.episodes += 1
        self.visits += 1
        self.steps, self.end = 0, int(self.np_random.integers(3, 6))
        self.grid[:] = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        self.grid += self.rng.normal()
        return self._obs(), 1.0, self.steps == self.end, False, {}

    def _obs(self):
        return np.array([self.episodes, self.steps, self.grid.sum()], np.float32)


class Maze(Episodes):
    def state_dict(self):
        return {"episodes": self.episodes}

    def load_state_dict(self, state):
        self.episodes = state["episodes"]


class ForgetfulMaze(Episodes):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class HarderMaze(Maze):
    difficulty = 1.0

    def step(self, action):
        obs, reward, *rest = super().step(action)
        self.difficulty *= 1.01
        return obs, reward * self.difficulty, *rest


class Counts(gymnasium.Wrapper):
    """A wrapper whose state has all that lasts."""

    def __init__(self, env):
        super().__init__(env)
        self.level = 1.0

    def reset(self, **kwargs):
        self.level, self.turns = self.level + 0.1, 0
        return self.env.reset(**kwargs)

    def step(self, action):
        self.turns += 1
        return self.env.step(action)

    def state_dict(self):
        return {"level": self.level}

    def load_state_dict(self, state):
        self.level = state["level"]


@pytest.mark.parametrize(
    ("make", "lasts"),
    [(Maze, ""), (lambda: Counts(Walk()), ""), (ForgetfulMaze, "(episodes)"), (HarderMaze, "(difficulty)")],
    ids=["maze", "wrapper", "forgetful", "harder"],
)
def test_of_an_environment_with_a_state_only_what_reset_does_not_set_is_named(make, lasts, tmp_path):
    envs = make_envs(make, 2, seed=0)
    envs.reset()
    step = contract(uses=(envs,), stage="collect")(lambda ctx: envs.step(np.ones(2, np.int64)))
    told = remembered(tmp_path / "run", step, max_step=9)
    assert [lasts in one for one in told] == [True] * (2 if lasts else 0)  # of two environments
