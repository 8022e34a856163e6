"""Off-policy evaluation: the value of a policy, estimated from episodes that another policy collected.

All functions take B episodes as [T, B], padded at the end. Weights are products of ratios pi(a|s) / mu(a|s) of the evaluated
policy pi and the policy mu that collected; they are computed as sums of logarithms, in float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LIMIT = 100 * math.log(10)  # weights above 1e100 count as 1e100, so that sums of them are finite


@torch.no_grad()
def importance_sampling(
    log_ratio: Tensor,
    reward: Tensor,
    valid: Tensor | None = None,
    *,
    gamma: float,
    per_decision: bool = True,
    weighted: bool = False,
) -> Tensor:
    """Importance sampling: the contribution of each episode to the value of the evaluated policy, which is their mean.

        w_t          = prod_{k <= t} ratio_k
        per decision:    sum_t gamma^t * w_t * reward_t
        by trajectories: w_{T-1} * sum_t gamma^t * reward_t

    `weighted` divides each weight by the mean weight of all episodes at this step, where an episode that has ended keeps its
    last weight. The plain estimates are unbiased, and their variance grows exponentially with the length. The weighted ones are
    consistent: they are biased for few episodes, and vary much less.

    Args:
        log_ratio: log pi(a|s) - log mu(a|s); minus infinity for actions that the evaluated policy never takes. [T, B] float.
        reward: [T, B] float.
        valid: False for padding at the end of shorter episodes. [T, B] bool; None if there is none.
        gamma: discount per step, in [0, 1].
        per_decision: weigh each reward by the ratios up to its step, instead of by those of the whole episode.
        weighted: normalise the weights.

    Returns:
        [B] float64, finite. A weight above 1e100 counts as 1e100. The weighted contributions are 0 if all weights are 0.

    Raises:
        ValueError: shapes differ, padding is not at the end, there is no episode, a ratio is infinite or not a number, or
            another number is not finite.

    Reference:
        Precup et al. (2000), "Eligibility Traces for Off-Policy Policy Evaluation"; the normalised weights are those of the
        weighted doubly robust estimator of Thomas and Brunskill (2016), https://arxiv.org/abs/1604.00923.

    Example:
        >>> ratio, reward = torch.tensor([[2.0, 0.5], [1.0, 0.5]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> importance_sampling(ratio.double().log(), reward, gamma=0.5)
        tensor([3.0000, 0.1250], dtype=torch.float64)
    """
    valid = _checked("importance_sampling()", log_ratio, valid, reward=reward)
    weight = _weights(_log_weights(log_ratio, valid), weighted)
    gain = _discounts(reward, gamma) * reward.double().masked_fill(~valid, 0)
    return (weight * gain).sum(0) if per_decision else weight[-1] * gain.sum(0)


@torch.no_grad()
def doubly_robust(
    log_ratio: Tensor,
    reward: Tensor,
    q_value: Tensor,
    value: Tensor,
    last_value: Tensor,
    valid: Tensor | None = None,
    *,
    gamma: float,
    weighted: bool = False,
) -> Tensor:
    """Doubly robust estimation: the contribution of each episode to the value of the evaluated policy, which is their mean.

        estimate = sum_t gamma^t * (w_{t-1} * value_t + w_t * (reward_t - q_value_t)) + gamma^T * w_{T-1} * last_value

    w is as in `importance_sampling`, w_{-1} is 1, and T is the number of steps of the episode. The plain estimate equals the
    recursion estimate_t = value_t + ratio_t * (reward_t + gamma * estimate_{t+1} - q_value_t), which ends with last_value. It
    is unbiased if the ratios are right, or if q_value and value are, provided that these do not depend on the same episodes.
    It varies less than importance sampling if they are about right.

    Args:
        log_ratio, reward, valid, gamma: as for `importance_sampling`.
        q_value: Q(s, a) of the evaluated policy, of the recorded action. [T, B] float.
        value: V(s) of the evaluated policy, the mean of Q(s, a) over its actions. [T, B] float.
        last_value: V of the observation after the last step of each episode; 0 if it terminated. [B] float.
        weighted: normalise the weights, as `importance_sampling` does.

    Returns:
        [B] float64, finite.

    Raises:
        ValueError: as for `importance_sampling`.

    Reference:
        Jiang and Li (2016), https://arxiv.org/abs/1511.03722, eq. 10; weighted: Thomas and Brunskill (2016),
        https://arxiv.org/abs/1604.00923.

    Example:
        >>> one = torch.ones(1, 1)
        >>> doubly_robust(0 * one, 3 * one, 2 * one, 2 * one, one[0], gamma=0.5).tolist()
        [3.5]
    """
    valid = _checked("doubly_robust()", log_ratio, valid, reward=reward, q_value=q_value, value=value)
    if last_value.shape != reward.shape[1:]:
        raise ValueError(
            f"doubly_robust() wants last_value of the shape [B] = {tuple(reward.shape[1:])}, got {tuple(last_value.shape)}."
        )
    _require_finite("doubly_robust()", "last_value", last_value)
    weight = _weights(_log_weights(log_ratio, valid), weighted)
    before = torch.cat((torch.ones_like(weight[:1]), weight[:-1]))
    reward, q_value, value = (x.double().masked_fill(~valid, 0) for x in (reward, q_value, value))
    steps = (_discounts(reward, gamma) * (before * value + weight * (reward - q_value))).sum(0)
    # The weight of the own last step: normalised weights change after it, with those of longer episodes.
    lengths = valid.sum(0)
    last_weight = weight.gather(0, lengths.unsqueeze(0) - 1).squeeze(0)
    return steps + gamma ** lengths.double() * last_weight * last_value.double()


@torch.no_grad()
def effective_sample_size(log_ratio: Tensor, valid: Tensor | None = None) -> Tensor:
    """The equivalent number of on-policy episodes: (sum of weights)^2 / sum of squared weights.

    The weights are those of whole episodes. If it is much smaller than the number of episodes, importance sampling says little.

    Args:
        log_ratio, valid: as for `importance_sampling`.

    Returns:
        A scalar from 1 to B, float64; 0 if all weights are 0.

    Reference:
        Kong (1992), "A Note on Importance Sampling using Standardized Weights".

    Example:
        >>> effective_sample_size(torch.tensor([[1.0, 1.0, 0.0]]).log()).item()
        2.0
    """
    valid = _checked("effective_sample_size()", log_ratio, valid)
    log_weight = _log_weights(log_ratio, valid)[-1]
    share = (log_weight - _finite(log_weight.logsumexp(0))).exp()
    total = share.sum()
    return torch.where(total > 0, total.square() / share.square().sum().clamp(min=1e-300), 0)


@torch.no_grad()
def weighted_standard_error(
    log_ratio: Tensor,
    reward: Tensor,
    valid: Tensor | None = None,
    first_value: Tensor | None = None,
    *,
    gamma: float,
    per_decision: bool = True,
) -> Tensor:
    """The standard error of the mean of weighted importance sampling, by the delta method.

    The estimate is a sum of ratios of means: at each step, mean(w_t * x_t) / mean(w_t) over episodes, with x_t = gamma^t *
    reward_t. Its linear approximation has the contribution

        first_value + sum_t w_t / mean(w_t) * (x_t - mean(w_t * x_t) / mean(w_t))

    of each episode, and the result is the standard deviation of these, divided by sqrt(B). It is too small if few episodes
    have most of the weight, see `effective_sample_size`.

    Args:
        log_ratio, reward, valid, gamma, per_decision: as for `importance_sampling`. For weighted `doubly_robust`, the reward is
            reward_t - q_value_t + gamma * value_{t+1}, where value_T is last_value.
        first_value: added to the estimate of each episode: value_0 of `doubly_robust`. [B] float; None for 0.

    Returns:
        A scalar, float64; NaN for one episode.

    Raises:
        ValueError: as for `importance_sampling`.

    Reference:
        Owen (2013), "Monte Carlo theory, methods and examples", section 9.2, https://artowen.su.domains/mc/.

    Example:
        >>> weighted_standard_error(torch.tensor([[2.0, 1.0, 1.0]]).log(), torch.tensor([[1.0, 1.0, 0.0]]), gamma=1.0)
        tensor(0.2864, dtype=torch.float64)
    """
    valid = _checked("weighted_standard_error()", log_ratio, valid, reward=reward)
    first = torch.zeros_like(reward[0]) if first_value is None else first_value
    _require_finite("weighted_standard_error()", "first_value", first)
    weight = _weights(_log_weights(log_ratio, valid), weighted=True)
    gain = _discounts(reward, gamma) * reward.double().masked_fill(~valid, 0)
    if not per_decision:
        weight, gain = weight[-1:], gain.sum(0, keepdim=True)
    ratio = (weight * gain).mean(1, keepdim=True)
    linear = first.double() + (weight * (gain - ratio)).sum(0)
    return linear.std() / len(linear) ** 0.5 if len(linear) > 1 else torch.full_like(linear[0], torch.nan)


def _require_finite(function: str, name: str, values: Tensor) -> None:
    """Raise ValueError if one of these values is NaN or infinite."""
    if not (finite := values.isfinite()).all():
        raise ValueError(
            f"{function} found {name} = {values[~finite][0].item()}: find out where it comes from, for example from the "
            "environment or from a network, or leave the episode out."
        )


def _checked(function: str, log_ratio: Tensor, valid: Tensor | None, **others: Tensor) -> Tensor:
    """Which rows are steps, [T, B] bool, after checking the inputs."""
    valid = torch.ones_like(log_ratio, dtype=torch.bool) if valid is None else valid
    shapes = {name: tuple(x.shape) for name, x in {"log_ratio": log_ratio, **others, "valid": valid}.items()}
    if len(set(shapes.values())) > 1 or log_ratio.ndim != 2 or not log_ratio.numel():
        raise ValueError(f"{function} wants tensors of one shape [T, B], with a step and an episode at least, got {shapes}.")
    if valid.dtype is not torch.bool or (valid[1:] & ~valid[:-1]).any() or not valid[0].all():
        raise ValueError(f"{function} wants valid as bool, True for all steps of an episode and False for padding after them.")
    if (is_wrong := (log_ratio.isnan() | log_ratio.isposinf()) & valid).any():
        step, episode = is_wrong.nonzero()[0].tolist()
        number = float(log_ratio[step, episode])
        cause = "a log-probability is NaN, or " if math.isnan(number) else ""
        raise ValueError(
            f"{function} found log_ratio = {number} in step {step} of episode {episode}: {cause}the policy that collected "
            "takes a recorded action with probability 0. Pass the log-probabilities of the policy that really collected, with "
            "its exploration."
        )
    for name, values in others.items():
        _require_finite(function, name, values[valid])
    return valid


def _log_weights(log_ratio: Tensor, valid: Tensor) -> Tensor:
    """The sum of log-ratios up to each step; after the end of an episode, its last one. [T, B] float64."""
    return log_ratio.double().masked_fill(~valid, 0).cumsum(0)


def _weights(log_weight: Tensor, weighted: bool) -> Tensor:
    """The weights [T, B]; if weighted, divided by their mean at each step."""
    if not weighted:
        return log_weight.clamp(max=_LIMIT).exp()
    return (log_weight - _finite(log_weight.logsumexp(1, keepdim=True))).exp() * log_weight.shape[1]


def _finite(log_sum: Tensor) -> Tensor:
    """0 for minus infinity, the logarithm of a sum of weights that are all 0; otherwise there would be no number minus that."""
    return log_sum.masked_fill(log_sum.isneginf(), 0)


def _discounts(like: Tensor, gamma: float) -> Tensor:
    """gamma^t, [T, 1] float64."""
    return gamma ** torch.arange(len(like), dtype=torch.float64, device=like.device).unsqueeze(1)
