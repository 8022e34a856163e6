"""Watchdogs: end a run in which nothing moves any more, or that is about to use up the memory."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from ding_lite.basics.blocks import block
from ding_lite.basics.thread_frames import frames_of_threads
from ding_lite.basics.user_output import tell
from ding_lite.engine.endings import EndingMixin, EndReason
from ding_lite.engine.interrupts import Interrupts
from ding_lite.engine.sync_loops import iterate
from ding_lite.pipeline.entries import Entry

STUCK_STATUS = 75
"""Exit status of a program whose run was stuck."""

_GRACE_S = 10.0  # for the end of a stuck run; after that the process ends
_LOOK_S = 1.0  # seconds between two looks
_MEGABYTE = 2**20


class RunStuckError(SystemExit):
    """A run made no progress for too long. It ends a program with status 75."""

    def __init__(self, message: str) -> None:
        super().__init__(STUCK_STATUS)
        self.message = message

    def __str__(self) -> str:
        return self.message


class OutOfMemoryError(MemoryError):
    """A run was ended, and saved if its pipeline has a saver, because it was about to use up the memory."""


class Watchdog:
    """Watches a run from a thread of its own.

    Args:
        stuck_after_s: seconds without progress after which the run counts as stuck; None for no limit.
        memory_share: share of the memory of this machine, or of its cgroup, that the run may use; None for no limit.
        progress: anything that changes when a middleware begins or ends.
        running: names what runs at the moment.
        cut: ends the run between two iterations, for a reason.
        largest: names the largest objects of the run, with their sizes.
        interrupts: the signal handlers of the run.
    """

    def __init__(
        self,
        stuck_after_s: float | None,
        memory_share: float | None,
        progress: Callable[[], object],
        running: Callable[[], str],
        cut: Callable[[EndReason], None],
        largest: Callable[[], str],
        interrupts: Interrupts,
    ) -> None:
        self._stuck_after_s, self._memory_share = stuck_after_s, memory_share
        self._progress, self._running, self._cut, self._largest = progress, running, cut, largest
        self._interrupts = interrupts
        self._home = threading.current_thread()
        self._is_done = threading.Event()
        self._thread: threading.Thread | None = None
        self._limit: int | None = None
        self._made_at = time.monotonic()

    @block
    def watching(self) -> Iterator[None]:
        """Watch while this block runs: at once if there is a limit of time, else when `begin_in_time` is called late enough."""
        if self._stuck_after_s is not None:
            self._begin()
        try:
            yield
        finally:
            self._is_done.set()
            if self._thread is not None:
                self._thread.join()

    def begin_in_time(self) -> bool:
        """Start the thread if the run has taken a second: short runs do without it, because it takes longer to start than they
        take. Returns whether this need not be called again."""
        if self._thread is None and self._memory_share is not None:
            if time.monotonic() - self._made_at < _LOOK_S:
                return False
            self._begin()
        return True

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="task.watchdog", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        self._limit = None if self._memory_share is None else memory_limit()
        pause = _LOOK_S if self._stuck_after_s is None else min(_LOOK_S, self._stuck_after_s / 4)
        last, since = self._progress(), time.monotonic()
        while not self._is_done.wait(pause):
            if self._stuck_after_s is not None:
                now = self._progress()
                if now != last:
                    last, since = now, time.monotonic()
                elif time.monotonic() - since >= self._stuck_after_s:
                    self._end_stuck_run()
                    return
            self._look_at_memory()

    def _end_stuck_run(self) -> None:
        message = (
            f"the run made no progress for {self._stuck_after_s:g} s: {self._running()} did not return. The stacks of all "
            "threads are above. If it needs this long, raise watchdog_s."
        )
        # Standard error may be closed, no file, or None.
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
        tell(f"watchdog: {message}")
        if self._home is threading.main_thread() and self._interrupts.replaces_handlers:
            self._interrupts.raise_next = RunStuckError(message)
            signal.pthread_kill(self._home.ident or 0, signal.SIGINT)
            if self._is_done.wait(_GRACE_S):
                return
        os._exit(STUCK_STATUS)

    def _look_at_memory(self) -> None:
        if self._limit is None or self._memory_share is None:
            return
        used = memory_in_use()
        if used >= self._memory_share * self._limit:
            words = (
                f"the run uses {used / _MEGABYTE:,.0f} MB, which is {used / self._limit:.0%} of the memory of "
                f"{self._limit / _MEGABYTE:,.0f} MB. {self._largest()}"
            )
            self._limit = None
            self._cut(EndReason("memory", words))


def place_in(home: int) -> tuple[int, int, int] | None:
    """How far a plain loop on this thread is, by its frames: the iteration, the middleware whose first half runs, and the
    number of second halves that are left; None if there is no loop."""
    frame = _loop_in(home)
    return None if frame is None else (frame.f_locals["ctx"].total_step, id(_entry_in(frame)), len(frame.f_locals["waiting"]))


def _loop_in(home: int) -> FrameType | None:
    frame: FrameType | None = frames_of_threads().get(home)
    while frame is not None and frame.f_code is not iterate.__code__:
        frame = frame.f_back
    return frame


def _entry_in(frame: FrameType | None) -> Entry | None:
    running = None if frame is None else frame.f_locals.get("running")
    return running if isinstance(running, Entry) else None


def running_in(home: int) -> str:
    """What runs in a plain loop on this thread, for messages."""
    running = _entry_in(_loop_in(home))
    if running is None:
        return _beginning_in(home) or "a second half or the end of an iteration"
    return f"{running.name} ({running.location})" if running.location else running.name


def _beginning_in(home: int) -> str | None:
    """The `begin_run` that runs on this thread, by its frames; None if there is none."""
    frame: FrameType | None = frames_of_threads().get(home)
    while frame is not None and frame.f_code is not EndingMixin._begin_run.__code__:
        frame = frame.f_back
    return None if frame is None else f"begin_run of {frame.f_locals.get('name')}"


def memory_limit() -> int | None:
    """The memory of this machine or of its cgroup, in bytes; None if unknown."""
    limits = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such cgroup, or "max"
            limits.append(int(Path(path).read_text()))
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal")))
    return min(limits, default=None)


def memory_in_use() -> int:
    """Resident memory of this process and of the processes that it has started, in bytes; shared pages count once."""
    total = 0
    for pid in (os.getpid(), *_children(os.getpid())):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended
            resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
            total += int(resident) - (0 if pid == os.getpid() else int(shared))
    return total * os.sysconf("SC_PAGE_SIZE") if total else 0


def _children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError, ValueError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()):
                found += [child, *_children(child)]
    return found
