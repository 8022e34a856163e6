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
    """Call `cycle(number)` `count` times after the warm-up: this must leave nothing behind, and less than 5 MB of memory."""
    for number in range(warm_up):
        cycle(number)
    before, bytes_before = census(), psutil.Process().memory_info().rss
    for number in range(count):
        cycle(number)
    after, grown = census(), (psutil.Process().memory_info().rss - bytes_before) / 1e6

    assert after == before
    assert grown < 5
    print(f"{count} cycles: no thread, file or process more, {grown:+.1f} MB of memory")
