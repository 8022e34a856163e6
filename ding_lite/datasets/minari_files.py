"""Minari: read and write datasets of the Farama Foundation's library. Needs the extra `offline`."""

from __future__ import annotations

import json
import math
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ding_lite.basics import require_extra
from ding_lite.data import Episodes, LeafSpec, flatten
from ding_lite.data.column_names import LENGTHS
from ding_lite.data.trees import map_leaves
from ding_lite.datasets.chunks import OBS, DatasetError, flags, packed, require_numbers
from ding_lite.datasets.indexes import INDEX, Index
from ding_lite.datasets.offline_datasets import OfflineDataset
from ding_lite.datasets.scores import REFERENCES
from ding_lite.envs.spaces import space_spec, to_gymnasium, to_nested

_CUT = 32_767  # steps, after which Minari's arrow and parquet formats lose the rest of an episode
_NAMES = "a name in HDF5 is neither empty nor '.', and has no '/' and no zero character."
_OF_D4RL = re.compile(r"[a-z0-9]+(-[a-z]+)+-v\d+")
"""Ids of D4RL, such as "hopper-medium-replay-v2"; those of Minari mostly have a '/'."""


def is_minari(source: Any) -> bool:
    """Whether `read_minari` reads it: a dataset of Minari, its folder, or something that looks like its id."""
    loaded = sys.modules.get("minari")
    if loaded is not None and isinstance(source, loaded.MinariDataset):
        return True
    if not isinstance(source, (str, PathLike)) or (Path(source) / INDEX).exists():
        return False
    path = Path(source)
    if (path / "metadata.json").exists() or (path / "data" / "metadata.json").exists():
        return True
    name, dash, version = path.name.rpartition("-v")
    return not path.exists() and bool(name and dash) and version.isdigit()


def read_minari(source: Any) -> OfflineDataset:
    """A dataset of Minari in memory.

    Numbers keep the dtype that Minari has stored, such as float64 for rewards. Infos are left out. The last episode of a
    recording may be unfinished, with neither terminated nor truncated at its end. Reference returns, ref_min_score and
    ref_max_score, are for `normalized_score`.

    Args:
        source: a `minari.MinariDataset`; its folder; or its id, such as "mujoco/hopper/medium-v0", of a dataset that is on this
            machine.

    Raises:
        DatasetError: there is none, it is damaged, its elements have no fixed shape, or its format may have cut long episodes.
        ImportError: without the extra `offline`.
    """
    require_extra("minari", "offline", "reading a dataset of Minari")
    import minari

    dataset = source if isinstance(source, minari.MinariDataset) else _found(minari, source)
    name, storage = dataset.id or str(source), dataset.storage
    spaces = dataset.observation_space, dataset.action_space
    for space in spaces:
        space_spec(space)  # refuses elements without a fixed shape
    parts: list[dict[str, np.ndarray[Any, Any]]] = []
    try:
        for episode in dataset.iterate_episodes():
            parts.append(_packed(f"the dataset {name}", episode, *spaces))
        wanted = dataset.total_episodes, dataset.total_steps
    except (OSError, KeyError, ValueError, TypeError, AssertionError, RuntimeError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"the dataset {name} cannot be read by Minari, its file may be damaged: {error}") from None
    if storage.FORMAT != "hdf5" and any(part[LENGTHS][0] >= _CUT for part in parts):
        raise DatasetError(
            f"the dataset {name} is in Minari's format {storage.FORMAT!r}, which cuts episodes after {_CUT:,} steps, and it "
            "has such an episode: write it again with data_format='hdf5'."
        )
    if (found := (len(parts), sum(int(part[LENGTHS].sum()) for part in parts))) != wanted:
        raise DatasetError(
            f"the dataset {name} is damaged: by its metadata, it has {wanted[1]:,} steps in {wanted[0]:,} episodes, and its "
            f"files have {found[1]:,} steps in {found[0]:,} episodes. Restore the files, or download the dataset again."
        )
    if not parts:
        raise DatasetError(f"the dataset {name} has no episodes.")
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    lengths = joined.pop(LENGTHS)
    columns = {key: LeafSpec(array.shape[1:], array.dtype) for key, array in joined.items()}
    env = dataset.env_spec
    known = {"minari": name, "environments": [{"stage": "collect", "name": env.id}] if env is not None else []}
    references = [storage.metadata.get(key) for key in ("ref_min_score", "ref_max_score")]
    if None not in references:
        known[REFERENCES] = [_number(f"the dataset {name}", one) for one in references]
    return OfflineDataset.from_columns(Index(*spaces, columns, [known]), lengths, joined, name)


