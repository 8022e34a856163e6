"""Episodes: whole episodes, as a sequence and as one padded batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np

from ding_lite.data.column_names import FLAGS, VALID
from ding_lite.data.rollouts import Trajectories, TreeSequence, checked_columns
from ding_lite.data.trees import Tree, map_leaves, view

_REPEATED = ("obs", "next_obs", "action")  # padded with the last step, because zeros may be outside of their space


class Episodes(TreeSequence):
    """E whole episodes: a sequence of batches [T_i, ...], and one time-major batch [T_max, E, ...].

    In the batch, shorter episodes are padded with rows that `valid` excludes: obs, next_obs and action repeat those of the last
    step, so that a network can process every row; everything else is zero (False, or None for objects).
    The last real row of each episode is terminated or truncated, so backward recursions such as advantages and returns stop
    there, and padding does not affect an episode.

    An episode is a tree of columns [T_i, ...], not a list: its steps are `episode[0]` to `episode[len(episode.reward) - 1]`.
    `len(episode)` is its number of columns, and iterating gives their names. `lengths[i]` is its number of steps.

    An episode is a view of the stored data: `episode.reward = 0` and `episode.reward.fill_(0)` change it. The first use of
    `batch` or `columns` copies the data into padded arrays: episodes taken before are not views of these.

    Args:
        rows: arrays [N, ...] by leaf name, nested like the spaces: all steps of the first episode, then of the second, and
            so on. Not copied, except read-only arrays, and terminated and truncated [N] if they are numbers 0 and 1, which
            become bool.
        lengths: [E] steps of each episode, integers, N in total.

    Raises:
        ValueError: the rows differ in N, an episode has no step, the sum of lengths is not N, a flag is neither 0 nor 1, or a
            column is named valid.

    Example:
        >>> episodes = Episodes({"reward": np.arange(5.0)}, [2, 3])
        >>> len(episodes), episodes[1].reward.tolist(), episodes.batch.reward.tolist()
        (2, [2.0, 3.0, 4.0], [[0.0, 2.0], [1.0, 3.0], [0.0, 4.0]])
    """

    _name, _items = "ctx.episodes", "episodes"

    def __init__(self, rows: Mapping[str, Any], lengths: Sequence[int] | np.ndarray[Any, Any]) -> None:
        made, lead = checked_columns(rows, ("N",), "Episodes()")
        self._rows: dict[str, Any] | None = made
        given, count = np.asarray(lengths).reshape(-1), int(lead[0]) if lead else 0
        if (given.size and given.dtype.kind not in "iu") or given.sum() != count or (given < 1).any():
            raise ValueError(
                f"Episodes() of {count} steps got the lengths {given.tolist()}: each must be an integer of at "
                f"least 1, and their sum must be {count}."
            )
        self.lengths = given.astype(np.int64)
        """[E] int64, steps of each episode."""
        self._ends = np.cumsum(self.lengths)
        self.limits: Mapping[str, Any] = {}
        """See `Trajectories.limits`."""

    def with_limits(self, limits: Mapping[str, Any]) -> Episodes:
        """The same object, with these limits from now on; see `Trajectories.with_limits`."""
        self.limits = limits
        self.__dict__.pop("batch", None)
        return self

    def ended(self) -> Episodes:
        """Episodes that all have an end: these, or a copy in which last steps that are neither terminated nor truncated are
        truncated."""
        columns = self.columns if self._rows is None else self._rows
        last: Any = self._ends - 1 if self._rows is not None else (self.lengths - 1, np.arange(len(self)))
        if not columns.keys() >= set(FLAGS):
            return self
        is_open = (columns["terminated"][last] == 0) & (columns["truncated"][last] == 0)
        if not is_open.any():
            return self
        rows = self.rows()
        truncated = rows["truncated"].copy()
        truncated[self._ends - 1] |= is_open
        return Episodes({**rows, "truncated": truncated}, self.lengths).with_limits(self.limits)

    def rows(self) -> dict[str, Any]:
        """Every step once, [N, ...] by leaf name, episode by episode; copied if `columns` or `batch` were used before."""
        if self._rows is not None:
            return dict(self._rows)
        real = self.valid.T
        return {name: map_leaves(lambda leaf: leaf.swapaxes(0, 1)[real], column) for name, column in self.columns.items()}

    @cached_property
    def valid(self) -> np.ndarray[Any, Any]:
        """[T_max, E] bool: which rows of the batch are steps."""
        valid: np.ndarray[Any, Any] = np.arange(self.lengths.max(initial=0))[:, None] < self.lengths
        return valid

    @cached_property
    def columns(self) -> dict[str, Any]:
        """[T_max, E, ...] arrays by leaf name, the data of `batch`."""
        begins = self._ends - self.lengths
        step = np.arange(len(self.valid))[:, None]
        row_at = begins + np.minimum(step, self.lengths - 1)
        holes = None if self.valid.all() else ~self.valid
        columns = {
            name: map_leaves(lambda leaf, repeat=name in _REPEATED: _padded(leaf, row_at, None if repeat else holes), column)
            for name, column in self.rows().items()
        }
        self._rows = None  # from now on `rows` reads the columns, so that both show every change
        return columns

    @cached_property
    def batch(self) -> Tree:
        """The [T_max, E, ...] tree, with a leaf `valid` [T_max, E] bool."""
        return view({**self.columns, VALID: self.valid}, "episodes", limits=self.limits)

    def column_names(self) -> Collection[str]:
        """Names of the columns, without a change of how they are stored."""
        columns: Mapping[str, Any] = vars(self).get("_rows") or vars(self).get("columns", {})
        return columns

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> Tree: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tree]: ...
    def __getitem__(self, index: int | slice) -> Tree | list[Tree]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        index = self._number(index)
        end, length = self._ends[index], self.lengths[index]
        if self._rows is not None:
            leaves = map_leaves(lambda leaf: leaf[end - length : end], self._rows)
        else:
            leaves = map_leaves(lambda leaf: leaf[:length, index], self.columns)
        return view(leaves, "episodes", limits=self.limits, steps=int(length))


def cut_episodes(rollout: Trajectories, counts: Sequence[int]) -> Episodes:
    """The first `counts[b]` finished episodes of each environment b, environment by environment.

    Args:
        rollout: must begin with the first step of an episode in every environment with counts[b] > 0.
        counts: [B] numbers of episodes.

    Raises:
        ValueError: an environment has fewer finished episodes.

    Example:
        >>> ends = np.array([[True, False], [False, True]])
        >>> rollout = Trajectories({"reward": np.arange(4.0).reshape(2, 2), "terminated": ends, "truncated": ends & False})
        >>> [episode.reward.tolist() for episode in cut_episodes(rollout, [1, 1])]
        [[0.0], [1.0, 3.0]]
    """
    done = rollout.columns["terminated"] | rollout.columns["truncated"]
    steps: list[np.ndarray[Any, Any]] = []
    lengths: list[np.ndarray[Any, Any]] = []
    for env, count in enumerate(counts):
        ends = np.flatnonzero(done[:, env])[:count]
        if len(ends) < count:
            raise ValueError(f"cut_episodes() wants {count} episodes of environment {env}, got {len(ends)} in the rollout.")
        real = np.arange(ends[-1] + 1) if count else np.arange(0)
        if rollout.valid is not None:
            real = real[rollout.valid[: len(real), env]]
        steps.append(real)
        lengths.append(np.diff(np.searchsorted(real, ends, side="right"), prepend=0))
    env_of = np.repeat(np.arange(len(steps)), [len(real) for real in steps])
    step_of = np.concatenate(steps)
    rows = {name: map_leaves(lambda leaf: leaf[step_of, env_of], column) for name, column in rollout.columns.items()}
    return Episodes(rows, np.concatenate(lengths)).with_limits(rollout.limits)


def _padded(
    rows: np.ndarray[Any, Any], row_at: np.ndarray[Any, Any], holes: np.ndarray[Any, Any] | None
) -> np.ndarray[Any, Any]:
    column: np.ndarray[Any, Any] = rows.take(row_at, 0)
    if holes is not None:
        column[holes] = None if rows.dtype == object else rows.dtype.type()
    return column
