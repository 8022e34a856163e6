"""Sequences: rollouts cut into pieces against plain slices of them, and a window that begins pieces in the rollout before."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import case_count

from ding_lite.data import Trajectories, flatten
from ding_lite.data.column_arrays import to_objects
from ding_lite.data.sequences import SequenceWindow, cut_sequences
from ding_lite.engine import load_checkpoint, save_checkpoint


def rollout(num_steps: int, num_envs: int = 2, begin: int = 0, valid: np.ndarray | None = None) -> Trajectories:
    """Every leaf tells (step, environment); steps are counted from `begin`."""
    place = np.stack(np.meshgrid(np.arange(begin, begin + num_steps), np.arange(num_envs), indexing="ij"), -1)
    words = [f"{t} {b}" for t, b in place.reshape(-1, 2)]
    return Trajectories(
        {
            "obs": {"place": place.astype(np.float32)},
            "reward": place[..., 0] + 100 * place[..., 1],
            "word": to_objects(words).reshape(num_steps, num_envs),
            "state_in_0": 1000 + place[..., 0] + 100 * place[..., 1],
            "state_out_0": 1001 + place[..., 0] + 100 * place[..., 1],
            "state_in_10": to_objects(words).reshape(num_steps, num_envs),
        },
        valid,
    )


@settings(deadline=None, max_examples=case_count(60))
@given(pieces=st.integers(1, 5), stride=st.integers(1, 6), overlap=st.integers(0, 6), num_envs=st.integers(1, 4))
def test_sequences_are_the_slices_of_each_environment_oldest_first(pieces, stride, overlap, num_envs):
    length, num_steps = stride + overlap, pieces * stride + overlap
    whole = rollout(num_steps, num_envs)
    found = cut_sequences(whole, length, overlap)
    expected = [(slice(begin, begin + length), env) for begin in range(0, pieces * stride, stride) for env in range(num_envs)]

    assert found["reward"].shape == (pieces * num_envs, length)
    for number, (steps, env) in enumerate(expected):
        for name in ("reward", "word", "state_out_0"):
            assert found[name][number].tolist() == whole.columns[name][steps, env].tolist()
        np.testing.assert_array_equal(found["obs"]["place"][number], whole.columns["obs"]["place"][steps, env])
        for name in ("state_in_0", "state_in_10"):
            assert found[name][number] == whole.columns[name][steps.start, env]
    assert "valid" not in found


def test_sequences_do_not_share_memory_with_the_rollout():
    whole = rollout(4)
    for path, leaf in flatten(cut_sequences(whole, 2)):
        assert leaf.flags.c_contiguous
        assert not np.shares_memory(leaf, dict(flatten(whole.columns))[path])


def test_steps_that_were_only_resets_are_marked():
    valid = np.ones((4, 2), bool)
    valid[1, 0] = valid[2, 1] = False
    assert cut_sequences(rollout(4, valid=valid), 2)["valid"].tolist() == [[True, False], [True] * 2, [True] * 2, [False, True]]


@pytest.mark.parametrize(("num_steps", "length", "overlap"), [(7, 2, 0), (2, 3, 0), (8, 4, 1), (3, 4, 2), (2, 4, 2)])
def test_a_rollout_that_is_no_number_of_whole_pieces_is_refused(num_steps, length, overlap):
    words = (
        rf"{num_steps} steps cannot be cut into sequences of {length} with an overlap of {overlap}: .* a positive multiple of "
    )
    with pytest.raises(ValueError, match=words + str(length - overlap)):
        cut_sequences(rollout(num_steps), length, overlap)


@pytest.mark.parametrize("overlap", [-1, 2, 3])
def test_an_overlap_beyond_the_length_is_refused(overlap):
    with pytest.raises(ValueError, match=rf"cut_sequences\(length=2, overlap={overlap}\)"):
        cut_sequences(rollout(4), 2, overlap)


# The window.


def steps(trajectories: Trajectories) -> list:
    assert trajectories.columns["word"][:, 1].tolist() == [f"{t} 1" for t in trajectories.columns["reward"][:, 0]]
    return trajectories.columns["reward"][:, 0].tolist()


@settings(deadline=None, max_examples=case_count(60))
@given(overlap=st.integers(0, 7), lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_each_rollout_comes_with_the_steps_before_it_as_soon_as_there_are_enough(overlap, lengths):
    window, begin = SequenceWindow(overlap), 0
    for length in lengths:
        found = window.prepend(rollout(length, begin=begin))
        if begin < overlap:
            assert found is None
        else:
            assert steps(found) == list(range(begin - overlap, begin + length))
        begin += length


@settings(deadline=None, max_examples=case_count(100))
@given(overlap=st.integers(0, 7), stride=st.integers(1, 4), lengths=st.lists(st.integers(1, 15), min_size=1, max_size=8))
def test_with_a_stride_the_first_rollout_ends_with_as_many_whole_strides_as_fit(overlap, stride, lengths):
    window, begin = SequenceWindow(overlap, stride), 0
    for length in lengths:
        found, end = window.prepend(rollout(length, begin=begin)), begin + length
        first = begin - overlap
        if begin < overlap:
            first = min(range(end - overlap - stride, -1, -stride), default=end)
        assert ([] if found is None else steps(found)) == list(range(first, end))
        begin = end


@pytest.mark.parametrize("num_steps", [128, 117, 24, 23])
def test_sequences_of_the_second_rollout_follow_on_those_of_the_first(num_steps):
    window, told = SequenceWindow(8, stride=16), []
    for begin, length in ((0, num_steps), (num_steps, 16), (num_steps + 16, 32)):
        whole = window.prepend(rollout(length, begin=begin))
        told += [] if whole is None else cut_sequences(whole, 24, overlap=8)["reward"][::2, 8:].ravel().tolist()

    assert told == list(range(8 + (num_steps - 8) % 16, num_steps + 48))


def test_a_window_with_a_stride_goes_on_from_a_saved_one():
    window, restored = SequenceWindow(3, stride=2), SequenceWindow(3, stride=2)
    window.prepend(rollout(6))
    restored.load_state_dict(window.state_dict())

    assert steps(restored.prepend(rollout(2, begin=6))) == [3, 4, 5, 6, 7]


def test_the_window_does_not_change_with_what_was_handed_out():
    window = SequenceWindow(2)
    first = rollout(3)
    window.prepend(first)
    first.columns["reward"][...] = -1
    second = window.prepend(rollout(2, begin=3))
    assert steps(second) == [1, 2, 3, 4]
    second.columns["reward"][...] = -1
    assert steps(window.prepend(rollout(2, begin=5))) == [3, 4, 5, 6]


def test_marks_of_resets_come_along():
    window, some = SequenceWindow(2), np.ones((3, 2), bool)
    some[1, 0] = some[2, 1] = False
    window.prepend(rollout(3, valid=some))

    assert window.prepend(rollout(2, begin=3)).valid.tolist() == [[False, True], [True, False], [True] * 2, [True] * 2]
    assert window.prepend(rollout(2, begin=5, valid=some[:2])).valid.tolist() == [[True] * 2] * 2 + some[:2].tolist()


@pytest.mark.parametrize("resets", [False, True])
def test_a_window_goes_on_from_a_saved_one(resets, tmp_path):
    valid = np.array([[True, False], [True, True], [False, True]]) if resets else None
    window, restored = SequenceWindow(3), SequenceWindow(3)
    restored.prepend(rollout(2, begin=50))
    window.prepend(rollout(3, valid=valid))
    path = save_checkpoint({"window": window.state_dict()}, tmp_path / "window.pt")
    restored.load_state_dict(load_checkpoint(path)["window"])

    expected, found = window.prepend(rollout(2, begin=3)), restored.prepend(rollout(2, begin=3))
    for (path, one), (_, other) in zip(flatten(expected.columns), flatten(found.columns), strict=True):
        assert (one.dtype, one.tolist()) == (other.dtype, other.tolist()), path
    assert (found.valid is None) == (not resets)
    if resets:
        np.testing.assert_array_equal(found.valid, expected.valid)


def test_an_empty_window_is_saved_and_loaded_too(tmp_path):
    window = SequenceWindow(1)
    window.prepend(rollout(3))
    window.load_state_dict(SequenceWindow(1).state_dict())

    assert window.prepend(rollout(2)) is None


def test_rollouts_that_are_not_alike_are_refused():
    window = SequenceWindow(1)
    window.prepend(rollout(2))
    with pytest.raises(ValueError, match="a SequenceWindow got .* the one before had .*: pass rollouts with the same leaves"):
        window.prepend(Trajectories({"reward": np.zeros((2, 2))}))
    window = SequenceWindow(1)
    window.prepend(rollout(2))
    with pytest.raises(ValueError, match="a SequenceWindow got"):
        window.prepend(rollout(2, num_envs=3))


def test_a_negative_overlap_is_refused():
    with pytest.raises(ValueError, match=r"SequenceWindow\(overlap=-1\): expected 0 or more"):
        SequenceWindow(-1)


def test_a_window_and_a_cut_together_give_every_step_once_behind_its_burn_in():
    window, begin, told = SequenceWindow(4), 0, []
    for _ in range(5):
        whole = window.prepend(rollout(8, begin=begin))
        begin += 8
        if whole is not None:
            pieces = cut_sequences(whole, 6, overlap=4)
            told += pieces["reward"][:, 4:][::2].ravel().tolist()
            np.testing.assert_array_equal(pieces["state_in_0"], 1000 + pieces["reward"][:, 0])

    assert told == list(range(8, 40))
    assert torch.as_tensor(pieces["reward"]).shape == (8, 6)


def test_a_stride_below_one_is_refused():
    with pytest.raises(ValueError, match=r"SequenceWindow\(stride=0\): expected 1 or more"):
        SequenceWindow(2, stride=0)


def no_window(columns=None, valid=None) -> dict:
    return {"columns": [[["reward"], torch.zeros(3, 1)]] if columns is None else columns, "valid": valid}


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ("window.pt", TypeError, r"load_state_dict\('window.pt'\) of a SequenceWindow wants a state, got a path"),
        ({"columns": None}, ValueError, r"not the state of a SequenceWindow: the keys \['valid'\] are missing"),
        (no_window([1]), ValueError, r"columns = \[1\], expected a list of \[path, tensor or objects with shape\]"),
        (no_window([]), ValueError, "columns = {}, expected shapes that begin with the same"),
        (no_window([[["reward"], torch.zeros(3)]]), ValueError, r"columns = {'reward': \(3,\)}"),
        (no_window([[["a"], torch.zeros(3, 1)], [["b"], torch.zeros(2, 1)]]), ValueError, "begin with the same"),
        (no_window([[["reward"], torch.zeros(4, 1)]]), ValueError, "steps = 4, expected 1 to 3, the overlap of this window"),
        (no_window(valid=torch.ones(3, 1)), ValueError, r"valid = 'float32 \(3, 1\)', expected None or bool \(3, 1\)"),
        (no_window(valid=True), ValueError, "valid = True, expected None or bool"),
    ],
)
def test_a_state_in_which_no_window_can_be_is_refused_and_changes_nothing(state, error, words):
    window = SequenceWindow(3)
    window.prepend(rollout(3))
    with pytest.raises(error, match=words):
        window.load_state_dict(state)

    assert steps(window.prepend(rollout(2, begin=3))) == [0, 1, 2, 3, 4]


def with_ends(begin: int, terminated=(), truncated=(), begins=None, valid=None) -> Trajectories:
    """Three steps of two environments; the last ones end in these environments."""
    ends = {name: np.zeros((3, 2), np.bool_) for name in ("terminated", "truncated")}
    for name, envs in (("terminated", terminated), ("truncated", truncated)):
        ends[name][-1, list(envs)] = True
    found = Trajectories({"step": np.arange(begin, begin + 3)[:, None].repeat(2, 1), **ends}, valid)
    found.begins = None if begins is None else np.array(begins)
    return found


@pytest.mark.parametrize("is_saved", [False, True])
def test_an_episode_that_a_restart_has_cut_short_is_truncated_before_the_next_one(is_saved):
    window, first = SequenceWindow(2), with_ends(0)
    window.prepend(first)
    if is_saved:
        state, window = window.state_dict(), SequenceWindow(2)
        window.load_state_dict(state)
    found = window.prepend(with_ends(3, begins=[True, False]))

    assert found.columns["step"][:, 0].tolist() == [1, 2, 3, 4, 5]
    assert found.columns["truncated"].tolist() == [[False, False], [True, False], *[[False, False]] * 3]
    assert not found.columns["terminated"].any()
    assert not first.columns["truncated"].any()
    if is_saved:
        leaves = {tuple(path): leaf for path, leaf in state["columns"]}
        assert not leaves["truncated",].any()


@pytest.mark.parametrize("begins", [None, [False, False], [True, True]])
def test_episodes_that_have_ended_or_go_on_are_as_they_were(begins):
    window = SequenceWindow(2)
    if begins == [True, True]:
        window.prepend(with_ends(0, terminated=[0], truncated=[1]))
    else:
        window.prepend(with_ends(0))
    found = window.prepend(with_ends(3, begins=begins))

    ended = [[begins == [True, True], False], [False, begins == [True, True]]]
    assert [found.columns[name][1].tolist() for name in ("terminated", "truncated")] == ended
    assert not found.columns["truncated"][[0, 2, 3, 4]].any()


def test_a_last_row_that_is_only_a_reset_needs_no_mark():
    window, valid = SequenceWindow(2), np.ones((3, 2), np.bool_)
    valid[-1, 0] = False
    window.prepend(with_ends(0, valid=valid))
    found = window.prepend(with_ends(3, begins=[True, True]))

    assert found.columns["truncated"][1].tolist() == [False, True]
    assert found.valid[1].tolist() == [False, True]


def test_rollouts_without_ends_are_joined_whatever_begins():
    window, later = SequenceWindow(1), Trajectories({"reward": np.zeros((2, 1))})
    window.prepend(Trajectories({"reward": np.zeros((2, 1))}))
    later.begins = np.array([True])

    assert window.prepend(later).num_steps == 3
