"""Log-probabilities of actions, with sampling, entropies and divergences of their distributions."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from ding_lite.functional.traces import is_traced


def sample_categorical(log_prob: Tensor, generator: Generator | None) -> Tensor:
    """Draw from categorical distributions, by the Gumbel-max trick: argmax_i (log p_i - log e_i), e_i ~ Exp(1).

    Args:
        log_prob: [..., n] float, normalised or not.
        generator: of the tensor's device; None for torch's own.

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
        log_prob: [..., n] float, normalised; minus infinity for probability 0.

    Returns:
        [...] float, in nats.
    """
    least = torch.finfo(log_prob.dtype).min
    # Finding the minimum takes a quarter of the time of clamp with its gradient; on other devices it would wait for them.
    is_quick = log_prob.device.type == "cpu" and log_prob.numel() and not is_traced()
    if not is_quick or log_prob.detach().min().item() < least:
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


def as_index(number: Tensor) -> Tensor:
    """Integers of any dtype as int64, because torch gathers by no smaller ones; others are unchanged, and gathering refuses
    them."""
    return number if number.is_floating_point() or number.dtype == torch.bool else number.long()


def bernoulli_log_prob(logit: Tensor, bit: Tensor) -> Tensor:
    """Joint log-probability of independent bits whose probabilities are sigmoid(logit).

    Args:
        logit: [..., A] float.
        bit: [..., A] bool.

    Returns:
        [...] float.
    """
    return torch.nn.functional.logsigmoid(torch.where(bit, logit, -logit)).sum(-1)


def squashed_gaussian_log_prob(mean: Tensor, log_std: Tensor, raw: Tensor) -> Tensor:
    """Log-density of tanh(raw), where raw comes from a diagonal Gaussian.

        log p(tanh(u)) = log N(u) - sum_i log(1 - tanh(u_i)^2)
        log(1 - tanh(u)^2) = 2 * (log 2 - u - softplus(-2 u))

    It takes the number before tanh, because in float32 tanh(u) is 1 for every u >= 10.

    Args:
        mean, raw: [..., A] float.
        log_std: [A] or [..., A] float.

    Returns:
        [...] float.

    Reference:
        Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905, appendix C.
    """
    # logsigmoid(2 u) is -softplus(-2 u), but more exact: torch's softplus is linear from 20 on.
    shrinkage = 2 * (math.log(2) - raw + torch.nn.functional.logsigmoid(2 * raw))
    return gaussian_log_prob(mean, log_std, raw) - shrinkage.sum(-1)


def unsquash(action: Tensor, margin: float = 1e-6) -> Tensor:
    """The number before tanh: atanh of actions, clipped to [-1 + margin, 1 - margin], so that it is finite.

    Recorded actions are often exactly at a bound, where atanh is infinite. With the default margin, a bound becomes +-7.25.

    Args:
        action: [..., A] float, in [-1, 1] or, by rounding, slightly beyond.
        margin: distance from the bounds.

    Example:
        >>> unsquash(torch.tensor([-1.0, 0.0, 1.0]), 0.1)
        tensor([-1.4722,  0.0000,  1.4722])
    """
    return action.clamp(-1 + margin, 1 - margin).atanh()


def categorical_kl(log_prob: Tensor, other_log_prob: Tensor) -> Tensor:
    """Kullback-Leibler divergence of categorical distributions: sum_i p_i * (log p_i - log q_i), where 0 log 0 is 0.

    Args:
        log_prob, other_log_prob: log p and log q, normalised; minus infinity for probability 0. [..., n] float.

    Returns:
        [...] float, in nats; infinity if some q_i is 0 and p_i is not.
    """
    prob = log_prob.exp()
    return (prob * (log_prob - other_log_prob).masked_fill(prob == 0, 0)).sum(-1)


def gaussian_kl(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """Kullback-Leibler divergence of diagonal Gaussians.

        KL(p || q) = sum_i [log(std_q / std_p) + (std_p^2 + (mean_p - mean_q)^2) / (2 std_q^2) - 1 / 2]

    Args:
        mean, other_mean: of p and of q. [..., A] float.
        log_std, other_log_std: of p and of q. [A] or [..., A] float.

    Returns:
        [...] float, in nats.
    """
    narrower = log_std - other_log_std
    scaled = (mean - other_mean) * torch.exp(-other_log_std)
    # expm1, because exp(...) - 1 loses all digits for two nearly equal distributions.
    return (0.5 * (torch.expm1(2 * narrower) + scaled.square()) - narrower).sum(-1)


def bernoulli_kl(logit: Tensor, other_logit: Tensor) -> Tensor:
    """Kullback-Leibler divergence of independent bits whose probabilities are sigmoid(logit).

    Args:
        logit, other_logit: of p and of q. [..., A] float.

    Returns:
        [...] float, in nats.
    """
    # Two categories for each bit: 1 - sigmoid(x) is sigmoid(-x), which is exact even if sigmoid(x) is almost 1.
    pair, other_pair = [torch.nn.functional.logsigmoid(torch.stack((x, -x), -1)) for x in (logit, other_logit)]
    return categorical_kl(pair, other_pair).sum(-1)


def squashed_gaussian_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions from a diagonal Gaussian squashed by tanh, through which gradients pass, and their log-density.

        u = mean + std * noise, a = tanh(u)

    The log-density equals `squashed_gaussian_log_prob(mean, log_std, u)`, in half the time, because (u - mean) / std is the
    noise, which has no gradient.

    Args:
        mean, log_std: [..., A] float.
        noise: drawn from a standard normal distribution. [..., A] float.

    Returns:
        Actions [..., A] in [-1, 1], and their log-density, [...].

    Reference:
        Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905, eq. 9 and appendix C.
    """
    raw = torch.addcmul(mean, log_std.exp(), noise)
    fixed = 0.5 * noise.square().sum(-1) + noise.shape[-1] * (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
    spread = torch.add(log_std, torch.nn.functional.logsigmoid(2 * raw) - raw, alpha=2)
    return torch.tanh(raw), -(spread.sum(-1) + fixed)
