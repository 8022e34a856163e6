"""Initialization: seeded and orthogonal weights, without changes to torch's global random generator."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch
from torch import nn

from ding_lite.basics import seed_of
from ding_lite.basics.blocks import block
from ding_lite.basics.torch_threads import torch_threads

# The first call of set_num_threads makes MKL always use that many threads; before, it uses fewer for small problems. Lanes and
# local workers make this call later. With a call here, the first run of a process computes the same numbers as later ones.
torch.set_num_threads(torch.get_num_threads())


_LOCK = threading.RLock()  # all threads share torch's global generator


@block
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator inside the block, for the weights of new layers; afterwards, restore its state."""
    seed = seed_of(seed, "seeded({})")
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def orthogonal(module: nn.Module, gain: float = 2**0.5, last_gain: float | None = None) -> nn.Module:
    """Initialize all linear and convolutional layers of a module with orthogonal weights and zero biases.

    Args:
        module: the module, changed in place and returned.
        gain: gain of each layer.
        last_gain: gain of the last layer; None for `gain`.

    Reference:
        Saxe et al. (2014), https://arxiv.org/abs/1312.6120; the gains of PPO: Huang et al. (2022), "The 37 Implementation
        Details of Proximal Policy Optimization", detail 2.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    for layer in layers:
        fill_orthogonal(layer.weight, last_gain if last_gain is not None and layer is layers[-1] else gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return module


def fill_orthogonal(weight: torch.Tensor, gain: float = 1.0) -> None:
    """Set orthogonal weights in place. On one thread, so that they do not depend on the number of cores."""
    with torch_threads(1):
        nn.init.orthogonal_(weight, gain)
