"""Advantage estimators: how much better an action did than the critic expected."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ding_lite.functional.inputs import as_dtype, check_rollout, computed_dtype

Array = TypeVar("Array", Tensor, np.ndarray)

_WIDE = 256  # from this many columns on, T passes over one row beat log2(T) passes over all rows


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, lambda_: float
) -> Tensor:
    """Generalized advantage estimation over T steps of B environments.

        delta_t     = reward_t + gamma * (1 - terminated_t) * next_value_t - value_t
        advantage_t = delta_t + gamma * lambda_ * (1 - done_t) * advantage_{t+1}

    A terminated step has no future reward, so it does not bootstrap. After a truncated step the task would have continued, so
    it bootstraps. Both end the episode (done = terminated | truncated), so both cut the trace.

    Args:
        reward: reward of step t. [T, B] float.
        value: V(obs_t). [T, B] float.
        next_value: V(next_obs_t), of the observation returned by step t, before any reset. [T, B] float.
        terminated: the task itself ended at step t. [T, B] bool.
        truncated: a time limit cut the episode at step t. [T, B] bool.
        gamma: discount per step, in [0, 1].
        lambda_: decay of the trace, in [0, 1]; 0 gives the one-step TD error, 1 the Monte Carlo return minus value.

    Returns:
        advantage, [T, B], with the dtype and device of value, no gradient, inputs unchanged. `advantage + value` is the
        critic's target.

    Raises:
        ValueError: the tensors differ in shape, are not [T, B], or the flags are not bool.

    Reference:
        Schulman et al. (2016), https://arxiv.org/abs/1506.02438, eq. 16.

    Example:
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> gae(one, 0 * one, 0 * one, no, no, gamma=0.5, lambda_=1.0).squeeze(1).tolist()
        [1.5, 1.0]
    """
    check_rollout("gae()", reward=reward, value=value, next_value=next_value, terminated=terminated, truncated=truncated)
    dtype = computed_dtype(value)
    signals = [as_dtype(dtype, x) for x in (reward, value, next_value)]
    flags = [terminated, truncated]
    if value.device.type == "cpu":  # calls of numpy take a third of the time of torch's, and there are many small ones
        with np.errstate(all="ignore"):
            array = _gae_by_scan([x.numpy() for x in signals], [x.numpy() for x in flags], gamma, lambda_)
        advantage, finite = torch.from_numpy(array), np.isfinite(array).all()
    else:
        advantage = _gae_by_scan(signals, flags, gamma, lambda_)
        finite = advantage.isfinite().all()
    if not finite:
        advantage = _gae_row_by_row(signals, flags, gamma, lambda_)
    return as_dtype(value.dtype, advantage)


def _gae_by_scan(signals: list[Array], flags: list[Array], gamma: float, lambda_: float) -> Array:
    (reward, value, next_value), (terminated, truncated) = signals, flags
    delta = next_value * ~terminated
    delta *= gamma
    delta += reward
    delta -= value
    decay = reward * 0
    decay += gamma * lambda_
    decay *= ~(terminated | truncated)
    return discounted_sum(delta, decay)


def _gae_row_by_row(signals: list[Tensor], flags: list[Tensor], gamma: float, lambda_: float) -> Tensor:
    """For inputs that are not finite: masked_fill, because 0 * nan is nan, which would spread to other episodes."""
    (reward, value, next_value), (terminated, truncated) = signals, flags
    delta = reward + gamma * next_value.masked_fill(terminated, 0) - value
    done = terminated | truncated
    advantage, trace = torch.empty_like(value), torch.zeros_like(value[0])
    for t in reversed(range(len(value))):
        trace = delta[t] + gamma * lambda_ * trace.masked_fill(done[t], 0)
        advantage[t] = trace
    return advantage


def discounted_sum(x: Array, decay: Array) -> Array:
    """y_t = x_t + decay_t * y_{t+1}, for all t. Discounted returns, GAE and V-trace have this form.

    Computed as a scan in log2(T) passes (Hillis and Steele, 1986), or row by row for wide rows.

    Args:
        x: [T, B] float, all finite; overwritten with y.
        decay: [T, B] float.

    Returns:
        y, [T, B].
    """
    if len(x) == 0 or x.shape[1] >= _WIDE:
        for t in range(len(x) - 2, -1, -1):
            row = x[t]
            row += decay[t] * x[t + 1]
        return x
    step, factor = 1, decay[:-1]
    while len(factor):
        head = x[:-step]
        head += factor * x[step:]
        factor = factor[:-step] * factor[step:]
        step *= 2
    return x


def normalize_advantage(advantage: Tensor, valid: Tensor | None = None) -> Tensor:
    """Advantages with mean 0 and standard deviation 1, so that the policy's step size does not depend on the scale of rewards.

    Args:
        advantage: any shape, float.
        valid: False for steps that do not count. Same shape, bool; None if all count.

    Returns:
        The same shape, 0 for steps that do not count, and 0 if all are equal. Fewer than two numbers are not normalised.

    Reference:
        Huang et al. (2022), "The 37 Implementation Details of Proximal Policy Optimization", detail 7.

    Example:
        >>> normalize_advantage(torch.tensor([1.0, 2.0, 3.0])).tolist()
        [-1.0, 0.0, 1.0]
    """
    if advantage.numel() < 2:
        return advantage if valid is None else advantage.masked_fill(~valid, 0)
    if valid is None:
        mean, std = advantage.mean(), advantage.std()
        return _scaled(advantage - mean, std, advantage.amax() == advantage.amin())
    advantage, count = advantage.masked_fill(~valid, 0), valid.sum()
    mean = advantage.sum() / count.clamp(min=1)
    centred = (advantage - mean).masked_fill(~valid, 0)
    std = (centred.square().sum() / (count - 1).clamp(min=1)).sqrt()
    are_equal = advantage.masked_fill(~valid, math.inf).amin() == advantage.masked_fill(~valid, -math.inf).amax()
    return torch.where(count < 2, advantage, _scaled(centred, std, are_equal))


def _scaled(centred: Tensor, std: Tensor, are_equal: Tensor) -> Tensor:
    """Advantages minus their mean, divided by their standard deviation; 0 if they are equal, whose mean may be rounded."""
    return torch.where(are_equal, torch.zeros_like(centred), centred / (std + 1e-8))
