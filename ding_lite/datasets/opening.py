"""Opening: a dataset from its files, from those of other libraries, or from arrays."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.data import Episodes, flatten, map_leaves
from ding_lite.datasets.chunks import DatasetError, flags
from ding_lite.datasets.hdf5 import read_d4rl
from ding_lite.datasets.minari_files import is_minari, read_minari
from ding_lite.datasets.offline_datasets import OfflineDataset


def open_dataset(source: Any) -> OfflineDataset:
    """A dataset, from one of these:

    | source | dataset |
    | --- | --- |
    | an `OfflineDataset` | itself |
    | the folder that `offline_data_saver` has written | `OfflineDataset(folder)` |
    | a dataset of Minari, its folder, or its id such as "mujoco/hopper/medium-v0" | `read_minari` |
    | a file in the HDF5 layout of D4RL | `read_d4rl` |
    | `Episodes`, such as ctx.episodes | `OfflineDataset.from_episodes` |
    | transitions, arrays [N, ...] by name, episode after episode | cut where terminated or truncated is True |
    | a list of these | all as one, `OfflineDataset.concatenate` |

    Raises:
        DatasetError: there is no such dataset, or it is damaged; or the spaces or columns of several ones differ.
        TypeError: the source is something else.
        ImportError: the library that reads it is not installed.
    """
    if isinstance(source, OfflineDataset):
        return source
    if isinstance(source, Episodes):
        return OfflineDataset.from_episodes(source)
    if isinstance(source, Mapping):
        return OfflineDataset.from_episodes(_episodes_of(source), name="of these arrays")
    if isinstance(source, (list, tuple)) and source:
        opened = [open_dataset(one) for one in source]
        return opened[0] if len(opened) == 1 else OfflineDataset.concatenate(opened)
    if is_minari(source):
        return read_minari(source)
    if isinstance(source, (str, PathLike)):
        path = Path(source)
        if path.suffix in (".hdf5", ".h5"):
            return read_d4rl(path)
        return OfflineDataset(path)
    raise TypeError(
        f"a dataset is wanted, got {source!r:.60} of type {type(source).__name__}: pass an OfflineDataset, its folder, a "
        "dataset of Minari, episodes, arrays by name, or a list of these."
    )


def _episodes_of(rows: Mapping[str, Any]) -> Episodes:
    """Transitions as episodes, cut where one ends; the last one may be unfinished."""
    columns = map_leaves(np.asarray, dict(rows))
    lacking = [name for name in ("obs", "action", "reward", "terminated", "truncated") if name not in columns]
    if lacking:
        raise DatasetError(f"transitions for a dataset lack the column {lacking[0]!r}, they have {', '.join(columns)}.")
    count = len(columns["terminated"])
    for path, leaf in flatten(columns):
        if leaf.shape[:1] != (count,):
            raise DatasetError(f"the column {'/'.join(path)} has the shape {leaf.shape}, and terminated has {count} rows.")
    for name in ("terminated", "truncated"):
        columns[name] = flags("transitions for a dataset", name, columns[name], count)
    ends = np.flatnonzero(columns["terminated"] | columns["truncated"])
    borders = np.unique([*(ends + 1), count]) if count else np.zeros(0, np.int64)
    return Episodes(columns, np.diff(borders, prepend=0))