def write_minari(dataset: OfflineDataset, dataset_id: str, **description: Any) -> Any:
    """Write a dataset for Minari, into its folder of datasets: MINARI_DATASETS_PATH, or ~/.minari/datasets.

    Columns other than observations, actions, rewards and the ends of episodes, such as log_prob, are infos there, with one row
    for each step; `read_minari` leaves them out. Images are stored without loss, in the format HDF5. The algorithm is that of
    the sources of the dataset, and the environment too, if gymnasium can make it and it has the spaces of the dataset.

    Args:
        dataset: the dataset.
        dataset_id: its id for Minari, such as "cartpole/medium-v0".
        **description: further arguments of `minari.create_dataset_from_buffers`, such as author and code_permalink, about which
            Minari warns if they are missing; algorithm_name and env instead of those of the sources.

    Warns of columns that are left out, because HDF5 cannot store their names.

    Returns:
        The `minari.MinariDataset`.

    Raises:
        ValueError: the id has no version, or is not one of Minari's for another reason.
        DatasetError: it does not say its spaces, Minari cannot store them, or it has no episodes.
        ImportError: without the extra `offline`.
    """
    require_extra("minari", "offline", "writing a dataset for Minari")
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):  # TypeError: it has no version
        raise ValueError(
            f"write_minari(dataset, {dataset_id!r}): an id ends with a version, such as 'cartpole/medium-v0'. It has "
            "letters, digits, '_' and '-'; the part before the '/', which may be missing, has at least two of them."
        ) from None
    if not dataset.num_episodes:
        raise DatasetError(f"write_minari(dataset, {dataset_id!r}): the dataset {dataset.name} has no episodes.")
    observation_space, action_space = dataset.observation_space, dataset.action_space
    for name, space in (("observations", observation_space), ("actions", action_space)):
        for path, _ in flatten(space_spec(space)):
            if wrong := [part for part in path if not _is_name(part)]:
                raise DatasetError(f"Minari cannot store the part {wrong[0]!r} of {name}: {_NAMES}")

    further = _further_columns(dataset)

    def buffers() -> Iterator[Any]:
        for number in range(dataset.num_episodes):
            rows = dataset.episodes([number]).rows()
            obs = map_leaves(lambda leaf, last: np.concatenate([leaf, last[-1:]]), rows[OBS], rows["next_obs"])
            yield EpisodeBuffer(
                id=number,
                observations=to_gymnasium(observation_space, obs),
                actions=to_gymnasium(action_space, rows["action"]),
                rewards=rows["reward"],
                terminations=rows["terminated"],
                truncations=rows["truncated"],
                infos={name: rows[name] for name in further} or None,
            )

    return minari.create_dataset_from_buffers(
        dataset_id,
        list(buffers()),
        observation_space=observation_space,
        action_space=action_space,
        data_format="hdf5",
        jpeg_encoding=False,
        **{**_known_of(dataset), **description},
    )


