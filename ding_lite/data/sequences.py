"""Sequences: rollouts split into sequences of equal length, each with its initial recurrent state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ding_lite.basics import arrays, base_state, plain, unflatten
from ding_lite.data.column_arrays import to_objects
from ding_lite.data.column_names import STATE_IN
from ding_lite.data.rollouts import Trajectories
from ding_lite.data.state_checks import require_state, state_error
from ding_lite.data.trees import flatten, holds_objects, map_leaves


def cut_sequences(trajectories: Trajectories, length: int, overlap: int = 0) -> dict[str, Any]:
    """Each environment's steps, split into sequences of `length`: N = B * (T - overlap) / (length - overlap) sequences.

    Args:
        trajectories: T steps of B environments.
        length: steps of a sequence.
        overlap: steps that a sequence shares with the previous one, for instance to burn in a recurrent state.

    Returns:
        Copies: arrays [N, length, ...] by leaf name, the oldest sequences of all environments first; and `valid`
        [N, length] bool, if some steps are only a reset. The columns `state_in_0`, `state_in_1`, ... hold only the first step
        of each sequence, [N, ...].

    Raises:
        ValueError: T cannot be split into whole sequences, or overlap is not in 0 to length - 1.

    Reference:
        Kapturowski et al. (2019), "Recurrent Experience Replay in Distributed Reinforcement Learning", section 2.3.

    Example:
        >>> rollout = Trajectories({"reward": np.arange(8.0).reshape(4, 2), "state_in_0": np.arange(8).reshape(4, 2)})
        >>> pieces = cut_sequences(rollout, 2)
        >>> pieces["reward"].tolist(), pieces["state_in_0"].tolist()
        ([[0.0, 2.0], [1.0, 3.0], [4.0, 6.0], [5.0, 7.0]], [0, 1, 4, 5])
    """
    if not 0 <= overlap < length:
        raise ValueError(f"cut_sequences(length={length}, overlap={overlap}): expected 0 <= overlap < length.")
    num_steps, stride = trajectories.num_steps, length - overlap
    if num_steps < length or (num_steps - overlap) % stride:
        raise ValueError(
            f"{num_steps} steps cannot be cut into sequences of {length} with an overlap of {overlap}: steps - overlap must "
            f"be a positive multiple of {stride}. Set policy.collect.n_sample: a rollout has n_sample / number of environments "
            "steps, and a SequenceWindow adds its own before them."
        )
    begins = np.arange(0, num_steps - overlap, stride)
    steps = begins[:, None] + np.arange(length)
    columns = trajectories.columns
    if trajectories.valid is not None:
        columns = {**columns, "valid": trajectories.valid}
    places = {name: begins if name.startswith(STATE_IN) else steps for name in columns}
    return {name: map_leaves(partial(_cut, at=places[name]), column) for name, column in columns.items()}


def _cut(leaf: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows of a column [T, B, ...]: [P] of them as [P * B, ...], or [P, L] as [P * B, L, ...]."""
    cut = leaf[at]
    if at.ndim == 2:
        cut = cut.swapaxes(1, 2)
    return np.ascontiguousarray(cut).reshape(cut.shape[0] * cut.shape[1], *cut.shape[2:])


