"""Cores: how the threads of a run share the interpreter and the CPU cores."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from ding_lite.basics.blocks import block

_SWITCH_S = 0.0005  # instead of Python's 5 ms
_mutex = threading.Lock()
_intervals: list[float] = []  # at the entry of each block that some thread is in; the first is restored after the last


@block
def short_switch_interval() -> Iterator[None]:
    """Within this block, a thread that stops waiting gets the interpreter quickly."""
    with _mutex:
        _intervals.append(sys.getswitchinterval())
        sys.setswitchinterval(min(_intervals[-1], _SWITCH_S))
    try:
        yield
    finally:
        with _mutex:
            before = _intervals[0]
            _intervals.pop()
            if not _intervals:
                sys.setswitchinterval(before)


def threads_of_torch(max_lag: int) -> tuple[int | None, int | None]:
    """The number of torch threads per operation on the learn lane, and on any other lane; None for torch's default.

    The number belongs to the lane, on any thread that runs it, because some results differ in their last bits with another
    number. With `max_lag=0` it is the same as in a plain loop. Where iterations overlap, the learn lane gets half of the cores,
    because an operation on all cores waits for the busy ones: with one worker process on two cores, a gradient step took 1 ms
    on one thread and up to 66 ms on two. The other lanes get one thread, because on a new thread torch starts a team of threads
    for each operation, which takes several times as long as a small operation.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or max_lag == 0:
        return None, None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), cores // 2)), 1
