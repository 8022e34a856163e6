"""Own runs: find the task that runs a middleware."""

from __future__ import annotations

from ding_lite.engine import Task, current_task


def own_run() -> Task:
    """The task that runs the caller, or the open task around it.

    If there is none, because a middleware is called by hand, the result is a new synchronous task. So an earlier run of the
    global task has no influence.
    """
    found = current_task()
    return found if found.running else Task()
