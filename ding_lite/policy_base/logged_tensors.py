"""Logged tensors that something else holds, and may change before they are logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_WATCHED = 4  # times that a statistic is new, before it is known that it is computed anew


class HeldStats:
    """Finds statistics that are tensors or arrays of a policy, such as a parameter or a temperature that `after_step` changes.

    What is computed anew is in other memory each time, as long as the earlier ones are held. So each name is watched, and
    copied, in the first few steps that have it. Then a step costs no more than a look at the names.
    """

    def __init__(self) -> None:
        self._new: set[str] = set()
        self._held: set[str] = set()
        self._watched: dict[str, list[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_new": set(), "_held": set(), "_watched": {}}  # in another process, other memory

    def kept(self, stats: Mapping[str, Any]) -> dict[str, Any]:
        """The statistics without gradients, so that they do not keep the computation of the loss; those that something else
        holds, or may hold, are copied."""
        kept = dict(stats)
        for name, stat in stats.items():
            if isinstance(stat, Tensor) and stat.requires_grad:
                kept[name] = stat.detach()
            if name not in self._new and self._may_be_held(name, stat):
                kept[name] = kept[name].clone() if isinstance(stat, Tensor) else stat.copy()
        return kept

    def _may_be_held(self, name: str, stat: Any) -> bool:
        if name not in self._held:
            earlier, memory = self._watched.setdefault(name, []), _memory(stat)
            if memory is not None and any(_memory(one) == memory for one in earlier):
                self._held.add(name)
            elif len(earlier) == _WATCHED:
                self._new.add(name)
            else:
                earlier.append(stat.detach() if isinstance(stat, Tensor) else stat)
                return memory is not None
            del self._watched[name]
        return _memory(stat) is not None


def _memory(stat: Any) -> int | None:
    """The address of the memory of a tensor or array; None for anything else."""
    if isinstance(stat, Tensor):
        return stat.untyped_storage().data_ptr() if stat.numel() and stat.layout == torch.strided else None
    if isinstance(stat, np.ndarray) and stat.size:
        base = stat
        while isinstance(base.base, np.ndarray):
            base = base.base
        return int(base.ctypes.data)
    return None
