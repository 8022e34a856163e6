"""Value rescaling: reduces the scale of large returns, so that a network can learn them."""

from __future__ import annotations

import torch
from torch import Tensor


def rescale_value(x: Tensor, eps: float = 1e-3) -> Tensor:
    """Values on a scale that grows like a square root: h(x) = sign(x) * (sqrt(|x| + 1) - 1) + eps * x.

    Args:
        x: any shape, float, in units of return.
        eps: 0 or above; makes the inverse Lipschitz continuous.

    Returns:
        The rescaled values, with the shape and dtype of x.

    Reference:
        Pohlen et al. (2018), https://arxiv.org/abs/1805.11593, appendix A; Kapturowski et al. (2019), "Recurrent
        Experience Replay in Distributed Reinforcement Learning", section 2.3.

    Example:
        >>> rescale_value(torch.tensor([-3.0, 0.0, 3.0]), eps=0.5).tolist()
        [-2.5, 0.0, 2.5]
    """
    # sqrt(|x| + 1) - 1 loses all digits of a tiny x; the equal form |x| / (sqrt(|x| + 1) + 1) does not.
    return x / (torch.sqrt(x.abs() + 1) + 1) + eps * x


def unrescale_value(x: Tensor, eps: float = 1e-3) -> Tensor:
    """The inverse of rescale_value().

    Args:
        x: a result of rescale_value(). Any shape, float.
        eps: the same as for rescale_value().

    Returns:
        The original values, with the shape and dtype of x.

    Reference:
        Pohlen et al. (2018), https://arxiv.org/abs/1805.11593, appendix A.

    Example:
        >>> unrescale_value(torch.tensor([-2.5, 0.0, 2.5]), eps=0.5).tolist()
        [-3.0, 0.0, 3.0]
    """
    # The formula of the paper subtracts nearly equal numbers and divides by eps. With q = sqrt(|h^-1(x)| + 1) - 1, the equation
    # is eps * q^2 + (1 + 2 eps) * q = |x|. The root below adds only positive numbers, and allows eps = 0.
    half = 0.5 + eps
    q = x / (half + torch.sqrt(half * half + eps * x.abs()))
    return q * (q.abs() + 2)