class SequenceWindow:
    """Keeps each environment's last steps for the next rollout, so that sequences may begin in the previous one.

    Args:
        overlap: number of steps of each environment.
        stride: steps from the start of one sequence to the start of the next. If given, sequences are also cut from the first
            rollout, as many as fit; else it is only the beginning of the sequences of the second rollout.

    Raises:
        ValueError: overlap < 0, or stride < 1.

    Example:
        >>> window = SequenceWindow(2)
        >>> window.prepend(Trajectories({"reward": np.arange(3.0).reshape(3, 1)})) is None
        True
        >>> window.prepend(Trajectories({"reward": np.arange(3.0, 6).reshape(3, 1)})).columns["reward"][:, 0].tolist()
        [1.0, 2.0, 3.0, 4.0, 5.0]
        >>> rollout = SequenceWindow(1, stride=2).prepend(Trajectories({"reward": np.arange(6.0).reshape(6, 1)}))
        >>> rollout.columns["reward"][:, 0].tolist()
        [1.0, 2.0, 3.0, 4.0, 5.0]
    """

    def __init__(self, overlap: int, stride: int | None = None) -> None:
        if overlap < 0:
            raise ValueError(f"SequenceWindow(overlap={overlap}): expected 0 or more.")
        if stride is not None and stride < 1:
            raise ValueError(f"SequenceWindow(stride={stride}): expected 1 or more.")
        self.overlap, self.stride = overlap, stride
        self._kept: Trajectories | None = None

    def prepend(self, trajectories: Trajectories) -> Trajectories | None:
        """This rollout after the `overlap` steps before it, as one rollout of `overlap + T` steps.

        If an environment begins an episode in this rollout although the one before has not ended, for example after a reset of
        the environments between two runs, the last step before it is marked as truncated.

        Returns:
            None while there are fewer than `overlap` earlier steps. With a stride, then the last overlap + k * stride steps,
            with k as large as possible, so that the sequences of the next rollout follow; None if k is 0.

        Raises:
            ValueError: the leaves or the number of environments differ from the rollout before.
        """
        kept, self._kept = self._kept, None
        joined = trajectories if kept is None else _joined(_cut_short(kept, trajectories.begins), trajectories)
        self._kept = _last(joined, self.overlap)
        if joined.num_steps >= trajectories.num_steps + self.overlap:
            return joined
        if self.stride is None:
            return None
        pieces = (joined.num_steps - self.overlap) // self.stride
        return _last(joined, self.overlap + pieces * self.stride) if pieces > 0 else None

    def state_dict(self) -> dict[str, Any]:
        """The steps that precede the next rollout."""
        if self._kept is None:
            return {"columns": None, "valid": None}
        leaves = [[list(path), _to_plain(leaf)] for path, leaf in flatten(self._kept.columns)]
        return {"columns": leaves, "valid": plain(self._kept.valid)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. A refused state changes nothing.

        Raises:
            TypeError: the state is not a mapping, for example the path of a checkpoint.
            ValueError: not a possible state of a window of this overlap.
        """
        state = base_state(self, state, ("columns", "valid"))
        require_state(state, "SequenceWindow", ("columns", "valid"))
        self._kept = None if state["columns"] is None else self._checked(state)

    def _checked(self, state: Mapping[str, Any]) -> Trajectories:
        try:
            leaves = {tuple(path): _from_plain(leaf) for path, leaf in state["columns"]}
            lead = {name: leaf.shape[:2] for name, leaf in leaves.items()}
        except (TypeError, ValueError, KeyError, AttributeError):
            found = state["columns"]
            raise state_error("SequenceWindow", "columns", found, "a list of [path, tensor or objects with shape]") from None
        if not lead or any(len(shape) < 2 or shape != next(iter(lead.values())) for shape in lead.values()):
            named = {"/".join(path): shape for path, shape in lead.items()}
            raise state_error("SequenceWindow", "columns", named, "shapes that begin with the same [steps, environments]")
        shape = next(iter(lead.values()))
        if not 0 < shape[0] <= self.overlap:
            raise state_error("SequenceWindow", "steps", shape[0], f"1 to {self.overlap}, the overlap of this window")
        valid = arrays(state["valid"])
        if valid is not None and (getattr(valid, "dtype", None) != np.bool_ or valid.shape != shape):
            found = f"{valid.dtype} {valid.shape}" if isinstance(valid, np.ndarray) else valid
            raise state_error("SequenceWindow", "valid", found, f"None or bool {shape}")
        return Trajectories(unflatten(leaves), valid)


def _joined(earlier: Trajectories, later: Trajectories) -> Trajectories:
    before, after = dict(flatten(earlier.columns)), dict(flatten(later.columns))
    looks = [{"/".join(path): leaf.shape[1:] for path, leaf in leaves.items()} for leaves in (before, after)]
    if looks[0] != looks[1]:
        raise ValueError(
            f"a SequenceWindow got a rollout with the leaves {looks[1]}, the one before had {looks[0]}: pass rollouts with the "
            "same leaves and number of environments."
        )
    columns = {name: map_leaves(_behind, earlier.columns[name], column) for name, column in later.columns.items()}
    if earlier.valid is None and later.valid is None:
        return Trajectories(columns)
    valid = [np.ones((one.num_steps, one.num_envs), np.bool_) if one.valid is None else one.valid for one in (earlier, later)]
    return Trajectories(columns, np.concatenate(valid))


def _cut_short(kept: Trajectories, begins: np.ndarray[Any, Any] | None) -> Trajectories:
    """Steps whose last ones are truncated in environments that begin an episode after them.

    A last row that is only a reset needs no mark: the step after it is the first of an episode in any case.

    Args:
        kept: the steps.
        begins: [B] bool, see `Trajectories.begins`.
    """
    if begins is None or not {"terminated", "truncated"} <= kept.columns.keys():
        return kept
    terminated, truncated = kept.columns["terminated"], kept.columns["truncated"]
    is_cut = begins & ~terminated[-1] & ~truncated[-1]
    if kept.valid is not None:
        is_cut &= kept.valid[-1]
    if not is_cut.any():
        return kept
    truncated = truncated.copy()  # after `load_state_dict`, it may be an array of the loaded state
    truncated[-1] |= is_cut
    return Trajectories({**kept.columns, "truncated": truncated}, kept.valid)


def _behind(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([before, after])


def _last(trajectories: Trajectories, count: int) -> Trajectories | None:
    """Copies, so that a few steps do not keep a whole rollout in memory."""
    first = max(0, trajectories.num_steps - count)
    if first == trajectories.num_steps:
        return None
    columns = map_leaves(lambda leaf: leaf[first:].copy(), trajectories.columns)
    return Trajectories(columns, None if trajectories.valid is None else trajectories.valid[first:].copy())


def _to_plain(column: np.ndarray[Any, Any]) -> Any:
    if not holds_objects(column):
        return plain(column)
    return {"shape": list(column.shape), "objects": plain(column.ravel().tolist())}


def _from_plain(saved: Any) -> Any:
    if not isinstance(saved, Mapping):
        return arrays(saved)
    return to_objects(saved["objects"]).reshape(saved["shape"])
