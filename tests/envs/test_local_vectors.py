"""LocalVectorEnv: gymnasium's vector environment to its users, and a clear error where an environment does wrong.

The oracle of what `reset` and `step` return is gymnasium's SyncVectorEnv in the mode SAME_STEP.
"""

import re
import traceback
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ding_lite.envs import EnvDataError, LocalVectorEnv, make_envs

ENDINGS = [[(3, "terminated"), (1, "both")], [(2, "truncated")], [(50, "terminated")]]


def assert_same(found: Any, expected: Any) -> None:
    """Equal in structure and in every value, infos included."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, tuple) or (isinstance(expected, np.ndarray) and expected.dtype == object):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert_same(one, other)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.fixture
def both(counting_env):
    """Ours and gymnasium's vector environment of the same environments."""

    def make(layout: str = "float32") -> tuple[LocalVectorEnv, SyncVectorEnv]:
        factories = [partial(counting_env, index, ends, layout) for index, ends in enumerate(ENDINGS)]
        return LocalVectorEnv(factories), SyncVectorEnv(factories, autoreset_mode=AutoresetMode.SAME_STEP)

    return make


@pytest.mark.parametrize("layout", ["float32", "float64", "uint8", "discrete", "dict", "tuple"])
def test_reset_and_step_return_what_gymnasium_returns_in_the_mode_same_step(both, layout):
    ours, theirs = both(layout)
    assert_same(ours.reset()[0], theirs.reset()[0])
    for step in range(9):
        actions = np.array([step % 4, 0, 3])
        *found, found_infos = ours.step(actions)
        *expected, expected_infos = theirs.step(actions)
        assert_same(tuple(found), tuple(expected[:2] + [expected[2]] + [expected[3] & ~expected[2]]))
        assert ours.observation_space.contains(found[0])
        for name in ("final_obs", "_final_obs", "final_info", "_final_info", "t", "_t"):
            assert (name in found_infos) == (name in expected_infos)
            if name in expected_infos:
                assert_same(found_infos[name], expected_infos[name])


def test_infos_hold_what_the_resets_said(both):
    ours, theirs = both()
    assert_same(ours.reset()[1], theirs.reset()[1])
    for _ in range(4):
        assert_same(ours.step(np.zeros(3, np.int64))[4], theirs.step(np.zeros(3, np.int64))[4])


def test_it_describes_itself_as_gymnasiums_vector_environments_do(both):
    ours, theirs = both()
    for name in (
        "num_envs",
        "single_observation_space",
        "single_action_space",
        "observation_space",
        "action_space",
        "metadata",
    ):
        assert getattr(ours, name) == getattr(theirs, name)


def test_what_step_returned_is_not_overwritten_by_later_steps(counting_env):
    envs = make_envs(partial(counting_env, 0, [(2, "truncated")], in_place=True), 2)
    results = [envs.reset()[0]] + [envs.step(np.zeros(2, np.int64)) for _ in range(5)]
    assert results[0][:, 2].tolist() == [0, 0]
    assert [result[0][0, 2] for result in results[1:]] == [1, 0, 1, 0, 1]
    assert [result[4]["final_obs"][0].tolist() for result in results[2::2]] == [[0, 0, 2], [0, 1, 2]]
    assert [bool(result[3][0]) for result in results[1:]] == [False, True, False, True, False]


def test_the_options_of_reset_reach_each_environment():
    class Optional(gymnasium.Env):
        observation_space, action_space = spaces.Discrete(9), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return options["start"], {}

    assert make_envs(Optional, 2).reset(options={"start": 7})[0].tolist() == [7, 7]


def test_render_gives_a_frame_of_each_environment():
    class Drawn(gymnasium.Env):
        observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)
        render_mode = "rgb_array"

        def render(self):
            return np.zeros((4, 5, 3), np.uint8)

    envs = make_envs(Drawn, 2)
    assert envs.render_mode == "rgb_array"
    assert [frame.shape for frame in envs.render()] == [(4, 5, 3)] * 2


