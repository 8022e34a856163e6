"""Batches: the batches of an iteration, with the next one prefetched while the learner uses the current one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any, NamedTuple

from ding_lite.basics.torch_threads import use_torch_threads
from ding_lite.data.device_transfers import StartTransfer
from ding_lite.data.mixtures import Sampler
from ding_lite.data.trees import Tree

BATCH_THREAD = "task.batches"
"""Prefix of the name of the prefetching thread."""


class PreparedBatch(NamedTuple):
    """The batch of one gradient step."""

    data: Tree
    """The batch from the buffer."""
    sent: Tree
    """The same on the learner's device, if it was sent there; else `data` itself."""


class _Ahead(NamedTuple):
    """A batch that another thread prepares."""

    writes: int
    """Version of the buffers when the preparation began."""
    made: Future[tuple[Tree, Callable[[], Tree] | None]]


class BatchPrefetcher:
    """Draws batches from replay, one by one.

    All random choices, such as the rows of a batch, are made on the caller's thread, `source.lead` batches before the caller
    gets the batch. A second thread only copies these rows and sends them to the device. So the batches, and the
    state of the buffers and their generators, are the same with and without that thread, even if the caller fails or
    stops early. If a buffer is written to in between, the rows are copied again.

    Args:
        source: source of the batches.
        size: rows per batch.
        columns: top-level leaves to sample; None for all.
        send: copies a batch to the learner's device; None if the learner does that, or no copy is needed.

    Example:
        >>> import numpy as np
        >>> from ding_lite.data import ReplayBuffer, sampler
        >>> buffer = ReplayBuffer(10)
        >>> buffer.push({"x": np.ones(10)})
        >>> [batch.data.x.tolist() for batch in BatchPrefetcher(sampler(buffer), 2).take(3, lambda: True)]
        [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    """

    def __init__(
        self,
        source: Sampler,
        size: int,
        columns: Collection[str] | None = None,
        send: StartTransfer | None = None,
    ) -> None:
        self._source, self._columns, self._send = source, columns, send
        self.size = size
        """Rows per batch."""

    def take(self, count: int, is_ready: Callable[[], bool], beside: bool = False) -> Generator[PreparedBatch, None, None]:
        """Up to `count` batches, fewer if the source is not ready.

        Args:
            count: number of batches.
            is_ready: called before each batch is drawn.
            beside: whether a second thread prepares the next batch. It ends with the last batch, or when the iterator is
                closed.
        """
        source, draws = self._source, self._draws(count, is_ready)
        drawn, ahead = next(draws, None), None
        if drawn is None:
            return
        beside = beside and count > 1 and source.lead > 0
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(1, BATCH_THREAD, use_torch_threads, (1,))) if beside else None
            while drawn is not None:
                batch = None if ahead is None else self._arrived(ahead)
                if batch is None:
                    data = source.take(drawn, self._columns)
                    batch = PreparedBatch(data, data)
                    del data  # so that its memory can be reused
                following = next(draws, None) if source.lead else None
                ahead = None if pool is None or following is None else self._begun(pool, following)
                yield batch
                drawn = following if source.lead else next(draws, None)

    def _draws(self, count: int, is_ready: Callable[[], bool]) -> Iterator[Any]:
        while count and is_ready():
            count -= 1
            yield self._source.draw(self.size)

    def _begun(self, pool: ThreadPoolExecutor, drawn: Any) -> _Ahead:
        return _Ahead(self._source.writes, pool.submit(self._made, drawn))

    def _made(self, drawn: Any) -> tuple[Tree, Callable[[], Tree] | None]:
        data = self._source.take(drawn, self._columns)
        return data, None if self._send is None else self._send(data)

    def _arrived(self, ahead: _Ahead) -> PreparedBatch | None:
        """The batch that the second thread prepared; None if the buffers were written to meanwhile."""
        wait([ahead.made])
        if self._source.writes != ahead.writes:
            return None
        data, arrive = ahead.made.result()
        return PreparedBatch(data, data if arrive is None else arrive())
