"""Updates of target networks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def polyak_(target_params: Iterable[Tensor], online_params: Iterable[Tensor], theta: float) -> None:
    """Move target parameters towards the online ones, in place: target <- target + theta * (online - target).

    Args:
        target_params: parameters to change, floating point.
        online_params: the same number of parameters, of the same shapes.
        theta: step size, in [0, 1]; 1 copies the online parameters.

    Raises:
        ValueError: theta is not in [0, 1], or the numbers of parameters differ; nothing was changed.

    Reference:
        Lillicrap et al. (2016), https://arxiv.org/abs/1509.02971, algorithm 1.
    """
    targets, onlines = list(target_params), list(online_params)
    if not 0 <= theta <= 1:
        raise ValueError(f"polyak_() wants theta in [0, 1], got {theta}: 1 copies, 0.005 averages over some 200 updates.")
    if len(targets) != len(onlines):
        raise ValueError(
            f"polyak_() wants the same number of target and online parameters, got {len(targets)} and {len(onlines)}: "
            "make the target network a deep copy of the online one."
        )
    for target, online in zip(targets, onlines):
        target.lerp_(online, theta)
