"""Synchronous loops: one iteration in sequential order."""

from __future__ import annotations

from collections.abc import Iterable

from ding_lite.basics.messages import add_note
from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.generators import WaitingGenerator, forward_step, unwind


def iterate(ctx: Context, entries: Iterable[Entry], waiting: list[WaitingGenerator]) -> None:
    """Run one iteration: every first half in order, then the second halves in reverse order.

    Args:
        ctx: the iteration's context.
        entries: the pipeline.
        waiting: generators that were started by hand and still wait; those of this iteration are added. Empty afterwards.

    Raises:
        BaseException: an error that no waiting generator handled, with a note that names the middleware and the iteration.
    """
    running: Entry | None = None
    try:
        for running in entries:
            result = running.call(ctx)
            if result is not None:
                generator = forward_step(running.fn, result, ctx)
                if generator is not None:
                    waiting.append(generator)
        running = None
        if waiting:
            unwind(waiting)
    except BaseException as error:
        where = f"middleware {running.name} ({running.location}), " if running else ""
        add_note(error, f"in {where}iteration {ctx.total_step} of the task")
        if not waiting:
            raise
        unwind(waiting, error)
