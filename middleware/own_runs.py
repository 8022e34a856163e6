"""Runs: which run a middleware is part of, if any."""

from __future__ import annotations

from ding_lite.engine import Task, current_task


def own_run() -> Task:
    """The task that runs the caller, or that is open around it.

    Called by hand, outside of any, a new task: synchronous, not about to finish, and ended by nothing. So what an earlier run
    of the global task was like does not matter.
    """
    found = current_task()
    return found if found.running else Task()
