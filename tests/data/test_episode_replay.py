"""The replay buffer that knows episodes, against a plain list of transitions that each say which episode they are of."""

from collections import deque

import numpy as np
import pytest
from states import same, through_a_file

from ding_lite.basics import RunFiles
from ding_lite.data import EpisodeReplayBuffer, Episodes, Trajectories
from ding_lite.data.episode_replay import WITHIN
from ding_lite.data.lists import rollout_from_list


class Walks:
    """Environments whose observations are [environment, episode, step], and the transitions that they have given."""

    def __init__(self, num_envs, seed, resets=False, end=0.12):
        self.rng = np.random.default_rng(seed)
        self.num_envs, self.resets, self.end = num_envs, resets, end
        self.episode, self.step = np.arange(num_envs), np.zeros(num_envs, int)
        self.next_episode = num_envs
        self.is_reset = np.zeros(num_envs, bool)

    def obs(self):
        return np.stack([np.arange(self.num_envs), self.episode, self.step], 1).astype(np.float32)

    def begin(self, envs):
        for env in envs:
            self.episode[env], self.step[env] = self.next_episode, 0
            self.next_episode += 1

    def rollout(self, num_steps):
        """With `resets`, the step after an episode's end is only a reset."""
        rows = {name: [] for name in ("obs", "next_obs", "terminated", "truncated", "valid")}
        for _ in range(num_steps):
            ends = (self.rng.random((2, self.num_envs)) < self.end) & ~self.is_reset
            rows["valid"].append(~self.is_reset)
            rows["obs"].append(self.obs())
            self.step += ~self.is_reset
            rows["next_obs"].append(self.obs())
            rows["terminated"].append(ends[0])
            rows["truncated"].append(ends[1] & ~ends[0])
            if self.resets:
                self.begin(np.flatnonzero(self.is_reset))
                self.is_reset = ends.any(0)
            else:
                self.begin(np.flatnonzero(ends.any(0)))
        columns = {name: np.stack(row) for name, row in rows.items()}
        for name in ("obs", "next_obs"):  # nested observations
            columns[name] = {"seen": columns[name], "deep": {"step": columns[name][..., 2:].astype(np.int16)}}
        valid = columns.pop("valid")
        return Trajectories(columns, valid if self.resets else None)

    def episodes(self, count):
        lengths = self.rng.integers(1, 6, count)
        names = np.arange(self.next_episode, self.next_episode + count)
        self.next_episode += count
        step = np.concatenate([np.arange(length) for length in lengths])
        seen = np.stack([np.full(len(step), 99), np.repeat(names, lengths), step], 1).astype(np.float32)
        after = seen + np.float32([0, 0, 1])
        ends = np.isin(np.arange(len(step)), lengths.cumsum() - 1)
        rows = {
            name: {"seen": it, "deep": {"step": it[:, 2:].astype(np.int16)}}
            for name, it in (("obs", seen), ("next_obs", after))
        }
        return Episodes({**rows, "terminated": ends, "truncated": ends & False}, lengths)


def shown(rows):
    """(episode, step) of rows of observations."""
    return [(int(episode), int(step)) for _, episode, step in np.asarray(rows["obs"]["seen"])]


class Stored:
    """The last transitions in a list, oldest first."""

    def __init__(self, capacity):
        self.held = deque(maxlen=capacity)

    def push(self, batch):
        self.held += shown(batch.rows())

    def within(self, which):
        """For each transition, the (episode, step) of those that may be drawn for it."""
        found = {}
        for episode, step in self.held:
            steps = sorted(other for its, other in self.held if its == episode)
            found[episode, step] = {
                "future": {(episode, it) for it in steps if it >= step},
                "final": {(episode, steps[-1])},
                "episode": {(episode, it) for it in steps},
            }[which]
        return found


def drawn(buffer, which, times=150):
    """For each transition, those that were drawn for it."""
    held = shown(buffer.take_part((), np.arange(len(buffer))))
    rows = np.tile(np.arange(len(buffer)), times)
    found = {}
    for row, other in zip(rows, buffer.draw_within(rows, which)):
        found.setdefault(held[row], set()).add(held[other])
    return found


@pytest.mark.few
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("num_envs", "resets"), [(1, False), (3, False), (3, True)])
def test_the_transitions_of_an_episode_are_those_of_a_list(num_envs, resets, seed):
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(3, 30))
    walks, buffer, stored = Walks(num_envs, seed, resets), EpisodeReplayBuffer(capacity, seed), Stored(capacity)
    for _ in range(12):
        kind = rng.random()
        if kind < 0.15:  # the environments were reset from outside
            walks.begin(range(num_envs))
            walks.is_reset[:] = False
        batch = walks.episodes(int(rng.integers(1, 4))) if kind > 0.85 else walks.rollout(int(rng.integers(1, 9)))
        buffer.push(batch)
        stored.push(batch)
        if not len(buffer):  # only resets so far
            continue
        if rng.random() < 0.3:
            restored = EpisodeReplayBuffer(capacity, seed=99)
            restored.load_state_dict(through_a_file(buffer.state_dict()))
            assert same(restored.state_dict(), buffer.state_dict())
            buffer = restored
        for which in WITHIN:
            assert drawn(buffer, which) == stored.within(which)


