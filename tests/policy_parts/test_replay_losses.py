"""The loss of replayed rows, with and without prioritised replay."""

import pytest
import torch

from ding_lite.data import tree
from ding_lite.policy_parts import weighted_loss

LOSS, ERROR, WEIGHT = torch.tensor([1.0, 3.0]), torch.tensor([-2.0, 4.0]), torch.tensor([0.5, 1.0])


@pytest.mark.parametrize("error", [ERROR, lambda: ERROR], ids=["tensor", "function"])
def test_with_weights_the_mean_is_weighted_and_rows_get_priorities(error):
    loss, stats = weighted_loss(LOSS, error, tree({"weight": WEIGHT}))

    assert loss == stats["loss"] == 1.75
    assert stats["priority"].tolist() == [2.0, 4.0]


def test_without_weights_errors_are_not_computed():
    def error():
        raise AssertionError("called")

    loss, stats = weighted_loss(LOSS, error, tree({"reward": WEIGHT}))

    assert loss == 2
    assert stats == {"loss": 2}
