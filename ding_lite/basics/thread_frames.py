"""Thread frames: what every thread of this process is doing."""

from __future__ import annotations

import gc
import sys
from types import FrameType


def frames_of_threads() -> dict[int, FrameType]:
    """The innermost frame of each thread, by the identifier of the thread."""
    was_enabled = gc.isenabled()
    gc.disable()  # before Python 3.12, a collection meanwhile may block every thread forever (CPython issue 106883)
    try:
        return sys._current_frames()
    finally:
        if was_enabled:
            gc.enable()
