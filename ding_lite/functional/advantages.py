"""Advantage estimators: how much better an action did than the critic expected.

Room: ding_lite.functional, floor 0: tensors in, tensors out. Imports nothing of ours.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Array = TypeVar("Array", Tensor, np.ndarray)

_WIDE = 256  # from this many columns on, T passes over one row beat log2(T) passes over all rows


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, lambda_: float
) -> Tensor:
    """Generalized advantage estimation over T steps of B environments.

        delta_t     = reward_t + gamma * (1 - terminated_t) * next_value_t - value_t
        advantage_t = delta_t + gamma * lambda_ * (1 - done_t) * advantage_{t+1}

    A terminated step has no future, so it cuts the bootstrap. A truncated step has one that nobody watched,
    so it bootstraps. Either ends the episode (done = terminated | truncated), so either cuts the trace.

    Args:
        reward: what the action at step t earned. [T, B] float.
        value: V(obs_t). [T, B] float.
        next_value: V(next_obs_t), next_obs being what the step returned, before any reset. [T, B] float.
        terminated: the task itself ended at step t. [T, B] bool.
        truncated: a time limit cut the episode at step t. [T, B] bool.
        gamma: discount per step, in [0, 1].
        lambda_: decay of the trace, in [0, 1]; 0 is the one-step TD error, 1 the Monte Carlo return minus value.

    Returns:
        advantage, [T, B], of value's dtype and device, no gradient, inputs untouched. `advantage + value` is the critic's
        target.

    Raises:
        ValueError: the five tensors differ in shape, are not [T, B], or the flags are not bool.

    Reference:
        Schulman et al. (2016), https://arxiv.org/abs/1506.02438, eq. 16.

    Example:
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> gae(one, 0 * one, 0 * one, no, no, gamma=0.5, lambda_=1.0).squeeze(1).tolist()
        [1.5, 1.0]
    """
    if not reward.shape == value.shape == next_value.shape == terminated.shape == truncated.shape or value.ndim != 2:
        named = {"reward": reward, "value": value, "next_value": next_value, "terminated": terminated, "truncated": truncated}
        shapes = {name: tuple(x.shape) for name, x in named.items()}
        raise ValueError(f"gae() wants five tensors of one shape [T, B], got {shapes}. A head [T, B, 1] wants .squeeze(-1).")
    if terminated.dtype != torch.bool or truncated.dtype != torch.bool:
        found = f"terminated {terminated.dtype} and truncated {truncated.dtype}"
        raise ValueError(f"gae() wants bool flags, got {found}: use .bool().")
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    signals = [_as(dtype, x) for x in (reward, value, next_value)]
    flags = [terminated, truncated]
    if value.device.type == "cpu":  # numpy's calls cost a third of torch's, and there are many small ones
        with np.errstate(all="ignore"):
            array = _gae_by_scan([x.numpy() for x in signals], [x.numpy() for x in flags], gamma, lambda_)
        advantage, finite = torch.from_numpy(array), np.isfinite(array).all()
    else:
        advantage = _gae_by_scan(signals, flags, gamma, lambda_)
        finite = advantage.isfinite().all()
    if not finite:
        advantage = _gae_row_by_row(signals, flags, gamma, lambda_)
    return _as(value.dtype, advantage)


def _as(dtype: torch.dtype, x: Tensor) -> Tensor:
    x = x.detach() if x.requires_grad else x
    return x if x.dtype == dtype else x.to(dtype)


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
    """For inputs that are not finite: masked_fill keeps within its episode what 0 * nan = nan would carry on."""
    (reward, value, next_value), (terminated, truncated) = signals, flags
    delta = reward + gamma * next_value.masked_fill(terminated, 0) - value
    done = terminated | truncated
    advantage, trace = torch.empty_like(value), torch.zeros_like(value[0])
    for t in reversed(range(len(value))):
        trace = delta[t] + gamma * lambda_ * trace.masked_fill(done[t], 0)
        advantage[t] = trace
    return advantage


def discounted_sum(x: Array, decay: Array) -> Array:
    """y_t = x_t + decay_t * y_{t+1}, from the last row up: discounted returns, GAE and V-trace are all of this form.

    Computed as a scan in log2(T) passes (Hillis and Steele, 1986), or row by row where the rows are wide.

    Args:
        x: [T, B] float, all finite. Taken: it is overwritten with y.
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
