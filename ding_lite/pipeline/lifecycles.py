"""Open or closed: what a task may be asked, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

POOL = "task.parallel"
"""What the names of the threads begin with that run middleware side by side."""


class Parts:
    """How many middleware run side by side at this moment, and how many of them wait for an event without a limit."""

    def __init__(self) -> None:
        self.running = self.waiting = 0
        self._lock = threading.Lock()

    @contextmanager
    def counted(self, what: str) -> Iterator[None]:
        """One more of `what`, "running" or "waiting", for the time of the block."""
        with self._lock:
            setattr(self, what, getattr(self, what) + 1)
        try:
            yield
        finally:
            with self._lock:
                setattr(self, what, getattr(self, what) - 1)


class Openable:
    """Something that is used between its start and its stop."""

    _started_at: str | None = None
    _parts: Parts

    @property
    def running(self) -> bool:
        """Whether the task is open: started, and not stopped."""
        return self._started_at is not None

    @property
    def stopping(self) -> bool:
        """Whether what runs breaks off, so that long work may end early."""
        return not self.running

    def _require_open(self, verb: str) -> None:
        if self._started_at is None:
            raise RuntimeError(
                f"task.{verb} before task.start(): open the task first, `with task.start(ctx=OnlineRLContext()):`."
            )