def test_close_closes_each_environment_once(counting_env):
    envs = make_envs(counting_env, 3)
    envs.close()
    envs.close()
    assert [env.closed for env in envs.envs] == [1, 1, 1]


def test_a_vector_environment_of_none_is_refused():
    with pytest.raises(ValueError, match="at least one environment"):
        LocalVectorEnv([])


def test_step_before_reset_is_refused(faulty_env):
    with pytest.raises((RuntimeError, gymnasium.error.ResetNeeded), match="reset"):
        make_envs(faulty_env).step(np.zeros(1, np.int64))


@pytest.mark.parametrize("reward", [None, "high", "1.5", np.ones(1), [1.0], 1j, {}], ids=repr)
@pytest.mark.parametrize("at", [1, 2])
def test_a_reward_that_is_not_one_number_is_refused(faulty_env, reward, at):
    makers = iter([faulty_env, partial(faulty_env, at, reward=reward)])
    envs = make_envs(lambda: next(makers)(), 2)
    envs.reset()
    for _ in range(at - 1):
        envs.step(np.zeros(2, np.int64))
    with pytest.raises(EnvDataError, match="environment 1 returned the reward .*one number"):
        envs.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf, np.float32("nan"), 1e39, -1e300], ids=repr)
def test_a_reward_that_is_not_finite_in_float32_is_refused(faulty_env, reward):
    makers = iter([faulty_env, partial(faulty_env, reward=reward)])
    envs = make_envs(lambda: next(makers)(), 2)
    envs.reset()
    with pytest.raises(EnvDataError, match="environment 1 returned the reward"):
        envs.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("reward", [2, True, np.float64(0.5), np.int8(-3), np.array(4.0), 3e38, np.float32(-3e38)], ids=repr)
def test_any_finite_number_is_a_reward(faulty_env, reward):
    envs = make_envs(partial(faulty_env, reward=reward), 2)
    envs.reset()
    found = envs.step(np.zeros(2, np.int64))[1]
    assert found.dtype == np.float32
    assert found.tolist() == [np.float32(reward)] * 2


@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize(
    ("at", "flag"), [(1, None), (1, 0), (1, 1), (1, "crash"), (3, None), (3, 2), (3, "crash"), (3, np.array([True]))], ids=repr
)
def test_a_flag_that_is_not_true_or_false_is_refused(faulty_env, name, flag, at):
    makers = iter([faulty_env, partial(faulty_env, at, **{name: flag})])
    envs = make_envs(lambda: next(makers)(), 2)
    envs.reset()
    for _ in range(at - 1):
        envs.step(np.zeros(2, np.int64))
    with pytest.raises(EnvDataError, match=f"environment 1 returned {name}=.*True or False"):
        envs.step(np.zeros(2, np.int64))


RESULT = (np.zeros(2, np.float32), 1.0, False, False, {})


@pytest.mark.parametrize(
    "result", [RESULT[:4], (*RESULT, 1), (), 7, "done"], ids=["4 parts", "6 parts", "0 parts", "7", "text"]
)
@pytest.mark.parametrize("index", [0, 1])
def test_a_step_that_does_not_return_five_things_is_refused(faulty_env, result, index):
    makers = [faulty_env, faulty_env]
    makers[index] = partial(faulty_env, result=result)
    remaining = iter(makers)
    envs = make_envs(lambda: next(remaining)(), 2)
    envs.reset()
    with pytest.raises(EnvDataError, match=rf"environment {index}.*\(obs, reward, terminated, truncated, info\)"):
        envs.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("info", [None, [], "text"])
@pytest.mark.parametrize("index", [0, 1])
def test_an_info_that_is_no_dict_is_refused(faulty_env, info, index):
    makers = [faulty_env, faulty_env]
    makers[index] = partial(faulty_env, result=(*RESULT[:4], info))
    remaining = iter(makers)
    envs = make_envs(lambda: next(remaining)(), 2)
    envs.reset()
    words = rf"environment {index} returned the info .* from step\(\), expected a dict\. It was in step 0 of its"
    with pytest.raises(EnvDataError, match=words):
        envs.step(np.zeros(2, np.int64))


