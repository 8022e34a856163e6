"""Updates of one network's parameters by another's."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def polyak_(target_params: Iterable[Tensor], online_params: Iterable[Tensor], theta: float) -> None:
    """Move target parameters towards the online ones, in place: target <- target + theta * (online - target).

    Args:
        target_params: changed. Floating point.
        online_params: as many, of the same shapes.
        theta: how far, in [0, 1]; 1 copies.

    Raises:
        ValueError: theta is not in [0, 1], or there are more of one than of the other; nothing has been changed then.

    Reference:
        Lillicrap et al. (2016), https://arxiv.org/abs/1509.02971, algorithm 1.
    """
    targets, onlines = list(target_params), list(online_params)
    if not 0 <= theta <= 1:
        raise ValueError(f"polyak_() wants theta in [0, 1], got {theta}: 1 copies, 0.005 averages over some 200 updates.")
    if len(targets) != len(onlines):
        raise ValueError(
            f"polyak_() wants as many target parameters as online ones, got {len(targets)} and {len(onlines)}: "
            "the target network is a deep copy of the online one."
        )
    for target, online in zip(targets, onlines):
        target.lerp_(online, theta)
