"""Attributes of DI-engine's task, with what to write instead."""

ATTRIBUTES = {
    "parallel_ctx": "a task runs in one process: leave it out.",
    "router": "a task runs in one process, so leave out what depends on it; processes step the environments with "
    '`make_envs(cfg.env.id, 8, workers=4, backend="process")`.',
    "async_executor": "`task.defer(fn)` calls a function in the background.",
    "get_attch_to_len": "a task runs in one process: leave it out.",
}
"""What stands in backticks is code."""
