"""Systems: CPU and memory use of a run."""

from __future__ import annotations

import sys
import time
from typing import Any


class SystemUse:
    """Measures CPU cores and memory in use by this process and its children, if psutil is installed.

    Args:
        every_s: seconds between two measurements, each of which takes about a millisecond.
    """

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s = every_s
        self._at = time.monotonic()
        self._spent: dict[int, float] | None = None

    def look(self) -> dict[str, float]:
        """A dict with cpu_cores: average since the last measurement; memory_mb: resident memory; and gpu_memory_mb: GPU memory
        reserved by torch. Empty if the last measurement is less than `every_s` seconds ago, or psutil is not installed.
        """
        now = time.monotonic()
        passed = now - self._at
        if self._spent is not None and passed < self._every_s:
            return {}
        try:
            import psutil
        except ImportError:
            return {}
        processes, spent, memory = psutil.Process(), {}, 0
        for process in (processes, *processes.children(recursive=True)):
            try:
                times = process.cpu_times()
                memory += process.memory_info().rss
                spent[process.pid] = times.user + times.system
            except psutil.Error:  # it has just ended
                continue
        before, self._spent, self._at = self._spent, spent, now
        used = {"memory_mb": memory / 2**20, **_gpu_memory()}
        if before is not None and passed > 0:
            used["cpu_cores"] = sum(max(0.0, it - before.get(pid, 0.0)) for pid, it in spent.items()) / passed
        return used


def _gpu_memory() -> dict[str, float]:
    torch: Any = sys.modules.get("torch")  # a process without torch uses no GPU memory
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {"gpu_memory_mb": torch.cuda.memory_reserved() / 2**20}
