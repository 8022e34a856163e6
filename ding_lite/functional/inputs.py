"""What functions of whole rollouts ask of their inputs, and in which precision they compute."""

from __future__ import annotations

import torch
from torch import Tensor


def check_rollout(function: str, *, terminated: Tensor, truncated: Tensor, **others: Tensor) -> None:
    """Refuse what is not one shape [T, B], and flags that are not bool.

    Args:
        function: its name, for the message.
        others: by name; `valid` is a flag, all else are signals.

    Raises:
        ValueError: names the function, and each tensor with its shape or dtype.
    """
    shape = terminated.shape
    fits = truncated.shape == shape and len(shape) == 2
    for x in others.values():
        if x.shape != shape:
            fits = False
    if not fits:
        tensors = {**others, "terminated": terminated, "truncated": truncated}
        shapes = {name: tuple(x.shape) for name, x in tensors.items()}
        raise ValueError(
            f"{function} wants tensors of one shape [T, B], got {shapes}. A head [T, B, 1] wants .squeeze(-1), "
            "one environment [T] .unsqueeze(-1)."
        )
    is_bool = terminated.dtype is torch.bool and truncated.dtype is torch.bool
    if not is_bool or ("valid" in others and others["valid"].dtype is not torch.bool):
        flags = {"terminated": terminated, "truncated": truncated, **({"valid": others["valid"]} if "valid" in others else {})}
        found = ", ".join(f"{name} {x.dtype}" for name, x in flags.items())
        raise ValueError(f"{function} wants bool flags, got {found}: use .bool().")


def computed_dtype(x: Tensor) -> torch.dtype:
    """float64 for float64, float32 for all else: half precision is too coarse to add up many steps."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def as_dtype(dtype: torch.dtype, x: Tensor) -> Tensor:
    """The tensor in this dtype and without its gradient; itself where it is that already."""
    x = x.detach() if x.requires_grad else x
    return x if x.dtype == dtype else x.to(dtype)
