"""Whether something that is done many times over leaves threads, files, processes or memory behind."""

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import psutil

CYCLES = int(os.environ.get("CYCLES", "200"))
"""How often; a fraction of it for what takes longer."""


def held() -> tuple[Any, ...]:
    """How many threads, files and children this process has, and which threads."""
    gc.collect()
    process = psutil.Process()
    return {thread.name for thread in threading.enumerate()}, process.num_fds(), len(process.children(recursive=True))


def require_nothing_left(cycle: Callable[[int], Any], count: int, warm_up: int, census: Callable[[], Any] = held) -> None:
    """Call `cycle(number)` so often, after the first calls: they leave nothing, and less than 5 MB of memory."""
    for number in range(warm_up):
        cycle(number)
    before, bytes_before = census(), psutil.Process().memory_info().rss
    for number in range(count):
        cycle(number)
    after, grown = census(), (psutil.Process().memory_info().rss - bytes_before) / 1e6

    assert after == before
    assert grown < 5
    print(f"{count} cycles: no thread, file or process more, {grown:+.1f} MB of memory")
