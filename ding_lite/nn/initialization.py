"""Initialization: weights from a seed, without touching anybody else's random numbers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ding_lite.basics import seed_of
from ding_lite.basics.torch_threads import torch_threads

# The first call makes MKL take as many threads as it is given, where it took fewer for small problems. Lanes and local workers
# make such calls; made here, the first run of a process computes what later ones do.
torch.set_num_threads(torch.get_num_threads())


_LOCK = threading.RLock()  # torch's global generator is one for all threads


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Layers made inside draw their weights from `seed`; torch's global generator is as before afterwards."""
    seed = seed_of(seed, "seeded({})")
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def orthogonal(module: nn.Module, gain: float = 2**0.5, last_gain: float | None = None) -> nn.Module:
    """Orthogonal weights and zero biases for every linear and convolutional layer inside.

    Args:
        module: initialised in place, and returned.
        gain: of each layer.
        last_gain: of the last one; None for the same.

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
    """Set orthogonal weights in place: the same ones on every number of cores."""
    with torch_threads(1):
        nn.init.orthogonal_(weight, gain)
