"""Ensembles: several multilayer perceptrons of the same shape, computed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ding_lite.nn.layers import ACTIVATIONS, MLP


class EnsembleMLP(nn.Module):
    """K independent multilayer perceptrons, computed with batched matrix products.

    The function and the initialization are those of K `MLP`s. Small layers take about two thirds of the time of K `MLP`s, wide
    layers the same time. Each layer has one weight tensor instead of K, which makes the optimizer and target networks faster.

    Args:
        count: K.
        sizes: widths of all layers, from input to output.
        activation: one of `ACTIVATIONS`, after each layer except the last.
        layer_norm: normalise the output of each linear layer before its activation, see `MLP`.

    Example:
        >>> EnsembleMLP(2, [4, 64, 1])(torch.zeros(8, 4)).shape
        torch.Size([2, 8, 1])
    """

    def __init__(self, count: int, sizes: Sequence[int], activation: str = "relu", layer_norm: bool = False) -> None:
        super().__init__()
        members = [MLP(sizes, activation) for _ in range(count)]
        layers = list(zip(*(member.layers for member in members)))
        # Stored as [K, out, in] and transposed in forward(): MKL is 10% faster than with [K, in, out].
        self.weights = nn.ParameterList(torch.stack([one.weight.detach() for one in layer]) for layer in layers)
        self.biases = nn.ParameterList(torch.stack([one.bias.detach().unsqueeze(0) for one in layer]) for layer in layers)
        if layer_norm:
            self.norm_weights = nn.ParameterList(torch.ones(count, 1, size) for size in sizes[1:-1])
            self.norm_biases = nn.ParameterList(torch.zeros(count, 1, size) for size in sizes[1:-1])
        self.count, self.activation, self.layer_norm = count, activation, layer_norm

    def forward(self, x: Tensor, *, frozen: bool = False) -> Tensor:
        """Map [B, sizes[0]] to [K, B, sizes[-1]].

        Args:
            x: input.
            frozen: block gradients to the weights; gradients still reach `x`.
        """
        activation = ACTIVATIONS[self.activation]
        weights, biases = self._params("weights"), self._params("biases")
        norms = list(zip(self._params("norm_weights"), self._params("norm_biases"))) if self.layer_norm else []
        if frozen:
            weights, biases = [weight.detach() for weight in weights], [bias.detach() for bias in biases]
            norms = [(weight.detach(), bias.detach()) for weight, bias in norms]
        x = x.expand(self.count, *x.shape)
        last = len(weights) - 1
        for k, (weight, bias) in enumerate(zip(weights, biases)):
            x = torch.baddbmm(bias, x, weight.mT)
            if k < last:
                if norms:
                    x = torch.addcmul(norms[k][1], functional.layer_norm(x, x.shape[-1:]), norms[k][0])
                x = activation(x)
        return x

    def _params(self, kind: str) -> list[Any]:
        # Through the dicts, because access to the items of an nn.ParameterList is slow.
        params: Any = self._modules[kind]
        return list(params._parameters.values())
