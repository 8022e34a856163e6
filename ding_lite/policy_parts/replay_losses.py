"""Replay losses: losses of replayed rows, with the columns that enhancers and prioritised replay add to them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ding_lite.data import Tree, has_leaf
from ding_lite.functional import q_target, quantile_huber_loss


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


def quantile_regression(
    value: Tensor, next_value: Tensor, tau: Tensor, batch: Tree, *, gamma: float, kappa: float
) -> tuple[Tensor, dict[str, Any]]:
    """The mean loss of quantiles towards those one step, or n, ahead, and what to log of it.

        target_j = r + discount * (1 - terminated) * next_value_j
        loss     = sum_i mean_j |tau_i - [u_ij < 0]| * huber(u_ij) / kappa, u_ij = target_j - value_i

    Args:
        value: quantiles [B, N] float at tau, [N] or [B, N].
        next_value: samples or quantiles [B, M] float of what comes after; take no gradient.
        batch: reward [B] float; terminated [B] bool; discount, weight [B] float where there are.
        gamma: the discount where the batch has none.
        kappa: where the loss goes over from quadratic to linear, in units of return.

    Returns:
        The scalar loss, and to log loss, mean Q-value and, with weights, the priority of each row, [B]: the error of the mean.

    Reference:
        Dabney et al. (2018), https://arxiv.org/abs/1710.10044, algorithm 1 and eq. 10.
    """
    # Rows behind quantiles, so that the one reward of a row counts for all of its quantiles.
    target = q_target(batch.reward, next_value.T, batch.terminated, gamma=bootstrap_discount(batch, gamma)).T
    loss = quantile_huber_loss(value, target, tau, kappa=kappa)
    q_value = value.detach().mean(1)
    mean_loss, stats = weighted_loss(loss, target.mean(1) - q_value, batch)
    return mean_loss, {**stats, "q_value": q_value.mean()}
