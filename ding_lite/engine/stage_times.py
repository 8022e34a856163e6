"""Stage times: how long the forward steps of each stage took in a plain loop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from ding_lite.pipeline.contracts import LANES
from ding_lite.pipeline.pipeline_checks import Entry


class StageTimes:
    """Adds up the time of forward steps, by the lane on which they would run if iterations overlapped."""

    def __init__(self) -> None:
        self._spent_ns = dict.fromkeys(LANES, 0)

    def timed(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The same entries; the time between two of them counts for the first one."""
        spent, clock = self._spent_ns, time.perf_counter_ns
        for entry in entries:
            begun = clock()
            yield entry
            spent["learn" if entry.contract is None else entry.contract.lane] += clock() - begun

    def seconds(self) -> dict[str, float]:
        """Seconds by lane."""
        return {lane: spent / 1e9 for lane, spent in self._spent_ns.items()}
