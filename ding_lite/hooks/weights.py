"""Weights: those of a policy at one moment, and where its networks can live.

Room: ding_lite.hooks, floor 3. Torch only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Weights(NamedTuple):
    """The weights of a policy at one moment, which nothing changes any more."""

    version: int
    """Names them."""

    weights: Any
    """A list of tensors, the model's parameters and buffers in its order; of a policy with a `get_weights` of its own, what
    that gave."""

    def as_arrays(self) -> Weights:
        """The same with arrays for tensors, to be sent elsewhere: torch would write each tensor as a file of its own."""
        tensors = isinstance(self.weights, list)
        return Weights(self.version, [tensor.cpu().numpy() for tensor in self.weights]) if tensors else self

    def as_tensors(self) -> Weights:
        """The reverse of `as_arrays`."""
        arrays = isinstance(self.weights, list)
        return Weights(self.version, [torch.from_numpy(array) for array in self.weights]) if arrays else self


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
