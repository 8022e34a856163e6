"""Opening: a dataset from its files, from those of other libraries, or from arrays."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ding_lite.basics import unflatten
from ding_lite.data import Episodes, flatten
from ding_lite.data.column_names import FLAGS
from ding_lite.datasets.chunks import SCALARS, STACK_ROWS, DatasetError, as_column, flags, require_names, squeezed
from ding_lite.datasets.hdf5 import d4rl_episodes, read_d4rl
from ding_lite.datasets.indexes import INDEX
from ding_lite.datasets.minari_files import is_minari, read_minari
from ding_lite.datasets.offline_datasets import THESE_ARRAYS, OfflineDataset

_COLUMNS = {
    "obs": "observations",
    "action": "actions",
    "reward": "rewards",
    "next_obs": "next_observations",
    "terminated": "terminals",
    "truncated": "timeouts",
}
"""The columns of transitions, and their names in D4RL."""


def open_dataset(
    source: Any,
    observation_space: gymnasium.Space[Any] | None = None,
    action_space: gymnasium.Space[Any] | None = None,
    max_episode_steps: int | None = None,
) -> OfflineDataset:
    """A dataset, from one of these:

    | source | dataset |
    | --- | --- |
    | an `OfflineDataset` | itself |
    | the folder that `offline_data_saver` or `write_dataset` has written | `OfflineDataset(folder)` |
    | a dataset of Minari, its folder, or its id such as "mujoco/hopper/medium-v0" | `read_minari` |
    | a file in the HDF5 layout of D4RL | `read_d4rl` |
    | `Episodes`, such as ctx.episodes | `OfflineDataset.from_episodes` |
    | transitions, arrays [N, ...] by name, episode after episode | cut where terminated or truncated is True |
    | the same with the names of D4RL: observations, actions, ... | by the rules of `read_d4rl` |
    | a list of these | all as one, `OfflineDataset.concatenate` |

    Args:
        source: see above. Rewards, flags and weights of transitions may be [N, 1]. A step may be both terminated and truncated;
            by the names of D4RL, and in what collectors record, it is only terminated.
        observation_space, action_space: spaces of one environment, of a source that does not specify them, such as arrays.
        max_episode_steps: the time limit of the environment, for files and arrays with the names of D4RL; see `read_d4rl`.

    Raises:
        DatasetError: there is no such dataset, or it is damaged; or the spaces or columns of several ones differ; or it has
            other spaces than the given ones, or elements that do not fit them.
        SpaceError: a Dict space has names that are no strings.
        ValueError: max_episode_steps is below 1, or the source has other names than those of D4RL.
        TypeError: the source is something else.
        ImportError: the library that reads it is not installed.

    Example:
        >>> one = {"obs": np.zeros((3, 2)), "action": np.zeros(3, int), "reward": np.ones(3), "next_obs": np.zeros((3, 2))}
        >>> ends = {"terminated": [False, False, True], "truncated": [False, False, False]}
        >>> open_dataset({**one, **ends}, gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)).lengths
        array([3])
    """
    opened = _opened(source, max_episode_steps, THESE_ARRAYS)
    if observation_space is None and action_space is None:
        return opened
    return opened.with_spaces(observation_space, action_space)


def _opened(source: Any, limit: int | None, name: str) -> OfflineDataset:
    """A dataset from one of the sources of `open_dataset`."""
    if isinstance(source, (list, tuple)) and source:
        opened = [_opened(one, limit, f"of the arrays {number}") for number, one in enumerate(source)]
        return opened[0] if len(opened) == 1 else OfflineDataset.concatenate(opened)
    is_mapping = isinstance(source, Mapping)
    if is_mapping and "observations" in source:
        return OfflineDataset.from_episodes(d4rl_episodes(_checked_names(source), f"the dataset {name}", limit), name=name)
    is_file = isinstance(source, (str, PathLike)) and Path(source).suffix in (".hdf5", ".h5")
    if is_file and not is_minari(source):
        return read_d4rl(source, limit)
    if limit is not None:
        what = f"arrays by the names {', '.join(map(str, source))}" if is_mapping else f"{source!r:.60}"
        fix = "say in truncated where the limit cut an episode, and" if is_mapping else "it says where episodes end:"
        raise ValueError(
            f"max_episode_steps = {limit!r} is for files and arrays with the names of D4RL, not for {what}: {fix} leave it out."
        )
    if isinstance(source, OfflineDataset):
        return source
    if isinstance(source, Episodes):
        return OfflineDataset.from_episodes(source)
    if is_mapping:
        return OfflineDataset.from_episodes(_episodes_of(source), name=name)
    if is_minari(source):
        return read_minari(source)
    if isinstance(source, (str, PathLike)):
        _require_folder(Path(source))
        return OfflineDataset(Path(source))
    raise TypeError(
        f"a dataset is wanted, got {source!r:.60} of type {type(source).__name__}: pass an OfflineDataset, its folder, a "
        "dataset of Minari, episodes, arrays by name, or a list of these."
    )


def _require_folder(path: Path) -> None:
    """Refuse a file, such as one of tables or arrays by any names."""
    if path.is_file() and path.name != INDEX:
        read = "dict(np.load(path))" if path.suffix == ".npz" else "a dict of arrays [N, ...]"
        raise DatasetError(
            f"{path} is no folder of a dataset, and no file .hdf5 in the layout of D4RL: read its arrays, and pass them by "
            f"name, open_dataset({read}), with the names {', '.join(_COLUMNS)}."
        )


def _checked_names(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse arrays by the names of D4RL that have parts, or some of whose names are not those of D4RL."""
    own = [name for name in ("obs", "action", "reward", "next_obs") if name in arrays]
    if own or isinstance(arrays["observations"], Mapping):
        why = f"they have {own[0]!r} too" if own else "observations with parts need the other ones"
        raise DatasetError(f"transitions with the names of D4RL, such as 'observations', and {why}: rename them, {_renamed()}.")
    return arrays


