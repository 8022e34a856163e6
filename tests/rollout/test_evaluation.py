"""play_episodes(): whole episodes, as many in each environment, however long they take."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.envs import make_envs
from ding_lite.policy import Policy, PolicyConfig
from ding_lite.rollout import LocalWorker, make_worker, play_episodes

KINDS = ["ours", "sync NextStep", "sync SameStep", "sync Disabled"]


class Still(Policy):
    """Pushes nothing."""

    def make_model(self):
        return torch.nn.Linear(1, 1)

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        return torch.zeros(len(obs), 1), state, {}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(KINDS), lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), count=st.integers(1, 9))
def test_each_environment_plays_its_share_from_the_start_of_its_episodes(
    vector, counting_env, rule_policy, kind, lengths, count
):
    envs = vector(kind, [partial(counting_env, i, [(length, "truncated")]) for i, length in enumerate(lengths)])
    episodes = play_episodes(LocalWorker(envs, rule_policy(envs).eval_mode), count)

    shares = [len(range(index, count, len(lengths))) for index in range(len(lengths))]
    expected = [(index, number, length) for index, length in enumerate(lengths) for number in range(shares[index])]
    assert [(episode.env, episode.number, episode.length) for episode in episodes] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_long_episodes_count_as_much_as_short_ones(vector, counting_env, rule_policy, kind):
    envs = vector(kind, [partial(counting_env, index, [(length, "terminated")]) for index, length in enumerate([1, 40])])
    lengths = [episode.length for episode in play_episodes(LocalWorker(envs, rule_policy(envs).eval_mode), 6)]
    assert lengths == [1, 1, 1, 40, 40, 40]


@pytest.mark.parametrize("kind", KINDS)
def test_returns_are_the_sums_of_the_rewards(vector, counting_env, rule_policy, action_rule, kind):
    envs = vector(kind, [partial(counting_env, 1, [(3, "terminated"), (2, "truncated")])])
    returns = [episode.return_ for episode in play_episodes(LocalWorker(envs, rule_policy(envs).eval_mode), 2)]
    actions = [[(3 + 5 * episode + step) % 4 for step in range(length)] for episode, length in enumerate([3, 2])]
    assert returns == [4 * (1 + 2 + 3) + sum(actions[0]), 4 * (1 + 2) + sum(actions[1])]


@pytest.mark.parametrize("kind", [*KINDS, "async NextStep", "async without shared memory NextStep"])
def test_every_call_begins_new_episodes(vector, counting_env, rule_policy, kind):
    envs = vector(kind, [partial(counting_env, 0, [(3, "terminated")]), partial(counting_env, 1, [(5, "truncated")])])
    try:
        worker = LocalWorker(envs, rule_policy(envs).eval_mode)
        lengths = [[episode.length for episode in play_episodes(worker, 4)] for _ in range(3)]
    finally:
        envs.close()
    assert lengths == [[3, 3, 5, 5]] * 3


def test_evaluations_with_one_seed_are_the_same_and_later_ones_are_not():
    def evaluate(seed):
        envs = make_envs("Pendulum-v1", 2, seed=seed, max_episode_steps=5)
        worker = LocalWorker(envs, Still(PolicyConfig(), envs.single_observation_space, envs.single_action_space).eval_mode)
        return [[episode.return_ for episode in play_episodes(worker, 4)] for _ in range(2)]

    first, second = evaluate(0)
    assert [first, second] == evaluate(0)
    assert len({*first, *second, *evaluate(1)[0]}) == 12


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_that_does_not_end_is_given_up(vector, counting_env, rule_policy, monkeypatch, kind):
    monkeypatch.setattr("ding_lite.rollout.evaluation._MOST_STEPS", 20)
    monkeypatch.setattr("ding_lite.rollout.evaluation._MANY_STEPS", 10)
    envs = vector(kind, [partial(counting_env, 0, [(2, "terminated")]), partial(counting_env, 1, [(10**6, "terminated")])])
    words = (
        r"an episode of environment 1 \(CountingEnv\) (does not end within 20|has not ended after 10) steps.*max_episode_steps"
    )
    with pytest.raises(RuntimeError, match=words), pytest.warns(UserWarning, match=words):
        play_episodes(LocalWorker(envs, rule_policy(envs).eval_mode), 2)


def test_many_short_episodes_are_not_taken_for_one_that_does_not_end(counting_env, rule_policy, monkeypatch):
    monkeypatch.setattr("ding_lite.rollout.evaluation._MOST_STEPS", 20)
    envs = make_envs(partial(counting_env, 0, [(3, "terminated")]))
    assert len(play_episodes(LocalWorker(envs, rule_policy(envs).eval_mode), 15)) == 15


def test_environments_in_place_of_a_worker_are_refused(counting_env, rule_policy):
    envs = make_envs(counting_env, 2)
    words = r"wants a worker, got a LocalVectorEnv: pass LocalWorker\(envs, policy.eval_mode\)"
    with pytest.raises(TypeError, match=words):
        play_episodes(envs, rule_policy(envs).eval_mode, 10)


def worker_of(rule_policy, counting_env, workers=1):
    envs = make_envs(partial(counting_env, 0, [(3, "terminated")]), 2, workers=workers)
    return make_worker(envs, rule_policy(envs).collect_mode)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (-1, ValueError, "expected a number of episodes, 0 or more, or one for each of the 2 environments, got -1."),
        ([1, -1], ValueError, r"0 or more, or one for each of the 2 environments, got \[1, -1\]."),
        ([1], ValueError, r"one for each of the 2 environments, got \[1\], of length 1."),
        ([1, 1, 1], ValueError, r"one for each of the 2 environments, got \[1, 1, 1\], of length 3."),
        (2.0, TypeError, "got 2.0 of type float: pass integers."),
        ("2", TypeError, "got '2' of type str: pass integers."),
        ([1, 0.5], TypeError, r"got \[1, 0.5\] of type list: pass integers."),
        (None, TypeError, "got None of type NoneType: pass integers."),
    ],
)
def test_a_count_that_the_environments_cannot_share_is_refused(counting_env, rule_policy, count, error, message, workers):
    worker = worker_of(rule_policy, counting_env, workers)
    with pytest.raises(error, match=message):
        worker.play_episodes(count)
    with pytest.raises(error, match=message):
        worker.collect_episodes(count)
    with pytest.raises(error, match=message.replace("episodes", "steps")):
        worker.collect_episodes(count, unit="steps")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("count", "played"),
    [(3, [0, 0, 1]), (np.int64(3), [0, 0, 1]), (0, []), ([0, 2], [1, 1]), (np.array([2, 1]), [0, 0, 1]), ((1, 1), [0, 1])],
)
def test_integers_of_numpy_are_numbers_of_episodes_too(counting_env, rule_policy, count, played, workers):
    worker = worker_of(rule_policy, counting_env, workers)
    assert [episode.env for episode in worker.play_episodes(count)] == played
