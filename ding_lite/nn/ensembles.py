"""Ensembles: several multilayer perceptrons of one shape, computed as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.nn.layers import ACTIVATIONS, MLP


class EnsembleMLP(nn.Module):
    """K perceptrons with weights of their own, whose layers are products of batches of matrices.

    The same function as K `MLP`s side by side, begun as K of them would be. It takes about two thirds of their time where
    layers are small, and the same where they are wide; an optimizer and a target network have one tensor a layer, not K.

    Args:
        count: K.
        sizes: of each, from input to output.
        activation: one of `ACTIVATIONS`, after each layer but the last.

    Example:
        >>> EnsembleMLP(2, [4, 64, 1])(torch.zeros(8, 4)).shape
        torch.Size([2, 8, 1])
    """

    def __init__(self, count: int, sizes: Sequence[int], activation: str = "relu") -> None:
        super().__init__()
        members = [MLP(sizes, activation) for _ in range(count)]
        layers = list(zip(*(member.layers for member in members)))
        # Transposed when used: MKL's products with [K, out, in] are a tenth faster than with [K, in, out].
        self.weights = nn.ParameterList(torch.stack([one.weight.detach() for one in layer]) for layer in layers)
        self.biases = nn.ParameterList(torch.stack([one.bias.detach().unsqueeze(0) for one in layer]) for layer in layers)
        self.count, self.activation = count, activation

    def forward(self, x: Tensor, *, frozen: bool = False) -> Tensor:
        """[B, sizes[0]] to [K, B, sizes[-1]].

        Args:
            frozen: keep gradients from the weights; they still reach `x`.
        """
        activation = ACTIVATIONS[self.activation]
        weights, biases = self._params("weights"), self._params("biases")
        if frozen:
            weights, biases = [weight.detach() for weight in weights], [bias.detach() for bias in biases]
        x = x.expand(self.count, *x.shape)
        last = len(weights) - 1
        for k, (weight, bias) in enumerate(zip(weights, biases)):
            x = torch.baddbmm(bias, x, weight.mT)
            if k < last:
                x = activation(x)
        return x

    def _params(self, kind: str) -> list[Any]:
        # By way of the dicts, since the items of a list of parameters are dear.
        params: Any = self._modules[kind]
        return list(params._parameters.values())
