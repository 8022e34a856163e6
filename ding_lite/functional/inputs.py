"""Inputs: checks and conversions of the inputs of functions of rollouts."""

from __future__ import annotations

import torch
from torch import Tensor


def check_rollout(function: str, *, terminated: Tensor, truncated: Tensor, **others: Tensor) -> None:
    """Raise an error if the tensors do not all have the same shape [T, B], or flags are not bool.

    Args:
        function: name of the function, for messages.
        terminated, truncated: flags.
        others: other tensors by name; `valid` is a flag.

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
    """The dtype for computations: float64 for float64, else float32, because half precision is too coarse for long sums."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def as_dtype(dtype: torch.dtype, x: Tensor) -> Tensor:
    """The tensor with this dtype and without gradient; copied only if necessary."""
    x = x.detach() if x.requires_grad else x
    return x if x.dtype == dtype else x.to(dtype)
