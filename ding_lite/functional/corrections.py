"""Off-policy corrections: targets for a policy from data of an older one."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ding_lite.functional.advantages import discounted_sum
from ding_lite.functional.inputs import as_dtype, check_rollout, computed_dtype
from ding_lite.functional.traces import is_traced
from ding_lite.functional.wide_numbers import Wide

Array = TypeVar("Array", Tensor, np.ndarray)


class VTrace(NamedTuple):
    """The targets of V-trace for the critic and the actor."""

    target: Tensor
    """vs, the target of the critic. [T, B] float."""

    advantage: Tensor
    """Factor of log pi(a|s) in the policy gradient, including its importance weight. [T, B] float."""


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lambda_: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    pg_rho_clip: float = 1.0,
) -> VTrace:
    """V-trace over T steps of B environments: n-step targets with importance weights for the policy that acted.

        rho_t  = min(rho_clip, ratio_t), c_t = lambda_ * min(c_clip, ratio_t), ratio_t = pi(a_t|s_t) / mu(a_t|s_t)
        vs_t   = value_t + rho_t * (reward_t + gamma * next_value_t - value_t) + gamma * c_t * (vs_{t+1} - value_{t+1})
        advantage_t = min(pg_rho_clip, ratio_t) * (reward_t + gamma * vs_{t+1} - value_t)

    After a termination next_value counts as 0. Both terminated and truncated steps cut the trace. After a truncation, and at
    the end of the rollout, next_value replaces vs_{t+1} in the advantage.

    Args:
        log_ratio: log pi(a|s) - log mu(a|s), where pi is the policy that learns and mu the one that acted. [T, B] float.
        reward: [T, B] float.
        value: V(obs_t). [T, B] float.
        next_value: V(next_obs_t), of the observation returned by step t, before any reset. [T, B] float.
        terminated: the task itself ended at step t. [T, B] bool.
        truncated: a time limit cut the episode at step t. [T, B] bool.
        gamma: discount per step, in [0, 1].
        lambda_: decay of the trace, in [0, 1].
        rho_clip: clip of rho, 0 or above; determines of which policy the target is the value function: of pi for inf.
        c_clip: clip of c, 0 or above, inf for no clip; determines how far corrections propagate to earlier steps.
        pg_rho_clip: clip of the ratio in the advantage, 0 or above, inf for no clip.

    Returns:
        target and advantage, with the dtype and device of value, no gradient, inputs unchanged. A ratio that overflows a float
        is computed with a wider exponent: the result is infinite only if it overflows itself, and 0 times such a ratio is 0.

    Raises:
        ValueError: the tensors differ in shape, are not [T, B], or the flags are not bool.

    Reference:
        Espeholt et al. (2018), https://arxiv.org/abs/1802.01561, eq. 1 and section 4.2; lambda_: remark 2.

    Example:
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> vtrace(0 * one, one, 0 * one, 0 * one, no, no, gamma=0.5).target.squeeze(1).tolist()
        [1.5, 1.0]
    """
    signals = {"log_ratio": log_ratio, "reward": reward, "value": value, "next_value": next_value}
    check_rollout("vtrace()", **signals, terminated=terminated, truncated=truncated)
    dtype = computed_dtype(value)
    log_ratio, *others = [as_dtype(dtype, x) for x in signals.values()]
    others += [terminated, truncated]
    clips = (rho_clip, c_clip, pg_rho_clip)
    if is_traced():  # without a condition: in double precision, no ratio of practice overflows
        doubles = [x.double() if x.is_floating_point() else x for x in others]
        return VTrace(*(as_dtype(value.dtype, x) for x in _by_scan(log_ratio.double().exp(), doubles, clips, gamma, lambda_)))
    if value.device.type == "cpu":  # calls of numpy take a third of the time of torch's, and there are many small ones
        with np.errstate(all="ignore"):
            arrays = _by_scan(np.exp(log_ratio.numpy()), [x.numpy() for x in others], clips, gamma, lambda_)
        finite = np.isfinite(arrays[0]).all() and np.isfinite(arrays[1]).all()
        target, advantage = torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1])
    else:
        target, advantage = _by_scan(log_ratio.exp(), others, clips, gamma, lambda_)
        finite = target.isfinite().all() and advantage.isfinite().all()
    if not finite:  # an input that is not finite, or a ratio that overflows, makes at least one result not finite
        target, advantage = _row_by_row(log_ratio.double(), [x.double() for x in others[:3]], others[3:], clips, gamma, lambda_)
    return VTrace(as_dtype(value.dtype, target), as_dtype(value.dtype, advantage))


def _clipped(ratio: Array, clips: tuple[float, float, float]) -> tuple[Array, Array, Array]:
    rho = ratio.clip(max=clips[0])
    c, pg_rho = [rho if clip == clips[0] else ratio.clip(max=clip) for clip in clips[1:]]
    return rho, c, pg_rho


def _by_scan(
    ratio: Array, others: list[Array], clips: tuple[float, float, float], gamma: float, lambda_: float
) -> tuple[Array, Array]:
    reward, value, next_value, terminated, truncated = others
    rho, c, pg_rho = _clipped(ratio, clips)
    done = terminated | truncated
    going = ~done
    future = next_value * ~terminated
    gain = reward - value
    delta = future * gamma
    delta += gain
    delta *= rho
    decay = c * (gamma * lambda_)
    decay *= going
    target = discounted_sum(delta, decay)
    target += value
    within = future[:-1]
    within *= done[:-1]
    within += target[1:] * going[:-1]
    future *= gamma
    future += gain
    future *= pg_rho
    return target, future


def _row_by_row(
    log_ratio: Tensor,
    signals: list[Tensor],
    flags: list[Tensor],
    clips: tuple[float, float, float],
    gamma: float,
    lambda_: float,
) -> tuple[Tensor, Tensor]:
    """For inputs and ratios that are not finite, [T, B] float64.

    masked_fill, because 0 * nan is nan, which would spread to other episodes; wide numbers, because ratios may overflow
    float64.
    """
    (reward, value, next_value), (terminated, truncated) = signals, flags
    rho, c, pg_rho = [_wide_ratio(log_ratio, clip) for clip in clips]
    done = terminated | truncated
    future = next_value.masked_fill(terminated, 0)
    delta = rho * Wide(reward + gamma * future - value)
    decay = c * Wide(torch.full_like(value, gamma * lambda_))
    target, advantage = torch.empty_like(value), torch.empty_like(value)
    trace, later = Wide(torch.zeros_like(value[0])), Wide(future[-1])
    for t in reversed(range(len(value))):
        ends = done[t] if t + 1 < len(value) else torch.ones_like(done[t])
        bootstrap = Wide(future[t]).where(ends, later)
        advantage[t] = (pg_rho[t] * (Wide(reward[t] - value[t]) + Wide(torch.full_like(value[t], gamma)) * bootstrap)).float64()
        trace = delta[t] + decay[t] * trace.masked_fill(done[t], 0)
        later = Wide(value[t]) + trace
        target[t] = later.float64()
    return target, advantage


def _wide_ratio(log_ratio: Tensor, clip: float) -> Wide:
    """min(clip, e^log_ratio)."""
    return Wide.exp(log_ratio.clip(max=math.log(clip) if clip else -math.inf))
