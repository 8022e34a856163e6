"""Checks that repeated work leaves no threads, files, processes or memory behind."""

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import psutil

CYCLES = int(os.environ.get("CYCLES", "200"))
"""Number of repetitions. Slow tests use a fraction of it."""


def held() -> tuple[Any, ...]:
    """The names of threads, and the numbers of open files and child processes."""
    gc.collect()
    process = psutil.Process()
    return {thread.name for thread in threading.enumerate()}, process.num_fds(), len(process.children(recursive=True))


def require_nothing_left(cycle: Callable[[int], Any], count: int, warm_up: int, census: Callable[[], Any] = held) -> None:
    """Call `cycle(number)` `count` times after the warm-up: this must leave nothing behind, and less than 5 MB of memory.

    Up to three rounds, because the memory of a process also grows by what other tests left to the allocator. A leak grows in
    each round.
    """
    for number in range(warm_up):
        cycle(number)
    before = census()
    for _ in range(3):
        bytes_before = psutil.Process().memory_info().rss
        for number in range(count):
            cycle(number)
        after, grown = census(), (psutil.Process().memory_info().rss - bytes_before) / 1e6
        assert after == before
        if grown < 5:
            break
    else:
        raise AssertionError(f"{count} cycles left {grown:.1f} MB of memory, the third time in a row")
    print(f"{count} cycles: no thread, file or process more, {grown:+.1f} MB of memory")
