"""A batch remembers what is read of it, and names what it does not have."""

import numpy as np
import pytest
import torch

from ding_lite.data import Tree, tree
from ding_lite.data.trees import has_leaf, map_leaves, with_leaves
from ding_lite.policy_check import ColumnError, map_columns
from ding_lite.policy_check.columns import columns_read, explain_missing, read_batch


def batch(hook="loss of P"):
    leaves = {
        "obs": {"keys": np.zeros((3, 2), np.float32), "x": np.zeros(3)},
        "action": torch.zeros(3),
        "reward": torch.ones(3),
    }
    return read_batch(leaves, hook)


def test_what_is_read_as_an_attribute_or_by_name_is_remembered():
    given = batch()
    assert columns_read(given) == set()
    _ = given.obs, given["action"]

    assert columns_read(given) == {"obs", "action"}


def test_asking_what_there_is_reads_nothing():
    given = batch()
    assert has_leaf(given, "reward")
    assert not has_leaf(given, "weight")
    assert "reward" in given.keys()  # noqa: SIM118  a tree's `in` asks its leaves
    assert getattr(given, "weight", None) is None
    assert with_leaves(given, advantage=torch.ones(3)).advantage.shape == (3,)

    assert columns_read(given) == set()


@pytest.mark.parametrize(
    "use", [lambda b: b[:2], lambda b: b[0], lambda b: b.flatten(0, 0), lambda b: map_leaves(lambda x: x, b)]
)
def test_whatever_else_is_done_with_it_reads_everything(use):
    given = batch()
    use(given)

    assert columns_read(given) == {"obs", "action", "reward"}


def test_parts_of_a_nested_column_may_have_any_name():
    given = batch()

    assert given.obs["keys"].shape == (3, 2)
    assert type(given.obs) is Tree
    assert type(given[:2]) is Tree


@pytest.mark.parametrize("read", [lambda b: b.rewrad, lambda b: b["rewrad"]])
def test_a_column_that_is_not_there_is_named_with_the_hook_and_all_shapes(read):
    with pytest.raises(
        ColumnError, match=r"loss of P reads the column 'rewrad'.*did you mean 'reward'.*obs/keys \[3, 2\]"
    ) as caught:
        read(batch())

    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, AttributeError)


def test_two_batches_do_not_share_what_was_read():
    one, other = batch(), batch()
    _ = one.reward

    assert columns_read(other) == set()


def test_a_batch_whose_columns_were_changed_remembers_with_the_one_before():
    given = batch()
    doubled = map_columns(given, lambda name, column: map_leaves(lambda leaf: 2 * leaf, column))
    assert columns_read(given) == set()
    assert doubled.reward.tolist() == [2.0, 2.0, 2.0]
    assert doubled.obs["x"].shape == (3,)

    assert columns_read(given) == columns_read(doubled) == {"reward", "obs"}
    with pytest.raises(ColumnError, match="'weight'"):
        _ = doubled.weight


def test_a_column_that_a_dataset_lacks_can_be_added_to_it():
    without = tree({"obs": torch.zeros(2, 3)})
    with pytest.raises(ColumnError, match=r"reads the column 'cost', .* dataset\.with_columns\(cost=\.\.\.\) adds it"):
        explain_missing(KeyError("cost"), without, ("cost",), "learning of MyPolicy")
