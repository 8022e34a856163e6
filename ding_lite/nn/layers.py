"""Layers: the multilayer perceptron, as fast as its arithmetic.

Room: ding_lite.nn, floor 3, below policy. Torch and numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}

_IN_NUMPY: dict[str, Callable[..., Any]] = {"relu": lambda x: np.maximum(x, 0, out=x), "tanh": lambda x: np.tanh(x, out=x)}
_FOUND = ("_activated", "_last", "_arrays", "_memory")  # what MLP derives from its layers
_FEW = 256  # rows, up to which numpy's calls cost less than torch's


class MLP(nn.Module):
    """Linear layers with an activation after each but the last, or after each.

    The same function as an `nn.Sequential` of them. What that costs for a few dozen rows is not arithmetic but torch's
    bookkeeping, so: the layers' weights are used without calling the layers as modules, which takes about half the time; and
    under `torch.inference_mode`, on the CPU, for up to 256 rows, numpy does the arithmetic on the same memory, which takes
    about a third, and equals torch but for the last bits. Hooks and parametrizations of single layers are not seen; a policy
    that wants them makes an `nn.Sequential` in `make_model`.

    Args:
        sizes: from input to output.
        activation: one of `ACTIVATIONS`.
        activate_last: whether the last layer is followed by the activation too.

    Example:
        >>> MLP([4, 64, 64, 2])(torch.zeros(8, 4)).shape
        torch.Size([8, 2])
    """

    def __init__(self, sizes: Sequence[int], activation: str = "relu", activate_last: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        self.activation, self.activate_last = activation, activate_last
        self._find_weights()
        self.register_load_state_dict_post_hook(_find_weights_again)  # type: ignore[no-untyped-call]

    def _find_weights(self) -> None:
        pairs: list[Any] = [(layer.weight, layer.bias) for layer in self.layers]
        self._activated = pairs if self.activate_last else pairs[:-1]
        self._last = None if self.activate_last else pairs[-1]
        plain = all(x.device.type == "cpu" and x.dtype == torch.float32 for pair in pairs for x in pair)
        has_arrays = plain and self.activation in _IN_NUMPY
        self._arrays = [(weight.detach().numpy().T, bias.detach().numpy()) for weight, bias in pairs] if has_arrays else []
        self._memory = pairs[0][0].data_ptr()

    def _apply(self, fn: Any, recurse: bool = True) -> MLP:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # what `.to(device)` calls; it may make new parameters
        self._find_weights()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _FOUND}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._find_weights()  # those of this copy

    def forward(self, x: Tensor) -> Tensor:
        """[..., sizes[0]] to [..., sizes[-1]]."""
        if self._arrays and torch.is_inference_mode_enabled() and x.dtype is torch.float32 and len(x) <= _FEW:
            if self._activated and self._activated[0][0].data_ptr() != self._memory:
                self._find_weights()  # somebody assigned to `.data`
            return torch.from_numpy(self._infer(x.numpy()))
        activation = ACTIVATIONS[self.activation]
        for weight, bias in self._activated:
            x = activation(functional.linear(x, weight, bias))
        return x if self._last is None else functional.linear(x, *self._last)

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


def _find_weights_again(module: MLP, incompatible_keys: Any) -> None:
    module._find_weights()  # load_state_dict(assign=True) makes new parameters
