"""Pending work: what a middleware has delegated, for example to another process, and takes later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PendingWork:
    """Returned by a middleware that has only requested its work: `take` waits for the work and completes it.

    Where iterations overlap, if the contract lists in `writes_late` the fields that `take` sets, the lane continues with its
    next iteration meanwhile. Otherwise `take` is called at once.

    Args:
        take: called once with the context, in the order of the requests; sets the fields in `writes_late`.
        drop: called instead if the iteration is dropped and the result is not needed.
    """

    def __init__(self, take: Callable[[Any], None], drop: Callable[[], None]) -> None:
        self._take, self._drop = take, drop
        self.span: tuple[int, int] | None = None
        """Begin and end of the work in nanoseconds of `time.perf_counter_ns`, if known."""

    def take(self, ctx: Any) -> None:
        """Wait for the work, and complete it."""
        self._take(ctx)

    def wrap_take(self, wrapper: Callable[[Callable[[Any], None], Any], None]) -> None:
        """From now on, `take(ctx)` calls `wrapper(take, ctx)`, which calls the former `take`."""
        take = self._take
        self._take = lambda ctx: wrapper(take, ctx)

    def drop(self) -> None:
        """Discard the work."""
        self._drop()


Remainder = PendingWork  # its name in earlier versions
