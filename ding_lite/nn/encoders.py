"""Encoders: networks from observations of any space."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite.envs import SpaceError
from ding_lite.envs.action_masks import without_mask
from ding_lite.envs.spaces import subspaces
from ding_lite.nn.layers import MLP

ConvLayers = Sequence[tuple[int, int, int]]
"""(channels, kernel size, stride) of each layer."""

NATURE: ConvLayers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
SMALL: ConvLayers = ((16, 3, 1), (32, 3, 1))


def make_network(
    space: gymnasium.Space[Any],
    hidden_sizes: Sequence[int],
    out: int | None = None,
    activation: str = "relu",
    conv_layers: ConvLayers | None = None,
    layer_norm: bool = False,
) -> MLP | Network:
    """Make a network for observations of this space: preprocessing and an MLP.

    Images go through convolutions before the MLP. Discrete values become one-hot vectors. The features of the parts of Dict and
    Tuple spaces are concatenated. The part `action_mask` of a Dict is no feature, and is left out.

    Args:
        space: observation space.
        hidden_sizes: widths of the MLP's hidden layers.
        out: width of the last layer, which has no activation; None ends with the last hidden layer and its activation.
        activation: one of `ACTIVATIONS`.
        conv_layers: (channels, kernel size, stride) of each layer for images; None for those of the Nature DQN, or for two
            layers of 3x3 if the image is smaller than 36 pixels.
        layer_norm: layer normalisation in the hidden layers of the MLP.

    Returns:
        A module from [B, *obs_shape], nested like the space, to [B, out] or, without `out`, [B, hidden_sizes[-1]]. Its
        `encode` and `from_features` are the two parts of its `forward`.

    Raises:
        SpaceError: the space has no fixed layout, or an image is too small for `conv_layers`.
        ValueError: there are neither hidden layers nor `out`, or the activation does not exist.

    Reference:
        Mnih et al. (2015), https://www.nature.com/articles/nature14236, Methods, for the convolutions.

    Example:
        >>> make_network(spaces.Box(-1.0, 1.0, (4,)), [64], out=2)(torch.zeros(8, 4)).shape
        torch.Size([8, 2])
    """
    if not hidden_sizes and out is None:
        raise ValueError("make_network() without hidden layers and without `out` has no layers: set encoder_hidden_size_list.")
    inputs, width = _features(without_mask(space), conv_layers)
    mlp = MLP([width, *hidden_sizes, *([] if out is None else [out])], activation, out is None, layer_norm)
    return mlp if isinstance(inputs, nn.Identity) else Network(inputs, mlp)


class _Parts(nn.Sequential):
    """Two modules, one after the other. Modules that are added to it later, such as heads of other losses, are not called."""

    def _part(self, name: str) -> Any:
        return self._modules[name]  # faster than self[0]


class Network(_Parts):
    """Preprocessing of observations, and an MLP."""

    def forward(self, obs: Any) -> Tensor:
        """The output [B, out] of the MLP."""
        return self._part("1")(self._part("0")(obs))  # type: ignore[no-any-return]

    def encode(self, obs: Any) -> Tensor:
        """The features [B, width] that the last layer of the MLP takes."""
        return self._part("1").encode(self._part("0")(obs))  # type: ignore[no-any-return]

    def from_features(self, features: Tensor) -> Tensor:
        """The output of the network for the features that `encode` returned."""
        return self._part("1").from_features(features)  # type: ignore[no-any-return]


class EncoderAndHead(_Parts):
    """An encoder from observations to features, and a head from features to the output."""

    def forward(self, obs: Any) -> Tensor:
        """The output of the head."""
        return self.from_features(self.encode(obs))

    def encode(self, obs: Any) -> Tensor:
        """The features of observations, [B, F]."""
        return self._part("0")(obs)  # type: ignore[no-any-return]

    def from_features(self, features: Tensor) -> Tensor:
        """The output of the network for the features that `encode` returned."""
        return self._part("1")(features)  # type: ignore[no-any-return]


def _features(space: gymnasium.Space[Any], conv_layers: ConvLayers | None) -> tuple[nn.Module, int]:
    parts = subspaces(space)
    if parts is not None:
        encoded = {name: _features(part, conv_layers) for name, part in parts.items()}
        return _Joined({name: module for name, (module, _) in encoded.items()}), sum(width for _, width in encoded.values())
    if isinstance(space, spaces.Discrete):
        return _OneHot([int(space.n)], [int(space.start)]), int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return _OneHot(space.nvec.ravel().tolist(), space.start.ravel().tolist()), int(space.nvec.sum())
    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        return _convolutions(space, conv_layers)
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        width = int(np.prod(space.shape))
        if space.dtype == np.uint8 and len(space.shape) > 3:
            warnings.warn(
                f"observations {space} are flattened to {width:,} features, because only images with 3 dimensions go through "
                "convolutions: if they are stacked images, make the stack the channels, in an ObservationWrapper.",
                stacklevel=2,
            )
        plain = len(space.shape) == 1 and space.dtype == np.float32
        return (nn.Identity() if plain else _Flat(space.dtype == np.uint8)), width
    raise SpaceError(f"no encoder for observations of {space}: flatten or embed them in a gymnasium.ObservationWrapper.")


def _convolutions(space: spaces.Box, conv_layers: ConvLayers | None) -> tuple[nn.Module, int]:
    if space.dtype != np.uint8 and np.isfinite(space.high).all() and space.high.max() > 100:
        warnings.warn(
            f"images {space} are not scaled, because only images of bytes (uint8) are divided by 255: scale them to [0, 1] in "
            "the environment, or return bytes.",
            stacklevel=2,
        )
    channels_last = space.shape[2] < space.shape[0]
    channels, height, width = (space.shape[2], *space.shape[:2]) if channels_last else space.shape
    sizes = height, width
    chosen = conv_layers or (NATURE if min(height, width) >= 36 else SMALL)
    layers: list[nn.Module] = [_Image(channels_last, space.dtype == np.uint8)]
    for out, kernel, stride in chosen:
        layers += [nn.Conv2d(channels, out, kernel, stride), nn.ReLU()]
        channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        if height < 1 or width < 1:
            raise SpaceError(
                f"images of shape {space.shape} are too small for the convolutions {list(chosen)}: set conv_layers, such as "
                f"[(32, {min(3, *sizes)}, 1)], each with (channels, kernel size, stride)."
            )
    return nn.Sequential(*layers, nn.Flatten()), channels * height * width


class _Joined(nn.Module):
    """The concatenated features of the parts of a nested observation."""

    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        self.names = list(parts)
        self.parts = nn.ModuleList(parts.values())  # nn.ModuleDict does not allow names such as "a.b" or "keys"

    def forward(self, obs: Any) -> Tensor:
        return torch.cat([part(obs[name]) for name, part in zip(self.names, self.parts)], dim=-1)


class _OneHot(nn.Module):
    """Integers [B] or [B, *shape] as concatenated one-hot vectors [B, F]. One that is out of range is an error."""

    offsets: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, sizes: list[int], starts: list[int]) -> None:
        super().__init__()
        first = np.array(starts)
        offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]) - first
        self.width, self.has_parts = sum(sizes), len(sizes) > 1
        for name, array in (("offsets", offsets), ("low", first), ("high", first + np.array(sizes) - 1)):
            self.register_buffer(name, torch.as_tensor(array), persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        batch_size = obs.shape[0]  # not len(obs), which fixes the batch size of exported programs
        numbers = obs.reshape(batch_size, -1).long()
        places = numbers + self.offsets
        if self.has_parts:  # otherwise the next part would have a number that is out of range
            places = torch.where((numbers < self.low) | (numbers > self.high), -1, places)
        return torch.zeros(batch_size, self.width, device=obs.device).scatter_(1, places, 1.0)


class _Flat(nn.Module):
    """Numbers [B, *shape] as float features [B, F]; bytes are divided by 255."""

    def __init__(self, is_bytes: bool) -> None:
        super().__init__()
        self.scale = 1 / 255 if is_bytes else 1.0

    def forward(self, obs: Tensor) -> Tensor:
        return _scaled(obs.reshape(obs.shape[0], -1), self.scale)


class _Image(nn.Module):
    """Images with channels last or first as float [B, C, H, W]; bytes are divided by 255."""

    def __init__(self, channels_last: bool, is_bytes: bool) -> None:
        super().__init__()
        self.channels_last, self.scale = channels_last, 1 / 255 if is_bytes else 1.0

    def forward(self, obs: Tensor) -> Tensor:
        image = _scaled(obs.permute(0, 3, 1, 2) if self.channels_last else obs, self.scale)
        # On a CPU, learning from images in this memory format takes two thirds of the time.
        return image.to(memory_format=torch.channels_last) if image.device.type == "cpu" else image


def _scaled(numbers: Tensor, scale: float) -> Tensor:
    """The numbers as float, times `scale`."""
    # Of bytes, float() makes a new tensor, which can be changed in place: that takes two thirds of the time.
    return numbers.float().mul_(scale) if numbers.dtype == torch.uint8 else numbers.float() * scale


def make_encoder(space: gymnasium.Space[Any], conv_layers: ConvLayers | None = None) -> tuple[nn.Module, int]:
    """The part of `make_network` before the MLP: a module from observations to features [B, F]; and F.

    Raises:
        SpaceError: the space has no fixed layout, or an image is too small for `conv_layers`.
    """
    return _features(without_mask(space), conv_layers)
