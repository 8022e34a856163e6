"""Rollouts: T steps of B environments in arrays, and the sequence of transitions that they are.

Room: ding_lite.data, floor 1. Imports the room's trees and columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import torch

from ding_lite.data.columns import Spec, allocate, spec_like
from ding_lite.data.trees import Tree, first_leaf, map_leaves, tree


class RolloutBuffer:
    """Arrays for one rollout, filled step by step: [T + 1, B, ...] observations, [T, B, ...] of everything else.

    Made anew for each rollout, so that what was handed out is never overwritten.
    """

    def __init__(self, num_steps: int, num_envs: int, obs_spec: Spec) -> None:
        self.num_steps, self.num_envs = num_steps, num_envs
        self.obs = allocate(obs_spec, num_steps + 1, num_envs)
        self._flat_obs = not isinstance(self.obs, dict)
        self.reward = np.empty((num_steps, num_envs), np.float32)
        self.terminated = np.empty((num_steps, num_envs), np.bool_)
        self.truncated = np.empty((num_steps, num_envs), np.bool_)
        self.valid: np.ndarray[Any, Any] | None = None
        self.outputs: dict[str, Any] = {}
        self._finals: list[tuple[int, int, Any]] = []

    def obs_at(self, t: int) -> Any:
        """Observations [B, ...] before step t, nested: views to write to and to act on."""
        return self.obs[t] if self._flat_obs else map_leaves(lambda column: column[t], self.obs)

    def add(
        self,
        t: int,
        outputs: Mapping[str, Any],
        reward: np.ndarray[Any, Any],
        terminated: np.ndarray[Any, Any],
        truncated: np.ndarray[Any, Any],
        final_obs: Mapping[int, Any],
        valid: np.ndarray[Any, Any] | None,
    ) -> None:
        """Record step t; the observations after it are already in `obs_at(t + 1)`.

        Args:
            outputs: what the policy gave, each [B, ...]: action, log_prob, ...
            final_obs: by environment, where the row in `obs_at(t + 1)` is already the next episode's.
            valid: [B] bool, or None for all.
        """
        for name, output in outputs.items():
            column = self.outputs.get(name)
            if column is None:
                column = self.outputs[name] = allocate(spec_like(output), self.num_steps, self.num_envs)
            if type(column) is dict:
                map_leaves(lambda inner, new: inner.__setitem__(t, new), column, output)
            else:
                column[t] = output
        self.reward[t], self.terminated[t], self.truncated[t] = reward, terminated, truncated
        if final_obs:
            self._finals += [(t, index, obs) for index, obs in final_obs.items()]
        if valid is not None:
            if self.valid is None:
                self.valid = np.ones((self.num_steps, self.num_envs), np.bool_)
            self.valid[t] = valid

    def trajectories(self, **columns: np.ndarray[Any, Any]) -> Trajectories:
        """What was recorded, and these columns [T, B, ...] beside it; the buffer is not to be used afterwards."""
        next_obs = map_leaves(lambda column: column[1:].copy(), self.obs)
        for t, index, final in self._finals:
            map_leaves(lambda column, leaf, row=(t, index): column.__setitem__(row, leaf), next_obs, final)
        recorded = {
            "obs": map_leaves(lambda column: column[:-1], self.obs),
            **self.outputs,
            "reward": self.reward,
            "next_obs": next_obs,
            "terminated": self.terminated,
            "truncated": self.truncated,
            **columns,
        }
        return Trajectories(recorded, self.valid)


class Trajectories(Sequence[Tree]):
    """The transitions of a rollout: a [T, B, ...] batch, and a sequence of single transitions, environment by environment.

    As a sequence it runs through environment 0 from its first step to its last, then environment 1, and so on: the piece of
    each environment is contiguous. Steps that were only a reset are in the batch, marked in `valid`, and not in the sequence.

    Args:
        columns: arrays [T, B, ...] by leaf name, nested where a space is. Not copied.
        valid: [T, B] bool, False for steps that were only a reset; None where all are real.

    Example:
        >>> rollout = Trajectories({"reward": np.arange(6.0).reshape(3, 2)})
        >>> len(rollout), [int(t.reward) for t in rollout], rollout.end_idx
        (6, [0, 2, 4, 1, 3, 5], [2, 5])
    """

    def __init__(self, columns: Mapping[str, Any], valid: np.ndarray[Any, Any] | None = None) -> None:
        self.columns: dict[str, Any] = dict(columns)
        """[T, B, ...] arrays by leaf name."""
        self.valid = valid
        """[T, B] bool, or None where every step is a real one."""
        first = first_leaf(self.columns)
        self.num_steps, self.num_envs = int(first.shape[0]), int(first.shape[1])
        self._count = self.num_steps * self.num_envs if valid is None else int(np.count_nonzero(valid))
        self._batch: Tree | None = None

    @property
    def batch(self) -> Tree:
        """The [T, B, ...] tree; with a leaf `valid` [T, B] bool where some steps were only a reset."""
        if self._batch is None:
            self._batch = tree(self.columns if self.valid is None else {**self.columns, "valid": self.valid})
        return self._batch

    @property
    def end_idx(self) -> list[int]:
        """For each environment that has any, the index of its last transition in this sequence."""
        if self.valid is None:
            return list(range(self.num_steps - 1, self.num_steps * self.num_envs, self.num_steps))
        counts = self.valid.sum(axis=0)
        return (counts.cumsum() - 1)[counts > 0].tolist()  # type: ignore[no-any-return]

    def rows(self) -> dict[str, Any]:
        """Every transition once, [N, ...] by leaf name, time-major; views where all steps are real ones."""
        if self.valid is None:
            return {name: map_leaves(_merge_lead, column) for name, column in self.columns.items()}
        keep = self.valid.reshape(-1).nonzero()[0]
        return {name: map_leaves(lambda leaf: _merge_lead(leaf).take(keep, 0), column) for name, column in self.columns.items()}

    def _places(self) -> np.ndarray[Any, Any]:
        """(t, b) of each transition, in the order of the sequence."""
        real = np.ones((self.num_envs, self.num_steps), np.bool_) if self.valid is None else self.valid.T
        return np.argwhere(real)[:, ::-1]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Tree: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tree]: ...
    def __getitem__(self, index: int | slice) -> Tree | list[Tree]:
        places = self._places()[index]
        if isinstance(index, slice):
            return [self._transition(t, b) for t, b in places]
        return self._transition(*places)

    def __iter__(self) -> Iterator[Tree]:
        return (self._transition(t, b) for t, b in self._places())

    def _transition(self, t: int, b: int) -> Tree:
        return tree(map_leaves(lambda leaf: torch.as_tensor(leaf[t, b]), self.columns))


def _merge_lead(leaf: Any) -> Any:
    return leaf.reshape(-1, *leaf.shape[2:])
