"""Losses and targets, as their papers write them.

Room: ding_lite.functional, floor 0: tensors in, tensors out. Imports nothing of ours.
"""

from __future__ import annotations

import torch
from torch import Tensor


def q_target(reward: Tensor, next_value: Tensor, terminated: Tensor, *, gamma: float) -> Tensor:
    """The one-step target of Q-learning: r + gamma * (1 - terminated) * next_value.

    Truncated steps bootstrap: the task went on, only nobody watched.

    Args:
        reward, next_value: [B] float.
        terminated: [B] bool.
        gamma: discount per step, in [0, 1].

    Returns:
        [B] float.

    Reference:
        Mnih et al. (2015), https://www.nature.com/articles/nature14236, eq. 2.
    """
    # masked_fill, not a product: 0 * nan is nan.
    return torch.add(reward, next_value.masked_fill(terminated, 0), alpha=gamma)


def ppo_policy_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, *, clip_ratio: float) -> tuple[Tensor, Tensor]:
    """The clipped surrogate objective, negated.

        ratio = exp(log_prob - old_log_prob)
        loss  = -mean(min(ratio * advantage, clip(ratio, 1 - clip_ratio, 1 + clip_ratio) * advantage))

    Args:
        log_prob, old_log_prob, advantage: [B] float.
        clip_ratio: in (0, 1).

    Returns:
        The scalar loss, and log(ratio) [B] for what is derived from it.

    Reference:
        Schulman et al. (2017), https://arxiv.org/abs/1707.06347, eq. 7.
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    return -torch.min(ratio * advantage, clipped * advantage).mean(), log_ratio


def ppo_value_loss(value: Tensor, old_value: Tensor, return_: Tensor, *, value_clip: float | None) -> Tensor:
    """Mean squared error of the critic, halved; with a clip, the larger of the error of `value` and of its clipped move.

        clipped = old_value + clip(value - old_value, -value_clip, value_clip)
        loss    = mean(max((value - return_)^2, (clipped - return_)^2)) / 2

    Args:
        value, old_value, return_: [B] float.
        value_clip: how far the value may move, in units of return; None for no clip.

    Reference:
        Huang et al. (2022), "The 37 Implementation Details of Proximal Policy Optimization", detail 9.
    """
    error = (value - return_).square()
    if value_clip is not None:
        clipped = old_value + (value - old_value).clamp(-value_clip, value_clip)
        error = torch.max(error, (clipped - return_).square())
    return 0.5 * error.mean()


def explained_variance(value: Tensor, return_: Tensor) -> Tensor:
    """How much of the returns' variance the critic explains: 1 - Var(return_ - value) / Var(return_).

    1 is perfect, 0 no better than a constant; NaN where all returns are alike.

    Args:
        value, return_: any shape, float.
    """
    spread = return_.var(correction=0)
    return torch.where(spread > 0, 1 - (return_ - value).var(correction=0) / spread, torch.nan)
