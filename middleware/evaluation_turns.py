"""Turns of evaluations: evaluations that share a mode of a policy run one after another."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ding_lite.basics.blocks import block
from ding_lite.engine import Deferred, WorkCancelled
from ding_lite.policy import EvalMode

_LOOK_EVERY_S = 0.05

_lock = threading.Lock()
_open: weakref.WeakKeyDictionary[EvalMode, list[EvaluationTurn]] = weakref.WeakKeyDictionary()
"""The turns of each mode that have not ended, in the order in which they were made."""


class EvaluationTurn:
    """The turn of an evaluation, which acts with the weights at the time when the turn was made.

    Evaluations that share a mode share its acting copy, random generators and metrics. They run in the order of their turns,
    so their results are those of a run on one thread. An evaluation waits only for turns that were made before its own, so two
    never wait for each other.

    Args:
        policies: the modes that act.
    """

    def __init__(self, policies: Sequence[EvalMode]) -> None:
        self.work: Deferred[Any] | None = None
        """The work that evaluates; None if it does not run beside the iterations."""
        self._weights = {policy: policy.snapshot() for policy in policies}
        self._has_ended = threading.Event()
        with _lock:
            self._earlier = [turn for policy in self._weights for turn in _open.setdefault(policy, [])]
            for policy in self._weights:
                _open[policy].append(self)

    @block
    def taken(self, is_stopping: Callable[[], bool]) -> Iterator[None]:
        """A block in which the modes act with the weights of this turn. The turn ends with it.

        Raises:
            WorkCancelled: `is_stopping()` became true before its turn.
        """
        try:
            for turn in self._earlier:
                while not turn._has_ended.wait(_LOOK_EVERY_S) and not turn._is_left:
                    if is_stopping():
                        raise WorkCancelled("the run ended before an evaluation.")
            with contextlib.ExitStack() as stack:
                for policy, weights in self._weights.items():
                    stack.enter_context(policy.acting_with(weights))
                yield
        finally:
            self.end()

    def end(self) -> None:
        """Let the next evaluation run."""
        if self._has_ended.is_set():
            return
        with _lock:
            for policy in self._weights:
                _open[policy].remove(self)
        self._earlier.clear()
        self._has_ended.set()

    @property
    def _is_left(self) -> bool:
        """Whether its run ended without waiting for it."""
        return self.work is not None and self.work.is_left
