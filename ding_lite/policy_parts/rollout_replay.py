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
            ValueError: a kept rollout has another number of steps.
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
            ValueError: a rollout is not a mapping of columns with a reward. Nothing is changed.
        """
        rollouts = state["rollouts"]
        for rollout in rollouts if isinstance(rollouts, (list, tuple)) else [rollouts]:
            if not isinstance(rollout, Mapping) or not has_leaf(rollout, "reward"):
                raise ValueError(f"a kept rollout is a mapping of columns with a reward, got {rollout!r:.60}.")
        self._generator.set_state(state["generator"].cpu())
        self._rollouts.clear()
        self._rollouts.extend({name: nested(column) for name, column in rollout.items()} for rollout in rollouts)


def _copied(leaf: Tensor) -> Tensor:
    return leaf.detach().to("cpu", copy=True)
