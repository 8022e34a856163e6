"""Offline datasets: recorded episodes, read from files and taken by rows."""

from __future__ import annotations

import dataclasses
import hashlib
import numbers
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from ding_lite.basics import did_you_mean, seed_of, unflatten
from ding_lite.data import Episodes, LeafSpec, Tree, flatten, tree
from ding_lite.data.column_names import LENGTHS
from ding_lite.data.trees import map_leaves
from ding_lite.datasets.chunks import (
    OBS,
    SCALARS,
    Arrays,
    DatasetError,
    as_column,
    is_obs,
    name_of,
    nested_by_name,
    packed,
    path_of,
    require_fit_for_tensors,
    require_names,
)
from ding_lite.datasets.concatenations import JoinedColumns, joined_index, joined_name
from ding_lite.datasets.indexes import Index, source_of
from ding_lite.datasets.space_checks import find_space_mismatch, misfit_in_numbers
from ding_lite.datasets.start_returns import returns_from_near_starts
from ding_lite.datasets.stored_columns import Checksum, opened
from ding_lite.envs.action_masks import ACTION_MASK, action_masks
from ding_lite.envs.space_records import same_elements

_PIECE_BYTES = 4 << 20  # of a column that is looked at, so that one of images does not fill the memory
THESE_ARRAYS = "of these arrays"
"""The name of a dataset of arrays, in messages."""
_WIDER = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.uint64): np.int64}
"""Dtypes with which torch does not compute, and those of their numbers in batches."""


