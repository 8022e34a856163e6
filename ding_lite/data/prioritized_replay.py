"""Prioritised replay: transitions are sampled in proportion to their priority."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from ding_lite.basics import foreign_arguments
from ding_lite.data.column_arrays import Spec, as_array
from ding_lite.data.foreign_names import ARGUMENTS, PUSH_ARGUMENTS
from ding_lite.data.replay import Draw, Pushed, ReplayBuffer, named_rows
from ding_lite.data.state_checks import require_integer, state_error
from ding_lite.data.sum_trees import Floats, Places, SumTree, multiples
from ding_lite.data.trees import first_leaf

_LARGEST = 1e100  # largest priority, so that sums are finite
_GIVEN = ("weight", "index")


class PrioritizedReplayBuffer(ReplayBuffer):
    """A replay buffer that samples transitions in proportion to their priority, with replacement.

        P(i) = (priority_i + eps)^alpha / sum_k (priority_k + eps)^alpha
        weight_i = (N * P(i))^-beta / max_j (N * P(j))^-beta, over the j of the batch

    Sampling is stratified: a batch of B has one draw from each of B equal parts of the total. Besides the leaves of the
    transitions, a batch has weight [B] float32, at most 1, for the loss, and index [B] int64, for `update_priority`.

    New transitions get the largest priority so far, initially 1, so that each is sampled soon. If a batch is pushed with a leaf
    `priority` [N], its values are the priorities, and it is not stored as a leaf.

    Args:
        capacity: maximum number of transitions.
        seed: random seed of the buffer's generator.
        spec: shape and dtype of each leaf of a transition; see ReplayBuffer.
        alpha: exponent of priorities, in [0, 1]; 0 samples uniformly.
        beta: initial exponent of the importance weights, in [0, 1].
        beta_end: final exponent, in [0, 1]; 1 corrects the whole bias.
        beta_samples: number of batches over which beta changes linearly. The default suits runs of that many gradient steps.
        eps: added to each priority, so that every transition can be sampled, in (0, 1].
        lag: 0, or 1 to let a learner draw each batch before the priorities of the previous batch are updated, so that it can be
            prepared during a gradient step.
        share_frames: store each frame once; see ReplayBuffer.

    Raises:
        ValueError: an argument is out of range; or as for ReplayBuffer.

    Reference:
        Schaul et al. (2016), https://arxiv.org/abs/1511.05952, eq. 1 and section 3.4.

    Example:
        >>> buffer = PrioritizedReplayBuffer(100)
        >>> buffer.push({"number": np.arange(50)})
        >>> batch = buffer.sample(4)
        >>> batch.weight.tolist(), torch.equal(batch.index, batch.number)
        ([1.0, 1.0, 1.0, 1.0], True)
        >>> buffer.update_priority(batch.index, torch.tensor([0.0, 3.0, 1.0, 1.0]))
    """

    _SAVED: ClassVar[tuple[str, ...]] = (*ReplayBuffer._SAVED, "alpha", "scaled", "highest", "sampled")
    _CALLED: ClassVar[str] = "prioritised replay buffer"

    @foreign_arguments(ARGUMENTS, counts_positional=False)
    def __init__(
        self,
        capacity: int,
        seed: int = 0,
        spec: Mapping[str, Spec] | None = None,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_end: float = 1.0,
        beta_samples: int = 100_000,
        eps: float = 1e-6,
        lag: int = 0,
        share_frames: bool = False,
    ) -> None:
        for name, value in {"alpha": alpha, "beta": beta, "beta_end": beta_end}.items():
            if not 0 <= value <= 1:
                raise ValueError(f"PrioritizedReplayBuffer({name}={value}): expected a number in [0, 1].")
        if not 0 < eps <= 1:
            raise ValueError(f"PrioritizedReplayBuffer(eps={eps}): expected a number in (0, 1].")
        if beta_samples < 1:
            raise ValueError(f"PrioritizedReplayBuffer(beta_samples={beta_samples}): expected 1 or more.")
        if lag not in (0, 1):
            raise ValueError(f"PrioritizedReplayBuffer(lag={lag!r}): expected 0 or 1.")
        self._alpha, self._eps = float(alpha), float(eps)
        self._beta, self._beta_end, self._beta_samples = float(beta), float(beta_end), beta_samples
        self.lag = int(lag)
        """Number of batches that a learner draws before the priorities of the current batch are updated."""
        self._highest = 1.0
        self._sampled = 0
        self._tree = SumTree(0)
        super().__init__(capacity, seed, spec, share_frames=share_frames)

    @property
    def beta(self) -> float:
        """The exponent of the next batch's weights."""
        share = min(1.0, self._sampled / self._beta_samples)
        return self._beta + share * (self._beta_end - self._beta)

    @beta.setter
    def beta(self, value: float) -> None:
        raise AttributeError(
            f"beta={value!r} of a {type(self).__name__}: it is computed, and goes linearly from beta to beta_end over "
            "beta_samples batches. Pass these three when you make the buffer; beta_end=beta keeps it constant."
        )

    def bytes_for(self, spec: Spec) -> int:
        """Bytes of a full buffer with transitions of this spec, including priorities."""
        return super().bytes_for(spec) + SumTree.bytes_for(self.capacity)

    def _allocate(self, spec: Spec) -> None:
        for name in _GIVEN:
            if isinstance(spec, Mapping) and name in spec:
                raise ValueError(
                    f"a prioritised replay buffer adds {name!r} to each batch: rename this leaf of the transitions."
                )
        super()._allocate(spec)
        self._tree = SumTree(self.capacity)

    @foreign_arguments(PUSH_ARGUMENTS, counts_positional=False)
    def push(self, batch: Pushed) -> None:
        """Add transitions, overwriting the oldest and their priorities.

        Args:
            batch: as for ReplayBuffer; optionally with a leaf `priority` [N].

        Raises:
            ValueError: leaves differ from the stored ones, a priority is negative or not finite, or their number differs from
                the number of transitions. Nothing is added.
        """
        rows: Any = named_rows(batch)
        if isinstance(rows, Mapping) and "priority" in rows:
            given: Any = as_array(rows["priority"], np.float64)
            rows = {name: row for name, row in rows.items() if name != "priority"}
            count = len(first_leaf(rows)) if rows else 0
            if given.shape != (count,):
                raise ValueError(f"push() of {count} transitions got priority of shape {given.shape}, expected ({count},).")
            highest = _require_priorities(given, "push()")
        else:
            given = highest = self._highest
        where = self._store(rows)
        self._highest = max(self._highest, highest)
        value: Any = self._scaled(given)
        if isinstance(where, slice):
            self._tree.fill(where.start, where.stop, value)
        else:
            self._tree.put(where, value[-len(where) :] if np.ndim(value) else value)

    def draw(self, size: int) -> Draw:
        """Draw the transitions of the next batch by priority, with weight and index.

        Args:
            size: number of transitions.

        Raises:
            ValueError: the buffer is empty, or the size is negative.
        """
        self._require_some(size)
        where = self.rng.random(size)
        where += multiples(size, 1)
        where /= size
        index, value = self._tree.draw_with_values(where)
        # N and the total cancel; the largest weight belongs to the smallest priority.
        weight = (value[value.argmin()] / value) ** self.beta if size else value
        self._sampled += 1
        return Draw(index, {"weight": torch.from_numpy(weight.astype(np.float32)), "index": torch.from_numpy(index)})

    def update_priority(self, index: Any, priority: Any) -> None:
        """Update priorities of transitions; for repeated ones, the last value counts.

        Args:
            index: the leaf index of the batch. [B] tensor or array of integers.
            priority: absolute TD error or another measure, finite and >= 0. [B] tensor or array.

        Raises:
            ValueError: a priority is negative or not finite, or the lengths differ. Nothing is changed.
            IndexError: there is no transition at an index. Nothing is changed.
            TypeError: an index is not an integer.
        """
        index, priority = as_array(index), as_array(priority, np.float64)
        if index.shape != priority.shape or index.ndim != 1:
            raise ValueError(
                f"update_priority() wants index [B] and priority [B], got shapes {index.shape} and {priority.shape}."
            )
        if not len(index):
            return
        if index.dtype != np.int64:
            index = _as_whole_numbers(index)
        far = index.view(np.uint64).argmax()  # negative numbers become very large; and argmax is faster than max
        if not 0 <= index[far] < self._size:
            wrong = index[(index < 0) | (index >= self._size)][0]
            raise IndexError(
                f"update_priority() got index {wrong}, but the buffer holds {self._size} transitions, counted from 0: pass "
                "batch.index."
            )
        self._highest = max(self._highest, _require_priorities(priority, "update_priority()", index))
        self._tree.put(index, self._scaled(priority))

    def _scaled(self, priority: Any) -> Any:
        return (priority + self._eps) ** self._alpha

    def clear(self) -> None:
        """Remove all transitions and priorities; the memory stays allocated."""
        super().clear()
        self._tree.fill(0, self.capacity, 0.0)

    def _state(self, columns: Any) -> dict[str, Any]:
        return {
            **super()._state(columns),
            "alpha": self._alpha,
            "scaled": torch.from_numpy(self._tree.values[: self._size].copy()),
            "highest": self._highest,
            "sampled": self._sampled,
        }

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        checked, kind = super()._checked(state), self._CALLED
        if state["alpha"] != self._alpha:
            raise ValueError(
                f"a state with alpha={state['alpha']} does not fit a buffer with alpha={self._alpha}: make the buffer with "
                f"alpha={state['alpha']}."
            )
        scaled, size = state["scaled"], checked["size"]
        if not isinstance(scaled, torch.Tensor) or scaled.dtype != torch.float64 or scaled.shape != (size,):
            found = f"{scaled.dtype} {tuple(scaled.shape)}" if isinstance(scaled, torch.Tensor) else type(scaled).__name__
            raise state_error(kind, "scaled", found, f"a tensor of float64 ({size},), a priority for each transition")
        least, most = (0.0, self._scaled(_LARGEST) * (1 + 1e-9))
        wrong = ~((scaled > least) & (scaled <= most))  # nan is neither
        if wrong.any():
            place = int(wrong.to(torch.uint8).argmax())
            raise state_error(kind, f"scaled[{place}]", scaled[place].item(), "a priority that is finite and above 0")
        highest = state["highest"]
        if not isinstance(highest, (int, float)) or not 0 < highest <= _LARGEST:
            raise state_error(kind, "highest", highest, "the largest priority so far, finite and above 0")
        sampled = require_integer(state, "sampled", kind, 0)
        return {**checked, "scaled": scaled.numpy(force=True), "highest": float(highest), "sampled": sampled}

    def _restore(self, checked: Mapping[str, Any]) -> None:
        super()._restore(checked)
        if self._columns is not None:
            self._tree.fill(0, self._size, checked["scaled"])
            self._tree.fill(self._size, self.capacity, 0.0)
        self._highest, self._sampled = checked["highest"], checked["sampled"]


def _require_priorities(priority: Floats, call: str, index: Places | None = None) -> float:
    """The largest priority, 0 if there are none; raises an error for invalid priorities."""
    if not len(priority):
        return 0.0
    highest = float(priority[priority.argmax()])
    if not (priority[priority.argmin()] >= 0 and highest <= _LARGEST):  # nan is neither
        place = int((~((priority >= 0) & (priority <= _LARGEST))).argmax())
        raise ValueError(
            f"{call}: the priority of index {place if index is None else index[place]} is {priority[place]}, expected a number "
            f"from 0 to {_LARGEST:g}, such as the absolute TD error."
        )
    return highest


def _as_whole_numbers(index: Any) -> Any:
    if index.dtype.kind not in "iu":
        raise TypeError(f"update_priority() wants integers as index, got {index.dtype}: pass batch.index.")
    return index.astype(np.int64)
