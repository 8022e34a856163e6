"""Names of torch devices, checked."""

from __future__ import annotations

import torch


def available_device(name: str) -> torch.device:
    """The torch device with this name.

    Raises:
        ValueError: it is not available on this machine.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch built without CUDA
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"cfg.policy.device = {name!r} is not available ({reason}): use 'cpu', or install what this device needs."
        ) from None
    return device
