"""Device transfers: moving data to the device that computes, also while it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, overload

import torch

from ding_lite.data.trees import Tree, flatten, map_leaves, tree

StartTransfer: TypeAlias = Callable[[Tree], Callable[[], Tree]]
"""Begins to copy a batch to another device, on any thread. Returns a function to call on the learner's thread for the copy."""


@overload
def to_device(structure: Tree, device: torch.device | str) -> Tree: ...
@overload
def to_device(structure: Any, device: torch.device | str) -> Any: ...
def to_device(structure: Any, device: torch.device | str) -> Any:
    """The same structure with its tensors on this device; other leaves are unchanged."""
    return map_leaves(lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf, structure)


class CudaTransfer:
    """Copies batches to a CUDA device on a separate stream, so that a copy does not wait for computations on the device.

    Args:
        device: target device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = torch.empty(0, device=device).device  # with its number
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __reduce__(self) -> tuple[Any, ...]:
        return CudaTransfer, (self._device,)  # a copy of a policy has a stream of its own

    def begin(self, leaves: dict[str, Any]) -> Callable[[], Tree]:
        """Begin to copy the tensors among these leaves; other leaves are unchanged.

        Returns:
            A function for the thread that uses the copy: it makes the thread's stream wait for the copy, and returns the tree.
        """
        with torch.cuda.stream(self._stream):
            there = map_leaves(self._copy, leaves)
            copied = self._stream.record_event()

        def arrive() -> Tree:
            now = torch.cuda.current_stream(self._device)
            now.wait_event(copied)
            for _, leaf in flatten(there):
                if isinstance(leaf, torch.Tensor):
                    leaf.record_stream(now)  # else its memory could be reused while this stream still reads it
            return tree(there)

        return arrive

    def _copy(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.device == self._device:
            return leaf
        # From pinned memory, because only then the copy is asynchronous. Torch keeps that memory until the copy is done.
        return (leaf.pin_memory() if leaf.is_cpu else leaf).to(self._device, non_blocking=True)
