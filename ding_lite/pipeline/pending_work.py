"""Pending work: what is left of a forward step while somebody else, such as another process, does the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PendingWork:
    """Returned by a middleware that has only asked for its work: `take` waits for it and finishes what it began.

    Where iterations overlap, and the contract names in `writes_late` what `take` sets, the lane goes on to its next iteration
    meanwhile; everywhere else `take` follows at once.

    Args:
        take: called once with the context, in the order in which the work was asked for; sets the fields in `writes_late`.
        drop: called instead where the iteration is dropped; whatever the work gives is not wanted any more.
    """

    def __init__(self, take: Callable[[Any], None], drop: Callable[[], None]) -> None:
        self._take, self._drop = take, drop
        self.span: tuple[int, int] | None = None
        """When the work began and ended, where that is known: nanoseconds on the clock of `time.perf_counter_ns`."""

    def take(self, ctx: Any) -> None:
        """Wait for the work, and finish."""
        self._take(ctx)

    def wrap_take(self, wrapper: Callable[[Callable[[Any], None], Any], None]) -> None:
        """From here on `take(ctx)` calls `wrapper(take, ctx)`, which calls the former `take`."""
        take = self._take
        self._take = lambda ctx: wrapper(take, ctx)

    def drop(self) -> None:
        """Do without it."""
        self._drop()


Remainder = PendingWork  # its name in earlier versions
