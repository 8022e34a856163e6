"""Run calls: which calls of `run` a script has made, so that a resumed script leaves out what is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ding_lite.engine.endings import MAX_STEP, EndReason


@dataclasses.dataclass
class _Part:
    """Iterations of one or more calls in a row. All but the last one did all their iterations, so only their sum counts. If the
    last one did as well, the next part is a call that ended before its first iteration."""

    done: int
    reason: EndReason | None = None
    """Why the last call ended, if everything is done, `end_run` included; None if it may go on."""

    @property
    def ended_early(self) -> bool:
        """Whether the last call ended before it had done all its iterations."""
        return self.reason is not None and self.reason.kind != MAX_STEP


class RunCalls:
    """The calls of `run` so far. Iterations are numbered by `total_step`, which counts on from one call to the next."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._first = 0
        """The first iteration of the last part."""
        self._begun = 0
        """The first iteration of the last call."""
        self._reason_before: EndReason | None = None
        """Why the call before the last one ended, if both are in the last part."""
        self._failed: EndReason | None = None
        """Why the last call was broken off; it is over if the script makes another one."""
        self._left_out: tuple[int, int] | None = None
        """Of a loaded state: the number of parts, and of iterations of the next one, that calls have left out so far. None if
        there is nothing left to leave out."""
        self.is_behind = False
        """Whether calls were left out, and none has run since."""

    @property
    def have_begun(self) -> bool:
        """Whether there was a call, or a state was loaded."""
        return bool(self._parts) or self._left_out is not None

    @property
    def are_complete(self) -> bool:
        """Whether the last call has done everything, `end_run` included."""
        return bool(self._parts) and self._parts[-1].reason is not None

    @property
    def is_catching_up(self) -> bool:
        """Whether the last call was left out, and a loaded state has something that was done after it."""
        if not self.is_behind or self._left_out is None or self._left_out[0] == len(self._parts):
            return False
        index, offset = self._left_out
        return index + 1 < len(self._parts) or self._parts[index].done > offset

    @property
    def missing(self) -> tuple[int, int] | None:
        """The number of iterations that calls have left out, and that of a loaded state, if the script has made some of the
        calls of a run that is not complete, and has not come to the last one; otherwise None."""
        if self._left_out in (None, (0, 0)) or self._parts[-1].reason is not None:
            return None
        index, offset = self._left_out or (0, 0)
        left_out, done = sum(it.done for it in self._parts[:index]) + offset, sum(it.done for it in self._parts)
        return (left_out, done) if left_out < done else None

    @property
    def num_done(self) -> int:
        """The number of iterations of all calls that were left out or have ended, and of those that a loaded state has."""
        return sum(it.done for it in self._parts)

    def begin_empty(self) -> None:
        """Begin a call without iterations, which does nothing."""
        self.is_behind = self._left_out is not None

    def begin(self, max_step: int, is_final: bool, step: int) -> int | EndReason:
        """Begin a call.

        Args:
            max_step: maximum number of iterations.
            is_final: whether `end_run` is to be called.
            step: the next iteration.

        Returns:
            The number of iterations that are left; or why the call ended, if a loaded state has all of it, so that it is left
            out.
        """
        left = max_step if self._left_out is None else self._leave_out(max_step, is_final)
        self.is_behind = isinstance(left, EndReason)
        if not isinstance(left, EndReason):
            self._open(step)
            self._begun = step - (max_step - left)
        return left

    def _leave_out(self, max_step: int, is_final: bool) -> int | EndReason:
        assert self._left_out is not None
        index, offset = self._left_out
        if index == len(self._parts):  # the state was saved between two calls
            self._left_out = None
            return max_step
        part = self._parts[index]
        taken = min(part.done - offset, max_step)
        reached = EndReason(MAX_STEP, f"max_step={max_step} was reached before this state was saved")
        if offset + taken < part.done:
            self._left_out = index, offset + taken
            return reached
        if index + 1 < len(self._parts) or part.ended_early:
            self._left_out = index + 1, 0
            if part.reason is None or not part.ended_early:
                return reached
            return EndReason(part.reason.kind, f"{part.reason}, before this state was saved")
        self._left_out = None
        is_over = taken == max_step and (part.reason is not None or not is_final)
        return reached if is_over else max_step - taken

    def _open(self, step: int) -> None:
        """The last part goes on, or another one begins."""
        if self._failed is not None:
            self._end_failed()
        if not self._parts or self._parts[-1].ended_early:
            self._parts.append(_Part(0))
            self._first = step
        self._reason_before, self._parts[-1].reason = self._parts[-1].reason, None

    def _end_failed(self) -> None:
        """The last call was broken off, and the script makes another one."""
        last, failed, self._failed = self._parts[-1], self._failed, None
        if self._begun < self._first + last.done or not last.done:
            last.reason = failed
        else:  # it did nothing, so the end of the part is that of the call before
            last.reason = self._reason_before or EndReason(MAX_STEP, "max_step was reached")
            self._parts.append(_Part(0, failed))

    def complete(self, reason: EndReason, step: int) -> None:
        """The call has done everything, `end_run` included.

        Args:
            reason: why it ended.
            step: the next iteration.
        """
        self._parts[-1].done, self._parts[-1].reason = step - self._first, reason

    def break_off(self, reason: EndReason | None, step: int) -> None:
        """The call has ended by an error or a signal. A state that is saved now continues it, unless it is complete.

        Args:
            reason: why it ended; None if unknown.
            step: the next iteration.
        """
        if self._parts and self._parts[-1].reason is None:
            self._parts[-1].done = step - self._first
            self._failed = reason or EndReason("error", "the run was broken off")

    def state(self, step: int) -> list[list[Any]]:
        """The parts, as plain data: iterations, and the reason for the end of the last of their calls, if it is over.

        Args:
            step: the next iteration.
        """
        if self._parts and self._parts[-1].reason is None and self._failed is None and self._left_out is None:
            self._parts[-1].done = step - self._first
        return [[it.done, *((None, None) if it.reason is None else (it.reason.kind, it.reason.words))] for it in self._parts]

    def load(self, state: Sequence[Sequence[Any]], step: int) -> None:
        """Continue from a result of `state`; the following calls leave out what is done.

        Args:
            state: the parts.
            step: the next iteration.
        """
        self._parts = [_Part(done, None if kind is None else EndReason(kind, words)) for done, kind, words in state]
        self._first = step - (self._parts[-1].done if self._parts else 0)
        self._failed, self._left_out, self.is_behind = None, (0, 0), False


def is_sound_record(state: Any, done: int) -> bool:
    """Whether it is a result of `RunCalls.state` with this sum of iterations."""
    if not isinstance(state, (list, tuple)) or not all(isinstance(one, (list, tuple)) and len(one) == 3 for one in state):
        return False
    counts, ends = [count for count, _, _ in state], [(kind, words) for _, kind, words in state]
    if not all(type(count) is int and count >= 0 for count in counts) or sum(counts) != done:
        return False
    if not all((kind is None and words is None) or type(kind) is type(words) is str for kind, words in ends):
        return False
    followers = counts[1:]  # a call that did nothing may follow one that did everything
    return all(kind is not None and (kind != MAX_STEP or not count) for (kind, _), count in zip(ends, followers))
