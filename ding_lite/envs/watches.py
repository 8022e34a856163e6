"""Watches: environments that leave a trace of what they are doing, so that whoever finds them dead can tell where it was.

Room: ding_lite.envs, floor 2. Imports data and the room's other files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ding_lite.data import flatten
from ding_lite.envs.factories import EnvFactory
from ding_lite.envs.vectors import LocalVectorEnv

_ACTION = 64  # numbers of an action that find place
_NOWHERE, _RESETS = -1, -2


def crumbs_for(num_envs: int) -> int:
    """How many int64 the trace of so many environments takes."""
    return 4 + num_envs * (2 + _ACTION)


def describe_crumbs(crumbs: NDArray[np.int64], num_envs: int, first_env: int) -> str:
    """In words, what the environments were doing that left this trace."""
    trace = _Trace(crumbs, num_envs)
    index, what = int(trace.place[0]), int(trace.place[1])
    if index == _NOWHERE:
        return f"environments {first_env} to {first_env + num_envs - 1}, between two steps"
    where = f"environment {first_env + index}, episode {trace.numbers[index]}"
    if what == _RESETS:
        return f"{where}, in its reset"
    size = int(trace.place[3])
    action = trace.actions[index, :size].tolist()
    step = int(trace.place[2] - trace.begun[index])
    return f"{where}, step {step} of it" + (f", action {action[0] if size == 1 else action}" if size else "")


class _Trace:
    """The fields of the trace."""

    def __init__(self, crumbs: NDArray[np.int64], num_envs: int) -> None:
        self.place = crumbs[:4]
        """The environment at work, whether it resets, the clock, and how many numbers an action has."""
        self.begun = crumbs[4 : 4 + num_envs]
        self.numbers = crumbs[4 + num_envs : 4 + 2 * num_envs]
        self.actions = crumbs[4 + 2 * num_envs :].view(np.float64).reshape(num_envs, _ACTION)


class WatchedVectorEnv(LocalVectorEnv):
    """A LocalVectorEnv that writes into `crumbs` which environment it steps, when, and with which action."""

    def __init__(self, factories: Sequence[EnvFactory], seed: int, first_env: int, crumbs: NDArray[np.int64]) -> None:
        self._trace = _Trace(crumbs, len(factories))
        self._trace.place[0] = _NOWHERE
        super().__init__(factories, seed, first_env)
        place = memoryview(self._trace.place)  # type: ignore[arg-type]  # a numpy element costs twice as much to set
        self._steps = [_watched(step, place, index) for index, step in enumerate(self._steps)]
        self._place = place

    def _begin(self, index: int, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        trace = self._trace
        trace.numbers[index], trace.begun[index] = self.starts[index].number + 1, self._clock
        self._place[0], self._place[1] = index, _RESETS
        result = super()._begin(index, options)
        self._place[0] = _NOWHERE
        return result

    def _play(self, action: Any) -> list[Any]:
        place = self._place
        place[1], place[2] = 0, self._clock
        place[3] = _write(action, self._trace.actions)
        results = super()._play(action)
        place[0] = _NOWHERE
        return results


def _watched(step: Callable[[Any], Any], place: memoryview, index: int) -> Callable[[Any], Any]:
    def watched(action: Any) -> Any:
        place[0] = index
        return step(action)

    return watched


def _write(action: Any, rows: NDArray[np.float64]) -> int:
    """Write actions [B, ...] as rows of numbers. Returns how many each has, 0 where there is no place for them."""
    if type(action) is np.ndarray and action.ndim == 1:
        rows[:, 0] = action
        return 1
    leaves = [np.asarray(leaf, np.float64).reshape(len(rows), -1) for _, leaf in flatten(action)]
    size = sum(leaf.shape[1] for leaf in leaves)
    if size > _ACTION:
        return 0
    rows[:, :size] = np.concatenate(leaves, axis=1)
    return size
