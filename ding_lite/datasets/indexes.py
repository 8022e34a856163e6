"""Indexes: `dataset.json`, which says what a dataset holds, where it is from, and in which files it is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ding_lite.basics import json_ready, write_atomically
from ding_lite.data import LeafSpec
from ding_lite.data.column_names import FLAGS, LENGTHS
from ding_lite.datasets.chunks import NEEDED, SCALARS, Chunk, DatasetError, damaged, path_of
from ding_lite.envs.space_records import recorded_space, space_from

INDEX = "dataset.json"
"""Name of the file."""
FORMAT = "ding_lite dataset 1"
_LARGEST = 2**62


@dataclass
class Index:
    """What a dataset holds."""

    observation_space: gymnasium.Space[Any] | None = None
    action_space: gymnasium.Space[Any] | None = None
    """The spaces of one environment; None if they are unknown."""
    columns: dict[str, LeafSpec] = field(default_factory=dict)
    """Shape and dtype of one row of each leaf, by name; without `next_obs`, which is the observation of the following step."""
    sources: list[dict[str, Any]] = field(default_factory=list)
    """Where the data is from, plain data for each run that wrote to it: environments, policies, seed, versions, and
    `first_chunk`, the number of its first file."""
    chunks: list[Chunk] = field(default_factory=list)
    """The files."""

    @property
    def steps(self) -> int:
        """Transitions."""
        return sum(chunk.steps for chunk in self.chunks)

    @property
    def episodes(self) -> int:
        """Episodes, unfinished ones included."""
        return sum(chunk.episodes for chunk in self.chunks)


def source_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Where data is from, as plain data for `Index.sources`.

    Raises:
        DatasetError: a part of it is no plain data.
    """
    try:
        return dict(json_ready(given, "the source of a dataset, source"))
    except TypeError as error:
        raise DatasetError(str(error)) from None


def write_index(folder: Path, index: Index) -> None:
    """Write `dataset.json`.

    Raises:
        WriteError: it cannot be written; the old one is unchanged.
    """
    spaces = {"observation_space": index.observation_space, "action_space": index.action_space}
    record = {
        "format": FORMAT,
        "steps": index.steps,
        "episodes": index.episodes,
        **{name: None if space is None else json_ready(recorded_space(space)) for name, space in spaces.items()},
        "columns": {name: {"dtype": spec.dtype.str, "shape": list(spec.shape)} for name, spec in index.columns.items()},
        "sources": index.sources,
        "chunks": [dataclasses.asdict(chunk) for chunk in index.chunks],
    }
    content = json.dumps({**record, "sha256": _digest(record)}, indent=1, allow_nan=False)
    write_atomically(folder / INDEX, content.encode())


def read_index(folder: Path) -> Index:
    """The index of the dataset in this folder.

    Raises:
        DatasetError: there is none, it is damaged, or of another format.
    """
    path = folder / INDEX
    if not folder.is_dir():
        raise DatasetError(f"there is no dataset {folder}: pass the folder that offline_data_saver has written.")
    if not path.exists() and ((folder / "run.json").exists() or (folder / "ckpt").is_dir()):
        raise DatasetError(
            f"{folder} is the folder of a run, and not of a dataset: record its policy with `ding-lite collect {folder} --out "
            "FOLDER`, or what a run collects with offline_data_saver, and pass that folder."
        )
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise DatasetError(f"{folder} is no dataset: {INDEX} cannot be read, {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is no JSON ({error})") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        found = record.get("format") if isinstance(record, dict) else record
        raise DatasetError(f"{path} has the format {found!r:.60}, and this version reads {FORMAT!r}.")
    digest = record.pop("sha256", None)
    if digest != _digest(record):
        raise damaged(path, "its content does not match its checksum")
    try:
        index = Index(
            _space(record["observation_space"]),
            _space(record["action_space"]),
            {name: _spec(**spec) for name, spec in record["columns"].items()},
            list(record["sources"]),
            [Chunk(**chunk) for chunk in record["chunks"]],
        )
        problem = _problem(index)
        for name in ("steps", "episodes"):
            if problem is None and record[name] != getattr(index, name):
                problem = f"it has {name} = {record[name]!r:.60}, and files with {getattr(index, name):,}"
    except Exception as error:  # noqa: BLE001  gymnasium and numpy raise errors of many kinds for spaces and dtypes that are none
        raise damaged(path, f"it is no index of a dataset ({error!r})") from None
    if problem is not None:
        raise damaged(path, problem)
    return index


def _spec(dtype: str, shape: list[int]) -> LeafSpec:
    """Shape and dtype of one row; files have the byte order of this machine, also where an old index says another one."""
    found = np.dtype(dtype).newbyteorder("=")
    np.empty((0, *shape), found)  # raises an error for a shape that no array can have
    return LeafSpec(tuple(shape), found)


def _problem(index: Index) -> str | None:
    """What in an index cannot be: a file that is named twice, a count below 0, a column that a dataset must have."""
    known = set[str]()
    for chunk in index.chunks:
        if not isinstance(chunk.file, str) or Path(chunk.file).name != chunk.file:
            return f"it names the file {chunk.file!r}"
        if chunk.file in known:
            return f"it names the file {chunk.file!r} twice"
        known.add(chunk.file)
        for name in ("steps", "episodes", "size"):
            count = getattr(chunk, name)
            if type(count) is not int or not 0 <= count <= _LARGEST:
                return f"it has {name} = {count!r:.60} for the file {chunk.file!r}"
        if not isinstance(chunk.sha256, str) or not isinstance(chunk.lengths_sha256, str):
            return f"it has checksums of the file {chunk.file!r} that are no text"
    if not all(isinstance(source, dict) for source in index.sources):
        return "it has sources that are no records"
    return _problem_with_columns(index)


def _problem_with_columns(index: Index) -> str | None:
    if LENGTHS in index.columns:
        return f"it names the column {LENGTHS!r}"
    paths = set(map(path_of, index.columns))
    parents = {path[:size] for path in paths for size in range(1, len(path))}
    for name, spec in index.columns.items():
        if spec.dtype.kind not in "biuf":
            return f"it has the column {name!r} of {spec.dtype}"
        if path_of(name) in parents:
            return f"it has the column {name!r}, and parts of it"
        if name in SCALARS and spec.shape:
            return f"it has the column {name!r} with rows of the shape {spec.shape}"
        if name in FLAGS and spec.dtype != np.bool_:
            return f"it has the column {name!r} of {spec.dtype}"
    names = {path[0] for path in paths} | {"next_obs"}
    missing = [name for name in NEEDED if name not in names]
    if missing and (index.columns or index.chunks):
        return f"it lacks the column {missing[0]!r}"
    return None


def _space(record: Mapping[str, Any] | None) -> gymnasium.Space[Any] | None:
    return None if record is None else space_from(record)


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
