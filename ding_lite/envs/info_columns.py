"""Info columns: numbers and arrays of the infos of each step as columns of a rollout."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ding_lite.basics import did_you_mean
from ding_lite.envs.env_data_checks import EnvDataError, shown
from ding_lite.envs.infos import as_float

INFO = "info"
"""Name of the column that holds them, nested: `batch.info.x_position`."""

_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.bool_, type(None)})


class InfoColumns:
    """Collects named values from the infos of B environments as arrays [B, ...].

    Numbers and bools are float32, NaN where an info has none. An array has its own shape and dtype (float32 for float64), as
    in the first info that has it; where it is missing, floats are NaN, and other dtypes are an error. A value that is in no
    info of the first step counts as a number; environments in workers have a first step in each worker.

    Args:
        names: keys of the infos.
        first_env: index of the first environment.
        rows: environment and agent of each row, if rows are agents; None for one row per environment.
    """

    def __init__(self, names: Sequence[str], first_env: int = 0, rows: Sequence[tuple[int, Any]] | None = None) -> None:
        self.names, self._first_env, self._rows = tuple(names), first_env, rows
        self._specs: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._unseen, self._known = set(names), dict[str, None]()

    def gather(self, infos: Sequence[Mapping[str, Any]], paused: Collection[int] = ()) -> dict[str, np.ndarray[Any, Any]]:
        """The column [B, ...] of each name.

        Args:
            infos: the info of each environment, or row.
            paused: environments, or rows, whose infos are not read: their floats are NaN, and other values 0.

        Raises:
            EnvDataError: a value is neither a number nor an array, differs in shape from the first one, or is missing.
        """
        if paused:
            infos = [{} if index in paused else info for index, info in enumerate(infos)]
        if self._unseen:
            self._known.update(dict.fromkeys(str(key) for info in infos for key in info))
            self._unseen = {name for name in self._unseen if all(info.get(name) is None for info in infos)}
        return {name: self._column(name, infos, paused) for name in self.names}

    def warn_of_missing(self, envs: str) -> None:
        """Warn of names that have been in no info, once."""
        for name in sorted(self._unseen):
            hint = f"{did_you_mean(name, self._known)} The infos have {', '.join(self._known) or 'no keys'}."
            found = "is None in all infos" if name in self._known else "is in no info"
            warnings.warn(
                f"info_columns names {name!r}, which {found} of the first episode of {envs}, so its column is NaN"
                f"{'.' if name in self._known else hint}",
                stacklevel=3,
            )
        self._unseen.clear()

    def _column(self, name: str, infos: Sequence[Mapping[str, Any]], paused: Collection[int]) -> np.ndarray[Any, Any]:
        values = [info.get(name) for info in infos]
        spec = self._specs.get(name)
        if spec is None:
            first = next((value for value in values if value is not None), None)
            spec = self._specs[name] = _spec_of(first)
        shape, dtype = spec
        if not shape and _NUMBERS.issuperset(map(type, values)):
            try:
                return np.array(values, np.float32)  # NaN for None
            except OverflowError:  # an integer that is too large for a float, see `as_float`
                pass
        column = np.empty((len(values), *shape), dtype)
        for index, value in enumerate(values):
            if value is None:
                if dtype.kind != "f" and index not in paused:
                    raise self._missing(index, name, infos[index])
                column[index] = np.nan if dtype.kind == "f" else 0
            else:
                column[index] = self._element(index, name, value, shape, dtype)
        return column

    def _element(self, index: int, name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        if not shape:
            number = as_float(value)
            if number is None:
                raise self._error(index, f"{name!r} is {shown(value)}, expected a number, as in the first step")
            return number
        array = np.asarray(value)
        if array.shape != shape or not _holds(dtype, array.dtype):
            raise self._error(
                index,
                f"{name!r} is an array of {array.dtype} of shape {list(array.shape)}, expected {dtype} of shape {list(shape)}, "
                "as in the first step",
            )
        return array

    def _missing(self, index: int, name: str, info: Mapping[str, Any]) -> EnvDataError:
        return self._error(
            index,
            f"{name!r} is missing{did_you_mean(name, map(str, info))} It has {', '.join(map(str, info)) or 'no keys'}; only "
            "columns of floats may be missing, as NaN",
        )

    def _error(self, index: int, problem: str) -> EnvDataError:
        env, agent = (self._first_env + index, None) if self._rows is None else self._rows[index]
        who = f"environment {env}" if self._rows is None else f"agent {agent!r} of environment {env}"
        given = "returned" if self._rows is None else "got"
        return EnvDataError(f"{who} {given} an info in which {problem}: correct info_columns, or the info.", env)

    @property
    def layout(self) -> dict[str, Any]:
        """Shape and dtype of each column by name, as plain data; None for those that are not known yet."""
        specs = {name: self._specs.get(name) for name in self.names}
        return {name: None if spec is None else [list(spec[0]), spec[1].str] for name, spec in specs.items()}

    @classmethod
    def from_layout(cls, layout: Mapping[str, Any], first_env: int = 0) -> InfoColumns:
        """Columns whose shapes and dtypes are already known."""
        made = cls(tuple(layout), first_env)
        made._specs = {name: (tuple(spec[0]), np.dtype(spec[1])) for name, spec in layout.items() if spec is not None}
        return made

    def state_dict(self) -> dict[str, Any]:
        """Shape and dtype of each known column, and whether a value was seen, or a warning given."""
        return {name: [list(shape), dtype.str, name not in self._unseen] for name, (shape, dtype) in self._specs.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._specs = {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype, _) in state.items()}
        self._unseen -= {name for name, (_, _, is_seen) in state.items() if is_seen}


def names_of(names: Iterable[str], who: str, argument: str = "info_columns") -> tuple[str, ...]:
    """Several names as a tuple.

    Raises:
        TypeError: not several names; the message has the function and the argument.
    """
    if isinstance(names, str):
        raise TypeError(f"{who}({argument}={names!r}) wants several names, got one string: write ({names!r},).")
    found = tuple(names) if isinstance(names, Iterable) else None
    if found is None or not all(isinstance(name, str) for name in found):
        raise TypeError(f"{who}({argument}={found or names!r:.80}) wants several names: write {argument}=('x_position',).")
    return found


def require_same_columns(parts: Sequence[Mapping[str, np.ndarray[Any, Any]]], lead: int) -> None:
    """Check that the columns of several workers fit together.

    Args:
        parts: the columns of each worker, arrays [*lead, ...] by name.
        lead: number of leading dimensions.

    Raises:
        EnvDataError: a column differs in dtype or shape between two workers.
    """
    first, *others = parts
    for part, name in itertools.product(others, first):
        columns = first[name], part[name]
        if columns[0].dtype != columns[1].dtype or columns[0].shape[lead:] != columns[1].shape[lead:]:
            one, other = (f"{column.dtype} of shape {list(column.shape[lead:])}" for column in columns)
            raise EnvDataError(
                f"the column {name!r} of infos is {one} in one worker, and {other} in another: return arrays of one dtype and "
                "shape in every environment, from the first step on."
            )


def _spec_of(value: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of the column whose first value this is."""
    if not isinstance(value, np.ndarray) or not value.ndim:
        return (), np.dtype(np.float32)
    return value.shape, np.dtype(np.float32) if value.dtype == np.float64 else value.dtype


def _holds(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether all numbers of another dtype fit; float64 counts as float32."""
    return bool(np.can_cast(other, dtype, "safe")) or (dtype == np.float32 and other == np.float64)