def test_later_transitions_are_drawn_uniformly():
    walks, buffer = Walks(1, seed=0, end=0), EpisodeReplayBuffer(100, seed=1)
    for _ in range(4):
        buffer.push(walks.rollout(2))
    later, counts = np.unique(buffer.draw_within(np.full(9_000, 2), "future"), return_counts=True)

    assert later.tolist() == [2, 3, 4, 5, 6, 7]
    assert ((counts - 1500) ** 2 / 1500).sum() < 20.5  # chi-square of 5 degrees of freedom, p = 0.001


def test_a_series_of_chosen_transitions_counts_as_an_episode():
    walks, buffer = Walks(2, seed=0, end=0), EpisodeReplayBuffer(100)
    rollout = walks.rollout(4)
    buffer.push(rollout_from_list([*rollout[:2], rollout[3], *rollout[5:7]], "test"))

    assert drawn(buffer, "episode") == {
        (0, 0): {(0, 0), (0, 1)},
        (0, 1): {(0, 0), (0, 1)},
        (0, 3): {(0, 3)},
        (1, 1): {(1, 1), (1, 2)},
        (1, 2): {(1, 1), (1, 2)},
    }


@pytest.mark.parametrize("num_envs", [1, 2, 3])
@pytest.mark.parametrize(
    "empty", [EpisodeReplayBuffer.clear, lambda it: it.load_state_dict(EpisodeReplayBuffer(20).state_dict())]
)
def test_a_cleared_buffer_knows_no_episode(num_envs, empty):
    walks, buffer = Walks(num_envs, seed=3), EpisodeReplayBuffer(20)
    buffer.push(Walks(2, seed=4).rollout(15))
    empty(buffer)
    later = walks.rollout(9)
    buffer.push(later)
    stored = Stored(20)
    stored.push(later)

    assert all(drawn(buffer, which) == stored.within(which) for which in WITHIN)


def test_rows_in_pieces_are_the_whole_state(tmp_path, monkeypatch):
    monkeypatch.setattr("ding_lite.basics.row_files._SMALLEST", 100)
    walks, buffer, files = Walks(3, seed=4), EpisodeReplayBuffer(50, seed=2), RunFiles(tmp_path)
    for done in range(6):
        buffer.push(walks.rollout(7))
        buffer.draw_within(buffer.draw(3).rows, "future")
        files.save({"buffer": buffer.state_in_pieces()}, done)
        assert same(files.load()[0]["buffer"], through_a_file(buffer.state_dict()))


def test_sampling_is_that_of_a_plain_buffer():
    walks, buffer = Walks(3, seed=4), EpisodeReplayBuffer(50, seed=2)
    buffer.push(walks.rollout(7))

    assert buffer.draw(40).rows.tolist() == np.random.default_rng(2).integers(0, 21, 40).tolist()
    assert buffer.sample(2, ("obs",)).obs.deep.step.dtype.itemsize == 2


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
@pytest.mark.parametrize("form", ["rollout", "episodes"])
def test_episodes_end_where_flags_are_numbers_too(form, dtype):
    flags = [{"terminated": [0, 0, 0, 0], "truncated": [0, 1, 0, 1]}, {"terminated": [0, 1, 0, 1], "truncated": [0, 0, 0, 0]}]
    buffer = EpisodeReplayBuffer(20)
    for one in flags:
        rows = {"obs": np.arange(4.0), "next_obs": np.arange(4.0)} | {name: np.array(flag, dtype) for name, flag in one.items()}
        if form == "episodes":
            buffer.push(Episodes(rows, [2, 2]))
        else:
            buffer.push(Trajectories({name: row[:, None] for name, row in rows.items()}))

    assert buffer.draw_within(np.arange(8), "final").tolist() == [1, 1, 3, 3, 5, 5, 7, 7]


def of_steps():
    return {"obs": np.zeros(2), "next_obs": np.zeros(2), "terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool)}


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (of_steps(), "got a dict, which does not say which steps are of one episode"),
        (rollout_from_list([{name: row[0] for name, row in of_steps().items()}], "test"), "in an unknown order"),
        (
            Trajectories({"obs": np.zeros((2, 1)), "terminated": np.zeros((2, 1), bool)}),
            "['next_obs', 'truncated'] are missing",
        ),
    ],
)
def test_transitions_without_their_episodes_are_refused(batch, words):
    buffer = EpisodeReplayBuffer(10)
    with pytest.raises((TypeError, ValueError)) as caught:
        buffer.push(batch)

    assert words in str(caught.value)
    assert not len(buffer)


def test_a_state_that_cannot_be_is_refused_and_changes_nothing():
    walks, buffer = Walks(2, seed=5), EpisodeReplayBuffer(30)
    buffer.push(walks.rollout(12))
    before = buffer.state_dict()
    state = through_a_file(before)
    places, streams = state["places"], state["streams"]
    wrong = [
        {"places": {**places, "stream": places["stream"] + 7}},
        {"places": {**places, "step": places["step"] + 1}},
        {"places": {**places, "first": places["step"] + 1}},
        {"places": {**places, "first": places["first"][:3]}},
        {"places": None},
        {"streams": {**streams, "count": [1, 2]}},
        {"streams": {**streams, "open": [3]}},
        {"streams": {**streams, "open": [11, 11]}},
        {"streams": {"count": 3, "open": 3}},
        {"streams": [0]},
    ]
    for one in wrong:
        with pytest.raises(ValueError, match="Nothing was loaded"):
            buffer.load_state_dict({**state, **one})
    assert same(buffer.state_dict(), before)
