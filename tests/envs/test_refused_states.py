"""load_state_dict() of environments takes all or nothing: what it refuses leaves them where they stood."""

import copy
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest

from ding_lite.envs import EnvDataError, make_envs, make_multi_agent_envs

NORMALIZED = partial(lambda: gymnasium.wrappers.NormalizeReward(gymnasium.make("CartPole-v1", max_episode_steps=5)))
REFUSED = [
    (("run_seed",), "x", "run_seed"),
    (("episodes", 0, "number"), "x", r"episodes\[0\]\['number'\]"),
    (("episodes", 1, "number"), -1, r"episodes\[1\]\['number'\]"),
    (("episodes", 0, "start"), True, r"episodes\[0\]\['start'\]"),
    (("episodes", 0, "start", "seed"), -5, r"episodes\[0\]\['start'\]\['seed'\]"),
    (("episodes", 0, "actions"), 7, r"episodes\[0\]\['actions'\]"),
    (("episodes", 0), 3, r"episodes\[0\]"),
    (("episodes",), [], "the state of 0 environments does not fit 2"),
    (("lengths",), [4], "lengths"),
    (("lengths",), [-100, 4], "lengths"),
    (("returns",), np.array([np.nan, 4.0]), "returns"),
    (("returns",), [4.0], "returns"),
    (("restarted",), [False], "restarted"),
    (("current",), True, "current"),
    (("current",), np.zeros((2, 3), np.float32), "current"),
    (("episodes", 1, "start", "seed"), 12345, "environment 1 did not come back to its observation"),
    (("returns",), [4.0, 3.5], "environment 1 did not come back to its rewards"),
    (("episodes", 0, "number"), 2**70, r"episodes\[0\]\['number'\] = \d+, expected an integer from 0 to 2\*\*62"),
    (("episodes", 1, "actions"), [0, 9, 0, 0], r"episodes\[1\]\['actions'\]\[1\] = 9, expected an action in Discrete\(2\)"),
    (("episodes", 1, "actions"), [0, "a", 0, 0], r"episodes\[1\]\['actions'\]\[1\] = 'a', expected an action in Discrete"),
]


def damaged(state, path, value):
    state = copy.deepcopy(state)
    inner = state["pieces"][-1] if "pieces" in state else state
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return state


def by(envs):
    """What follows from alternating actions."""
    return [tuple(np.asarray(part).tolist() for part in envs.step(np.full(envs.num_envs, t % 2))[:4]) for t in range(8)]


@pytest.mark.few
@pytest.mark.parametrize(("path", "value", "words"), REFUSED)
@pytest.mark.parametrize("settings", [{}, {"workers": 2, "backend": "local"}], ids=["one", "split"])
def test_a_damaged_state_is_refused_by_name_and_the_environments_stand_where_they_stood(settings, path, value, words):
    count = 2 * settings.get("workers", 1)
    saved, envs, same = (make_envs("CartPole-v1", count, seed, **settings) for seed in (3, 5, 5))
    for one, steps in ((saved, 4), (envs, 3), (same, 3)):
        one.reset()
        one.action_space.sample()
        for _ in range(steps):
            one.step(np.zeros(count, np.int64))
    words = words.replace("environment 1", f"environment {count - 1}")
    with pytest.raises((ValueError, TypeError, AssertionError), match=words):
        envs.load_state_dict(damaged(saved.state_dict(), path, value))

    assert envs.action_space.sample().tolist() == same.action_space.sample().tolist()
    assert envs.run_seed == 5
    assert by(envs) == by(same)


def test_environments_that_pause_stand_where_they_stood_after_a_refusal():
    saved, envs, same = (make_envs("CartPole-v1", 2, seed) for seed in (3, 5, 5))
    saved.reset()
    for one in (envs, same):
        one.reset()
        one.pause([1])
        one.step(np.zeros(2, np.int64))
    with pytest.raises(EnvDataError, match="did not come back"):
        envs.load_state_dict(damaged(saved.state_dict(), ("episodes", 0, "start", "seed"), 12345))
    assert by(envs) == by(same)
    for one in (envs, same):
        one.resume()
    assert by(envs) == by(same)


def test_environments_that_cannot_come_back_begin_anew_and_the_error_says_so(counting_env):
    saved, envs = (make_envs(partial(counting_env, 0), 2) for _ in range(2))
    for one in (saved, envs):
        for _ in range(3):
            one.reset()  # it counts episodes, also those that are played again
    with pytest.raises(EnvDataError, match="did not come back") as caught:
        envs.load_state_dict(saved.state_dict())
    assert any("could not be restored to their earlier state, and will be reset" in note for note in caught.value.__notes__)
    assert envs.current is None


