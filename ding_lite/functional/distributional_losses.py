"""Distributional losses: projection and losses of distributions over returns, on fixed atoms or by quantiles."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ding_lite.functional.inputs import as_dtype, computed_dtype


@torch.no_grad()
def categorical_projection(
    next_prob: Tensor, reward: Tensor, terminated: Tensor, *, v_min: float, v_max: float, gamma: float | Tensor
) -> Tensor:
    """The distribution of r + gamma * (1 - terminated) * Z, projected onto the atoms of Z.

        z_i = v_min + i * (v_max - v_min) / (N - 1)
        m_i = sum_j clip(1 - |clip(r + gamma * (1 - terminated) * z_j, v_min, v_max) - z_i| / (z_1 - z_0), 0, 1) * p_j

    The probability of an atom between two atoms of Z is split between them; beyond the ends, it goes to the last atom.

    Args:
        next_prob: probabilities p of the N atoms for the next observation and the next action. [B, N] float; NaN is ignored
            in terminated rows.
        reward: reward of one step, or discounted sum over several. [B] float.
        terminated: [B] bool.
        v_min, v_max: the first and the last atom, in units of return.
        gamma: factor of Z; [B] float if rows sum different numbers of steps.

    Returns:
        [B, N], with the dtype of next_prob, no gradient. The sum of each row is the same as in next_prob.

    Raises:
        ValueError: fewer than two atoms, v_min is not below v_max, or rows do not match.

    Reference:
        Bellemare et al. (2017), https://arxiv.org/abs/1707.06887, eq. 7 and algorithm 1.

    Example:
        >>> certain = torch.tensor([[0.0, 0.0, 1.0]])
        >>> no = torch.tensor([False])
        >>> categorical_projection(certain, torch.tensor([-0.5]), no, v_min=0.0, v_max=2.0, gamma=1.0).tolist()
        [[0.0, 0.5, 0.5]]
    """
    n = next_prob.shape[-1]
    if n < 2 or not v_min < v_max:
        raise ValueError(
            f"categorical_projection() wants two atoms or more from v_min to a larger v_max, got {n} from {v_min} to {v_max}."
        )
    shapes = [reward.shape, terminated.shape, *([gamma.shape] if isinstance(gamma, Tensor) and gamma.ndim else [])]
    if any(shape != next_prob.shape[:-1] for shape in shapes):
        raise ValueError(
            f"categorical_projection() wants next_prob [B, N], and reward, terminated, gamma [B], got {tuple(next_prob.shape)} "
            f"and {[tuple(shape) for shape in shapes]}."
        )
    dtype = computed_dtype(next_prob)  # atoms are too close for half precision
    prob, reward = as_dtype(dtype, next_prob), as_dtype(dtype, reward)
    prob = prob.masked_fill(terminated.unsqueeze(-1) & prob.isnan(), 1 / n)  # all goes to one place, so the shares do not count
    factor = gamma.to(dtype) if isinstance(gamma, Tensor) else torch.full_like(reward, gamma)
    factor = factor.masked_fill(terminated, 0)
    # In units of atoms, so that rewards of whole atoms move whole atoms exactly.
    offset = (reward + (factor - 1) * v_min) * ((n - 1) / (v_max - v_min))
    atom = torch.arange(n, dtype=dtype, device=prob.device)
    position = torch.addcmul(offset.unsqueeze(-1), factor.unsqueeze(-1), atom).clamp_(0, n - 1)
    share = _shared_by_adding if prob.device.type == "cpu" else _shared_by_weights
    return as_dtype(next_prob.dtype, share(prob, position))


def _shared_by_adding(prob: Tensor, position: Tensor) -> Tensor:
    """Add the probability of each position to its two neighbouring atoms. [B, N]."""
    # At most the last atom but one, so that there always is one above; NaN, which has no integer, stays in its row.
    below = position.long().clamp_(0, prob.shape[-1] - 2)
    above = (position - below).mul_(prob)
    shared = torch.zeros_like(prob).scatter_add_(-1, below, prob - above)
    return shared.scatter_add_(-1, below.add_(1), above)


def _shared_by_weights(prob: Tensor, position: Tensor) -> Tensor:
    """The same by a weighted sum over all positions: N times the work, but deterministic on GPUs, unlike scatter_add_. [B,
    N]."""
    atom = torch.arange(prob.shape[-1], dtype=prob.dtype, device=prob.device)
    weight = (position.unsqueeze(-2) - atom.unsqueeze(-1)).abs_().neg_().add_(1).clamp_(min=0)
    return weight.mul_(prob.unsqueeze(-2)).sum(-1)


def categorical_loss(log_prob: Tensor, target_prob: Tensor) -> Tensor:
    """Cross entropy of each row: -sum_i target_prob_i * log_prob_i, where 0 * log 0 is 0.

    It differs from the Kullback-Leibler divergence by the entropy of the target, which has no gradient.

    Args:
        log_prob: [B, N] float, normalised.
        target_prob: [B, N] float, detached by the caller.

    Returns:
        [B] float, in nats.

    Reference:
        Bellemare et al. (2017), https://arxiv.org/abs/1707.06887, algorithm 1.
    """
    return -(target_prob * log_prob.masked_fill(target_prob == 0, 0)).sum(-1)


def quantile_midpoints(n: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """The midpoints of n equal quantile intervals: tau_i = (2 i + 1) / (2 n), i from 0.

    Args:
        n: number of quantiles, 1 or more.
        device: device of the result.
        dtype: dtype of the result; None for torch's default dtype.

    Returns:
        [n] float.

    Raises:
        ValueError: n is below 1.

    Reference:
        Dabney et al. (2018), https://arxiv.org/abs/1710.10044, lemma 2.

    Example:
        >>> quantile_midpoints(2).tolist()
        [0.25, 0.75]
    """
    if n < 1:
        raise ValueError(f"quantile_midpoints() wants n >= 1 quantiles, got n={n}.")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return torch.arange(1, 2 * n, 2, device=device, dtype=dtype) / (2 * n)


def quantile_huber_loss(value: Tensor, target: Tensor, tau: Tensor, *, kappa: float = 1.0) -> Tensor:
    """Quantile regression loss of each row, with the Huber loss instead of the absolute error.

        loss    = sum_i mean_j |tau_i - [u_ij < 0]| * L(u_ij) / kappa, u_ij = target_j - value_i
        L(u)    = u^2 / 2 where |u| <= kappa, else kappa * (|u| - kappa / 2)

    For kappa = 0 this is the plain quantile loss, with |u| instead of L(u) / kappa.

    Args:
        value: predicted quantiles. [B, N] float.
        target: samples of the target distribution, detached by the caller. [B, M] float.
        tau: quantile level of each value, in (0, 1), detached here. [B, N] or [N] float.
        kappa: threshold of the Huber loss, in units of value, 0 or above.

    Returns:
        [B] float.

    Raises:
        ValueError: value and target are not [B, N] and [B, M], or tau is neither [N] nor [B, N].

    Reference:
        Dabney et al. (2018), https://arxiv.org/abs/1710.10044, eq. 10; divided by kappa as in
        Dabney et al. (2018), https://arxiv.org/abs/1806.06923, eq. 3.
    """
    if value.ndim != 2 or target.ndim != 2 or len(value) != len(target) or tau.shape not in (value.shape, value.shape[1:]):
        shapes = f"value {tuple(value.shape)}, target {tuple(target.shape)}, tau {tuple(tau.shape)}"
        raise ValueError(f"quantile_huber_loss() wants value [B, N], target [B, M], tau [N] or [B, N], got {shapes}.")
    pairs = len(value), value.shape[1], target.shape[1]
    value, target = value.unsqueeze(2).expand(pairs), target.unsqueeze(1).expand(pairs)
    # smooth_l1_loss of torch is the Huber loss divided by its threshold beta, and the absolute error if beta is 0.
    error = nn.functional.smooth_l1_loss(value, target, reduction="none", beta=kappa)
    weight = (tau.detach().unsqueeze(-1) - (target < value).to(tau.dtype)).abs_()
    return (weight * error).mean(2).sum(1)


def categorical_mean(prob: Tensor, *, v_min: float, v_max: float) -> Tensor:
    """The expected value of distributions on N atoms from v_min to v_max: sum_i z_i * prob_i.

    Args:
        prob: [..., N] float.
        v_min, v_max: the first and the last atom, in units of return.

    Returns:
        [...] float.

    Reference:
        Bellemare et al. (2017), https://arxiv.org/abs/1707.06887, algorithm 1.

    Example:
        >>> categorical_mean(torch.tensor([[0.0, 0.5, 0.5]]), v_min=0.0, v_max=2.0).tolist()
        [1.5]
    """
    return prob @ torch.linspace(v_min, v_max, prob.shape[-1], device=prob.device, dtype=prob.dtype)


def gather_atoms(value: Tensor, index: Tensor) -> Tensor:
    """The N atoms or quantiles of one action of each row.

    Args:
        value: [B, A, N].
        index: index of the action. [B] int64.

    Returns:
        [B, N].

    Example:
        >>> gather_atoms(torch.arange(6).reshape(1, 3, 2), torch.tensor([1])).tolist()
        [[2, 3]]
    """
    return value.gather(1, index.view(-1, 1, 1).expand(-1, 1, value.shape[2])).squeeze(1)
