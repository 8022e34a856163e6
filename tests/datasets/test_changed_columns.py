"""`with_columns`: other columns without other files."""

import numpy as np
import pytest
import torch
from recordings import SPACES, Recording

from ding_lite.datasets import DatasetError, DatasetWriter, OfflineDataset, open_dataset, write_dataset


@pytest.fixture
def dataset(tmp_path):
    recording = Recording("box", seed=0)
    writer = DatasetWriter(tmp_path / "data")
    writer.begin(SPACES["box"], SPACES["discrete"], {})
    for _ in range(6):
        writer.add(recording.rollout(5))
    writer.flush()
    writer.close()
    return OfflineDataset(tmp_path / "data")


def test_rewards_are_the_given_ones_and_all_else_is_as_before(dataset):
    before, given = dataset.rows(), np.arange(len(dataset), dtype=np.float64)
    changed = dataset.with_columns(reward=given)
    after = changed.rows()

    assert after.keys() == before.keys()
    assert np.array_equal(after.pop("reward"), given)
    assert all(np.array_equal(column, before[name]) for name, column in after.items())
    assert changed.take([3, 1]).reward.tolist() == [3, 1]
    assert changed.returns.sum() == given.sum()
    assert np.array_equal(dataset.rows()["reward"], before["reward"])


def test_rows_are_those_of_the_chosen_episodes(dataset):
    chosen = dataset.select([3, 1, -1])
    given = np.arange(len(chosen)) + 0.5
    changed = chosen.with_columns(reward=given).select([1, 2])

    assert np.array_equal(changed.rows()["reward"], given[chosen.lengths[0] :])
    assert np.array_equal(changed.rows()["obs"], chosen.select([1, 2]).rows()["obs"])


def test_columns_are_added_and_changed_again(dataset):
    log_prob = torch.full((len(dataset),), -0.5)
    changed = dataset.with_columns(log_prob=log_prob).with_columns(reward=np.ones(len(dataset), np.float32))

    assert {"log_prob", "reward"} <= set(changed.columns)
    assert torch.equal(changed.take(range(len(dataset))).log_prob, log_prob)
    assert changed.with_columns(log_prob=log_prob - 1).take([0]).log_prob.tolist() == [-1.5]


def test_it_is_written_and_joined_like_any_other(dataset, tmp_path):
    changed = dataset.with_columns(reward=np.ones(len(dataset), np.float32))
    write_dataset(changed, tmp_path / "written")

    assert (OfflineDataset(tmp_path / "written").rows()["reward"] == 1).all()
    both = open_dataset([dataset, changed])
    assert np.array_equal(both.rows()["reward"], np.concatenate([dataset.rows()["reward"], np.ones(len(dataset))]))


def test_a_run_with_other_rewards_is_not_a_resumed_one(dataset):
    ones, twos = (dataset.with_columns(reward=np.full(len(dataset), value)) for value in (1.0, 2.0))

    assert len({dataset.fingerprint, ones.fingerprint, twos.fingerprint}) == 3
    assert ones.fingerprint == dataset.with_columns(reward=np.ones(len(dataset))).fingerprint
    labels = (dataset.with_columns(label=np.zeros(len(dataset), dtype)) for dtype in (np.float32, np.int32))
    assert len({one.fingerprint for one in labels}) == 2


def test_a_tensor_with_a_gradient_is_a_column(dataset):
    assert dataset.with_columns(reward=torch.ones(len(dataset), requires_grad=True)).take([0]).reward.item() == 1


def test_an_episode_that_was_selected_twice_has_its_rows_once(dataset):
    twice = dataset.select([0, 0])
    with pytest.raises(DatasetError, match=r"an episode was selected twice, .*Change the columns before `select`"):
        twice.with_columns(reward=np.arange(len(twice), dtype=np.float64))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"terminated": np.zeros(3, bool)}, "say what the episodes are: make a new dataset"),
        ({"next_obs": np.zeros(3)}, "say what the episodes are"),
        ({"reward": np.zeros(3)}, r"wants numbers \[90, ...\], one row for each of the dataset .*, got float64 \[3\]"),
        ({"reward": 1.0}, r"got float64 \[\]"),
        ({"reward": np.zeros((90, 1))}, r"wants numbers \[90\], got \[90, 1\]: use .squeeze"),
        ({"weight": np.zeros((90, 2))}, r"wants numbers \[90\], got \[90, 2\]"),
        ({"action": np.full(90, 1000)}, "does not fit the action space"),
        ({"lengths": np.zeros(90)}, "datasets use the names lengths, valid, timestep, return_to_go"),
        ({"return_to_go": np.zeros(90)}, "choose another one"),
        ({"label": torch.zeros(90, dtype=torch.bfloat16)}, r"use .float\(\)"),
        ({"label": np.full(90, 2**63, np.uint64)}, "has the number 9223372036854775808"),
        ({"label": np.zeros(90, np.longdouble)}, r"'label' has the dtype float128, .* give column.astype\(np.float64\)"),
        ({"label": np.full(90, "a")}, "got <U1"),
        ({"reward": np.ma.masked_less(np.arange(90), 3)}, "column 'reward' is a masked array with 3 masked numbers"),
        ({"action": np.zeros((90, 2), np.float32)}, "does not fit the action space"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(dataset, columns, words):
    assert len(dataset) == 90
    with pytest.raises(DatasetError, match=words):
        dataset.with_columns(**columns)


def test_columns_of_the_other_byte_order_are_those_of_this_machine(dataset):
    other = np.arange(90.0).astype(np.dtype(np.float64).newbyteorder())
    changed = dataset.with_columns(reward=other, label=other)
    assert changed.rows()["label"].dtype == np.float64
    assert changed.take([5]).label.tolist() == [5.0]
    assert np.array_equal(changed.rows()["reward"], other)
