"""Numbers in infos: those of each step as a mean over the episode, those of the last step as they are."""

import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest

from ding_lite.envs import make_envs
from ding_lite.envs.infos import own_info

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Course(gymnasium.Env):
    """Tells its speed at each step, sometimes its grip, and its laps at the end."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.speeds = 0, self.np_random.random(5)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        info = {"speed": float(self.speeds[self.t]), "name": "red"}
        if self.t % 2:
            info["grip"] = self.t
        self.t += 1
        if self.t == 5:
            info["laps"] = 7
        return np.zeros(1, np.float32), 1.0, self.t == 5, False, info


def finished(envs, steps):
    envs.reset(seed=0)
    out, episodes = envs.new_obs(), []
    for _ in range(steps):
        episodes += envs.advance(np.zeros(envs.num_envs, np.int64), out).finished
    return episodes


@pytest.mark.parametrize("where", [{}, {"workers": 2}, {"workers": 2, "backend": "process"}])
def test_the_mean_over_the_episode_is_in_the_last_info(where):
    plain = finished(make_envs(Course, 2), 10)
    envs = make_envs(Course, 2, log_info=("speed", "grip"), **where)
    results = finished(envs, 10)
    envs.close()

    assert len(results) == len(plain) == 4
    for one, other in zip(results, plain):
        speeds = np.random.default_rng(one.seed).random(5)
        assert one.info["speed"] == pytest.approx(speeds.mean())
        assert other.info["speed"] == speeds[-1]
        assert (one.info["grip"], one.info["laps"]) == (2.0, 7)
        assert (one.return_, one.length, one.seed) == (other.return_, other.length, other.seed)


def test_a_name_that_no_info_has_is_warned_of_once():
    envs = make_envs(Course, 1, log_info=("speeed",))
    with pytest.warns(UserWarning, match="names 'speeed', .* did you mean 'speed'") as caught:
        finished(envs, 20)
    assert len(caught) == 1


@pytest.mark.parametrize("odd", ["text", [1.0], {"a": 1}, np.ones(2)])
def test_what_is_no_number_is_left_out_with_one_warning(odd):
    class Odd(gymnasium.Wrapper):
        def step(self, action):
            *rest, info = self.env.step(action)
            return *rest, {**info, "odd": odd}

    envs = make_envs(Course, 1, wrappers=[Odd], log_info=("odd", "speed"))
    with pytest.warns(UserWarning, match="log_info names 'odd', which is not a number .*: it is ignored") as caught:
        results = finished(envs, 10)
    assert len(caught) == 1
    assert 0 < results[0].info["speed"] < 1


def test_one_string_instead_of_names_is_refused():
    with pytest.raises(TypeError, match=r"write \('speed',\)"):
        make_envs(Course, 1, log_info="speed")


def test_a_copied_info_may_contain_itself():
    room = {"doors": [{"open": True}], "bins": np.zeros(2)}
    room["doors"][0]["leads_to"] = room
    copied = own_info(room)
    room["bins"][0] = 1

    assert copied["bins"].tolist() == [0, 0]
    assert copied["doors"][0]["leads_to"] is room
