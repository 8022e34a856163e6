"""Stage times: how long the middleware of each stage took."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from ding_lite.pipeline.contracts import LANES
from ding_lite.pipeline.entries import Entry


class StageTimes:
    """Adds up the time of middleware by lane; in a plain loop, by the lane on which they would run if iterations overlapped."""

    def __init__(self) -> None:
        self._spent_ns = dict.fromkeys(LANES, 0)

    def timed(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The same entries; the time between two of them counts for the first one."""
        spent, clock = self._spent_ns, time.perf_counter_ns
        for entry in entries:
            begun = clock()
            yield entry
            spent["learn" if entry.contract is None else entry.contract.lane] += clock() - begun

    def add(self, spent_ns: Sequence[int]) -> None:
        """Add the times of all lanes in a run with overlapping iterations."""
        for lane, spent in zip(LANES, spent_ns, strict=True):
            self._spent_ns[lane] += spent

    def seconds(self) -> dict[str, float]:
        """Seconds by lane."""
        return {lane: spent / 1e9 for lane, spent in self._spent_ns.items()}
