"""Whether the operations of this thread are recorded, to be compiled."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _State(threading.local):
    """The state of each thread."""

    is_traced = False


_STATE = _State()


def is_traced() -> bool:
    """Whether a gradient step is being traced, so that a function must not make Python numbers of tensors."""
    return _STATE.is_traced


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """A block in which `is_traced()` is true."""
    before, _STATE.is_traced = is_traced(), True
    try:
        yield
    finally:
        _STATE.is_traced = before
