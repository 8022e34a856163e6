"""Transfers: batches on their way to a GPU, beside what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from ding_lite.data.trees import Tree, flatten, map_leaves, tree

Send: TypeAlias = Callable[[Tree], Callable[[], Tree]]
"""Begins to copy a batch to another device, on any thread. What it gives, called on the thread that learns, gives the copy."""


class Transfer:
    """Copies batches to a CUDA device on a stream of its own, so that a copy does not wait for what the device computes.

    Args:
        device: where to.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, leaves: dict[str, Any]) -> Callable[[], Tree]:
        """Begin to copy the tensors among these leaves; what is no tensor stays as it is.

        Returns:
            A function for the thread that works with the copy: its stream waits for the copy, and it gets the tree.
        """
        with torch.cuda.stream(self._stream):
            there = map_leaves(self._copy, leaves)
            copied = self._stream.record_event()

        def arrive() -> Tree:
            now = torch.cuda.current_stream(self._device)
            now.wait_event(copied)
            for _, leaf in flatten(there):
                if isinstance(leaf, torch.Tensor):
                    leaf.record_stream(now)  # else its memory could be used again while this stream still reads it
            return tree(there)

        return arrive

    def _copy(self, leaf: Any) -> Any:
        # From memory that cannot be paged out, since only then the copy is no wait. Torch keeps that memory until it is done.
        return leaf.pin_memory().to(self._device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf
