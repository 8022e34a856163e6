"""Rollouts: T steps of B environments as arrays, and as a sequence of transitions."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import torch

from ding_lite.data.column_arrays import Spec, allocate, as_flags, may_lose, require_held, spec_like
from ding_lite.data.column_names import FLAGS, VALID
from ding_lite.data.foreign_columns import ADVICE, RENAMED
from ding_lite.data.trees import Tree, flatten, holds_objects, map_leaves, merge_leading_dims, nested, view

RolloutOrder: TypeAlias = Literal["whole", "pieces", "none"]
"""What is known about the order of the rows of a rollout; see `Trajectories.order`."""


class RolloutArrays:
    """Arrays for one rollout, filled step by step: [T + 1, B, ...] observations, [T, B, ...] of everything else.

    A new one is made for each rollout, so that earlier results are never overwritten.

    Args:
        num_steps: T.
        num_envs: B.
        obs_spec: layout of one observation.
        limits: minimum and maximum of each element, by column; see `Trajectories.with_limits`.
    """

    def __init__(self, num_steps: int, num_envs: int, obs_spec: Spec, limits: Mapping[str, Any] | None = None) -> None:
        self.num_steps, self.num_envs, self.limits = num_steps, num_envs, limits or {}
        self.obs = allocate(obs_spec, num_steps + 1, num_envs)
        self._flat_obs = not isinstance(self.obs, dict)
        self.reward = np.empty((num_steps, num_envs), np.float32)
        self.terminated = np.empty((num_steps, num_envs), np.bool_)
        self.truncated = np.empty((num_steps, num_envs), np.bool_)
        self.valid: np.ndarray[Any, Any] | None = None
        self.begins: np.ndarray[Any, Any] | None = None
        """See `Trajectories.begins`."""
        self.outputs: dict[str, Any] = {}
        self._looks: dict[str, tuple[Any, Any]] = {}  # shape and dtype of each output that is a single array
        self._finals: list[tuple[int, int, Any]] = []

    def obs_at(self, t: int) -> Any:
        """Views of the observations [B, ...] before step t, nested, for reading and writing."""
        return self.obs[t] if self._flat_obs else map_leaves(lambda column: column[t], self.obs)

    def resize(self, num_steps: int) -> None:
        """Set the number of steps; later ones are dropped. Do not write to earlier results of `obs_at` afterwards."""
        self.num_steps = num_steps
        self.obs = map_leaves(lambda column: _resized(column, num_steps + 1), self.obs)
        self.outputs = {
            name: map_leaves(lambda column: _resized(column, num_steps), column) for name, column in self.outputs.items()
        }
        self.reward, self.terminated, self.truncated = (
            _resized(column, num_steps) for column in (self.reward, self.terminated, self.truncated)
        )
        if self.valid is not None:
            kept = len(self.valid)
            self.valid = _resized(self.valid, num_steps)
            self.valid[kept:] = True

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
            t: number of the step, from 0.
            outputs: outputs of the policy, arrays [B, ...], nested like the spaces: action, log_prob, ... The first step fixes
                the columns; text is kept as objects.
            reward, terminated, truncated: [B].
            final_obs: final observations by environment, if the row in `obs_at(t + 1)` is of the next episode.
            valid: [B] bool, False for steps that are only a reset; None if all are real.

        Raises:
            ValueError: an output does not have one row per environment, differs in shape or kind of dtype from earlier steps,
                is new, or is missing.
        """
        for name, output in outputs.items():
            look = self._looks.get(name)
            if look is None or output.shape != look[0] or output.dtype != look[1]:
                self._fit(t, name, output)
            column = self.outputs[name]
            if type(column) is dict:
                map_leaves(lambda inner, new: inner.__setitem__(t, new), column, output)
            else:
                column[t] = output
        if len(outputs) != len(self.outputs):
            missing = ", ".join(sorted(self.outputs.keys() - outputs.keys()))
            raise ValueError(
                f"the policy's output {missing} is missing in step {t} of a rollout, but was in earlier steps: return the same "
                "outputs in every step."
            )
        self.reward[t], self.terminated[t], self.truncated[t] = reward, terminated, truncated
        if final_obs:
            self._finals += [(t, index, obs) for index, obs in final_obs.items()]
        if valid is not None:
            if self.valid is None:
                self.valid = np.ones((self.num_steps, self.num_envs), np.bool_)
            self.valid[t] = valid

    def _fit(self, t: int, name: str, output: Any) -> None:
        """Create the column if it is missing; raise an error if the output does not fit it."""
        leaves = dict(flatten(output))
        for path, leaf in leaves.items():
            if leaf.shape[:1] != (self.num_envs,):
                raise ValueError(
                    f"the policy's output {'/'.join((name, *path))} has the shape {leaf.shape} in step {t} of a rollout, "
                    f"expected one row for each of {self.num_envs} environments."
                )
        if name not in self.outputs:
            if t:  # its earlier rows would be uninitialised
                raise ValueError(
                    f"the policy's output {name} is new in step {t} of a rollout: return the same outputs in every step."
                )
            self.outputs[name] = allocate(spec_like(output), self.num_steps, self.num_envs)
            if type(output) is np.ndarray:
                self._looks[name] = output.shape, output.dtype
            return
        columns = dict(flatten(self.outputs[name]))
        if leaves.keys() != columns.keys():
            had, has = (sorted("/".join(path) for path in parts) for parts in (columns, leaves))
            raise ValueError(
                f"the policy's output {name} has the parts {has} in step {t} of a rollout, but {had} in earlier steps: return "
                "the same parts in every step."
            )
        for path, leaf in leaves.items():
            column = columns[path]
            if leaf.shape != column.shape[1:] or not np.can_cast(leaf.dtype, column.dtype, "same_kind"):
                raise ValueError(
                    f"the policy's output {'/'.join((name, *path))} is {leaf.dtype} {leaf.shape} in step {t} of a rollout, but "
                    f"was {column.dtype} {column.shape[1:]} in earlier steps: return the same dtype and shape in every step."
                )
            if may_lose(leaf.dtype, column.dtype):
                require_held(leaf, column.dtype, f"the policy's output {'/'.join((name, *path))}")

    def trajectories(self, **columns: np.ndarray[Any, Any]) -> Trajectories:
        """The recorded rollout with these extra columns [T, B, ...]; do not use this buffer afterwards."""
        next_obs = map_leaves(lambda column: column[1:].copy(), self.obs)
        for t, index, final in self._finals:  # where the next step begins with the first observation of another episode
            map_leaves(lambda column, leaf, row=(t, index): column.__setitem__(row, leaf), next_obs, final)
        columns_so_far = {
            "obs": map_leaves(lambda column: column[:-1], self.obs),
            **self.outputs,
            "reward": self.reward,
            "next_obs": next_obs,
            "terminated": self.terminated,
            "truncated": self.truncated,
            **columns,
        }
        made = Trajectories(columns_so_far, self.valid)
        made.begins, made.limits = self.begins, self.limits
        return made


def _resized(column: np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any]:
    if rows <= len(column):
        return column[:rows]
    larger = np.empty((rows, *column.shape[1:]), column.dtype)
    larger[: len(column)] = column
    return larger


class TreeSequence(Sequence[Tree]):
    """A sequence of trees over arrays of a fixed size; `+` and slices return lists."""

    _name, _items = "ctx.trajectories", "transitions"

    def __add__(self, others: Sequence[Tree]) -> list[Tree]:
        return [*self, *others]

    def __radd__(self, others: Sequence[Tree]) -> list[Tree]:
        return [*others, *self]

    def __getattr__(self, name: str) -> Any:
        kind = type(self).__name__
        if name in _OF_LISTS:
            raise AttributeError(
                f"{kind} has no {name!r}, because its arrays have a fixed size: make it a list first, {self._name} = "
                f"list({self._name}), which middleware accepts too."
            )
        columns = self.column_names()
        column = name if name in columns else RENAMED.get(name)
        if column in columns:
            text = f"it is a sequence of {self._items}. The column is {self._name}.batch.{column}."
        elif name in ADVICE:
            text = f"{ADVICE[name]} The columns are in {self._name}.batch."
        else:
            raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
        raise AttributeError(f"{kind} has no {name!r}: {text}", name=name, obj=self)

    def column_names(self) -> Collection[str]:
        """Names of the columns, without a change of how they are stored."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the cached batch, which a copy would hold beside its columns instead of as a view of them."""
        return {name: value for name, value in vars(self).items() if name != "batch"}

    def _number(self, index: Any) -> int:
        """The number of an item.

        Raises:
            TypeError: the index is no integer.
        """
        try:
            if isinstance(index, bool):
                raise TypeError
            return operator.index(index)
        except TypeError:
            name = self._name
            column = index if isinstance(index, str) else "reward"
            raise TypeError(
                f"{name}[{index!r:.60}] has an index of type {type(index).__name__}, expected an integer or a slice. Several "
                f"{self._items} are [{name}[i] for i in ...], and a column is {name}.batch.{column}."
            ) from None

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            f"{self._name}[{index!r}] cannot be replaced: write to its leaves, {self._name}[{index!r}].reward = ..., or make "
            f"it a list first, {self._name} = list({self._name})."
        )

    def __delitem__(self, index: Any) -> None:
        raise TypeError(f"{self._name}[{index!r}] cannot be deleted: make it a list first, {self._name} = list({self._name}).")


_OF_LISTS = frozenset(dir(list)) - frozenset(dir(TreeSequence)) - {"__iadd__", "__mul__", "__rmul__", "__imul__"}


class Trajectories(TreeSequence):
    """The transitions of a rollout: a [T, B, ...] batch, and a sequence of single transitions, environment by environment.

    As a sequence it has all steps of environment 0 in order, then those of environment 1, and so on. Steps that are only a
    reset are in the batch, marked in `valid`, but not in the sequence.

    A transition, and the batch, are views of the columns: `t.reward = 0` and `t.reward.fill_(0)` write into them.

    Args:
        columns: arrays [T, B, ...] by leaf name, nested like the spaces. Not copied, except read-only arrays, and terminated
            and truncated [T, B] if they are numbers 0 and 1, which become bool.
        valid: [T, B] bool, False for steps that are only a reset; None if all are real.

    Raises:
        ValueError: there are no columns, they differ in T or B, a flag is neither 0 nor 1, or one is named valid.

    Example:
        >>> rollout = Trajectories({"reward": np.arange(6.0).reshape(3, 2)})
        >>> len(rollout), [int(t.reward) for t in rollout], rollout.end_idx
        (6, [0, 2, 4, 1, 3, 5], [2, 5])
    """

    def __init__(self, columns: Mapping[str, Any], valid: np.ndarray[Any, Any] | None = None) -> None:
        self.columns, lead = checked_columns(columns, ("T", "B"), "Trajectories()")
        """[T, B, ...] arrays by leaf name."""
        if len(lead) < 2:
            raise ValueError("Trajectories() got no columns: give at least one array [T, B, ...].")
        self.num_steps, self.num_envs = int(lead[0]), int(lead[1])
        self.order: RolloutOrder = "whole"
        """What is known about the order of the rows: "whole" rollouts, "pieces" of consecutive steps, or "none" for single
        transitions [1, N]. See `rollout_from_list`."""
        self.valid = None if valid is None else as_flags("Trajectories()", "valid", np.asarray(valid), lead)
        """[T, B] bool, or None if every step is real."""
        self.begins: np.ndarray[Any, Any] | None = None
        """[B] bool: whether the first real step of an environment is the first one of an episode; None if unknown. If rows are
        agents, it is False for an agent that joins in a later step of the rollout."""
        self.limits: Mapping[str, Any] = {}
        """Minimum and maximum of each element, by column; see `with_limits`."""
        self.has_scaled_rewards = False
        """Whether reward_normalizer has scaled the rewards."""

    @cached_property
    def batch(self) -> Tree:
        """The [T, B, ...] tree; with a leaf `valid` [T, B] bool if some steps are only a reset."""
        leaves = self.columns if self.valid is None else {**self.columns, VALID: self.valid}
        return view(leaves, "a rollout", limits=self.limits)

    def with_limits(self, limits: Mapping[str, Any]) -> Trajectories:
        """Set limits and return this object. Assigning a number outside of them to a transition or the batch is an error.

        Changes of a tensor in place, such as `t.action.fill_(99)` and `batch.action[0, 0] = 99`, are not checked.

        Args:
            limits: (low, high) by column, nested like the column, see `ding_lite.envs.column_limits`.
        """
        self.limits = limits
        self.__dict__.pop("batch", None)
        return self

    @property
    def end_idx(self) -> list[int]:
        """Index of the last transition of each environment in this sequence; environments without transitions have none."""
        if self.valid is None:
            return list(range(self.num_steps - 1, self.num_steps * self.num_envs, self.num_steps))
        counts = self.valid.sum(axis=0)
        return (counts.cumsum() - 1)[counts > 0].tolist()  # type: ignore[no-any-return]

    def rows(self) -> dict[str, Any]:
        """Every transition once, [N, ...] by leaf name, time-major; views if all steps are real."""
        if self.valid is None:
            return {name: map_leaves(merge_leading_dims, column) for name, column in self.columns.items()}
        keep = self.valid.reshape(-1).nonzero()[0]
        return {
            name: map_leaves(lambda leaf: merge_leading_dims(leaf).take(keep, 0), column)
            for name, column in self.columns.items()
        }

    def with_columns(self, **columns: Any) -> Trajectories:
        """The same transitions with these columns added or replaced. Nothing is copied.

        Args:
            **columns: arrays or CPU tensors [T, B, ...], nested like the spaces. `valid` may be given as it is in `batch`.

        Raises:
            ValueError: a column does not have T steps of B environments, or as for the constructor.
        """
        if self.valid is not None and VALID in columns and np.array_equal(columns[VALID], self.valid):
            del columns[VALID]
        for name, column in columns.items():
            for path, leaf in flatten(column):
                if tuple(np.shape(leaf)[:2]) != (self.num_steps, self.num_envs):
                    raise ValueError(
                        f"with_columns() got the column {'/'.join((name, *path))} of shape {tuple(np.shape(leaf))} for a "
                        f"rollout of {self.num_steps} steps of {self.num_envs} environments, expected [{self.num_steps}, "
                        f"{self.num_envs}, ...]."
                    )
        added = {name: map_leaves(np.asarray, nested(column)) for name, column in columns.items()}
        made = Trajectories({**self.columns, **added}, self.valid)
        made.order, made.begins, made.limits = self.order, self.begins, self.limits
        made.has_scaled_rewards = self.has_scaled_rewards
        return made

    def column_names(self) -> Collection[str]:
        """Names of the columns, without a change of how they are stored."""
        columns: Mapping[str, Any] = vars(self).get("columns", {})
        return columns

    def _places(self) -> np.ndarray[Any, Any]:
        """(t, b) of each transition, in the order of the sequence."""
        real = np.ones((self.num_envs, self.num_steps), np.bool_) if self.valid is None else self.valid.T
        return np.argwhere(real)[:, ::-1]

    def __len__(self) -> int:
        return self.num_steps * self.num_envs if self.valid is None else int(np.count_nonzero(self.valid))

    @overload
    def __getitem__(self, index: int) -> Tree: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tree]: ...
    def __getitem__(self, index: int | slice) -> Tree | list[Tree]:
        if isinstance(index, slice):
            return [self._transition(t, b) for t, b in self._places()[index]]
        return self._transition(*self._places()[self._number(index)])

    def __iter__(self) -> Iterator[Tree]:
        return (self._transition(t, b) for t, b in self._places())

    def _transition(self, t: int, b: int) -> Tree:
        def element(leaf: Any) -> Any:
            return leaf[t, b, ...] if holds_objects(leaf) else torch.from_numpy(leaf[t, b, ...])  # an array [] is a view too

        return view(map_leaves(element, self.columns), "a rollout", (self, b, t), self.limits)


