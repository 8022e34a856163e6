"""End readers: middleware that read the context in their second halves alone, such as loggers and savers.

Second halves run in reverse order. So what a second half sets is too late for those that come after it in the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence

from ding_lite.basics.optional_attributes import attribute_behind
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.used_middleware import UsedMiddleware


def reads_at_end(fn: object) -> bool:
    """Whether only the second half of a middleware reads fields, as its attribute `reads_at_end` says."""
    return bool(attribute_behind(fn, "reads_at_end", False))


def too_late(setter: Entry | UsedMiddleware, field: str, readers: Sequence[Entry | UsedMiddleware]) -> str:
    """What to do if a second half sets a field after these middleware have read it."""
    names, whole = (" and ".join(texts) for texts in zip(*((it.name, it.name + it.at) for it in readers)))
    return (
        f"{setter.name}{setter.at} sets ctx.{field} after its yield, and is too late for {whole}: second halves run in reverse "
        f"order. Put {names} before {setter.name}."
    )