def _renamed() -> str:
    return ", ".join(f"{other} to {name}" for name, other in _COLUMNS.items())


def _are_parts(column: tuple[Any, ...], flags_: Any) -> bool:
    """Whether a column is a tuple of arrays with a row for each flag, and not itself a tuple of rows."""
    count = len(flags_) if hasattr(flags_, "__len__") else 0
    return len(column) != count and all(hasattr(part, "__len__") and len(part) == count for part in column)


def _episodes_of(rows: Mapping[str, Any]) -> Episodes:
    """Transitions as episodes, cut where one ends; the last one may be unfinished."""
    where = "transitions for a dataset"
    for path, leaf in flatten(dict(rows)):
        if isinstance(leaf, tuple) and _are_parts(leaf, rows.get("terminated", ())):
            parts = ", ".join(f'"{number}": ...' for number in range(len(leaf)))
            raise DatasetError(
                f"the column {'/'.join(path)} is a tuple of {len(leaf)} arrays: name them as the parts of a Tuple space, "
                f"{{{parts}}}."
            )
    require_names(where, [path for path, _ in flatten(dict(rows))])
    columns: dict[str, Any] = unflatten({path: as_column(where, "/".join(path), leaf) for path, leaf in flatten(dict(rows))})
    lacking = [name for name in _COLUMNS if name not in columns]
    if lacking:
        may_lack = [_COLUMNS[name] for name in ("next_obs", "truncated")]
        raise DatasetError(
            f"{where} lack the column {lacking[0]!r}, they have {', '.join(columns)}: give {', '.join(_COLUMNS)}, or by the "
            f"names of D4RL {', '.join(_COLUMNS.values())}, of which {' and '.join(may_lack)} may be missing, see read_d4rl."
        )
    columns.update({name: squeezed(columns[name]) for name in SCALARS if name in columns})
    if not all(leaf.ndim for _, leaf in flatten(columns)):
        raise DatasetError(f"{where} have a column that is one number, expected arrays of N rows. {STACK_ROWS}")
    count = len(columns["terminated"])
    for path, leaf in flatten(columns):
        if leaf.shape[:1] != (count,):
            raise DatasetError(f"the column {'/'.join(path)} has the shape {leaf.shape}, and terminated has {count} rows.")
    for name in FLAGS:
        columns[name] = flags(where, name, columns[name], count)
    ends = np.flatnonzero(columns["terminated"] | columns["truncated"])
    borders = np.unique([*(ends + 1), count]) if count else np.zeros(0, np.int64)
    return Episodes(columns, np.diff(borders, prepend=0))
