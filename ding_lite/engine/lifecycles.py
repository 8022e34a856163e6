"""Open or closed: what a task may be asked, and when.

Room: ding_lite.engine, floor 0. Standard library only.
"""

from __future__ import annotations

POOL = "task.parallel"
"""What the names of the threads begin with that run middleware side by side."""


class Openable:
    """Something that is used between its start and its stop."""

    _started_at: str | None = None

    @property
    def running(self) -> bool:
        """Whether the task is open: started, and not stopped."""
        return self._started_at is not None

    def _require_open(self, verb: str) -> None:
        if self._started_at is None:
            raise RuntimeError(
                f"task.{verb} before task.start(): open the task first, `with task.start(ctx=OnlineRLContext()):`."
            )
