"""The synchronous loop: in which order the middleware of an iteration run."""

from __future__ import annotations

from collections.abc import Iterable

from ding_lite.basics.messages import add_note
from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.generators import Half, forward_step, unwind
from ding_lite.pipeline.pipeline_checks import Entry


def iterate(ctx: Context, entries: Iterable[Entry], waiting: list[Half]) -> None:
    """One iteration in sequence: every forward step in order, then the backward steps in reverse.

    Args:
        ctx: the iteration's context.
        entries: the pipeline.
        waiting: generators that already wait, from by hand; those of this iteration join them. Empty afterwards.

    Raises:
        BaseException: what a middleware raised and no waiting generator handled, with a note naming it and the iteration.
    """
    running: Entry | None = None
    try:
        for running in entries:
            result = running.call(ctx)
            if result is not None:
                half = forward_step(running.fn, result, ctx)
                if half is not None:
                    waiting.append(half)
        running = None
        if waiting:
            unwind(waiting)
    except BaseException as error:
        where = f"middleware {running.name} ({running.location}), " if running else ""
        add_note(error, f"in {where}iteration {ctx.total_step} of the task")
        if not waiting:
            raise
        unwind(waiting, error)
