"""Episodes: against lists of their steps; and nothing that runs backwards through their batch leaks into one."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import case_count

from ding_lite.data import Episodes, ReplayBuffer, Trajectories, Tree, nested
from ding_lite.data.column_arrays import to_objects
from ding_lite.data.episodes import cut_episodes
from ding_lite.functional import discounted_return, gae

LENGTHS = [3, 1, 5, 2]


def rows(lengths=LENGTHS) -> dict:
    count = sum(lengths)
    place = np.arange(count)
    terminated, truncated = np.zeros((2, count), bool)
    for number, end in enumerate(np.cumsum(lengths) - 1):
        (truncated if number % 2 else terminated)[end] = True
    return {
        "obs": {"x": np.stack([place, place], 1).astype(np.float32), "n": place + 5},
        "next_obs": {"x": np.stack([place + 1, place + 1], 1).astype(np.float32), "n": place + 6},
        "action": place % 3 + 1,
        "reward": (place + 1).astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "word": to_objects([f"step {number}" for number in place]),
    }


def plain(structure):
    structure = nested(structure)
    return {name: plain(inner) for name, inner in structure.items()} if isinstance(structure, dict) else structure.tolist()


def listed(lengths=LENGTHS) -> list:
    """Each episode as nested lists."""
    begins = np.cumsum([0, *lengths])

    def cut(leaves, begin, end):
        return {
            name: cut(leaf, begin, end) if isinstance(leaf, dict) else leaf[begin:end].tolist() for name, leaf in leaves.items()
        }

    return [cut(rows(lengths), begin, end) for begin, end in zip(begins, begins[1:])]


def test_it_is_the_sequence_of_its_episodes_each_with_its_own_steps_only():
    episodes, expected = Episodes(rows(), LENGTHS), listed()

    assert len(episodes) == 4
    assert [plain(episode) for episode in episodes] == expected
    assert [plain(episodes[i]) for i in range(-4, 4)] == expected * 2
    assert [plain(episode) for episode in episodes[1:3]] == expected[1:3]
    assert [plain(episode) for episode in episodes[::-2]] == expected[::-2]
    assert [plain(episode) for episode in reversed(episodes)] == expected[::-1]
    assert all(isinstance(episode, Tree) for episode in episodes)
    assert episodes.lengths.tolist() == LENGTHS
    for index in (4, -5):
        with pytest.raises(IndexError):
            episodes[index]


@pytest.mark.parametrize("lengths", [LENGTHS, [1], [7], [1, 1, 1]])
def test_the_batch_holds_every_step_at_its_place(lengths):
    episodes, expected = Episodes(rows(lengths), lengths), listed(lengths)
    batch = episodes.batch

    assert batch.valid.dtype == torch.bool
    assert batch.valid.shape == batch.reward.shape == batch.obs.n.shape == batch.word.shape == (max(lengths), len(lengths))
    assert (batch.obs.x.shape, batch.obs.x.dtype) == ((max(lengths), len(lengths), 2), torch.float32)
    assert batch.valid.sum(0).tolist() == lengths
    for number, length in enumerate(lengths):
        assert plain(batch[:length, number]) == {**expected[number], "valid": [True] * length}
        assert not batch.valid[length:, number].any()


def test_rows_that_are_no_steps_have_an_observation_and_an_action_of_their_spaces_and_zeros_otherwise():
    batch = Episodes(rows(), LENGTHS).batch
    no_step = ~batch.valid

    assert no_step.any()
    for name in ("reward", "terminated", "truncated"):
        assert not batch[name][no_step].any()
    assert set(batch.word[no_step.numpy()].tolist()) == {None}
    for number, length in enumerate(LENGTHS):
        for leaf in (batch.obs.x, batch.obs.n, batch.next_obs.x, batch.action):
            assert torch.equal(leaf[length:, number], leaf[length - 1 : length, number].expand_as(leaf[length:, number]))


def test_columns_are_the_arrays_of_the_batch():
    episodes = Episodes(rows(), LENGTHS)
    episodes.columns["reward"][0, 0] = 77

    assert episodes.batch is episodes.batch
    assert episodes.batch.reward[0, 0] == 77
    assert "valid" not in episodes.columns


def test_rows_are_the_steps_uncopied_and_fit_into_replay():
    columns = rows()
    episodes = Episodes(columns, LENGTHS)
    assert episodes.rows()["obs"]["x"] is columns["obs"]["x"]

    buffer = ReplayBuffer(100)
    buffer.push({name: column for name, column in episodes.rows().items() if name != "word"})
    assert len(buffer) == sum(LENGTHS)


@pytest.mark.parametrize("lengths", [[3, 1, 5], [3, 1, 5, 3], [11, 0], [12, -1], [5.0, 6.0], [5.5, 5.5], ["11"]])
def test_lengths_that_are_not_those_of_the_rows_are_refused(lengths):
    with pytest.raises(
        ValueError, match=r"Episodes\(\) of 11 steps got the lengths \[.*\]: each must be an integer of at least 1"
    ):
        Episodes(rows(), lengths)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reward": np.zeros(13)}, r"got reward of shape \(13,\), expected \[N, ...\], and obs/x has \(11,\)"),
        ({"terminated": np.full(11, 2)}, r"got terminated = np.int64\(2\) at \[0\], expected True or False"),
        ({"truncated": np.zeros((11, 1), bool)}, r"truncated of shape \(11, 1\), .* \(11,\). Use .squeeze\(-1\)"),
        ({"valid": np.ones(11, bool)}, "got a column 'valid'.*choose another name"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(changes, words):
    with pytest.raises(ValueError, match=r"Episodes\(\).*" + words):
        Episodes({"obs": {"x": np.zeros(11)}, "reward": np.zeros(11), **changes}, [11])


def test_there_may_be_no_episode():
    episodes = Episodes({}, [])

    assert (len(episodes), list(episodes), episodes.rows()) == (0, [], {})
    assert episodes.batch.valid.shape == (0, 0)


@pytest.mark.parametrize("index", [[0, 1], np.array([0, 1]), np.array([True, False, True]), (0, 1), True, 1.0, None])
def test_an_index_that_is_neither_an_integer_nor_a_slice_is_refused(index):
    with pytest.raises(TypeError, match=rf"of type {type(index).__name__}.*\[ctx.episodes\[i\] for i in ...\]"):
        Episodes({"reward": np.zeros(11)}, LENGTHS)[index]


def test_the_name_of_a_column_as_an_index_is_refused_with_the_column():
    with pytest.raises(TypeError, match=r"a column is ctx.episodes.batch.reward"):
        Episodes({"reward": np.zeros(11)}, LENGTHS)["reward"]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_the_batch_of_a_copy_is_a_view_of_its_columns(copied):
    episodes = Episodes({"reward": np.zeros(11)}, LENGTHS)
    assert episodes.batch is episodes.batch
    made = copied(episodes)
    made.batch.reward[0, 1] = 77.0

    assert made.columns["reward"][0, 1] == 77
    assert made[1].reward[0] == 77


# Nothing leaks.


def by_definition(episode, value, next_value, gamma, lambda_):
    """Advantage of each step of one episode, summed up term by term."""
    reward, terminated = episode["reward"], episode["terminated"]
    delta = [r + (0.0 if end else gamma * n) - v for r, end, n, v in zip(reward, terminated, next_value, value)]
    return [sum((gamma * lambda_) ** (k - t) * delta[k] for k in range(t, len(delta))) for t in range(len(delta))]


@settings(deadline=None, max_examples=case_count(30))
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 10**6), st.sampled_from([0.0, 0.9, 1.0]))
def test_advantages_of_the_batch_are_those_of_each_episode_alone(lengths, seed, lambda_):
    batch = Episodes(rows(lengths), lengths).batch
    value, next_value = torch.randn(2, *batch.reward.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    value[~batch.valid], next_value[~batch.valid] = 1e9, torch.nan  # whatever a critic says of rows that are no steps
    found = gae(batch.reward.double(), value, next_value, batch.terminated, batch.truncated, gamma=0.9, lambda_=lambda_)

    for number, episode in enumerate(listed(lengths)):
        length = lengths[number]
        values = value[:length, number].tolist(), next_value[:length, number].tolist()
        np.testing.assert_allclose(
            found[:length, number], by_definition(episode, *values, 0.9, lambda_), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("poison", [0.0, 1e9, float("nan"), float("inf")])
def test_returns_of_the_batch_are_those_of_each_episode_alone(poison):
    batch = Episodes(rows(), LENGTHS).batch
    bootstrap = torch.where(batch.valid, torch.full(batch.reward.shape, 100.0, dtype=torch.float64), poison)
    found = discounted_return(batch.reward.double(), batch.terminated, batch.truncated, gamma=0.5, bootstrap=bootstrap)

    for number, episode in enumerate(listed()):
        expected, after = [], 100.0 * episode["truncated"][-1]
        for reward in reversed(episode["reward"]):
            after = reward + 0.5 * after
            expected.insert(0, after)
        np.testing.assert_allclose(found[: LENGTHS[number], number], expected, rtol=1e-12)


# Cut out of a rollout.


def rollout(ends: list, num_steps: int, resets: bool = False) -> tuple[Trajectories, list]:
    """Environments whose episodes end at these steps; the steps (t, b) of each episode, by environment.

    Args:
        resets: whether the step after the end of an episode only resets.
    """
    done = np.zeros((num_steps, len(ends)), bool)
    valid = np.ones((num_steps, len(ends)), bool)
    expected: list = []
    for env, steps in enumerate(ends):
        expected.append([])
        begin = 0
        for end in steps:
            done[end, env] = True
            expected[-1].append([(t, env) for t in range(begin, end + 1)])
            begin = end + 1
            if resets and begin < num_steps:
                valid[begin, env] = False
                begin += 1
    place = np.stack(np.meshgrid(np.arange(num_steps), np.arange(len(ends)), indexing="ij"), -1)
    truncated = done & (place[..., 1] % 2 == 1)
    columns = {"place": place, "deep": {"t": place[..., 0]}, "terminated": done & ~truncated, "truncated": truncated}
    return Trajectories(columns, valid if resets else None), expected


CASES = [
    ([[2, 4], [5], [0, 1, 2]], 6, False),
    ([[2, 6], [7], [0, 2, 4]], 8, True),
    ([[0]], 1, False),
    ([[3], [3]], 9, True),
]


@pytest.mark.parametrize(("ends", "num_steps", "resets"), CASES)
def test_episodes_are_cut_out_environment_by_environment(ends, num_steps, resets):
    whole, expected = rollout(ends, num_steps, resets)
    for most in (1, 2, 9):
        counts = [min(most, len(steps)) for steps in ends]
        episodes = cut_episodes(whole, counts)
        places = [[tuple(place) for place in episode.place.tolist()] for episode in episodes]

        assert places == [episode for of_env, count in zip(expected, counts) for episode in of_env[:count]]
        assert [episode.deep.t.tolist() for episode in episodes] == [[t for t, _ in place] for place in places]
        assert all((episode.terminated | episode.truncated).tolist() == [False] * (len(episode.place) - 1) + [True]
                   for episode in episodes)  # fmt: skip


def test_an_environment_of_which_none_is_wanted_gives_none():
    whole, expected = rollout([[2, 4], [], [0, 1, 2]], 6)

    assert [episode.place.tolist() for episode in cut_episodes(whole, [0, 0, 2])] == [
        [list(place) for place in episode] for episode in expected[2][:2]
    ]
    assert len(cut_episodes(whole, [0, 0, 0])) == 0


def test_more_episodes_than_have_ended_are_refused():
    whole, _ = rollout([[2, 4], [5]], 6)
    with pytest.raises(ValueError, match="wants 2 episodes of environment 1, got 1 in the rollout"):
        cut_episodes(whole, [2, 2])
