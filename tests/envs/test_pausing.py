"""Environments that are paused: left out of every step, and afterwards as if nothing had happened meanwhile."""

from functools import partial

import numpy as np
import pytest

from ding_lite.data import flatten
from ding_lite.envs import make_envs

ENDINGS = [(2, "terminated"), (3, "truncated")]


def made(counting_env, layout="float32", num_envs=3):
    makers = iter([partial(counting_env, index, ENDINGS, layout) for index in range(num_envs)])
    envs = make_envs(lambda: next(makers)(), num_envs)
    envs.begin(envs.new_obs())
    return envs


def advance(envs, times=1):
    for _ in range(times):
        out = envs.new_obs()
        step = envs.advance(np.zeros(envs.num_envs, np.int64), out)
    return step, out


def leaves(obs, index):
    return {path: leaf[index].tolist() for path, leaf in flatten(obs)}


@pytest.mark.parametrize("layout", ["float32", "float64", "uint8", "discrete", "dict", "tuple"])
def test_an_environment_that_rests_is_not_stepped_and_stays_at_the_beginning_of_its_episode(counting_env, layout):
    envs = made(counting_env, layout)
    advance(envs, 2)  # each is at the beginning of its second episode
    before, places = envs.current, [env.place for env in envs.envs]
    envs.pause([1])
    for t in range(1, 8):
        step, obs = advance(envs)
        assert (step.reward[1], step.terminated[1], step.truncated[1]) == (0, False, False)
        assert leaves(obs, 1) == leaves(before, 1)
        assert leaves(obs, 0) != leaves(before, 0)
        assert all(episode.env != 1 for episode in step.finished)
        assert 1 not in step.final_obs
        assert envs.restarted[1]
        assert envs.restarted[0] == (t % 5 in (3, 0))
    assert envs.envs[1].place == places[1]
    assert envs.envs[0].place != places[0]


def test_all_may_rest_and_rest_more_and_more(counting_env):
    envs = made(counting_env)
    envs.pause([0])
    envs.pause([])
    envs.pause([2, 0])
    advance(envs, 2)
    assert [env.t for env in envs.envs] == [0, 0, 0]
    assert [env.episode for env in envs.envs] == [0, 1, 0]
    envs.pause([1])
    advance(envs, 5)
    assert envs.restarted.all()
    assert [env.place for env in envs.envs] == [(0, 0, 0), (1, 1, 0), (2, 0, 0)]


def test_after_its_rest_an_environment_goes_on_as_if_nothing_had_happened(counting_env):
    envs, twin = made(counting_env), made(counting_env)
    envs.pause([0, 2])
    advance(envs, 5)
    envs.resume()
    found, expected = [], []
    for one, told in ((envs, found), (twin, expected)):
        for _ in range(7):
            step, obs = advance(one)
            told.append((step.reward.tolist()[::2], obs[::2, 2].tolist(), [e for e in step.finished if e.env != 1]))
    assert found == expected
    assert [len(episodes) for *_, episodes in expected] == [0, 2, 0, 0, 2, 0, 2]


def test_a_new_beginning_ends_the_rest(counting_env):
    envs = made(counting_env)
    envs.pause([0, 1, 2])
    envs.begin(envs.new_obs())
    advance(envs)
    assert [env.t for env in envs.envs] == [1, 1, 1]


def test_a_saved_state_of_environments_that_have_rested_brings_them_back():
    envs, restored = (make_envs("Pendulum-v1", 3, seed, max_episode_steps=4) for seed in (0, 1))
    envs.begin(envs.new_obs())
    envs.pause([0])
    push(envs, 6)
    envs.resume()
    push(envs, 1)
    restored.load_state_dict(envs.state_dict())
    assert push(envs, 6) == push(restored, 6)


def push(envs, times):
    told = []
    for t in range(times):
        out = envs.new_obs()
        step = envs.advance(np.full((3, 1), t % 3 - 1, np.float32), out)
        told.append((out.tolist(), step.reward.tolist(), step.finished))
    return told


def test_an_error_names_the_step_of_the_episode_not_of_the_rest(faulty_env):
    envs = make_envs(partial(faulty_env, 3, error=OSError("the disk is on fire")), 2)
    envs.begin(envs.new_obs())
    envs.pause([1])
    advance(envs, 2)
    with pytest.raises(OSError, match="on fire") as caught:
        advance(envs)
    assert "environment 0 " in caught.value.__notes__[0]
    envs.pause([0])
    envs.resume()
    envs.pause([0])
    with pytest.raises(OSError, match="on fire") as caught:
        advance(envs, 3)
    assert "in step 2 of its episode 0" in caught.value.__notes__[0]
