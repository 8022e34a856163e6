"""Prioritised replay: priorities of sequences, and importance weights."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def importance_weight(probability: Tensor, size: int, beta: float) -> Tensor:
    """Importance weights for rows sampled by priority: (size * p)^-beta, divided by the largest of the batch.

    Args:
        probability: probability of sampling each row of the batch, above 0. [B] float, B at least 1.
        size: number of rows in the buffer; cancels in the division, but keeps the numbers before it near 1.
        beta: exponent, in [0, 1]; 1 corrects the whole bias.

    Returns:
        [B], in (0, 1], no gradient.

    Reference:
        Schaul et al. (2016), https://arxiv.org/abs/1511.05952, section 3.4.

    Example:
        >>> importance_weight(torch.tensor([0.1, 0.2, 0.4]), size=5, beta=1.0).tolist()
        [1.0, 0.5, 0.25]
    """
    weight = (size * probability).pow_(-beta)
    return weight.div_(weight.max())


@torch.no_grad()
def sequence_priority(td_error: Tensor, eta: float = 0.9, valid: Tensor | None = None) -> Tensor:
    """Priority of each sequence: eta * max_t |td_error_t| + (1 - eta) * mean_t |td_error_t|.

    Args:
        td_error: T steps, at least 1, of B sequences. [T, B] float.
        eta: weight of the largest error, in [0, 1].
        valid: False for steps that do not count. [T, B] bool; None if all count. A sequence without valid steps has priority 0.

    Returns:
        [B], no gradient.

    Reference:
        Kapturowski et al. (2019), "Recurrent Experience Replay in Distributed Reinforcement Learning", section 2.3.

    Example:
        >>> sequence_priority(torch.tensor([[1.0], [-3.0]]), eta=0.5).tolist()
        [2.5]
    """
    error = td_error.abs()
    if valid is None:
        return eta * error.amax(0) + (1 - eta) * error.mean(0)
    error = error.masked_fill_(~valid, 0)
    return eta * error.amax(0) + (1 - eta) * error.sum(0) / valid.sum(0).clamp_(min=1)