class Odd(Exception):
    """An error that pickle cannot rebuild."""

    def __init__(self, one, two, three):
        super().__init__(f"{one}-{two}-{three}")


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("error", [Odd(1, 2, 3), KeyError("key"), gymnasium.error.Error("gone")], ids=repr)
def test_an_error_in_step_stays_as_it_is_and_says_where(faulty_env, error):
    makers = iter([faulty_env, partial(faulty_env, 3, error=error)])
    envs = make_envs(lambda: next(makers)(), 2, seed=5)
    envs.reset()
    envs.step(np.array([0, 0]))
    envs.step(np.array([0, 0]))
    with pytest.raises(type(error)) as caught:
        envs.step(np.array([0, 3]))
    assert caught.value is error
    assert "conftest" in traceback.extract_tb(caught.value.__traceback__)[-1].filename
    seed = envs.starts[1].start["seed"]
    for words in ("environment 1", "step 2", "episode 0", str(seed), r"action (np\.int64\()?3"):
        assert re.search(words, notes_of(error))


def test_the_note_counts_step_and_episode_anew_after_a_reset(counting_env):
    envs = make_envs(partial(counting_env, 0, [(2, "terminated")]))
    envs.reset()
    for _ in range(3):
        envs.step(np.zeros(1, np.int64))
    with pytest.raises(RuntimeError) as caught:
        envs.step(np.array([9]))
    assert "environment 0" in notes_of(caught.value)
    assert "step 1 of its episode 1" in notes_of(caught.value)


def test_an_error_in_reset_stays_as_it_is_and_says_where(faulty_env):
    error = Odd(1, 2, 3)
    makers = iter([faulty_env, partial(faulty_env, 0, error=error)])
    envs = make_envs(lambda: next(makers)(), 2)
    with pytest.raises(Odd) as caught:
        envs.reset()
    assert caught.value is error
    for words in ("environment 1", "reset", "episode 0", str(envs.starts[1].start["seed"])):
        assert words in notes_of(error)


def test_an_error_in_a_constructor_stays_as_it_is_and_says_where(faulty_env):
    error = Odd(1, 2, 3)

    def broken():
        raise error

    makers = iter([faulty_env, broken])
    with pytest.raises(Odd) as caught:
        make_envs(lambda: next(makers)(), 2)
    assert caught.value is error
    assert "environment 1" in notes_of(error)


@pytest.mark.parametrize("result", [np.zeros(2, np.float32), (np.zeros(2, np.float32), None), 7], ids=repr)
def test_a_reset_that_does_not_return_two_things_is_refused(faulty_env, result):
    class Old(faulty_env):
        def reset(self, *, seed=None, options=None):
            return result

    with pytest.raises(EnvDataError, match=r"environment 0 returned .* from reset\(\), expected \(obs, info\)"):
        make_envs(Old).reset()


def test_an_environment_without_spaces_is_refused():
    class Bare(gymnasium.Env):
        pass

    with pytest.raises(TypeError, match="environment 0, .* has no observation_space: set it to a gymnasium space"):
        make_envs(Bare)


def test_actions_may_come_as_a_list(faulty_env):
    envs = make_envs(faulty_env, 2)
    envs.reset()
    assert envs.step([0, 1])[1].shape == (2,)


@pytest.mark.parametrize("settings", [{}, {"workers": 2, "backend": "local"}], ids=["one", "split"])
@pytest.mark.parametrize(
    "actions", [np.array([0.0, 1.0]), np.array([0.5, 1.0]), [True, False], np.array(["0", "1"])], ids=lambda it: str(list(it))
)
def test_actions_of_a_discrete_space_that_are_no_integers_are_refused_and_not_rounded(actions, settings):
    envs = make_envs("CartPole-v1", 2, **settings)
    envs.reset()
    with pytest.raises(TypeError, match=r"actions of Discrete\(2\) must be integers, got an array of (float64|bool|<U1)\."):
        envs.step(actions)
