"""Torch threads per operation. With a different number, some results differ in their last bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ding_lite.basics.blocks import block


def torch_threads_here() -> int | None:
    """The number of torch threads per operation on the calling thread; None if torch is not loaded."""
    torch: Any = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def use_torch_threads(count: int | None) -> None:
    """Set the number of torch threads per operation on the calling thread; None changes nothing."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and count is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)


@block
def torch_threads(count: int | None) -> Iterator[None]:
    """A context in which the calling thread uses `count` torch threads; None keeps the number. It is restored at the end."""
    before = torch_threads_here()
    use_torch_threads(count)
    try:
        yield
    finally:
        use_torch_threads(before)
