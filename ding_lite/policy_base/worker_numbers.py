"""Numbers of workers that act with the same mode, so that each draws its own random numbers."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

_workers: weakref.WeakKeyDictionary[Any, list[tuple[int, weakref.ref[Any]]]] = weakref.WeakKeyDictionary()
"""The workers of each mode, with their numbers."""


class ActingWorker(Protocol):
    """A worker that acts with a mode."""

    has_acted: bool
    """Whether it has acted."""

    @property
    def env(self) -> Any:
        """Its environments."""


def number_of_worker(mode: Any, worker: ActingWorker) -> int:
    """The number of a new worker: 0, or the next number if it is made beside other workers of this mode.

    These are the workers that exist and have not acted yet, in other environments that are open. Any other new worker replaces
    an earlier one, and continues its random numbers.
    """
    alive = [(number, it) for number, ref in _workers.get(mode, ()) if (it := ref()) is not None and it is not worker]
    beside = [
        number for number, it in alive if not it.has_acted and it.env is not worker.env and not getattr(it.env, "closed", False)
    ]
    number = 1 + max(beside, default=-1)
    _workers[mode] = [*((other, weakref.ref(it)) for other, it in alive), (number, weakref.ref(worker))]
    return number
