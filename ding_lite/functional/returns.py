"""Returns: discounted sums of rewards over n steps, or to the end of the episode."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ding_lite.functional.advantages import gae
from ding_lite.functional.inputs import as_dtype, check_rollout, computed_dtype


class NStep(NamedTuple):
    """Windows of at most n steps, one from each row."""

    return_: Tensor
    """Discounted sum of the window's rewards. [T, B] float."""

    discount: Tensor
    """gamma^k for a window of k steps: the factor in front of the bootstrap value. [T, B] float."""

    last: Tensor
    """Row of the window's last step: use its terminated and next_obs for the target. [T, B] int64."""


@torch.no_grad()
def nstep_return(
    reward: Tensor, terminated: Tensor, truncated: Tensor, *, n: int, gamma: float, valid: Tensor | None = None
) -> NStep:
    """Discounted sums of the next n rewards, or of fewer if the episode or the rollout ends before.

        return_t = sum_{i<k} gamma^i * reward_{t+i}
        last_t   = t + k - 1, the first row that is terminated, truncated, or the last of the rollout, with k at most n
        target_t = return_t + discount_t * (1 - terminated_last) * V(next_obs_last), discount_t = gamma^k

    A shorter window is an exact k-step target, because its discount is gamma^k.

    Args:
        reward: [T, B] float.
        terminated: the task itself ended at step t. [T, B] bool.
        truncated: a time limit cut the episode at step t. [T, B] bool.
        n: steps in a window, 1 or more.
        gamma: discount per step, in [0, 1].
        valid: False for steps that were only a reset; their rows get return_ 0, discount 0 and last t. The row before
            such a step must end an episode, so no window includes one. [T, B] bool; None if all are real.

    Returns:
        return_ and discount, float64 if reward is float64, else float32; and last. Inputs are unchanged.

    Raises:
        ValueError: n is below 1, the tensors differ in shape, are not [T, B], or the flags are not bool.

    Reference:
        Sutton and Barto (2018), "Reinforcement Learning", eq. 7.1.

    Example:
        >>> reward, no = torch.tensor([[1.0], [2.0], [4.0]]), torch.zeros(3, 1, dtype=torch.bool)
        >>> nstep_return(reward, no, no, n=2, gamma=0.5).return_.squeeze(1).tolist()
        [2.0, 4.0, 4.0]
    """
    if n < 1:
        raise ValueError(f"nstep_return() wants windows of n >= 1 steps, got n={n}. With n=1, returns equal rewards.")
    marks = {} if valid is None else {"valid": valid}
    check_rollout("nstep_return()", reward=reward, terminated=terminated, truncated=truncated, **marks)
    reward = as_dtype(computed_dtype(reward), reward)
    return_ = reward.clone() if valid is None else reward.masked_fill(~valid, 0)
    steps = torch.ones_like(reward, dtype=torch.int64)
    power = [gamma**k for k in range(min(n, len(reward)) + 1)]
    goes_on = ~(terminated | truncated) if valid is None else valid & ~(terminated | truncated)
    is_open = torch.ones_like(goes_on)
    for k in range(1, len(power) - 1):
        is_open = is_open[:-1] & goes_on[k - 1 : -1]
        return_[:-k].add_(reward[k:].masked_fill(~is_open, 0), alpha=power[k])
        steps[:-k] += is_open
    discount = reward.new_tensor(power)[steps]
    if valid is not None:
        discount.masked_fill_(~valid, 0)
    return NStep(return_, discount, steps + torch.arange(-1, len(reward) - 1, device=reward.device).unsqueeze(1))


def discounted_return(
    reward: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, bootstrap: Tensor | None = None
) -> Tensor:
    """Monte Carlo returns: all rewards from a step to the end of its episode, discounted.

        return_t = reward_t + gamma * (return_{t+1} within the episode, 0 after a termination, else bootstrap_t)

    Args:
        reward: [T, B] float.
        terminated: the task itself ended at step t. [T, B] bool.
        truncated: a time limit cut the episode at step t. [T, B] bool.
        gamma: discount per step, in [0, 1].
        bootstrap: V(next_obs_t), used only at truncated steps and at the end of the rollout. [T, B] float; None for 0.

    Returns:
        [T, B], float64 if reward is float64, else float32; no gradient, inputs unchanged.

    Raises:
        ValueError: the tensors differ in shape, are not [T, B], or the flags are not bool.

    Reference:
        Sutton and Barto (2018), "Reinforcement Learning", eq. 3.8 and 3.9.

    Example:
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> discounted_return(one, no, no, gamma=0.5, bootstrap=8 * one).squeeze(1).tolist()
        [3.5, 5.0]
    """
    values = {} if bootstrap is None else {"bootstrap": bootstrap}
    check_rollout("discounted_return()", reward=reward, terminated=terminated, truncated=truncated, **values)
    reward = as_dtype(computed_dtype(reward), reward)
    zero = torch.zeros_like(reward)
    if bootstrap is None:
        next_value = zero
    else:
        is_read = truncated.clone()
        is_read[-1:] = True
        next_value = bootstrap.masked_fill(terminated | ~is_read, 0)
    # With values of 0 and lambda 1, the advantage is the discounted sum of rewards and the bootstrap.
    return gae(reward, zero, next_value, terminated, truncated, gamma=gamma, lambda_=1.0)
