"""Layers: a multilayer perceptron with little overhead for small batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ding_lite.basics import did_you_mean

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}

_IN_NUMPY: dict[str, Callable[..., Any]] = {"relu": lambda x: np.maximum(x, 0, out=x), "tanh": lambda x: np.tanh(x, out=x)}
_SMALL = 1 << 18
"""Largest number of multiplications of a layer for which numpy is used. Above, numpy's BLAS starts as many threads as there are
cores, independent of torch.set_num_threads; if other processes use the cores, this is six times slower."""


class MLP(nn.Module):
    """A multilayer perceptron: linear layers with an activation after each layer, except the last one by default.

    The function is that of an `nn.Sequential` of the layers. For a few dozen rows, most of the time of `nn.Sequential` is
    torch's overhead, which this class reduces. It uses the layers' weights without calling the layers, in about half the time.
    In `torch.inference_mode` on the CPU, it computes small batches with numpy on the same memory, in about a third of the time;
    results differ from torch's by rounding only. A layer with hooks or parametrizations, or one of another class that you put
    in its place, is called as usual.

    The output is `from_features(encode(x))`.

    Args:
        sizes: widths of all layers, from input to output.
        activation: one of `ACTIVATIONS`.
        activate_last: whether the activation follows the last layer too.
        layer_norm: normalise the output of each linear layer before its activation. Such a network never uses numpy.

    Raises:
        ValueError: the activation does not exist.

    Reference:
        Ba et al. (2016), https://arxiv.org/abs/1607.06450, for layer normalisation.

    Example:
        >>> MLP([4, 64, 64, 2])(torch.zeros(8, 4)).shape
        torch.Size([8, 2])
    """

    def __init__(
        self, sizes: Sequence[int], activation: str = "relu", activate_last: bool = False, layer_norm: bool = False
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            hint = did_you_mean(activation, ACTIVATIONS)
            raise ValueError(f"there is no activation {activation!r}{hint} Use one of {', '.join(ACTIVATIONS)}.")
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        self.norms = nn.ModuleList(map(nn.LayerNorm, sizes[1:] if activate_last else sizes[1:-1])) if layer_norm else None
        self.activation, self.activate_last = activation, activate_last
        self._few = _SMALL // max([1, *(before * after for before, after in pairwise(sizes))])  # rows
        self._arrays: list[Any] = []
        self._places: list[int] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": [], "_places": []}  # a copy has weights of its own

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., sizes[0]] to [..., sizes[-1]]."""
        if torch.is_inference_mode_enabled():
            few = x.dtype is torch.float32 and x.ndim > 0 and x.numel() <= self._few * x.shape[-1] and x.device.type == "cpu"
            if few and self._find_arrays():
                return torch.from_numpy(self._infer(x.numpy()))
        return self.from_features(self.encode(x))

    def encode(self, x: Tensor) -> Tensor:
        """The features that the last layer takes: the output of the last activation, [..., width]."""
        activation, norms = ACTIVATIONS[self.activation], self.norms
        for index, layer in enumerate(self._layers() if self.activate_last else self._layers()[:-1]):
            x = _linear(x, layer)
            x = activation(x if norms is None else norms[index](x))
        return x

    def from_features(self, features: Tensor) -> Tensor:
        """The output [..., sizes[-1]] for the features that `encode` returned."""
        return features if self.activate_last else _linear(features, self._layers()[-1])

    def _layers(self) -> list[Any]:
        layers: Any = self._modules["layers"]  # because access to the attributes of an nn.Module is slow
        return list(layers._modules.values())

    def _find_arrays(self) -> bool:
        """Whether numpy can compute the layers; then `_arrays` are arrays of the current weights.

        The arrays keep the memory of the weights alive, so an unchanged address means unchanged tensors.
        """
        if self.activation not in _IN_NUMPY or self.norms is not None:
            return False
        params: list[Any] = []
        for layer in self._layers():
            if not _is_plain(layer):
                return False
            params += layer._parameters.values()
        try:
            places = [param.data_ptr() for param in params]
        except (AttributeError, RuntimeError):  # without memory
            return False
        if places != self._places:
            if any(x.device.type != "cpu" or x.dtype != torch.float32 for x in params):
                return False
            arrays = [param.detach().numpy() for param in params]
            self._arrays, self._places = [(arrays[i].T, arrays[i + 1]) for i in range(0, len(arrays), 2)], places
        return True

    def _infer(self, x: Any) -> Any:
        activation, hidden = _IN_NUMPY[self.activation], self._arrays if self.activate_last else self._arrays[:-1]
        for weight, bias in hidden:
            x = x @ weight
            x += bias
            activation(x)
        if not self.activate_last:
            weight, bias = self._arrays[-1]
            x = x @ weight
            x += bias
        return x


def _linear(x: Tensor, layer: nn.Linear) -> Tensor:
    if not _is_plain(layer):
        return layer(x)  # type: ignore[no-any-return]
    params: Any = layer._parameters
    return functional.linear(x, params["weight"], params["bias"])


def _is_plain(layer: nn.Linear) -> bool:
    """Whether calling the layer would only multiply by its parameters: its class is torch's, it has no hooks and no `forward`
    of its own, and nothing computes its weights."""
    return (
        type(layer) is nn.Linear
        and getattr(layer.forward, "__func__", None) is nn.Linear.forward
        and len(layer._parameters) == 2
        and "weight" in layer._parameters
        and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)
    )