def _further_columns(dataset: OfflineDataset) -> list[str]:
    """The columns that Minari stores as infos; warns of those that it cannot store."""
    standard = (OBS, "next_obs", "action", "reward", "terminated", "truncated")
    further = [name for name in dataset.columns if name not in standard]
    parts = {name: [part for path, _ in flatten({name: dataset.columns[name]}) for part in path] for name in further}
    dropped = [name for name in further if not all(map(_is_name, parts[name]))]
    if dropped:
        warnings.warn(
            f"write_minari leaves out the columns {', '.join(map(repr, dropped))} of the dataset {dataset.name}: {_NAMES} Add "
            "them under other names: dataset.with_columns(...).",
            stacklevel=3,
        )
    return [name for name in further if name not in dropped]


def _is_name(part: str) -> bool:
    return part not in ("", ".") and not {"/", "\0"} & set(part)


def _number(where: str, value: Any) -> float:
    """A reference return in the metadata of Minari.

    Raises:
        DatasetError: it is no finite number.
    """
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise DatasetError(f"{where} has the reference return {value!r:.60}, expected a number: correct its metadata.")
    return found


def _known_of(dataset: OfflineDataset) -> dict[str, Any]:
    """Arguments for Minari about where a dataset is from, as far as its sources say it."""
    policies = [policy.get("algorithm") for source in dataset.sources for policy in source.get("policies", [])]
    names = {env.get("name") for source in dataset.sources for env in source.get("environments", [])}
    found: dict[str, Any] = {
        "description": f"{len(dataset):,} transitions in {dataset.num_episodes:,} episodes, written by ding_lite."
    }
    if algorithms := list(dict.fromkeys(filter(None, policies))):
        found["algorithm_name"] = ", ".join(algorithms)
    if len(names) == 1 and (name := next(iter(names))) in gymnasium.registry:
        try:
            env = gymnasium.make(name)
        except (gymnasium.error.Error, ImportError, OSError):  # it needs a package that is not installed here
            return found
        env.close()
        if (env.observation_space, env.action_space) == (dataset.observation_space, dataset.action_space):
            found["env"] = env
    return found


def _found(minari: Any, source: str | PathLike[str]) -> Any:
    path = Path(source)
    folder = next((one for one in (path, path / "data") if (one / "metadata.json").exists()), None)
    try:
        return minari.MinariDataset(folder) if folder is not None else minari.load_dataset(str(source))
    except FileNotFoundError:
        if _OF_D4RL.fullmatch(str(source)):
            raise DatasetError(
                f"there is no dataset {source} on this machine. If it is meant as the id of D4RL, pass D4RL's file .hdf5, or a "
                "dataset of Minari, whose ids are such as 'mujoco/hopper/medium-v0': minari.list_remote_datasets()."
            ) from None
        raise DatasetError(
            f"Minari has no dataset {source} on this machine: download it, minari.download_dataset({str(source)!r}), or pass "
            "the folder of a dataset."
        ) from None
    except (OSError, KeyError, ValueError, TypeError, AssertionError, json.JSONDecodeError) as error:
        raise DatasetError(f"the dataset {source} cannot be opened by Minari, its files may be damaged: {error}") from None


def _packed(where: str, episode: Any, observation_space: Any, action_space: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of one episode, as in a file of our own."""
    obs = map_leaves(np.asarray, to_nested(observation_space, episode.observations))
    count = len(episode.rewards)
    rows: Mapping[str, Any] = {
        OBS: map_leaves(lambda leaf: leaf[:-1], obs),
        "action": map_leaves(np.asarray, to_nested(action_space, episode.actions)),
        "reward": np.asarray(episode.rewards),
        "next_obs": map_leaves(lambda leaf: leaf[1:], obs),
        "terminated": flags(where, "terminations", np.asarray(episode.terminations), count),
        "truncated": flags(where, "truncations", np.asarray(episode.truncations), count),
    }
    for path, leaf in flatten(obs):
        require_numbers(where, "/".join(("observations", *path)), leaf, (count + 1,))
    return packed(Episodes(rows, [count]), where)