class OfflineDataset:
    """Recorded transitions of whole episodes, by row: all steps of the first episode, then of the second, and so on.

    Opening reads only the index and the lengths of the episodes. A column is read when it is first used; a large one is
    unpacked to a file without a name, beside the dataset if that is possible, and mapped into memory, so that it takes disk
    instead of memory. Numbers keep their dtype on disk; batches have float32 instead of float64, the dtype of networks,
    and signed integers instead of unsigned ones of more than 8 bits.

    Args:
        path: folder of the dataset.

    Raises:
        DatasetError: there is none, or it is damaged.

    Example:
        >>> dataset = OfflineDataset("datasets/cartpole_replay")  # doctest: +SKIP
        >>> len(dataset), dataset.num_episodes, dataset.returns.mean()  # doctest: +SKIP
        (100000, 1243, 80.4)
        >>> dataset.take([0, 17, 5], ("obs", "action")).obs.shape  # doctest: +SKIP
        torch.Size([3, 4])
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        index, columns, lengths = opened(Path(path).absolute())  # columns are read later, perhaps from another working folder
        self._set_up(index, lengths, columns, str(path))

    def _set_up(self, index: Index, lengths: np.ndarray[Any, Any], columns: Mapping[str, Any], name: str) -> None:
        self.name = name
        """Its folder, or what else it was made of."""
        self._index, self._columns, self._content = index, columns, Checksum(columns)
        self._parts: tuple[OfflineDataset, ...] = ()
        self._changed: dict[str, np.ndarray[Any, Any]] = {}
        self._stored_lengths = lengths
        self._first = np.cumsum(lengths) - lengths
        self._choose(np.arange(len(lengths)))

    def _choose(self, episodes: np.ndarray[Any, Any]) -> None:
        """Take only these of the stored episodes."""
        self._episodes = episodes
        self.lengths = self._stored_lengths[episodes]
        """[E] int64, steps of each episode."""
        self._ends = np.cumsum(self.lengths)
        self._begins = self._ends - self.lengths

    @classmethod
    def from_episodes(
        cls,
        episodes: Episodes,
        observation_space: gymnasium.Space[Any] | None = None,
        action_space: gymnasium.Space[Any] | None = None,
        source: Mapping[str, Any] | None = None,
        name: str = "episodes",
    ) -> OfflineDataset:
        """A dataset of episodes in memory.

        Args:
            episodes: the episodes; the last one may be unfinished, with neither terminated nor truncated at its end.
            observation_space, action_space: spaces of one environment.
            source: plain data about where they are from; numbers and arrays of numpy become those of Python, and paths text.
            name: what messages call it.

        Raises:
            DatasetError: a column is missing, or holds objects; the source has something that is no plain data; or elements do
                not fit the spaces, see `with_spaces`.
        """
        found = packed(episodes)
        lengths = found.pop(LENGTHS)
        specs = {key: LeafSpec(array.shape[1:], array.dtype) for key, array in found.items()}
        index = Index(None, None, specs, [] if source is None else [source_of(source)])
        return cls.from_columns(index, lengths, found, name).with_spaces(observation_space, action_space)

    @classmethod
    def from_columns(cls, index: Index, lengths: np.ndarray[Any, Any], columns: Arrays, name: str) -> OfflineDataset:
        """A dataset of these arrays in memory, as `packed` makes them."""
        made = cls.__new__(cls)
        made._set_up(index, lengths, columns, name)
        return made

    @classmethod
    def concatenate(cls, datasets: Sequence[OfflineDataset]) -> OfflineDataset:
        """Several datasets as one: the episodes of the first, then of the second, and so on. Nothing is copied.

        It has the columns that all of them have. A column of float32 in one and float64 in another is float64. Spaces that one
        of them does not specify are those of the others.

        Args:
            datasets: the datasets, at least one. One that is given twice counts twice.

        Raises:
            DatasetError: their spaces, or the shapes, kinds or parts of a column differ; or one has elements that do not fit
                the spaces of the others, see `with_spaces`.
        """
        names = [f"of the arrays {number}" if it.name == THESE_ARRAYS else it.name for number, it in enumerate(datasets)]
        index = joined_index(names, [part._index for part in datasets])
        for part in datasets:
            spaces = {name: getattr(index, name) for name in ("observation_space", "action_space")}
            if (found := part._misfit({name: space for name, space in spaces.items() if not part.knows(name)})) is not None:
                raise DatasetError(f"the dataset {part.name} does not fit the spaces of those that it is joined with: {found}")
        filled = [part for part in datasets if part._index.columns]
        counts = [len(part._stored_lengths) for part in filled]
        made = cls.__new__(cls)
        lengths = np.concatenate([np.zeros(0, np.int64), *(part._stored_lengths for part in filled)])
        made._set_up(index, lengths, JoinedColumns([part._columns for part in filled], index.columns), joined_name(names))
        chosen = [part._episodes + sum(counts[:number]) for number, part in enumerate(filled)]
        made._choose(np.concatenate([np.zeros(0, np.int64), *chosen]))
        made._parts = tuple(datasets)
        return made

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The observation space of one environment.

        Raises:
            DatasetError: it is unknown.
        """
        return self._space("observation_space")

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The action space of one environment.

        Raises:
            DatasetError: it is unknown.
        """
        return self._space("action_space")

    def misfit(self, observation_space: gymnasium.Space[Any] | None, action_space: gymnasium.Space[Any] | None) -> str | None:
        """What does not fit these spaces, and the fix; None if everything fits. See `with_spaces`.

        Values are checked only against spaces that the dataset does not specify; the others were checked earlier.
        """
        given = {"observation_space": observation_space, "action_space": action_space}
        found = find_space_mismatch(self.columns, observation_space, action_space)
        return found or self._misfit({name: space for name, space in given.items() if not self.knows(name)})

    def knows(self, name: str) -> bool:
        """Whether it specifies its "observation_space", or its "action_space"."""
        return getattr(self._index, name) is not None

    def _space(self, name: str) -> gymnasium.Space[Any]:
        found: gymnasium.Space[Any] | None = getattr(self._index, name)
        if found is None:
            raise DatasetError(f"the dataset {self.name} does not say its {name}: take that of the environment.")
        return found

    def with_spaces(
        self, observation_space: gymnasium.Space[Any] | None = None, action_space: gymnasium.Space[Any] | None = None
    ) -> OfflineDataset:
        """The dataset with these spaces. Nothing is copied.

        Args:
            observation_space, action_space: spaces of one environment; None for those that it says already, if any.

        Raises:
            DatasetError: it says other spaces already; or the shapes or dtypes of its elements are others, or numbers of
                Discrete, MultiDiscrete and MultiBinary are out of range. Bounds of a Box are not compared: policies may
                sample actions beyond them.
        """
        given = {"observation_space": observation_space, "action_space": action_space}
        for attribute, space in given.items():
            known = getattr(self._index, attribute)
            if space is not None and known is not None and not same_elements(known, space):
                raise DatasetError(
                    f"the dataset {self.name} has the {attribute.replace('_', ' ')} {known}, and was given {space}: "
                    "leave it out."
                )
        if (found := self._misfit(given)) is not None:
            raise DatasetError(f"the dataset {self.name} does not fit the given spaces: {found}")
        made = self.select(np.arange(self.num_episodes))
        made._index = dataclasses.replace(
            self._index,
            observation_space=self._index.observation_space if observation_space is None else observation_space,
            action_space=self._index.action_space if action_space is None else action_space,
        )
        return made

    def with_columns(self, **columns: np.ndarray[Any, Any] | torch.Tensor) -> OfflineDataset:
        """The dataset with these columns, such as other rewards, instead of those of the same names. Files stay as they are.

        `write_dataset` writes the result to a folder of its own.

        Args:
            **columns: arrays [N, ...] of numbers, one row for each of this dataset, in the order of `rows`. Columns that it
                does not have are added.

        Raises:
            DatasetError: a column defines the episodes (obs, next_obs, terminated, truncated), has another number of rows, does
                not hold numbers, has parts in this dataset, or has a name that datasets use; rewards or weights have another
                shape than [N]; actions do not fit the action space; or an episode was selected twice.

        Example:
            >>> scaled = dataset.with_columns(reward=0.1 * dataset.rows(("reward",))["reward"])  # doctest: +SKIP
        """
        if len(np.unique(self._episodes)) < self.num_episodes:
            raise DatasetError(
                f"with_columns() of the dataset {self.name}: an episode was selected twice, and has its rows once. Change the "
                "columns before `select`, or join datasets: open_dataset([a, b])."
            )
        stored, specs, arrays = self._stored(np.arange(len(self))), dict(self._index.columns), dict[str, Any]()
        for name, column in columns.items():
            given = self._new_column(name, column)
            array = np.zeros((int(self._stored_lengths.sum()), *given.shape[1:]), given.dtype)
            array[stored] = given
            arrays[name_of((name,))], specs[name_of((name,))] = array, LeafSpec(given.shape[1:], given.dtype)
        made = self.select(np.arange(self.num_episodes))
        before: Any = self._columns  # nothing is written to it
        made._index, made._columns = dataclasses.replace(self._index, columns=specs), ChainMap(arrays, before)
        made._changed = {**self._changed, **arrays}
        if "action" in columns and self.knows("action_space") and (found := made._misfit({"action_space": self.action_space})):
            raise DatasetError(f"with_columns(action=...) does not fit the action space of the dataset {self.name}: {found}")
        return made

    def _new_column(self, name: str, column: Any) -> np.ndarray[Any, Any]:
        """A column for `with_columns` as an array, if it fits."""
        found = as_column(f"with_columns({name}=...)", name, column)
        require_fit_for_tensors(f"with_columns({name}=...)", name, found)
        fixed = (OBS, "next_obs", "terminated", "truncated")
        if name in fixed:
            raise DatasetError(f"with_columns({name}=...): {', '.join(fixed)} say what the episodes are: make a new dataset.")
        if found.dtype.kind not in "biuf" or found.shape[:1] != (len(self),):
            raise DatasetError(
                f"with_columns({name}=...) wants numbers [{len(self)}, ...], one row for each of the dataset {self.name}, got "
                f"{found.dtype} {[*found.shape]}."
            )
        require_names(f"with_columns({name}=...)", [(name,)])
        if name in SCALARS and found.ndim != 1:
            raise DatasetError(f"with_columns({name}=...) wants numbers [{len(self)}], got {[*found.shape]}: use .squeeze(-1).")
        if isinstance(self.columns.get(name), Mapping):
            raise DatasetError(f"with_columns({name}=...): the column {name} of the dataset {self.name} has parts.")
        return found

    def _misfit(self, spaces: Mapping[str, gymnasium.Space[Any] | None]) -> str | None:
        """What does not fit these spaces, by "observation_space" and "action_space"; None if everything fits."""
        if not len(self) or not any(space is not None for space in spaces.values()):
            return None
        both = spaces.get("observation_space"), spaces.get("action_space")
        return find_space_mismatch(self.columns, *both) or misfit_in_numbers(self._numbers_at, *both)

    @property
    def sources(self) -> list[dict[str, Any]]:
        """Where the data is from, plain data: environments, policies, seed and versions of each run that wrote to it."""
        return self._index.sources

    @property
    def columns(self) -> dict[str, Any]:
        """Shape and dtype of one row of each column, nested like the spaces."""
        specs: dict[str, Any] = nested_by_name(self._index.columns)
        return {**specs, "next_obs": specs[OBS]} if specs else {}

    def __len__(self) -> int:
        """The number of transitions."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def num_episodes(self) -> int:
        """The number of episodes, unfinished ones included."""
        return len(self.lengths)

    @cached_property
    def returns(self) -> np.ndarray[Any, Any]:
        """[E] float64, undiscounted return of each episode.

        Raises:
            DatasetError: a reward is NaN or infinite.
        """
        return np.add.reduceat(self._reward, self._begins) if len(self) else np.zeros(0)

    @cached_property
    def _reward(self) -> np.ndarray[Any, Any]:
        """[N] float64, the rewards, all of them finite."""
        reward = self._raw_reward
        if len(wrong := np.flatnonzero(~np.isfinite(reward))):
            count = len(np.unique(self._ends.searchsorted(wrong, "right")))
            raise DatasetError(self._not_finite("reward", int(wrong[0]), reward[wrong[0]], f"{count:,}", "rewards"))
        return reward

    def _not_finite(self, column: str, row: int, value: Any, count: str, such: str) -> str:
        """A message about a number that is not finite, and its fix."""
        episode = int(self._ends.searchsorted(row, "right"))
        in_batches = ", infinite in batches, which are float32," if np.isfinite(value) else ""
        return (
            f"the column {column} of the dataset {self.name} has the value {value}{in_batches} in row {row}, which is step "
            f"{row - self._begins[episode]} of episode {episode}; {count} of {self.num_episodes:,} episodes have such {such}. "
            "Leave them out: dataset.select(dataset.finite)."
        )

    @property
    def _raw_reward(self) -> np.ndarray[Any, Any]:
        if not len(self):  # without episodes, there may be no columns
            return np.zeros(0)
        found: np.ndarray[Any, Any] = self._rows("reward", self._stored(np.arange(len(self)))).astype(np.float64)
        return found

    @cached_property
    def finite(self) -> np.ndarray[Any, Any]:
        """[E] bool, whether all rewards, observations and actions of an episode are finite, neither NaN nor infinite, also in
        batches, which have float32 instead of float64."""
        found = np.ones(self.num_episodes, np.bool_)
        for name in ("reward", OBS, "next_obs", "action"):
            for _, row, _ in self._numbers_not_finite(name):
                found[self._ends.searchsorted(row, "right")] = False
        return found

    def problem_with_numbers(self, columns: Collection[str]) -> str | None:
        """The first number that is NaN, infinite, or above the range of batches in these columns, and the fix; or None.

        Columns are read in pieces.

        Args:
            columns: of "reward", "obs", "next_obs" and "action". "next_obs" stands for the last one of each episode that is not
                terminated: the others are those of "obs", or nothing is learned from them.
        """
        for name in columns:
            for column, rows, values in self._numbers_not_finite(name):
                return self._not_finite(column, int(rows[0]), values[0], f"{(~self.finite).sum():,}", "numbers")
        return None

    def problem_with_weights(self) -> str | None:
        """The first number of the column `weight` that is no weight of a loss, and the fix; None if there is none."""
        weight = self.rows(("weight",))["weight"] if "weight" in self._names else np.ones(0)
        wrong = np.flatnonzero(~((weight >= 0) & _is_finite(weight)))
        if not len(wrong):
            return None
        return (
            f"the column weight of the dataset {self.name} has the value {weight[wrong[0]]} in row {wrong[0]}; {len(wrong):,} "
            f"of {len(weight):,} weights are such. They are the weights of transitions in the loss, expected finite numbers of "
            "float32 of at least 0: change them, dataset.with_columns(weight=...), or give the column another name."
        )

    def problem_with_masks(
        self, observation_space: gymnasium.Space[Any] | None, action_space: gymnasium.Space[Any] | None
    ) -> str | None:
        """The first action that the `action_mask` of its observation does not allow, and the fix; None if there is none.

        Args:
            observation_space, action_space: of a policy or of the dataset; None if unknown.
        """
        mask_leaf, action_leaf = name_of((OBS, ACTION_MASK)), name_of(("action",))
        if action_space is None or observation_space is None or not {mask_leaf, action_leaf} <= self._index.columns.keys():
            return None
        masks = action_masks(observation_space, action_space)
        if masks is None:
            return None
        spec, wrong = self._index.columns[mask_leaf], list[np.ndarray[Any, Any]]()
        size = max(_PIECE_BYTES // max(int(np.prod(spec.shape)) * spec.dtype.itemsize, 1), 1)
        for begin in range(0, len(self), size):
            part = np.arange(begin, min(begin + size, len(self)))
            at, stored = self._places(part)
            mask, action = self._rows(mask_leaf, at + stored), self._rows(action_leaf, at)
            wrong.append(part[~masks.are_allowed(mask, action)])
        rows = np.concatenate(wrong) if wrong else np.zeros(0, np.int64)
        if not len(rows):
            return None
        row, episodes = int(rows[0]), self._ends.searchsorted(rows, "right")
        action = self._rows(action_leaf, self._stored(rows[:1]))[0].tolist()
        return (
            f"the dataset {self.name} has the action {action} in row {row}, which is step {row - self._begins[episodes[0]]} of "
            f"episode {episodes[0]}, and the {ACTION_MASK!r} of its observation does not allow it; {len(rows):,} of "
            f"{len(self):,} rows, in {len(np.unique(episodes)):,} of {self.num_episodes:,} episodes, are such. The mask of a "
            "row is the one that its action was chosen with: correct the data, or leave these episodes out, by dataset.select."
        )

    def _numbers_not_finite(self, name: str) -> Iterator[tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """For each piece of a column with numbers that are not finite: the name of the leaf, the rows, and a number of each."""
        is_last = name == "next_obs"
        for path, leaf, is_observation in self._paths:
            spec = self._index.columns[leaf]
            if path[0] != (OBS if is_last else name) or spec.dtype.kind != "f":
                continue
            size = max(_PIECE_BYTES // max(int(np.prod(spec.shape)) * spec.dtype.itemsize, 1), 1)
            rows = np.arange(len(self))
            if is_last:
                last = self._ends - 1
                rows = last[~self._rows("terminated", self._stored(last))]
            for begin in range(0, len(rows), size):
                part = rows[begin : begin + size]
                at, stored = self._places(part)
                found = self._rows(leaf, at + (stored if is_observation else 0) + is_last).reshape(len(part), -1)
                wrong = ~_is_finite(found)
                if wrong.any():
                    has = np.flatnonzero(wrong.any(1))
                    yield "/".join((name, *path[1:])), part[has], found[has, wrong[has].argmax(1)]

    @cached_property
    def finished(self) -> np.ndarray[Any, Any]:
        """[E] bool, whether an episode is recorded up to its end, terminated or truncated."""
        if not len(self):  # without episodes, there may be no columns
            return np.zeros(0, np.bool_)
        last = self._stored(self._ends - 1)
        ended: np.ndarray[Any, Any] = self._rows("terminated", last) | self._rows("truncated", last)
        return ended

    def take(self, rows: Sequence[int] | np.ndarray[Any, Any], columns: Collection[str] | None = None) -> Tree:
        """These transitions, as a tree of CPU tensors [N, ...].

        Args:
            rows: numbers of transitions, from 0 to len - 1, or [len] bool.
            columns: names of columns. None for all.

        Raises:
            IndexError: there is no such row, or the mask has another length.
            DatasetError: there is no such column, or a file is damaged.
        """
        return self._as_tensors(self._taken(self._checked(rows, "take"), columns))

    def _as_tensors(self, found: Mapping[str, Any]) -> Tree:
        """Arrays as tensors with the dtypes of batches."""
        leaves = {path: _as_tensor(f"the dataset {self.name}", "/".join(path), leaf) for path, leaf in flatten(found)}
        return tree(unflatten(leaves))

    def _checked(self, rows: Sequence[int] | np.ndarray[Any, Any], who: str) -> np.ndarray[Any, Any]:
        found = np.asarray(rows)
        if not found.ndim:
            raise IndexError(f"{who}({rows!s:.60}) of the dataset {self.name}: rows are several, pass {who}([{rows!s:.60}]).")
        found = found if found.size else np.zeros(found.shape, np.int64)
        if found.dtype.kind == "b" and found.shape == (len(self),):
            return np.flatnonzero(found)
        if found.dtype.kind not in "iu":
            raise IndexError(
                f"{who}({rows!r:.60}): the dataset {self.name} has {len(self):,} rows: pass integers from 0 to "
                f"{len(self) - 1}, or one bool for each row."
            )
        found = found.astype(np.int64)
        if found.size and not 0 <= found.min() <= found.max() < len(self):
            raise IndexError(f"{who}() of rows {found.min()} to {found.max()}: the dataset {self.name} has {len(self):,} rows.")
        return found

    def _taken(self, rows: np.ndarray[Any, Any], columns: Collection[str] | None) -> dict[str, Any]:
        """These transitions as arrays with the dtypes of the files."""
        if isinstance(columns, str):
            raise TypeError(f"columns={columns!r} wants several names, got one string: write ({columns!r},).")
        for name in columns or ():
            if self._names and name not in self._names:
                near = did_you_mean(str(name), self._names)
                raise DatasetError(f"the dataset {self.name} has no column {name!r}, but {', '.join(self.columns)}{near}")
        at, stored = self._places(rows)
        obs_at, leaves = at + stored, dict[tuple[str, ...], Any]()  # each episode has one observation more than steps
        for path, name, is_observation in self._paths:
            if not is_observation:
                if columns is None or path[0] in columns:
                    leaves[path] = self._rows(name, at)
                continue
            if columns is None or OBS in columns:
                leaves[path] = self._rows(name, obs_at)
            if columns is None or "next_obs" in columns:
                leaves[("next_obs", *path[1:])] = self._rows(name, obs_at + 1)
        return unflatten(leaves)  # type: ignore[no-any-return]

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names of the columns."""
        return frozenset(self.columns)

    @cached_property
    def _paths(self) -> list[tuple[tuple[str, ...], str, bool]]:
        """Of each stored leaf its path, its name, and whether it is of observations."""
        return [(path_of(name), name, is_obs(name)) for name in self._index.columns]

    def _places(self, rows: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The places of these rows among all stored ones, and the numbers of their episodes among all stored ones."""
        episode = self._ends.searchsorted(rows, "right")
        stored = self._episodes[episode]
        return rows - self._begins[episode] + self._first[stored], stored

    def _stored(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The places of these rows among all stored ones."""
        return self._places(rows)[0]

    def _numbers_at(self, path: tuple[str, ...]) -> np.ndarray[Any, Any]:
        """The elements of a leaf, in observations with the final ones; the last rows are the latter."""
        name = name_of(path)
        at, stored = self._places(np.arange(len(self)))
        if is_obs(name):
            last = self._ends - 1
            at = np.concatenate([at + stored, (at + stored)[last] + 1])
        return self._rows(name, at)

    def _rows(self, name: str, at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self._columns[name].take(at, 0)  # type: ignore[no-any-return]

    @cached_property
    def returns_to_go(self) -> np.ndarray[Any, Any]:
        """[N] float32, the sum of the rewards of each step and of those that follow in its episode, undiscounted.

        Raises:
            DatasetError: a reward is NaN or infinite.
        """
        reward, found = self._reward, np.empty(len(self), np.float32)
        # Each episode by itself: in one sum over all of them, a large return would round off the rewards of the others.
        for begin, end in zip(self._begins.tolist(), self._ends.tolist()):
            found[begin:end] = np.cumsum(reward[begin:end][::-1])[::-1]
        return found

    def windows(self, rows: Sequence[int] | np.ndarray[Any, Any], length: int, columns: Collection[str] | None = None) -> Tree:
        """The last `length` steps up to each of these, within its episode, as a tree of CPU tensors [N, length, ...].

        Where an episode has fewer, its first step is repeated before it, and `valid` is False.

        Args:
            rows: numbers of transitions, or [len] bool.
            length: steps of a window, at least 1.
            columns: names of columns; None for all.

        Returns:
            These, and valid [N, length] bool; timestep [N, length] int64, the number of the step in its episode, from 0;
            and return_to_go [N, length] float32, see `returns_to_go`. That of an unfinished episode is a part of what it would
            have been, so learn from those that `finished` names.

        Raises:
            IndexError: there is no such row, or the mask has another length.
            ValueError: length is no integer above 0.
            DatasetError: there is no such column.
        """
        if isinstance(length, bool) or not isinstance(length, numbers.Integral) or length < 1:
            raise ValueError(f"windows(length={length!r:.60}): expected the steps of a window, an integer of at least 1.")
        rows = self._checked(rows, "windows")
        begin = self._begins[self._ends.searchsorted(rows, "right")][:, None]
        wanted = rows[:, None] - np.arange(length - 1, -1, -1)
        at = np.maximum(wanted, begin)
        found = map_leaves(lambda leaf: leaf.reshape(*at.shape, *leaf.shape[1:]), self._taken(at.reshape(-1), columns))
        added = {"valid": wanted >= begin, "timestep": at - begin, "return_to_go": self.returns_to_go[at]}
        return self._as_tensors({**found, **added})

    def rows(self, columns: Collection[str] | None = None) -> dict[str, Any]:
        """All transitions as arrays [N, ...] in memory, with the dtypes of the files, for `ReplayBuffer.push` for example.

        Args:
            columns: names of columns; None for all.

        Raises:
            DatasetError: there is no such column.
        """
        return self._taken(np.arange(len(self)), columns)

    def episodes(self, numbers: Sequence[int] | np.ndarray[Any, Any] | None = None) -> Episodes:
        """These episodes in memory, with the dtypes of the files; numbers as for `select`, None for all."""
        chosen = np.arange(self.num_episodes) if numbers is None else self._chosen(numbers, "episodes")
        lengths = self.lengths[chosen]
        rows = np.arange(int(lengths.sum())) + np.repeat(self._begins[chosen] - (np.cumsum(lengths) - lengths), lengths)
        return Episodes(self._taken(rows, None), lengths)

    def __iter__(self) -> Iterator[Tree]:
        """The episodes, each a tree of CPU tensors [T, ...]."""
        return (self.take(np.arange(end - length, end)) for end, length in zip(self._ends, self.lengths))

    def select(self, numbers: Sequence[int] | np.ndarray[Any, Any]) -> OfflineDataset:
        """The dataset with these of its episodes. Nothing is copied.

        Args:
            numbers: numbers of episodes, negative ones from the end as in lists, or [E] bool.

        Raises:
            IndexError: there is no such episode, or the mask has another length.
        """
        made = OfflineDataset.__new__(OfflineDataset)
        made._set_up(self._index, self._stored_lengths, self._columns, self.name)
        made._choose(self._episodes[self._chosen(numbers, "select")])
        made._parts, made._changed, made._content = self._parts, self._changed, self._content
        return made

    def _chosen(self, numbers: Sequence[int] | np.ndarray[Any, Any], who: str) -> np.ndarray[Any, Any]:
        """[n] int64, these episodes, from 0 to num_episodes - 1."""
        found = np.asarray(numbers)
        if not found.ndim:
            raise IndexError(
                f"{who}({numbers!s:.60}) of the dataset {self.name}: episodes are several, pass {who}([{numbers!s:.60}])."
            )
        found = found if found.size else np.zeros(found.shape, np.int64)
        if found.ndim == 1 and found.dtype.kind in "biu":
            if found.dtype.kind == "b" and len(found) == self.num_episodes:
                return np.flatnonzero(found)
            if found.dtype.kind != "b" and ((-self.num_episodes <= found) & (found < self.num_episodes)).all():
                return np.where(found < 0, found + self.num_episodes, found).astype(np.int64)
        raise IndexError(
            f"{who}({numbers!r:.60}): the dataset {self.name} has {self.num_episodes:,} episodes: pass numbers from "
            f"{-self.num_episodes} to {self.num_episodes - 1}, or one bool for each episode."
        )

    def best(self, share: float, relative_to_start: bool = False) -> OfflineDataset:
        """The finished episodes with the highest returns, as for behaviour cloning of the best tenth, `dataset.best(0.1)`.

        Unfinished episodes are left out, because their returns are parts of what they would have been. Where the return
        depends on the start more than on the actions, as on Pendulum-v1, the highest returns are those of the luckiest starts,
        and show nothing of the others: `relative_to_start` compares each episode with those that begin nearly alike.

        Args:
            share: share of the finished episodes, above 0 and at most 1; at least one episode is chosen.
            relative_to_start: choose by the return minus the mean return of the ten other finished episodes with the nearest
                first observations, and of those that are as near as the tenth. Distances are Euclidean, after each number is
                divided by its standard deviation; discrete observations count as numbers. With E episodes, it takes E^2
                distances.

        Raises:
            ValueError: another share, or no episode is finished; or `relative_to_start` with a share of 1.
            DatasetError: a reward, a return, or a first observation that is compared, is NaN or infinite; or there are no
                episodes.
        """
        if not _is_share(share) or not 0 < share <= 1:
            raise ValueError(
                f"best(share={share!r:.60}): expected a share of the episodes above 0, and at most 1, as a number."
            )
        if share == 1 and relative_to_start:
            raise ValueError(
                "best(share=1, relative_to_start=True) compares returns, and then takes all of them: pass a share below 1, "
                "such as 0.1, or leave relative_to_start out."
            )
        if not self.num_episodes:
            raise DatasetError(f"best(share={share!r}): the dataset {self.name} has no episodes.")
        finished = np.flatnonzero(self.finished)
        if not len(finished):
            raise ValueError(
                f"best(share={share!r}): none of the {self.num_episodes} episodes in {self.name} is finished. If a time limit "
                "cut them, the data must say so in `truncated`."
            )
        values = self.returns[finished]
        if len(endless := np.flatnonzero(~np.isfinite(values))):
            raise DatasetError(
                f"best(share={share!r}): the return of episode {finished[endless[0]]} of the dataset {self.name} is "
                f"{values[endless[0]]}, the sum of finite rewards: scale them, dataset.with_columns(reward=...)."
            )
        if relative_to_start:
            values = values - returns_from_near_starts(self._starts(finished), values)
        count = max(1, round(share * len(finished)))
        return self.select(np.sort(finished[np.argsort(-values, kind="stable")[:count]]))

    def _starts(self, episodes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """[n, D] float64, the first observations of these episodes, their parts side by side."""
        rows = self._begins[episodes]
        leaves = [leaf for _, leaf in flatten(self._taken(rows, (OBS,)))]
        found = np.concatenate([leaf.reshape(len(rows), -1).astype(np.float64) for leaf in leaves], axis=1)
        if len(wrong := np.argwhere(~np.isfinite(found))):
            row, value, count = int(rows[wrong[0, 0]]), found[tuple(wrong[0])], len(np.unique(wrong[:, 0]))
            raise DatasetError(self._not_finite(OBS, row, value, f"{count:,}", "starts"))
        return found

    def split(self, share: float, seed: int = 0) -> tuple[OfflineDataset, OfflineDataset]:
        """Two datasets of randomly chosen whole episodes, to learn from one and to evaluate on the other. Nothing is copied.

        The choice has a generator of its own: the same dataset, share and seed always give the same parts. In both, episodes
        keep their order.

        Args:
            share: share of the episodes in the first part, between 0 and 1. Each part has at least one.
            seed: random seed of the choice.

        Raises:
            ValueError: another share, or there are less than two episodes.

        Example:
            >>> train, held_out = dataset.split(0.9)  # doctest: +SKIP
        """
        if not _is_share(share) or not 0 < share < 1:
            raise ValueError(f"split(share={share!r:.60}): expected a share of the episodes above 0 and below 1, as a number.")
        if self.num_episodes < 2:
            raise ValueError(f"split(share={share!r}): two parts need two episodes, and {self.name} has {self.num_episodes}.")
        rng = np.random.default_rng(seed_of(seed, f"split(share={share!r}, seed={{}})"))
        is_first = np.zeros(self.num_episodes, np.bool_)
        count = min(max(1, round(share * self.num_episodes)), self.num_episodes - 1)
        is_first[rng.permutation(self.num_episodes)[:count]] = True
        return self.select(is_first), self.select(~is_first)

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of what the rows are, so that a run that is resumed with other data is refused."""
        digest = hashlib.sha256(self.lengths.tobytes() + self._episodes.tobytes())
        for part in self._parts:
            digest.update(part.fingerprint.encode())
        for chunk in self._index.chunks:
            digest.update(chunk.sha256.encode())
        if self._changed:
            digest.update(Checksum(self._changed).digest.encode())
        if not self._parts and not self._index.chunks:
            digest.update(self._content.digest.encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"OfflineDataset({self.name!r}, {len(self):,} transitions in {self.num_episodes:,} episodes)"


def _is_share(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_finite(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where numbers are neither NaN nor infinite in batches, which have float32 instead of float64."""
    with np.errstate(over="ignore"):
        found: np.ndarray[Any, Any] = np.isfinite(array.astype(np.float32) if array.dtype == np.float64 else array)
    return found


def _as_tensor(where: str, name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    require_fit_for_tensors(where, name, array)  # files of earlier versions may have such numbers
    if array.dtype in _WIDER:
        array = array.astype(_WIDER[array.dtype])
    found = torch.from_numpy(array)
    return found.float() if found.dtype == torch.float64 else found
