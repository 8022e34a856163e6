"""Cores: how the threads of a run share the interpreter, and leave torch the cores that others do not need."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

_SWITCH_S = 0.0005  # instead of Python's 5 ms


@contextlib.contextmanager
def quick_switches() -> Iterator[None]:
    """For the time of the block, a thread that comes back from waiting soon gets the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def one_thread_of_torch() -> None:
    """On the thread that calls: on a fresh one, torch gathers a team for each operation, several times slower than none."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@contextlib.contextmanager
def cores_left_free() -> Iterator[None]:
    """For the time of the block, let torch have half of the cores: an operation on all of them waits for one that is busy.

    Measured with one worker process on two cores: 1 ms a gradient step on one thread, up to 66 on two. It is the same where
    the lanes run on one thread, so that the results are.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, cores // 2)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
