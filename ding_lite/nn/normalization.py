"""Normalization to mean 0 and standard deviation 1 by running statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite.envs.action_masks import ACTION_MASK
from ding_lite.envs.spaces import subspaces
from ding_lite.ranks import current_ranks


class RunningNorm(nn.Module):
    """Normalises inputs by the mean and variance of all batches passed to `update`.

        y = clip((x - mean) / sqrt(var + 1e-8), -limit, limit)

    Statistics are merged in float64, so they do not depend on how the data is split into batches, and stay accurate for
    billions of numbers. Before the first update, the mean is 0 and the variance is 1. Only `update` changes them.
    By default, `Hooks.after_learning` calls it after each batch that a policy learns from.

    Args:
        shape: shape of one element; each of its numbers has its own statistics.
        limit: y is clipped to [-limit, limit].

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
    """Allowed ranges of the entries of a saved state, which must also be finite."""

    mean: Tensor
    """Mean of all elements, [*shape] float64."""
    var: Tensor
    """Population variance of all elements (divided by `count`), [*shape] float64."""
    count: Tensor
    """Number of elements, a scalar, float64."""

    def __init__(self, shape: tuple[int, ...] = (), limit: float = 10.0) -> None:
        super().__init__()
        self.shape, self.limit = tuple(shape), limit
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., *shape] float; the result has the same dtype."""
        return ((x - self.mean) * self.scale).clamp(-self.limit, self.limit).to(x.dtype)

    @property
    def scale(self) -> Tensor:
        """The factor 1 / sqrt(var + 1e-8), [*shape] float64."""
        return (self.var + 1e-8).rsqrt()

    @torch.no_grad()
    def update(self, batch: Tensor) -> None:
        """Add a batch [..., *shape] to the statistics. Elements with NaN or infinity are left out.

        In a data-parallel run, all processes call this together, and the batches of all of them are added.
        """
        x = batch.reshape(-1, *self.shape).to(self.mean)
        x = x[x.isfinite().reshape(len(x), math.prod(self.shape)).all(1)]
        number: float = len(x)
        var, mean = torch.var_mean(x, 0, correction=0) if number else (torch.zeros_like(self.var), torch.zeros_like(self.mean))
        ranks = current_ranks()
        if ranks is not None:
            number, mean, squares = ranks.moments("running statistics", number, mean, var * number)
            var = squares / max(number, 1)
        if not number:
            return
        count = self.count + number
        share, apart = number / count, mean - self.mean
        self.var.copy_(self.var * (1 - share) + var * share + apart.square() * share * (1 - share))
        self.mean.add_(apart * share)
        self.count.copy_(count)


def make_normalizer(space: gymnasium.Space[Any], limit: float = 10.0) -> nn.Module:
    """Make a module that normalises observations of this space, with a method `update(obs)` for its statistics.

    Each number of a float Box is normalised by its own statistics. Images, integer Boxes and discrete parts are unchanged. Dict
    and Tuple spaces are normalised part by part; a part `action_mask` is unchanged.

    Args:
        space: observation space.
        limit: normalised numbers are clipped to [-limit, limit].

    Example:
        >>> norm = make_normalizer(spaces.Dict({"x": spaces.Box(-9.0, 9.0, (2,)), "kind": spaces.Discrete(3)}))
        >>> norm.update({"x": torch.tensor([[1.0, 5.0], [3.0, 5.0]]), "kind": torch.tensor([0, 2])})
        >>> found = norm({"x": torch.tensor([[2.0, 5.0]]), "kind": torch.tensor([1])})
        >>> found["x"].tolist(), found["kind"].tolist()
        ([[0.0, 0.0]], [1])
    """
    parts = subspaces(space)
    if parts is not None:
        normalizers = {name: make_normalizer(part, limit) for name, part in parts.items() if name != ACTION_MASK}
        return _Nested({name: normalizers.get(name, _Untouched()) for name in parts})
    is_float = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    return RunningNorm(space.shape or (), limit) if is_float and len(space.shape or ()) != 3 else _Untouched()


class Normalized(nn.Module):
    """A network behind a normalizer of its observations.

    Args:
        normalizer: the result of `make_normalizer`.
        network: takes normalised observations, and may take other arguments after them.
    """

    def __init__(self, normalizer: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.normalizer, self.network = normalizer, network

    def forward(self, obs: Any, *args: Any) -> Any:
        """The output of the network for observations that are not normalised yet."""
        return self.network(self.normalizer(obs), *args)

    def encode(self, obs: Any) -> Any:
        """The network's features of observations that are not normalised yet."""
        return self.network.encode(self.normalizer(obs))  # type: ignore[operator]

    def from_features(self, features: Any, *args: Any) -> Any:
        """The output of the network for the features that `encode` returned."""
        return self.network.from_features(features, *args)  # type: ignore[operator]


def normalized_inputs(space: gymnasium.Space[Any], network: nn.Module, normalize_obs: bool = True) -> nn.Module:
    """The network behind a normalizer of observations of this space; or, without `normalize_obs`, the network alone."""
    return Normalized(make_normalizer(space), network) if normalize_obs else network


class _Untouched(nn.Module):
    """The identity, for parts that are not normalised."""

    def forward(self, x: Any) -> Any:
        return x

    def update(self, batch: Any) -> None:
        """Do nothing: there are no statistics."""


class _Nested(nn.Module):
    """Normalizers of the parts of a Dict or Tuple space, by name."""

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.names, self.parts = list(parts), nn.ModuleList(parts.values())

    def forward(self, obs: Any) -> dict[str, Any]:
        return {name: part(obs[name]) for name, part in zip(self.names, self.parts)}

    def update(self, batch: Any) -> None:
        for name, part in zip(self.names, self.parts):
            part.update(batch[name])  # type: ignore[operator]
