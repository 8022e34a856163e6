"""Weights: those of a policy at one moment, and where its networks can live."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn


class Weights(NamedTuple):
    """The weights of a policy at one moment, which nothing changes any more."""

    version: int
    """Names them."""

    weights: Any
    """A list of tensors, the model's parameters and buffers in its order; of a policy with a `get_weights` of its own, what
    that gave."""

    train_iter: int = 0
    """Gradient steps that led to them."""

    def as_arrays(self) -> Weights:
        """The same with arrays for tensors, to be sent elsewhere: torch would write each tensor as a file of its own."""
        tensors = isinstance(self.weights, list)
        return self._replace(weights=[tensor.cpu().numpy() for tensor in self.weights]) if tensors else self

    def as_tensors(self) -> Weights:
        """The reverse of `as_arrays`."""
        arrays = isinstance(self.weights, list)
        return self._replace(weights=[torch.from_numpy(array) for array in self.weights]) if arrays else self


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


def holds_weights(thing: Any) -> bool:
    """Whether it is a network with weights or running statistics, or a list, tuple or dict of such."""
    if isinstance(thing, nn.Module):
        return any(True for _ in (*thing.parameters(), *thing.buffers()))
    if isinstance(thing, Mapping):
        return any(map(holds_weights, thing.values()))
    return isinstance(thing, (list, tuple)) and any(map(holds_weights, thing))


def reseeded(generator: Any, seed: Sequence[int]) -> Any:
    """A random generator of the same kind, of torch, numpy or Python, from this seed."""
    number = int(np.random.default_rng(seed).integers(2**63))
    if isinstance(generator, torch.Generator):
        return torch.Generator(generator.device).manual_seed(number)
    if isinstance(generator, np.random.Generator):
        return np.random.Generator(type(generator.bit_generator)(number))
    return random.Random(number)


class NotOnActor:
    """Stands on a copy that acts for a network beside the model, which only the policy that learns has.

    Args:
        name: of the attribute.
        policy: name of its class.
    """

    def __init__(self, name: str, policy: str) -> None:
        self._message = (
            f"{policy}.{name} is a network beside the model, which the copies that act do not have, since nothing would bring "
            "it up to date: make it a part of what make_model gives."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # as copying and pickling ask for them
        raise AttributeError(self._message)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise AttributeError(self._message)

    __call__ = __getitem__ = __iter__ = __len__ = _refuse

    def __bool__(self) -> bool:
        return True
