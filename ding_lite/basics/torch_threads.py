"""Threads of torch: how many an operation takes. With another number, some results differ in their last bits."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


def torch_threads_here() -> int | None:
    """How many an operation takes on the thread that calls; None where torch is not loaded."""
    torch: Any = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def use_torch_threads(count: int | None) -> None:
    """From here on, operations on the thread that calls take so many; None leaves it as it is."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and count is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """For the time of the block, operations on the thread that calls take so many; None begins with what it has."""
    before = torch_threads_here()
    use_torch_threads(count)
    try:
        yield
    finally:
        use_torch_threads(before)
