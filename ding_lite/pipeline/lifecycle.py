"""Lifecycles: whether a task is open."""

from __future__ import annotations


class Lifecycle:
    """An object that is used between start and stop."""

    _started_at: str | None = None

    @property
    def running(self) -> bool:
        """Whether the task is open: started, and not stopped."""
        return self._started_at is not None

    @property
    def stopping(self) -> bool:
        """Whether the run is being stopped, so that long work may end early."""
        return not self.running

    def _require_open(self, verb: str) -> None:
        if self._started_at is None:
            raise RuntimeError(
                f"task.{verb} before task.start(): open the task first, `with task.start(ctx=OnlineRLContext()):`."
            )
