"""Progress: environments that record what they are doing, so that an error can say where a worker died."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ding_lite.data import flatten
from ding_lite.data.trees import map_leaves
from ding_lite.envs.batched_steps import Vectorization
from ding_lite.envs.factories import EnvFactory
from ding_lite.envs.local_vectors import LocalVectorEnv
from ding_lite.envs.results import Results

_ACTION = 64  # maximum size of a recorded action
_NUMBERS = "biuf"
NOWHERE = -1
MAKES, STEPS, RESETS, REPLAYS = range(4)  # zeros mean that environments are being made


def progress_size(num_envs: int) -> int:
    """The size of the array `progress` for `num_envs` environments, in int64."""
    return 4 + num_envs * (2 + _ACTION)


def describe_progress(progress: NDArray[np.int64], num_envs: int, first_env: int) -> str:
    """A description of what the environments were doing.

    Args:
        progress: the array that a `ProgressVectorEnv` wrote to.
        num_envs: number of its environments.
        first_env: index of the first one.
    """
    fields = ProgressFields(progress, num_envs)
    index, what = int(fields.place[0]), int(fields.place[1])
    if what == MAKES or index == NOWHERE:
        doing = "being made" if what == MAKES else "between two steps"
        return f"environments {first_env} to {first_env + num_envs - 1}, {doing}"
    where = f"environment {first_env + index}, episode {fields.numbers[index]}"
    if what == RESETS:
        return f"{where}, in its reset"
    step, size = int(fields.place[2] - fields.begun[index]), int(fields.place[3])
    if what == REPLAYS:
        return f"{where}, in step {step} of its replay"
    action = [int(number) if number.is_integer() else number for number in fields.actions[index, :size].tolist()]
    return f"{where}, step {step} of it" + (f", action {action[0] if size == 1 else action}" if size else "")


class ProgressFields:
    """The fields of the array `progress`, as views."""

    def __init__(self, progress: NDArray[np.int64], num_envs: int) -> None:
        self.place = progress[:4]
        """Current environment, its activity, the clock, and the size of an action."""
        self.begun = progress[4 : 4 + num_envs]
        self.numbers = progress[4 + num_envs : 4 + 2 * num_envs]
        self.actions = progress[4 + 2 * num_envs :].view(np.float64).reshape(num_envs, _ACTION)


class ProgressVectorEnv(LocalVectorEnv):
    """A LocalVectorEnv that records in `progress` which environment it steps, when, and with which action."""

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        seed: int,
        first_env: int,
        progress: NDArray[np.int64],
        info_columns: Sequence[str] = (),
        vectorization: Vectorization = "none",
    ) -> None:
        self._fields = ProgressFields(progress, len(factories))
        super().__init__(factories, seed, first_env, info_columns, vectorization)
        self._fields.place[:2] = NOWHERE, STEPS
        place = memoryview(self._fields.place)  # type: ignore[arg-type]  # setting a numpy element takes twice as long
        self._steps = [_watched(step, place, index) for index, step in enumerate(self._steps)]
        self._place = place

    def _use(self, index: int, env: gymnasium.Env[Any, Any]) -> None:
        super()._use(index, env)
        steps: Any = self._paused_steps if index in self._paused_steps else self._steps
        steps[index] = _watched(steps[index], self._place, index)

    def resume(self) -> None:
        """End `pause`."""
        super().resume()
        self._fields.begun[:] = self._begun_at

    def _begin(self, index: int, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        fields = self._fields
        fields.numbers[index], fields.begun[index] = self.starts[index].number + 1, self._clock
        self._place[0], self._place[1] = index, RESETS
        try:
            return super()._begin(index, options)
        finally:
            self._place[0], self._place[1] = NOWHERE, STEPS

    def _play(self, action: Any) -> list[Any] | Results:
        place = self._place
        place[2], place[3] = self._clock, _write(action, self._fields.actions)
        try:
            return super()._play(action)
        finally:
            place[0] = NOWHERE

    def _restore(self, index: int, state: Mapping[str, Any], played: Callable[[int], None] | None = None) -> tuple[Any, float]:
        place, fields = self._place, self._fields
        fields.numbers[index], fields.begun[index] = state["number"], 0

        def seen(step: int) -> None:
            place[2] = step

        place[0], place[1], place[2] = index, REPLAYS, 0
        try:
            return super()._restore(index, state, seen)
        finally:
            place[0], place[1] = NOWHERE, STEPS

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore each environment by replaying its saved episode."""
        try:
            super().load_state_dict(state)
        finally:
            self._fields.begun[:] = self._begun_at
            self._fields.numbers[:] = [start.number for start in self.starts]


def _watched(step: Callable[[Any], Any], place: memoryview, index: int) -> Callable[[Any], Any]:
    def watched(action: Any) -> Any:
        place[0] = index
        return step(action)

    return watched


def _write(action: Any, rows: NDArray[np.float64]) -> int:
    """Write actions [B, ...] as rows of numbers. Returns the size of a row, 0 if they do not fit or are invalid."""
    if type(action) is np.ndarray and action.shape == (len(rows),) and action.dtype.kind in _NUMBERS:
        rows[:, 0] = action
        return 1
    leaves = [np.asarray(leaf) for _, leaf in flatten(action)]
    if not all(leaf.shape[:1] == (len(rows),) and leaf.dtype.kind in _NUMBERS for leaf in leaves):
        return 0
    leaves = [leaf.reshape(len(rows), -1) for leaf in leaves]
    size: int = sum(leaf.shape[1] for leaf in leaves)
    if size > _ACTION:
        return 0
    rows[:, :size] = np.concatenate(leaves, axis=1)
    return size


def write_action(action: Any, row: NDArray[np.float64]) -> int:
    """Write one nested action as the numbers of this row. Returns its size, 0 if it does not fit or has no numbers."""
    return _write(map_leaves(lambda leaf: np.asarray(leaf)[None], action), row[None])
