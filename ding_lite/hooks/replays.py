"""Replayed rows: the columns that enhancers and prioritised replay put beside them, where they did.

Room: ding_lite.hooks, floor 3. Imports data.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ding_lite.data import Tree, has_leaf


def bootstrap_discount(batch: Tree, gamma: float) -> Tensor | float:
    """What stands in front of the next value: `batch.discount` [B] where rewards are sums of several steps, else gamma."""
    return batch.discount if has_leaf(batch, "discount") else gamma


def weighted_loss(loss: Tensor, error: Tensor, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
    """The mean loss of a batch, and what to log of it; weighted, and with a priority for each row, where rows were drawn by
    priority.

    Args:
        loss: of each row, [B] float.
        error: of each row, [B] float; how large it is decides how often the row is drawn.
        batch: with weight [B] float, where rows were not drawn uniformly.

    Reference:
        Schaul et al. (2016), https://arxiv.org/abs/1511.05952, algorithm 1.
    """
    if not has_leaf(batch, "weight"):
        mean = loss.mean()
        return mean, {"loss": mean.detach()}
    mean = (loss * batch.weight).mean()
    return mean, {"loss": mean.detach(), "priority": error.detach().abs()}