def checked_columns(columns: Mapping[str, Any], dims: tuple[str, ...], who: str) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The same columns with writable arrays and flags of bool; and their first dimensions, () if there are no leaves.

    Args:
        columns: arrays by leaf name, nested like the spaces.
        dims: names of the first dimensions, which all columns share.
        who: the caller, for messages.

    Raises:
        ValueError: the columns differ in these dimensions, a flag is neither 0 nor 1, or one is named valid.
    """
    made = {name: _writable(column) for name, column in columns.items()}
    lead, first = None, ""
    for path, leaf in flatten(made):
        shape = tuple(leaf.shape)
        if lead is None and len(shape) >= len(dims):
            lead, first = shape[: len(dims)], "/".join(map(str, path))
        if shape[: len(dims)] != lead:
            beside = f", and {first} has {lead}: give all columns the same" if first else ""
            raise ValueError(
                f"{who} got {'/'.join(map(str, path))} of shape {shape}, expected [{', '.join(dims)}, ...]{beside}."
            )
    for name in FLAGS:
        if lead is not None and name in made:
            made[name] = as_flags(who, name, np.asarray(made[name]), lead)
    if VALID in made:
        raise ValueError(
            f"{who} got a column {VALID!r}, which batches use for rows that are no steps: choose another name. To leave steps "
            "out, choose the others, ctx.trajectories = [t for t in ctx.trajectories if ...]."
        )
    return made, lead or ()


def _writable(column: Any) -> Any:
    """The same column with writable arrays: read-only ones are copied."""
    if all(isinstance(leaf, np.ndarray) and leaf.flags.writeable for _, leaf in flatten(column)):
        return column
    return map_leaves(lambda leaf: np.require(leaf, requirements="W"), column)


RolloutBuffer = RolloutArrays  # its name in earlier versions
Order = RolloutOrder  # its name in earlier versions
