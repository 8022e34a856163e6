"""Losses and targets, as their papers write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def q_target(reward: Tensor, next_value: Tensor, terminated: Tensor, *, gamma: float | Tensor) -> Tensor:
    """The target of Q-learning: r + gamma * (1 - terminated) * next_value.

    Truncated steps bootstrap: the task went on, only nobody watched.

    Args:
        reward: of one step, or discounted and summed over several. [B] float.
        next_value: after the last of them. [B] float, or [N, B].
        terminated: [B] bool.
        gamma: the discount in front of next_value, in [0, 1]; [B] float where rows differ in how many steps their reward sums.

    Returns:
        Of next_value's shape.

    Raises:
        ValueError: terminated, next_value or gamma are not of reward's shape, which torch would make one of its own.

    Reference:
        Mnih et al. (2015), https://www.nature.com/articles/nature14236, eq. 2.
    """
    rows = reward.shape
    if terminated.shape != rows or next_value.shape[next_value.ndim - len(rows) :] != rows:
        raise ValueError(
            f"q_target() wants reward, terminated [B] and next_value [B] or [N, B], got {tuple(rows)}, "
            f"{tuple(terminated.shape)}, {tuple(next_value.shape)}: give one number for each row, such as reward.squeeze(-1)."
        )
    # masked_fill, not a product: 0 * nan is nan.
    future = next_value.masked_fill(terminated, 0)
    if not isinstance(gamma, Tensor):
        return torch.add(reward, future, alpha=gamma)
    if gamma.ndim and gamma.shape != rows:
        raise ValueError(f"q_target() wants gamma of reward's shape {tuple(rows)}, got {tuple(gamma.shape)}.")
    return reward + gamma * future


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


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """Huber's loss of each error: error^2 / 2 up to delta, delta * (|error| - delta / 2) beyond.

    Args:
        error: any shape, float.
        delta: where the square ends, in units of error, above 0.

    Returns:
        Of error's shape.

    Reference:
        Huber (1964), "Robust Estimation of a Location Parameter".

    Example:
        >>> huber(torch.tensor([-0.5, 0.0, 3.0])).tolist()
        [0.125, 0.0, 2.5]
    """
    return nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta)


def weighted_mean(loss: Tensor, weight: Tensor | None) -> Tensor:
    """mean(weight * loss), or mean(loss) without weights; not divided by the sum of the weights.

    Importance weights divided by their largest are meant to shrink the step.

    Args:
        loss: [B] float, or [T, B].
        weight: [B] float.

    Reference:
        Schaul et al. (2016), https://arxiv.org/abs/1511.05952, algorithm 1.
    """
    return loss.mean() if weight is None else (loss * weight).mean()


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor, valid: Tensor | None = None) -> Tensor:
    """The policy gradient's loss, -mean(log_prob * advantage), whose gradient ascends the expected return.

    Args:
        log_prob: log pi(a|s) of the actions taken. Any shape, float.
        advantage: how good they were; takes no gradient. Of that shape, float.
        valid: False for steps that do not count, 0 where none does. Of that shape, bool; None where all do.

    Reference:
        Williams (1992), "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning".
    """
    advantage = advantage.detach()
    if valid is None:
        return -(log_prob * advantage).mean()
    # Both: 0 * nan is nan, in the sum as in the gradient.
    terms = log_prob.masked_fill(~valid, 0) * advantage.masked_fill(~valid, 0)
    return -terms.sum() / valid.sum().clamp_(min=1)


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """What keeps a policy's entropy at a target: alpha grows where the entropy is below it.

        loss = mean(-alpha * (log_prob + target_entropy)), alpha = exp(log_alpha)

    The exponential keeps alpha above 0. The shorter form with log_alpha in alpha's place has the same zero and the same sign,
    but is not the paper's objective; its gradient lacks the factor alpha, which Adam divides out of this one.

    Args:
        log_alpha: takes the gradient. One number, float.
        log_prob: log pi(a|s) of actions drawn from the policy; takes no gradient. [B] float.
        target_entropy: in nats.

    Reference:
        Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905, eq. 18.
    """
    return -(log_alpha.exp() * (log_prob + target_entropy).detach()).mean()


def masked_mean(x: Tensor, valid: Tensor | None) -> Tensor:
    """mean(x) over the steps that count; 0 where none does.

    Args:
        x: any shape, float.
        valid: False for steps that do not count, whatever x is there. Of that shape, bool; None where all do.
    """
    return x.mean() if valid is None else x.masked_fill(~valid, 0).sum() / valid.sum().clamp(min=1)
