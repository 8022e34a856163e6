"""Noisy layers: linear layers with noise on their weights, of learned strength, for exploration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from ding_lite.basics.blocks import block
from ding_lite.nn.layers import ACTIVATIONS


class NoisyLinear(nn.Module):
    """A linear layer with factorised Gaussian noise on weights and biases. Noise is only added inside `noisy_weights`.

        y = (W + W_sigma * (f(outer) f(inner)^T)) x + b + b_sigma * f(outer),  f(e) = sign(e) sqrt(|e|)

    Args:
        in_features, out_features: see `nn.Linear`.
        sigma: initial strength of the noise, at least 0: W_sigma and b_sigma start at sigma / sqrt(in_features).

    Reference:
        Fortunato et al. (2018), https://arxiv.org/abs/1706.10295, eq. 10, 11 and section 3.2.
    """

    def __init__(self, in_features: int, out_features: int, sigma: float = 0.5) -> None:
        super().__init__()
        bound = in_features**-0.5
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full_like(self.weight, sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full_like(self.bias, sigma * bound))
        self.drawn: tuple[Tensor, Tensor] | None = None
        """f(inner) [in_features] and f(outer) [out_features] inside `noisy_weights`, with a leading dimension B if each row has
        its own noise; otherwise None. Not part of the layer's state."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        if self.drawn is None:
            return functional.linear(x, self.weight, self.bias)
        inner, outer = self.drawn
        if inner.ndim == 2:  # the same equation, without building a weight matrix for each row
            if x.ndim > 2:
                ones = (1,) * (x.ndim - 2)
                inner, outer = (noise.view(len(noise), *ones, -1) for noise in (inner, outer))
            noisy = functional.linear(x * inner, self.weight_sigma, self.bias_sigma)
            return torch.addcmul(functional.linear(x, self.weight, self.bias), noisy, outer)
        weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(outer, inner))
        return functional.linear(x, weight, torch.addcmul(self.bias, self.bias_sigma, outer))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "drawn": None}  # another thread may copy the layer inside `noisy_weights`


class NoisyMLP(nn.Module):
    """A multilayer perceptron of noisy linear layers.

    Args:
        sizes: widths of all layers, from input to output.
        activation: one of `ACTIVATIONS`.
        sigma: see NoisyLinear.
        layer_norm: normalise the output of each linear layer before its activation, see `MLP`.
    """

    def __init__(self, sizes: Sequence[int], activation: str = "relu", sigma: float = 0.5, layer_norm: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(NoisyLinear(before, after, sigma) for before, after in pairwise(sizes))
        self.norms = nn.ModuleList(map(nn.LayerNorm, sizes[1:-1])) if layer_norm else None
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., sizes[0]] to [..., sizes[-1]]."""
        *hidden, last = self.layers
        for k, layer in enumerate(hidden):
            x = layer(x)
            x = self.activation(x if self.norms is None else self.norms[k](x))
        return last(x)  # type: ignore[no-any-return]


@block
def noisy_weights(module: nn.Module, generator: Generator | None, rows: int | None = None) -> Iterator[None]:
    """Add noise to every NoisyLinear of a module inside the block. The noise is drawn once, and removed afterwards.

    So copies, snapshots and checkpoints never contain noise.

    Args:
        module: a module with noisy layers.
        generator: random generator on the module's device; None for no noise.
        rows: B for inputs [B, ...] if each row has its own noise; None for the same noise in all rows.

    Example:
        >>> layer, x = NoisyLinear(4, 2), torch.ones(1, 4)
        >>> with noisy_weights(layer, torch.Generator().manual_seed(0)):
        ...     noisy = layer(x)
        >>> torch.equal(noisy, layer(x)), torch.equal(layer(x), layer(x))
        (False, True)
    """
    layers = [] if generator is None else [layer for layer in module.modules() if isinstance(layer, NoisyLinear)]
    if not layers:
        yield
        return
    sizes = [size for layer in layers for size in reversed(layer.weight.shape)]
    like = layers[0].weight
    shape = (sum(sizes),) if rows is None else (rows, sum(sizes))
    normal = torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
    drawn = torch.split(normal.sign() * normal.abs().sqrt_(), sizes, -1)
    for layer, pair in zip(layers, zip(drawn[::2], drawn[1::2])):
        layer.drawn = pair
    try:
        yield
    finally:
        for layer in layers:
            layer.drawn = None


noise = noisy_weights  # its name in earlier versions
