"""Entries: the middleware of a pipeline as the script used them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ding_lite.pipeline.contracts import Contract, names_object


@dataclasses.dataclass
class Entry:
    """One middleware of a pipeline."""

    fn: Callable[..., Any]
    """The middleware of the script."""

    call: Callable[..., Any]
    """The same with locks and wrappers around it."""

    name: str
    location: str
    """file:line of its definition, or empty."""

    contract: Contract | None
    """None for a function without a contract."""

    used_at: str = ""
    """file:line of the script's `task.use`, or empty."""

    lock: AbstractContextManager[Any] | None = None
    """Lock that is held while each step runs."""

    @property
    def at(self) -> str:
        """Where the script used it, in brackets, or an empty string."""
        return f" (task.use at {self.used_at})" if self.used_at else ""


def take_turns(one: Entry, other: Entry) -> bool:
    """Whether two middleware share a lock, or their contracts name the same object, so that they take turns."""
    if one.lock is not None and one.lock is other.lock:
        return True
    pairs = ((one.contract, other.contract), (other.contract, one.contract))
    return any(names_object(use, their) for mine, their in pairs if mine and their for use in mine.uses)
