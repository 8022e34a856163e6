"""Lifecycles: whether a task is open."""

from __future__ import annotations


class Opening:
    """The time from one start to its stop."""

    running = True
    """Whether it has not been stopped."""


class Lifecycle:
    """An object that is used between start and stop."""

    _started_at: str | None = None
    _opening: Opening | None = None
    _was_open = False  # whether it has been stopped

    @property
    def opening(self) -> Opening | None:
        """Another object after each `start`, so that what is left of an earlier run of this task can be told from this one;
        None if it is not open."""
        return self._opening

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
            closed = " It was open and is closed: its `with` block has ended, or it was stopped." if self._was_open else ""
            raise RuntimeError(
                f"task.{verb} before task.start(): open the task first, `with task.start(ctx=OnlineRLContext()):`.{closed}"
            )
