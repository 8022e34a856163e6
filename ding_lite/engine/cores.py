"""Cores: how the threads of a run share the interpreter, and leave torch the cores that others do not need."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

_SWITCH_S = 0.0005  # instead of Python's 5 ms


@contextlib.contextmanager
def short_switch_interval() -> Iterator[None]:
    """For the time of the block, a thread that comes back from waiting soon gets the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def threads_of_torch(max_lag: int) -> tuple[int | None, int | None]:
    """How many threads an operation of torch takes on the thread of the learn lane, and on any other; None for torch's own.

    They belong to the lane, wherever it is carried out: with another number some results differ in their last bits. With
    `max_lag=0` it is what a plain loop has. Where iterations overlap, the learn lane has half of the cores, since an operation
    on all of them waits for one that is busy. Measured with one worker process on two cores: 1 ms a gradient step on one
    thread, up to 66 on two. The others have one: on a fresh thread, torch gathers a team for each operation, which takes
    several times longer than a small operation itself.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or max_lag == 0:
        return None, None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), cores // 2)), 1
