"""Replaced goals: against a loop over a list of episodes, and never of another episode."""

import warnings

import numpy as np
import pytest
import torch

from ding_lite.data import (
    EpisodeReplayBuffer,
    Episodes,
    GoalRewards,
    HindsightSampler,
    LeafSpec,
    Trajectories,
    flatten,
    nested,
)
from ding_lite.data.column_arrays import spec_like
from ding_lite.data.episode_replay import WITHIN


def distance(achieved, desired, info):
    """A reward that tells both goals."""
    return 1000 * achieved[:, 0] + achieved[:, 1] - (1_000_000 * desired[:, 0] + 100 * desired[:, 1])


def reached(achieved, desired, info):
    return (achieved == desired).all(-1)


REWARDS = GoalRewards(distance, reached)
HALVES = GoalRewards(lambda achieved, desired, info: distance(achieved, desired, info) / 8)


def episodes(count, seed=0, length=7):
    """Observations whose achieved goal is (episode, step), and whose desired one is (episode, 50)."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length, count)
    episode = np.repeat(np.arange(count), lengths)
    step = np.concatenate([np.arange(it) for it in lengths])

    def obs(step):
        goal = np.stack([episode, np.full(len(step), 50)], 1).astype(np.float32)
        achieved = np.stack([episode, step], 1).astype(np.float32)
        return {"observation": {"deep": step[:, None].astype(np.int16)}, "achieved_goal": achieved, "desired_goal": goal}

    ends = np.isin(np.arange(len(step)), lengths.cumsum() - 1)
    rows = {"obs": obs(step), "next_obs": obs(step + 1), "action": rng.integers(0, 5, len(step))}
    rows["reward"] = distance(rows["next_obs"]["achieved_goal"], rows["next_obs"]["desired_goal"], {}).astype(np.float32)
    terminated = ends & (rng.random(len(step)) < 0.5)
    return Episodes({**rows, "terminated": terminated, "truncated": ends & ~terminated}, lengths)


def filled(capacity=1000, count=60):
    buffer = EpisodeReplayBuffer(capacity, seed=1)
    buffer.push(episodes(count))
    return buffer


def one_by_one(data, drawn, buffer):
    """The batch of a draw, by a loop over its rows."""
    rows = nested(data.rows())
    first = len(next(flatten(rows))[1]) - len(buffer)  # position 0 of a buffer that has not wrapped around
    assert first == 0
    goals = dict(zip(drawn.at.tolist(), drawn.goals.tolist()))
    batch = []
    for place, row in enumerate(drawn.rows.tolist()):
        desired = rows["obs"]["desired_goal"][row]
        reward, terminated, truncated = (rows[name][row] for name in ("reward", "terminated", "truncated"))
        achieved = rows["next_obs"]["achieved_goal"][row]
        if place in goals:
            desired = rows["next_obs"]["achieved_goal"][goals[place]]
            reward = distance(achieved[None], desired[None], {})[0]
            now = bool((achieved == desired).all())
            terminated, truncated = now, truncated or (terminated and not now)
        batch.append((rows["action"][row], achieved, desired, reward, terminated, truncated))
    return [np.array(column) for column in zip(*batch)]


@pytest.mark.parametrize("strategy", WITHIN)
def test_a_batch_is_that_of_a_loop_over_its_rows(strategy):
    buffer, data = filled(), episodes(60)
    sampler = HindsightSampler(buffer, REWARDS, strategy, 0.7)
    drawn = sampler.draw(500)
    batch, plain = sampler.take(drawn), buffer.take(type(buffer.draw(1))(drawn.rows, {}))
    action, achieved, desired, reward, terminated, truncated = one_by_one(data, drawn, buffer)

    assert 300 < len(drawn.at) < 400
    np.testing.assert_array_equal(batch.action, action)
    np.testing.assert_array_equal(batch.reward, reward.astype(np.float32))
    np.testing.assert_array_equal(batch.terminated, terminated)
    np.testing.assert_array_equal(batch.truncated, truncated)
    np.testing.assert_array_equal(batch.next_obs.achieved_goal, achieved)
    for part in ("obs", "next_obs"):
        np.testing.assert_array_equal(batch[part].desired_goal, desired)
        np.testing.assert_array_equal(batch[part].achieved_goal, plain[part].achieved_goal)
        np.testing.assert_array_equal(batch[part].observation.deep, plain[part].observation.deep)
    looks = [{path: (leaf.dtype, leaf.shape) for path, leaf in flatten(one)} for one in (batch, plain)]
    assert looks[0] == looks[1]


@pytest.mark.parametrize("strategy", WITHIN)
def test_new_goals_are_of_the_same_episode_and_of_the_steps_of_the_strategy(strategy):
    buffer = EpisodeReplayBuffer(40, seed=2)
    sampler = HindsightSampler(buffer, REWARDS, strategy, 1.0)
    for seed in range(12):  # other episodes have the same numbers, but are long overwritten
        data = episodes(30, seed)
        buffer.push(data)
        batch = sampler.sample(200)
        episode, step = batch.obs.achieved_goal.numpy().T
        its_episode, goal = batch.obs.desired_goal.numpy().T
        last = data.lengths[episode.astype(int)]

        np.testing.assert_array_equal(its_episode, episode)
        if strategy == "future":
            assert ((goal > step) & (goal <= last)).all()
        elif strategy == "final":
            np.testing.assert_array_equal(goal, last)
        else:
            assert ((goal >= 1) & (goal <= last)).all()
            assert (goal <= step).any()


def test_episodes_of_one_step_have_their_own_goal():
    buffer = EpisodeReplayBuffer(100)
    data = episodes(20, length=2)
    rollout = Trajectories({name: _first_axis(column) for name, column in data.rows().items()})
    buffer.push(rollout)  # [1, 20]: twenty environments, one step
    batch = HindsightSampler(buffer, REWARDS, "future", 1.0).sample(50)

    np.testing.assert_array_equal(batch.obs.desired_goal, batch.next_obs.achieved_goal)
    assert batch.terminated.all()


def _first_axis(column):
    return {name: _first_axis(one) for name, one in column.items()} if isinstance(column, dict) else column[None]


def test_flags_may_be_stored_as_numbers():
    data = episodes(20)
    spec = {**spec_like(nested(data.rows())), **dict.fromkeys(("terminated", "truncated"), LeafSpec((), np.dtype(np.float32)))}
    buffer, plain = EpisodeReplayBuffer(1000, seed=1, spec=spec), EpisodeReplayBuffer(1000, seed=1)
    buffer.push(data)
    plain.push(data)
    batch, expected = (HindsightSampler(one, REWARDS, "future", 0.7).sample(200) for one in (buffer, plain))

    assert batch.truncated.tolist() == expected.truncated.tolist()
    assert batch.terminated.tolist() == expected.terminated.tolist()


def test_a_ratio_of_zero_is_a_plain_batch():
    buffer = filled()
    sampler = HindsightSampler(buffer, REWARDS, "future", 0.0)
    drawn = sampler.draw(40)
    batch, plain = nested(sampler.take(drawn)), nested(buffer.take(type(buffer.draw(1))(drawn.rows, {})))

    assert all(torch.equal(leaf, dict(flatten(plain))[path]) for path, leaf in flatten(batch))


def test_transitions_that_were_overwritten_after_the_draw_get_no_goal_of_another_episode():
    buffer = filled(capacity=60)
    sampler = HindsightSampler(buffer, REWARDS, "future", 1.0)
    drawn = sampler.draw(300)
    buffer.push(episodes(8, seed=5))
    batch = sampler.take(drawn)
    was_replaced = batch.obs.desired_goal[:, 1] != 50

    assert 0 < was_replaced.sum() < 300
    assert torch.equal(batch.obs.desired_goal[:, 0], batch.obs.achieved_goal[:, 0])


def test_only_the_columns_that_are_asked_for_are_in_the_batch():
    batch = HindsightSampler(filled(), REWARDS).sample(4, ("obs", "reward"))

    assert sorted(nested(batch)) == ["obs", "reward"]


def test_the_goals_are_part_of_what_is_saved():
    one, other = filled(), filled()
    HindsightSampler(one, REWARDS).draw(30)
    other.load_state_dict(one.state_dict())
    draws = [HindsightSampler(buffer, REWARDS).draw(30) for buffer in (one, other)]

    assert draws[0].goals.tolist() == draws[1].goals.tolist()


def test_rewards_of_another_scale_cause_one_warning():
    sampler = HindsightSampler(filled(), HALVES)
    with pytest.warns(UserWarning, match="are not those of compute_reward"):
        sampler.sample(50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.sample(50)


def test_new_rewards_keep_their_fractions_if_the_stored_ones_are_integers():
    data = episodes(20)
    rows = data.rows()
    buffer = EpisodeReplayBuffer(1000)
    buffer.push(Episodes({**rows, "reward": np.full_like(rows["reward"], 1, np.int64)}, data.lengths))
    halves = GoalRewards(lambda achieved, desired, info: np.where((achieved == desired).all(-1), 1.0, 0.5))
    with pytest.warns(UserWarning, match="are not those of compute_reward"):
        batch = HindsightSampler(buffer, halves, "future", 1.0).sample(200)
    expected = np.where((batch.next_obs.achieved_goal == batch.next_obs.desired_goal).all(-1), 1.0, 0.5)

    assert set(expected) == {0.5, 1.0}
    np.testing.assert_array_equal(batch.reward, expected)


def test_a_single_value_of_compute_terminated_is_computed_for_each():
    def single(achieved, desired, info):
        return bool(np.linalg.norm(achieved - desired) == 0)

    achieved, desired = np.array([[0.0, 1], [2, 2]]), np.array([[0.0, 1], [2, 3]])

    assert GoalRewards(distance, single).terminated(achieved, desired, {}).tolist() == [True, False]
    nested_goals = [{"a": achieved, "b": {"c": achieved}}, {"a": desired, "b": {"c": achieved}}]
    whole = GoalRewards(distance, lambda one, other, info: bool((one["a"] == other["a"]).all() and info["x"]))
    assert whole.terminated(*nested_goals, {"x": np.array([1.0, 1.0])}).tolist() == [True, False]


def test_infos_that_were_not_recorded_are_named():
    rewards = GoalRewards(lambda achieved, desired, info: info["speed"])
    assert rewards.rewards(np.zeros((2, 3)), np.zeros((2, 3)), {"speed": np.ones(2)}).tolist() == [1, 1]
    with pytest.raises(KeyError, match=r"reads info\['speed'\], which is not stored: record it with make_envs"):
        rewards.rewards(np.zeros((2, 3)), np.zeros((2, 3)), {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: {**rows, "discount": rows["reward"]}, "sums of several steps"),
        (lambda rows: {**rows, "obs": rows["obs"]["achieved_goal"]}, "the replayed obs has no parts"),
        (lambda rows: {**rows, "next_obs": {"x": rows["reward"]}}, "the replayed next_obs has the parts .'x'"),
    ],
)
def test_transitions_without_goals_are_refused(change, words):
    data = episodes(5)
    buffer = EpisodeReplayBuffer(100)
    buffer.push(Episodes(change(data.rows()), data.lengths))
    with pytest.raises(ValueError, match=words):
        HindsightSampler(buffer, REWARDS).sample(3, ("obs", "reward"))


@pytest.mark.parametrize(
    ("rewards", "words"),
    [
        (GoalRewards(lambda achieved, desired, info: 0.5), r"returned float64 \(\) for"),
        (GoalRewards(lambda achieved, desired, info: achieved - desired), "compute over the last axis"),
        (GoalRewards(distance, lambda achieved, desired, info: achieved == desired), "compute_terminated of the environment"),
    ],
)
def test_functions_that_are_not_of_many_goals_are_refused(rewards, words):
    with pytest.raises(ValueError, match=words):
        HindsightSampler(filled(), rewards, "future", 1.0).sample(5)


@pytest.mark.parametrize("wrong", [{"strategy": "random"}, {"ratio": 1.2}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        HindsightSampler(filled(), REWARDS, **wrong)
