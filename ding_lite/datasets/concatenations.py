"""Concatenations: the columns of several datasets, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ding_lite.data import LeafSpec
from ding_lite.datasets.chunks import DatasetError, path_of
from ding_lite.datasets.indexes import Index
from ding_lite.envs.space_records import same_elements

_LISTED = 3  # names


class JoinedColumns(Mapping[str, Any]):
    """The columns of several datasets, each read when it is first used. Nothing is copied.

    Args:
        parts: the columns of each dataset, arrays by name, with the final observations of episodes.
        specs: shape and dtype of one row of each column of all of them.
    """

    def __init__(self, parts: Sequence[Mapping[str, Any]], specs: Mapping[str, LeafSpec]) -> None:
        self._parts, self._specs = parts, specs
        self._joined: dict[str, _JoinedColumn] = {}

    def __len__(self) -> int:
        return len(self._specs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __getitem__(self, name: str) -> _JoinedColumn:
        if name not in self._joined:
            self._joined[name] = _JoinedColumn([part[name] for part in self._parts], self._specs[name])
        return self._joined[name]


class _JoinedColumn:
    """Arrays one after the other, of which rows can be taken as of one array."""

    def __init__(self, parts: Sequence[Any], spec: LeafSpec) -> None:
        self._parts, self._spec = parts, spec
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, at: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
        found = np.empty((len(at), *self._spec.shape), self._spec.dtype)
        owner = self._ends.searchsorted(at, "right")
        for number, part in enumerate(self._parts):
            chosen = np.flatnonzero(owner == number)
            if len(chosen):
                found[chosen] = part.take(at[chosen] - (self._ends[number] - len(part)), axis)
        return found


def joined_index(names: Sequence[str], indexes: Sequence[Index]) -> Index:
    """What several datasets hold together: the columns that all of them have.

    Args:
        names: what messages call them.
        indexes: what each holds; those without any columns, because nothing was recorded, do not decide about the columns.

    Raises:
        DatasetError: their spaces or their columns differ.
    """
    made = Index()
    for name, index in zip(names, indexes):
        made.sources += index.sources or ([{"dataset": name}] if index.columns else [])
    for attribute in ("observation_space", "action_space"):
        known = [(name, getattr(index, attribute)) for name, index in zip(names, indexes)]
        known = [(name, space) for name, space in known if space is not None]
        for name, space in known[1:]:
            if not same_elements(space, known[0][1]):
                raise _different(known[0][0], name, attribute.replace("_", " "), known[0][1], space)
        setattr(made, attribute, known[0][1] if known else None)
    filled = [(name, index.columns) for name, index in zip(names, indexes) if index.columns]
    if filled:
        made.columns = _joined_columns(filled)
    return made


def joined_name(names: Sequence[str]) -> str:
    """What messages call several datasets together: the names of the first ones, and how many more there are."""
    listed = names if len(names) <= _LISTED else [*names[: _LISTED - 1], f"{len(names) - _LISTED + 1} more"]
    return " + ".join(listed)


def _joined_columns(filled: Sequence[tuple[str, Mapping[str, LeafSpec]]]) -> dict[str, LeafSpec]:
    """Shape and dtype of one row of each column that all datasets have: of float32 and float64, float64."""
    shared = set.intersection(*({_top(leaf) for leaf in columns} for _, columns in filled))
    (first, own), *others = filled
    for name, columns in others:
        for leaf in (leaf for leaf in {**own, **columns} if _top(leaf) in shared):
            one, other = own.get(leaf), columns.get(leaf)
            if one is None or other is None or (one.shape, one.dtype.kind) != (other.shape, other.dtype.kind):
                raise _different(first, name, f"column {leaf}", _shown(one), _shown(other))
    return {
        leaf: LeafSpec(spec.shape, np.result_type(*(columns[leaf].dtype for _, columns in filled)))
        for leaf, spec in own.items()
        if _top(leaf) in shared
    }


def _different(one: str, other: str, what: str, own: Any, others: Any) -> DatasetError:
    names = f"datasets {one} and {other}" if one != other else f"two datasets {one}"
    return DatasetError(f"the {names} cannot be used as one: the {what} is {own} in the first, and {others} in the second.")


def _top(leaf: str) -> str:
    return path_of(leaf)[0]


def _shown(spec: LeafSpec | None) -> str:
    return "missing" if spec is None else f"{spec.dtype} {spec.shape}"
