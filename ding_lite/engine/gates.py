"""Gates: how far each lane of a run has come, and what makes it wait.

Room: ding_lite.engine, floor 0. Standard library only.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ding_lite.engine.frames import Frame
from ding_lite.engine.timelines import Timeline

_LOOK_S = 0.5  # between two looks at whether there is still anything to wait for
_PAUSE_S = 0.0005  # between two looks at whether others have paused


class Gates:
    """What the lanes of a run know of each other. A lane waits until another has done so many halves, while another recovers
    from an error, and never beyond the end of the run.

    Args:
        sizes: by lane, halves an iteration; a lane without any has nothing to do.
        timeline: records what waited.
    """

    def __init__(self, sizes: Sequence[int], timeline: Timeline) -> None:
        lanes = range(len(sizes))
        self.progress = [0 for _ in lanes]
        """By lane, halves done since the run began."""
        self.stopping = False
        """Whether the run is over, or breaks off."""
        self.alert = False
        """Whether a lane has to ask `may_go_on` before its next half."""
        self.threaded = False
        """Whether lanes run at the same time."""
        self._timeline = timeline
        self._wants: list[tuple[int, int] | None] = [None for _ in lanes]
        self._locks = [threading.Lock() for _ in lanes]
        for lock in self._locks:
            lock.acquire()
        self._idle = [not size for size in sizes]
        self._blocked = [False for _ in lanes]  # by something that another lane may have to do
        self._paused_by: int | None = None
        self._mutex = threading.Lock()

    def advance(self, lane: int) -> None:
        """This lane has done one half more: whoever waits for that goes on."""
        self.progress[lane] = done = self.progress[lane] + 1
        if not self.threaded:
            return
        for other, want in enumerate(self._wants):
            if want is not None and want[0] == lane and done >= want[1]:
                self._wants[other] = None
                self._open(other)

    def wait(self, frame: Frame, other: int, until: int, reason: Any) -> None:
        """Until that lane has done so many halves, or the run breaks off."""
        lane, begun = frame.lane, 0
        while (self.progress[other] < until or self._is_paused(lane)) and not self.stopping:
            begun = begun or time.perf_counter_ns()
            self._wants[lane] = other, until  # first said, then looked again: whoever advances looks after it advanced
            if (self.progress[other] < until or self._is_paused(lane)) and not self.stopping:
                self._locks[lane].acquire(timeout=_LOOK_S)
            self._wants[lane] = None  # first said, then looked again, too: whoever pauses it looks after it paused it
        if begun:
            ended = time.perf_counter_ns()
            frame.waited_ns += ended - begun
            self._timeline.waited(lane, frame.iteration, begun, ended, reason)

    def stop(self) -> None:
        """From here on nothing begins, and nothing waits."""
        self.stopping = True
        self.call_attention()

    def call_attention(self) -> None:
        """Wake whoever waits, to look again."""
        self.alert = True
        for lane in range(len(self._locks)):
            self._open(lane)

    def may_go_on(self, lane: int) -> bool:
        """At the boundary between two halves: wait while another lane has paused this one; false where the run ends."""
        while not self.stopping:
            with self._mutex:
                self._idle[lane] = self._is_paused(lane)
                if not self._idle[lane]:
                    self.alert = self.stopping or self._paused_by is not None
                    break
            self._locks[lane].acquire(timeout=_LOOK_S)
        return not self.stopping

    def leave(self, lane: int) -> None:
        """The lane has nothing to do any more."""
        self._idle[lane] = True

    def has_paused_others(self, lane: int) -> bool:
        """Whether this lane is the one that runs alone."""
        return self._paused_by == lane

    def nobody_else_runs(self, lane: int | None) -> bool:
        """Whether every other lane waits, or has nothing to do."""
        return all(self._wants[other] is not None or idle for other, idle in enumerate(self._idle) if other != lane)

    @contextlib.contextmanager
    def blocked(self, lane: int) -> Iterator[None]:
        """For the time of the block, the lane waits for something that another lane may have to do."""
        self._blocked[lane] = self._idle[lane] = True
        try:
            yield
        finally:
            self._blocked[lane] = False
            self.may_go_on(lane)

    @contextlib.contextmanager
    def others_paused(self, lane: int, earlier: Sequence[tuple[int, int]]) -> Iterator[None]:
        """For the time of the block no other lane runs anything, and all that stands before this one's half has run.

        Args:
            lane: the one that runs.
            earlier: the other lanes that have something to do before that, and how many halves they have done then.
        """
        if not self.threaded:
            yield
            return
        self._idle[lane] = True
        while not self.stopping and not all(self.progress[it] >= until or self._blocked[it] for it, until in earlier):
            time.sleep(_PAUSE_S)
        while self.may_go_on(lane):
            with self._mutex:
                if self._paused_by is None:
                    self._paused_by = lane
                    break
        self.call_attention()
        while not self.stopping and not self.nobody_else_runs(lane):
            time.sleep(_PAUSE_S)
        try:
            yield
        finally:
            self._paused_by = None
            self.call_attention()

    def _is_paused(self, lane: int) -> bool:
        return self._paused_by not in (None, lane)

    def _open(self, lane: int) -> None:
        with contextlib.suppress(RuntimeError):  # it is open
            self._locks[lane].release()