@pytest.mark.parametrize("steps", [5, 7, 10, 12])
def test_rewards_that_depend_on_earlier_episodes_are_refused_also_where_an_episode_begins(steps):
    saved = make_envs(NORMALIZED)
    saved.reset()
    for _ in range(steps):
        saved.step(np.zeros(1, np.int64))
    if steps == 5:  # all that was played is played again
        make_envs(NORMALIZED).load_state_dict(saved.state_dict())
        return
    with pytest.raises(EnvDataError, match=r"environment 0 did not come back to its rewards.*NormalizeReward"):
        make_envs(NORMALIZED).load_state_dict(saved.state_dict())


class Scaled:
    """Two agents for three steps, with rewards that may shrink from episode to episode."""

    possible_agents = ("a", "b")

    def __init__(self, shrinks=False):
        self.episodes, self.shrinks = 0, shrinks

    def observation_space(self, agent):
        return gymnasium.spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.t, self.agents, self.episodes = 0, list(self.possible_agents), self.episodes + 1
        return self.tell(np.zeros(1, np.float32)), self.tell({})

    def step(self, actions):
        self.t += 1
        if self.t == 3:
            self.agents = []
        told = np.full(1, self.t, np.float32), 1.0 / self.episodes if self.shrinks else 1.0, self.t == 3, False, {}
        return tuple(map(self.tell, told))

    def tell(self, value):
        return dict.fromkeys(self.possible_agents, value)


def agents(shrinks=False):
    envs = make_multi_agent_envs(partial(Scaled, shrinks), 2)
    envs.assign_slots(str, ("a", "b"))
    envs.begin()
    return envs


def advance(envs, steps):
    found = []
    for _ in range(steps):
        out = {name: np.zeros((2, 1), np.float32) for name in "ab"}
        found.append((envs.advance({name: np.zeros(2, np.int64) for name in "ab"}, out).steps["a"].reward.tolist(), str(out)))
    return found


class OtherScaled(Scaled):
    def __init__(self, shrinks=False):
        super().__init__(shrinks)
        self.max_cycles = 3


@pytest.mark.parametrize("place", [{}, {"workers": 2, "backend": "local"}], ids=["one", "split"])
def test_other_environments_of_several_agents_cause_one_warning(place):
    saved, other, same = (make_multi_agent_envs(fn, 2, **place) for fn in (Scaled, OtherScaled, Scaled))
    for envs in (saved, other, same):
        envs.assign_slots(str, ("a", "b"))
    saved.begin()
    state = saved.state_dict()
    words = "had the environments Scaled without a time limit, and goes on with OtherScaled with at most 3 steps an episode"
    with pytest.warns(UserWarning, match=words) as caught:
        other.load_state_dict(state)
    assert len(caught) == 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same.load_state_dict(state)
        other.load_state_dict({name: part for name, part in state.items() if name != "made_as"})


@pytest.mark.parametrize("steps", [9, 7])
def test_rewards_of_several_agents_that_depend_on_earlier_episodes_are_refused(steps):
    envs = agents(shrinks=True)
    advance(envs, steps)
    with pytest.raises(EnvDataError, match="environment 0 did not come back to its rewards"):
        agents(shrinks=True).load_state_dict(envs.state_dict())


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("run_seed",), "x", "run_seed"),
        (("episodes", 0, "start"), True, r"episodes\[0\]\['start'\]"),
        (("episodes",), 5, "episodes"),
        (("seats",), {"a": 3}, "seats"),
        (("seats", "a", "current"), {}, "does not fit"),
        (("seats", "a", "current"), np.zeros((2, 3)), "seats/a/current"),
        (("seats", "b", "restarted"), [3], "seats/b/restarted"),
        (("seats", "a", "current"), np.full((2, 1), 4, np.float32), "did not come back to its observation"),
        (("returns",), [1.0, np.nan], "returns"),
        (("returns",), [1.0, 2.0], "did not come back to its rewards"),
    ],
)
def test_a_damaged_state_of_several_agents_is_refused_and_they_stand_where_they_stood(path, value, words):
    saved, envs, same = agents(), agents(), agents()
    advance(saved, 2)
    for one in (envs, same):
        advance(one, 1)
    with pytest.raises(ValueError, match=words):
        envs.load_state_dict(damaged(saved.state_dict(), path, value))
    assert advance(envs, 2) == advance(same, 2)
