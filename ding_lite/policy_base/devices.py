"""Devices: where the networks of a policy can be."""

from __future__ import annotations

import torch


def available_device(name: str) -> torch.device:
    """The device of this name.

    Raises:
        ValueError: there is none on this machine.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch built without CUDA
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"cfg.policy.device = {name!r} cannot be used here ({reason}): take 'cpu', or install what it needs."
        ) from None
    return device
