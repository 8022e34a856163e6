"""Replay losses: losses of replayed rows, which use the columns discount and weight if the batch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ding_lite.data import Tree
from ding_lite.data.trees import has_leaf
from ding_lite.functional import q_target, quantile_huber_loss, weighted_mean


def bootstrap_discount(batch: Tree, gamma: float) -> Tensor | float:
    """The factor of the next value in a target: `batch.discount` [B] for n-step rewards, otherwise gamma."""
    return batch.discount if has_leaf(batch, "discount") else gamma


def row_weight(batch: Tree) -> Tensor | None:
    """The weight of each row in the loss, [B]: of a dataset's column, or of prioritised replay; None without weights."""
    return batch.weight if has_leaf(batch, "weight") else None


def weighted_loss(loss: Tensor, error: Tensor | Callable[[], Tensor], batch: Tree) -> tuple[Tensor, dict[str, Any]]:
    """The mean loss of a batch. With prioritised replay, the mean is weighted, and each row gets a new priority.

    Args:
        loss: loss of each row, [B] float.
        error: error of each row, [B] float, whose absolute value is the new priority; or a function that computes it, which is
            only called with prioritised replay.
        batch: weight [B] float with prioritised replay.

    Returns:
        The scalar loss; and a dict to log, with loss and, with prioritised replay, priority [B].

    Reference:
        Schaul et al. (2016), https://arxiv.org/abs/1511.05952, algorithm 1.
    """
    weight = row_weight(batch)
    mean = weighted_mean(loss, weight)
    if weight is None:
        return mean, {"loss": mean.detach()}
    error = error() if callable(error) else error
    return mean, {"loss": mean.detach(), "priority": error.detach().abs()}


def quantile_regression(
    value: Tensor, next_value: Tensor, tau: Tensor, batch: Tree, *, gamma: float, kappa: float
) -> tuple[Tensor, dict[str, Any]]:
    """The mean quantile regression loss of a batch, towards quantiles of the return one step, or n steps, ahead.

        target_j = r + discount * (1 - terminated) * next_value_j
        loss     = sum_i mean_j |tau_i - [u_ij < 0]| * huber(u_ij) / kappa, u_ij = target_j - value_i

    Args:
        value: predicted quantiles of the return, [B, N] float.
        next_value: samples or quantiles of the next state's return, [B, M] float, without gradient.
        tau: quantile levels of `value`, [N] or [B, N], in [0, 1].
        batch: reward [B] float; terminated [B] bool; optionally discount, weight [B] float.
        gamma: discount factor if the batch has no discount.
        kappa: threshold of the Huber loss between quadratic and linear, in units of return.

    Returns:
        The scalar loss; and a dict to log, with loss, mean q_value and, if the batch has weights, the priority of each row,
        [B]: the absolute error of the mean.

    Reference:
        Dabney et al. (2018), https://arxiv.org/abs/1710.10044, algorithm 1 and eq. 10.
    """
    # Transposed to [M, B], so that reward [B] is broadcast over the quantiles of each row.
    target = q_target(batch.reward, next_value.T, batch.terminated, gamma=bootstrap_discount(batch, gamma)).T
    loss = quantile_huber_loss(value, target, tau, kappa=kappa)
    q_value = value.detach().mean(1)
    mean_loss, stats = weighted_loss(loss, lambda: target.mean(1) - q_value, batch)
    return mean_loss, {**stats, "q_value": q_value.mean()}
