"""Rollout replay: the last rollouts of a run, mixed with each new one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ding_lite.data import flatten, nested
from ding_lite.data.column_arrays import available_bytes
from ding_lite.data.trees import has_leaf, holds_objects, map_leaves


class RolloutReplay:
    """The last rollouts, of which some are learned from again with each new rollout.

    Rollouts are kept in the memory of the CPU, and are part of the state. They are drawn without repetition, by a random
    generator of their own.

    Args:
        proportion: mean number of rollouts to draw for each new one; 1.5 draws one or two. At most those that are kept.
        slots: number of rollouts to keep; the oldest is replaced.
        seed: random seed.

    Raises:
        ValueError: the proportion is larger than the number of slots.
    """

    unchecked_entries: ClassVar[tuple[str, ...]] = ("rollouts",)
    is_learned: ClassVar[bool] = False

    def __init__(self, proportion: float, slots: int, seed: int) -> None:
        if proportion > slots:
            raise ValueError(
                f"learn.replay_proportion = {proportion:g} and learn.replay_slots = {slots}: more rollouts are to be drawn "
                "than are kept. Raise replay_slots."
            )
        self._proportion = proportion
        self._rollouts: deque[dict[str, Any]] = deque(maxlen=slots)
        self._generator = torch.Generator().manual_seed(seed)

    def mix(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Draw rollouts, and append them to a new one as more environments.

        Args:
            columns: the new rollout: tensors [T, B, ...] by name, nested like the spaces; reward is one of them.

        Returns:
            The columns, [T, B + B', ...]. If one of the rollouts has `valid`, so has the result.

        Raises:
            ValueError: a kept rollout has another number of steps, or lacks a column.
        """
        count = int(self._proportion + float(torch.rand((), generator=self._generator)))
        order = torch.randperm(len(self._rollouts), generator=self._generator)[:count]
        parts = [dict(columns), *(dict(self._rollouts[index]) for index in order.tolist())]
        lengths = {len(part["reward"]) for part in parts}
        if len(lengths) > 1:
            raise ValueError(
                f"learn.replay_proportion = {self._proportion:g} wants rollouts of the same number of steps, got {lengths}: "
                "collect them with a StepCollector, or set replay_proportion to 0."
            )
        if lacking := [name for part in parts[1:] for name in columns if name not in part and name != "valid"]:
            raise ValueError(
                f"learn.replay_proportion = {self._proportion:g}: a kept rollout lacks the column {lacking[0]!r}, which the "
                "loss reads. It was saved by a run whose loss does not read it: start a new run, or set replay_proportion to 0."
            )
        if any("valid" in part for part in parts):
            for part in parts:
                part.setdefault("valid", torch.ones_like(part["reward"], dtype=torch.bool))

        def joined(*leaves: Tensor) -> Tensor:
            return torch.cat([leaf.to(leaves[0].device) for leaf in leaves], 1)

        return {name: map_leaves(joined, *(part[name] for part in parts)) for name in parts[0]}

    def push(self, columns: Mapping[str, Any]) -> None:
        """Keep a copy of a rollout.

        Raises:
            MemoryError: the rollouts would need more than the available memory; checked for the first one.
            TypeError: a column has objects instead of numbers.
        """
        if objects := [name for name, column in columns.items() if holds_objects(column)]:
            raise TypeError(
                f"the column {objects[0]!r} has objects, which cannot be replayed: set learn.replay_proportion to 0."
            )
        if not self._rollouts:
            self._require_memory(columns)
        self._rollouts.append({name: map_leaves(_copied, column) for name, column in columns.items()})

    def _require_memory(self, columns: Mapping[str, Any]) -> None:
        size, slots = sum(leaf.numel() * leaf.element_size() for _, leaf in flatten(columns)), self._rollouts.maxlen or 0
        needed, available = size * slots, available_bytes()
        if available is not None and needed > available:
            raise MemoryError(
                f"learn.replay_slots = {slots:,} rollouts of {size / 1e6:,.1f} MB need {needed / 1e9:.1f} GB, but only "
                f"{available / 1e9:.1f} GB are available: lower replay_slots."
            )

    def state_dict(self) -> dict[str, Any]:
        """The kept rollouts, and the state of the random generator."""
        return {"rollouts": list(self._rollouts), "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. With fewer slots, the newest rollouts are kept.

        Raises:
            ValueError: the state has no list of rollouts, or one of them is not a mapping of columns with a reward, the same
                columns as the others, and tensors of the same steps and environments. Nothing is changed.
        """
        rollouts = state["rollouts"]
        if not isinstance(rollouts, (list, tuple)):
            raise ValueError(f"the kept rollouts are a list, got {rollouts!r:.60} of type {type(rollouts).__name__}.")
        loaded = [_checked(rollout) for rollout in rollouts]
        names = [rollout.keys() - {"valid"} for rollout in loaded]
        if differing := next((one ^ names[0] for one in names if one != names[0]), None):
            raise ValueError(f"the kept rollouts have the same columns, got only some with {sorted(differing)[0]!r}.")
        self._generator.set_state(state["generator"].cpu())
        self._rollouts.clear()
        self._rollouts.extend(loaded)


def _checked(rollout: Any) -> dict[str, Any]:
    """A saved rollout, if it is one.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(rollout, Mapping) or not has_leaf(rollout, "reward"):
        raise ValueError(f"a kept rollout is a mapping of columns with a reward, got {rollout!r:.60}.")
    columns = {name: nested(column) for name, column in rollout.items()}
    shape = tuple(getattr(columns["reward"], "shape", ()))
    if len(shape) != 2:
        raise ValueError(f"a kept rollout has a reward [T, B], got {list(shape)}.")
    for path, leaf in flatten(columns):
        name, of_state = "/".join(map(str, path)), str(path[0]).startswith("state_in_")
        if not isinstance(leaf, Tensor):
            raise ValueError(f"a kept rollout has tensors [T, B, ...], got {leaf!r:.60} as {name!r}.")
        if tuple(leaf.shape[:2]) not in (shape, *([(1, shape[1])] if of_state else ())):
            raise ValueError(f"a kept rollout has tensors [{shape[0]}, {shape[1]}, ...], got {list(leaf.shape)} as {name!r}.")
    return columns


def _copied(leaf: Tensor) -> Tensor:
    return leaf.detach().to("cpu", copy=True)
