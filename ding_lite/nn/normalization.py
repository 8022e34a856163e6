"""Normalization: numbers brought to mean 0 and standard deviation 1, by statistics of all that was seen so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite.envs import subspaces


class RunningNorm(nn.Module):
    """Mean and variance of everything that `update` was given, and what they make of an input:

        y = clip((x - mean) / sqrt(var + 1e-8), -10, 10)

    Batches are merged exactly, in float64, so that the statistics do not depend on how numbers came in parts, and do not wear
    out over billions of them. Before the first update they are mean 0 and variance 1. Nothing but `update` changes them.

    Args:
        shape: of one element; each of its numbers has statistics of its own.
        limit: where y is clipped, in standard deviations.

    Reference:
        Chan, Golub and LeVeque (1983), "Algorithms for Computing the Sample Variance", eq. 2.1.

    Example:
        >>> norm = RunningNorm((1,))
        >>> norm.update(torch.tensor([[1.0], [2.0], [3.0]]))
        >>> norm(torch.tensor([[2.0], [1e9]])).tolist(), norm.count.item()
        ([[0.0], [10.0]], 3.0)
    """

    state_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "mean": (-math.inf, math.inf),
        "var": (0.0, math.inf),
        "count": (0.0, math.inf),
    }
    """Between which numbers the entries of a saved state are; all are finite."""

    mean: Tensor
    """[*shape] float64."""
    var: Tensor
    """[*shape] float64, of all that was seen, not of what else there may be: divided by `count`."""
    count: Tensor
    """Elements seen. One number, float64."""

    def __init__(self, shape: tuple[int, ...] = (), limit: float = 10.0) -> None:
        super().__init__()
        self.shape, self.limit = tuple(shape), limit
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """[..., *shape] float, normalised, of the same dtype."""
        return ((x - self.mean) * self.scale).clamp(-self.limit, self.limit).to(x.dtype)

    @property
    def scale(self) -> Tensor:
        """What differences from the mean are multiplied with: 1 / sqrt(var + 1e-8). [*shape] float64."""
        return (self.var + 1e-8).rsqrt()

    @torch.no_grad()
    def update(self, batch: Tensor) -> None:
        """Take in a batch [..., *shape]. An element that holds a number that is not finite is left out whole."""
        x = batch.reshape(-1, *self.shape).to(self.mean)
        x = x[x.isfinite().reshape(len(x), math.prod(self.shape)).all(1)]
        if not len(x):
            return
        var, mean = torch.var_mean(x, 0, correction=0)
        count = self.count + len(x)
        share, apart = len(x) / count, mean - self.mean
        self.var.copy_(self.var * (1 - share) + var * share + apart.square() * share * (1 - share))
        self.mean.add_(apart * share)
        self.count.copy_(count)


def make_normalizer(space: gymnasium.Space[Any], limit: float = 10.0) -> nn.Module:
    """What normalises observations of this space and learns from them by `update`: a module from observations to the like.

    Numbers of a float Box are normalised, each by itself; images, bytes and discrete parts pass through, and Dict and Tuple
    spaces are gone through part by part.

    Args:
        space: of one observation.
        limit: where normalised numbers are clipped, in standard deviations.

    Example:
        >>> norm = make_normalizer(spaces.Dict({"x": spaces.Box(-9.0, 9.0, (2,)), "kind": spaces.Discrete(3)}))
        >>> norm.update({"x": torch.tensor([[1.0, 5.0], [3.0, 5.0]]), "kind": torch.tensor([0, 2])})
        >>> found = norm({"x": torch.tensor([[2.0, 5.0]]), "kind": torch.tensor([1])})
        >>> found["x"].tolist(), found["kind"].tolist()
        ([[0.0, 0.0]], [1])
    """
    parts = subspaces(space)
    if parts is not None:
        return _Nested({name: make_normalizer(part, limit) for name, part in parts.items()})
    is_float = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    return RunningNorm(space.shape or (), limit) if is_float and len(space.shape or ()) != 3 else _Untouched()


class _Untouched(nn.Module):
    """What passes through."""

    def forward(self, x: Any) -> Any:
        return x

    def update(self, batch: Any) -> None:
        """Nothing of it."""


class _Nested(nn.Module):
    """Parts by name."""

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.names, self.parts = list(parts), nn.ModuleList(parts.values())

    def forward(self, obs: Any) -> dict[str, Any]:
        return {name: part(obs[name]) for name, part in zip(self.names, self.parts)}

    def update(self, batch: Any) -> None:
        for name, part in zip(self.names, self.parts):
            part.update(batch[name])  # type: ignore[operator]
