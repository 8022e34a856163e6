"""Seeds and replays: an episode's seed is known in advance, and every episode can be played again exactly."""

import itertools
from functools import partial

import gymnasium
import numpy as np
import pytest
from slow_cases import mostly_slow

from ding_lite.envs import make_envs
from ding_lite.envs.episode_seeds import episode_seed
from ding_lite.envs.episode_starts import replay_episode


def test_the_seed_of_an_episode_depends_on_run_environment_and_number_alone():
    places = list(itertools.product(range(10), repeat=3))
    seeds = [episode_seed(*place) for place in places]
    assert seeds == [episode_seed(*place) for place in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len({seed >> 27 for seed in seeds}) == 16, "they are not spread over the range"


def test_each_reset_is_given_the_seed_of_its_episode(counting_env):
    makers = iter([partial(counting_env, 0, [(2, "truncated")]), partial(counting_env, 1, [(3, "terminated")])])
    envs = make_envs(lambda: next(makers)(), 2, seed=4)
    envs.reset()
    for _ in range(7):
        envs.step(np.zeros(2, np.int64))
    assert [env.seeds for env in envs.envs] == [[episode_seed(4, i, n) for n in range(count)] for i, count in enumerate([4, 3])]


def test_the_seeds_do_not_depend_on_how_many_environments_there_are_or_on_what_was_done(counting_env):
    one, three = make_envs(counting_env, 1, seed=4), make_envs(counting_env, 3, seed=4)
    for envs, action in ((one, [0]), (three, [3, 1, 2])):
        envs.reset()
        for _ in range(9):
            envs.step(np.array(action))
    assert one.envs[0].seeds == three.envs[0].seeds


def test_reset_without_a_seed_begins_the_next_episode_and_with_one_begins_anew(counting_env):
    envs = make_envs(counting_env, 1, seed=4)
    for seed in (None, None, 9, None):
        envs.reset(seed=seed)
    assert envs.envs[0].seeds == [episode_seed(*place) for place in [(4, 0, 0), (4, 0, 1), (9, 0, 0), (9, 0, 1)]]


def test_a_finished_episode_tells_its_seed(counting_env):
    envs = make_envs(counting_env, 2, seed=4)
    envs.reset()
    out = np.empty((2, 3), np.float32)
    finished = [episode for _ in range(7) for episode in envs.advance(np.zeros(2, np.int64), out).finished]
    assert [episode.seed for episode in finished] == [episode_seed(4, episode.env, episode.number) for episode in finished]
    assert len(finished) == 4


@pytest.mark.parametrize("make", mostly_slow(["CartPole", "Pendulum", "Pong"], "CartPole", "Pendulum"), indirect=True)
def test_two_runs_with_one_seed_are_identical(make, known_actions):
    first, second = (known_actions(make(2, 3), 21) for _ in range(2))
    assert first == second
    assert any(seen.episodes for seen in first)


@pytest.mark.parametrize("make", ["CartPole", "Pendulum"], indirect=True)
def test_runs_with_other_seeds_differ_in_every_stream(make):
    starts = set()
    for seed in range(4):
        envs = make(4, seed)
        for _ in range(3):
            starts |= {tuple(obs) for obs in envs.reset()[0].tolist()}
    assert len(starts) == 4 * 4 * 3


def test_the_action_space_is_seeded_too():
    one, same, other = (make_envs("Pendulum-v1", 4, seed=seed).action_space.sample() for seed in (0, 0, 1))
    assert one.tolist() == same.tolist() != other.tolist()


@pytest.mark.parametrize("make", ["CartPole", "Pendulum"], indirect=True)
def test_a_finished_episode_can_be_played_again_from_its_seed(make, known_actions):
    envs = make(2, 3)
    trace = known_actions(envs, 40)
    began, replayed = [0, 0], 0
    for t, seen in enumerate(trace):
        for env, _, return_, length, seed in seen.episodes:
            steps = trace[began[env] : t + 1]
            actions = [np.asarray(step.action[env], envs.single_action_space.dtype) for step in steps]
            _, *results = replay_episode(gymnasium.make(envs.spec), {"seed": seed}, actions)
            assert [result[0].tolist() for result in results] == [step.next_obs[env] for step in steps]
            assert [np.float32(result[1]) for result in results] == [step.reward[env] for step in steps]
            assert [result[2] or result[3] for result in results] == [False] * (length - 1) + [True]
            assert return_ == pytest.approx(sum(result[1] for result in results))
            began[env] = t + 1
            replayed += 1
    assert replayed == 8


@pytest.mark.parametrize("make", ["CartPole", "Pong"], indirect=True)
def test_the_running_episode_can_be_played_again_from_its_start(make, known_actions):
    envs = make(1, 0)
    known_actions(envs, 14)
    start = envs.starts[0]
    assert start.number == 1
    (obs, _), *results = replay_episode(make(1, 5).envs[0], start.start, list(start.actions))
    assert len(results) == 5
    assert not np.array_equal(obs, envs.current[0])
    np.testing.assert_array_equal(results[-1][0], envs.current[0])
