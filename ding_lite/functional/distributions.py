"""Distributions over actions: drawing from them, and log-probabilities.

Room: ding_lite.functional, floor 0: tensors in, tensors out. Imports nothing of ours.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor


def sample_categorical(log_prob: Tensor, generator: Generator) -> Tensor:
    """Draw from categorical distributions, by the Gumbel-max trick: argmax_i (log p_i - log e_i), e_i ~ Exp(1).

    Args:
        log_prob: [..., n] float, normalised or not.
        generator: of the tensor's device.

    Returns:
        Indices [...] int64.

    Reference:
        Maddison et al. (2014), https://arxiv.org/abs/1411.0030, section 2.
    """
    noise = torch.empty_like(log_prob).exponential_(generator=generator)
    return (log_prob - noise.log_()).argmax(-1)


def categorical_entropy(log_prob: Tensor) -> Tensor:
    """Entropy of categorical distributions, -sum_i p_i log p_i, where 0 log 0 is 0.

    Args:
        log_prob: [..., n] float, normalised; minus infinity for what is ruled out.

    Returns:
        [...] float, in nats.
    """
    least = torch.finfo(log_prob.dtype).min
    # A look at the smallest costs a quarter of the clamp with its gradient; on other devices it would wait for them.
    if log_prob.device.type != "cpu" or not log_prob.numel() or log_prob.detach().min().item() < least:
        return -(log_prob.exp() * log_prob.clamp(min=least)).sum(-1)
    return -(log_prob.exp() * log_prob).sum(-1)


def gaussian_log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Log-density of a diagonal Gaussian.

        log N(a) = -sum_i [(a_i - mean_i)^2 / (2 std_i^2) + log std_i + log(2 pi) / 2]

    Args:
        mean, action: [..., A] float.
        log_std: [A] or [..., A] float.

    Returns:
        [...] float.
    """
    scaled = (action - mean) * torch.exp(-log_std)
    return -(0.5 * scaled.square() + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)


def bernoulli_log_prob(logit: Tensor, bit: Tensor) -> Tensor:
    """Joint log-probability of independent bits whose probabilities are sigmoid(logit).

    Args:
        logit: [..., A] float.
        bit: [..., A] bool.

    Returns:
        [...] float.
    """
    return torch.nn.functional.logsigmoid(torch.where(bit, logit, -logit)).sum(-1)
