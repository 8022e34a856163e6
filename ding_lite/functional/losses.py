"""Losses and targets, as defined in their papers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def q_target(reward: Tensor, next_value: Tensor, terminated: Tensor, *, gamma: float | Tensor) -> Tensor:
    """The target of Q-learning: r + gamma * (1 - terminated) * next_value.

    Truncated steps bootstrap, because the task would have continued.

    Args:
        reward: reward of one step, or discounted sum over several. [B] float.
        next_value: value after the last of these steps. [B] float, or [N, B].
        terminated: [B] bool.
        gamma: factor of next_value, in [0, 1]; [B] float if rows sum different numbers of steps.

    Returns:
        The target, with the shape of next_value.

    Raises:
        ValueError: the shapes do not match; torch would broadcast them to another shape.

    Reference:
        Mnih et al. (2015), https://www.nature.com/articles/nature14236, eq. 2.
    """
    rows = reward.shape
    if terminated.shape != rows or next_value.shape[next_value.ndim - len(rows) :] != rows:
        raise ValueError(
            f"q_target() wants reward, terminated [B] and next_value [B] or [N, B], got {tuple(rows)}, "
            f"{tuple(terminated.shape)}, {tuple(next_value.shape)}: pass one number for each row, such as reward.squeeze(-1)."
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
        The scalar loss, and log(ratio) [B], for metrics.

    Reference:
        Schulman et al. (2017), https://arxiv.org/abs/1707.06347, eq. 7.
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    return -torch.min(ratio * advantage, clipped * advantage).mean(), log_ratio


def ppo_value_loss(value: Tensor, old_value: Tensor, return_: Tensor, *, value_clip: float | None) -> Tensor:
    """Mean squared error of the critic, halved; with a clip, the larger of the errors of `value` and of its clipped change.

        clipped = old_value + clip(value - old_value, -value_clip, value_clip)
        loss    = mean(max((value - return_)^2, (clipped - return_)^2)) / 2

    Args:
        value, old_value, return_: [B] float.
        value_clip: maximum change of the value, in units of return; None for no clip.

    Reference:
        Huang et al. (2022), "The 37 Implementation Details of Proximal Policy Optimization", detail 9.
    """
    error = (value - return_).square()
    if value_clip is not None:
        clipped = old_value + (value - old_value).clamp(-value_clip, value_clip)
        error = torch.max(error, (clipped - return_).square())
    return 0.5 * error.mean()


def explained_variance(value: Tensor, return_: Tensor) -> Tensor:
    """Fraction of the variance of returns that the critic explains: 1 - Var(return_ - value) / Var(return_).

    1 is perfect, 0 no better than a constant; NaN if all returns are equal. RLlib's function of this name takes the two
    arguments the other way round, (y, pred).

    Args:
        value: what the critic predicts. Any shape, float.
        return_: what it is to predict. The same shape, float.
    """
    # var_mean, because var takes twice the time on the CPU
    spread, rest = (torch.var_mean(x, correction=0)[0] for x in (return_, return_ - value))
    return (1 - rest / spread).masked_fill(spread == 0, torch.nan)


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """Huber loss of each error: error^2 / 2 if |error| <= delta, else delta * (|error| - delta / 2).

    Args:
        error: any shape, float.
        delta: threshold, in units of error, above 0.

    Returns:
        The loss, with the shape of error.

    Reference:
        Huber (1964), "Robust Estimation of a Location Parameter".

    Example:
        >>> huber(torch.tensor([-0.5, 0.0, 3.0])).tolist()
        [0.125, 0.0, 2.5]
    """
    return nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta)


def weighted_mean(loss: Tensor, weight: Tensor | None) -> Tensor:
    """mean(weight * loss), or mean(loss) without weights.

    It is not divided by the sum of the weights, because normalised importance weights are meant to reduce the step size.

    Args:
        loss: [B] float, or [T, B].
        weight: [B] float.

    Raises:
        ValueError: the weights are not one number for each row; torch would broadcast them to another shape.

    Reference:
        Schaul et al. (2016), https://arxiv.org/abs/1511.05952, algorithm 1.
    """
    if weight is None:
        return loss.mean()
    if weight.ndim > loss.ndim or weight.shape != loss.shape[loss.ndim - weight.ndim :]:
        raise ValueError(
            f"weighted_mean() wants loss [B] or [T, B] and weight [B], got {tuple(loss.shape)} and {tuple(weight.shape)}: pass "
            "one weight for each row, such as weight.squeeze(-1)."
        )
    return (loss * weight).mean()


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor, valid: Tensor | None = None) -> Tensor:
    """The policy gradient loss, -mean(log_prob * advantage); gradient descent on it increases the expected return.

    Args:
        log_prob: log pi(a|s) of the actions taken. Any shape, float.
        advantage: advantages of the actions, detached here. Same shape, float.
        valid: False for steps that do not count; the loss is 0 if no step counts. Same shape, bool; None if all count.

    Reference:
        Williams (1992), "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning".
    """
    advantage = advantage.detach()
    if valid is None:
        return -(log_prob * advantage).mean()
    # Both are masked, because 0 * nan is nan, in the sum and in the gradient.
    terms = log_prob.masked_fill(~valid, 0) * advantage.masked_fill(~valid, 0)
    return -terms.sum() / valid.sum().clamp_(min=1)


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """Expectile regression loss of each error: |expectile - [error < 0]| * error^2.

    0.5 is half the squared error, whose minimum is the mean; the closer to 1, the closer the minimum is to the maximum.

    Args:
        error: target minus prediction. Any shape, float.
        expectile: in (0, 1).

    Returns:
        The loss, with the shape of error.

    Reference:
        Kostrikov et al. (2021), https://arxiv.org/abs/2110.06169, section 4.1.

    Example:
        >>> expectile_loss(torch.tensor([-2.0, 2.0]), 0.75).tolist()
        [1.0, 3.0]
    """
    return (expectile - (error < 0).to(error.dtype)).abs() * error.square()


def advantage_weight(advantage: Tensor, *, beta: float, limit: float = 100.0) -> Tensor:
    """The weights of actions in advantage-weighted regression: min(exp(beta * advantage), limit).

    Args:
        advantage: any shape, float; detached here.
        beta: inverse temperature, at least 0.
        limit: largest weight, so that a few actions do not dominate.

    Returns:
        The weights, with the shape of advantage.

    Reference:
        Peng et al. (2019), https://arxiv.org/abs/1910.00177, algorithm 1.
    """
    return (beta * advantage.detach()).exp().clamp(max=limit)


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Loss of the temperature alpha, which keeps the entropy of a policy at a target: alpha increases if the entropy is lower.

        loss = mean(-alpha * (log_prob + target_entropy)), alpha = exp(log_alpha)

    The exponential keeps alpha above 0. A common variant has log_alpha in place of alpha: its gradient has the same zero and
    sign, but lacks the factor alpha, and it is not the objective of the paper. Adam normalises this factor.

    Args:
        log_alpha: one number, float; gets the gradient.
        log_prob: log pi(a|s) of actions sampled from the policy, detached here. [B] float.
        target_entropy: in nats.

    Reference:
        Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905, eq. 18.
    """
    return -(log_alpha.exp() * (log_prob + target_entropy).detach()).mean()


def masked_mean(x: Tensor, valid: Tensor | None) -> Tensor:
    """mean(x) over the steps that count; 0 if no step counts.

    Args:
        x: any shape, float.
        valid: False for steps that do not count, where x may be NaN. Same shape, bool; None if all count.
    """
    return x.mean() if valid is None else x.masked_fill(~valid, 0).sum() / valid.sum().clamp(min=1)
