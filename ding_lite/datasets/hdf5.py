"""The layout of D4RL: arrays in HDF5 files, which need the extra `offline`, or by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.basics import require_extra
from ding_lite.data import Episodes
from ding_lite.datasets.chunks import STACK_ROWS, DatasetError, as_column, flags, require_numbers, require_vector, squeezed
from ding_lite.datasets.offline_datasets import OfflineDataset

_NAMES = {
    "observations": ("observations",),
    "actions": ("actions",),
    "rewards": ("rewards",),
    "terminals": ("terminals", "terminations", "terminated"),
    "timeouts": ("timeouts", "truncations", "truncated", "episode_terminals"),
    "next_observations": ("next_observations",),
}
"""The names of D4RL, and those of others for the same arrays."""
_NEEDED = ("observations", "actions", "rewards", "terminals")
_LARGEST = 2**62


def read_d4rl(path: str | PathLike[str], max_episode_steps: int | None = None) -> OfflineDataset:
    """A file in the layout of D4RL, in memory: observations, actions, rewards, terminals, and usually timeouts.

    Where the file has no `next_observations`, the next observation of a step is the observation of the following one. That of
    the last step before a timeout is then unknown: the step is left out, and the one before it is truncated, as by D4RL's
    `qlearning_dataset`. So is that of the last step of the file, which is left out too; an episode that the file cuts there is
    unfinished. Next observations of terminal steps, which no target uses, are then the observations of these steps. Further
    columns, such as infos, are left out.

    A file with neither `timeouts` nor `next_observations` does not specify where a time limit cut an episode: give the limit as
    `max_episode_steps`. Without it, there is a warning.

    The file does not specify the spaces: make the policy with those of the environment.

    Args:
        path: the HDF5 file.
        max_episode_steps: steps after which the environment cut an episode, as a timeout does; None for only the timeouts.

    Raises:
        DatasetError: it cannot be read, or is of another layout.
        ValueError: max_episode_steps is below 1.
        ImportError: without the extra `offline`.
    """
    require_extra("h5py", "offline", "reading a file in the layout of D4RL")
    import h5py

    path = Path(path)
    try:
        with h5py.File(path, "r") as file:
            present = [name for name in file if isinstance(file.get(name), h5py.Dataset)]
            names = _named(str(path), present, list(file))
            found = {name: _read(path, file[stored]) for name, stored in names.items()}
    except FileNotFoundError:
        raise DatasetError(f"there is no file {path}.") from None
    except (OSError, RuntimeError) as error:
        raise DatasetError(f"{path} cannot be read as HDF5, it may be damaged: {error}") from None
    episodes = _checked_episodes(str(path), found, max_episode_steps)
    return OfflineDataset.from_episodes(episodes, source={"d4rl": str(path)}, name=str(path))


def _read(path: Path, column: Any) -> Any:
    """A column of an open file.

    Raises:
        DatasetError: it does not fit into memory.
    """
    try:
        return column[()]
    except (MemoryError, ValueError) as error:  # ValueError: no array can have so many numbers
        raise DatasetError(
            f"{path}: the column {column.name.lstrip('/')!r} of {column.dtype} {column.shape} cannot be read into memory, it "
            f"would take {column.nbytes / 2**30:,.1f} GiB, and the file has {path.stat().st_size / 2**30:,.1f}: it may be "
            f"damaged. ({error})"
        ) from None


def d4rl_episodes(arrays: Mapping[str, Any], where: str, max_episode_steps: int | None = None) -> Episodes:
    """The episodes of arrays [N, ...] with the names of D4RL, by the rules of `read_d4rl`.

    Args:
        arrays: the arrays; further ones are left out.
        where: what messages call them.
        max_episode_steps: as for `read_d4rl`.

    Raises:
        DatasetError: they are of another layout.
        ValueError: max_episode_steps is below 1.
    """
    names = _named(where, arrays, arrays)
    return _checked_episodes(where, {name: arrays[stored] for name, stored in names.items()}, max_episode_steps)


def _named(where: str, present: Iterable[str], all_names: Iterable[str]) -> dict[str, str]:
    """The stored name of each array of D4RL."""
    made: dict[str, str] = {}
    for name, others in _NAMES.items():
        stored = [other for other in others if other in present]
        if len(stored) > 1:
            raise DatasetError(f"{where} has both {stored[0]!r} and {stored[1]!r}, which are the same in D4RL: leave one out.")
        if not stored and name in _NEEDED:
            known = ", ".join(map(str, all_names)) or "nothing"
            raise DatasetError(f"{where} is not in the layout of D4RL: it has no {name!r}, but {known}.")
        if stored:
            made[name] = stored[0]
    return made


def _checked_episodes(where: str, found: dict[str, Any], max_episode_steps: int | None) -> Episodes:
    limit = max_episode_steps
    is_whole = isinstance(limit, (int, np.integer)) and not isinstance(limit, bool)
    if limit is not None and not (is_whole and 1 <= limit <= _LARGEST):
        raise ValueError(
            f"max_episode_steps = {limit!r:.60}: expected the steps of the longest episode, at least 1, an integer up to 2**62."
        )
    _require_layout(where, found)
    episodes = _episodes(found, max_episode_steps)
    if not len(episodes):
        raise DatasetError(f"{where}: no step has a known next observation, so there are no transitions.")
    if max_episode_steps is None and not found.keys() & {"timeouts", "next_observations"}:
        longest = int(episodes.lengths.max())
        warnings.warn(
            f"{where} has neither 'timeouts' nor 'next_observations', so episodes end only where terminals is 1; the longest "
            f"one has {longest:,} steps. If a time limit cut episodes, several are joined into one: their returns are "
            "added, and the first observation after a reset counts as a next observation. Then pass the limit, "
            "open_dataset(source, max_episode_steps=1000) for example; with more steps than any episode has, all stays as "
            "it is, without this warning.",
            stacklevel=4,
        )
    return episodes


def _require_layout(path: str, found: dict[str, Any]) -> None:
    """Check shapes and dtypes, and make the flags bool.

    Raises:
        DatasetError: a column is not as in the layout of D4RL.
    """
    found.update({name: as_column(path, name, column) for name, column in found.items()})
    found.update({name: squeezed(found[name]) for name in ("rewards", "terminals", "timeouts") if name in found})
    shape = found["observations"].shape
    if not shape or not shape[0]:
        fix = "" if shape else f" {STACK_ROWS}"
        raise DatasetError(f"{path}: the column 'observations' has the shape {shape}, expected at least one row.{fix}")
    count = shape[0]
    for name, column in sorted(found.items(), key=lambda pair: pair[1].ndim > 0):  # single numbers, of one step, first
        require_numbers(path, name, column, (count,))
    require_vector(path, "rewards", found["rewards"], count)
    for name in ("terminals", "timeouts"):
        if name in found:
            found[name] = flags(path, name, found[name], count)
    if "next_observations" in found and found["next_observations"].shape != shape:
        given = found["next_observations"].shape
        raise DatasetError(
            f"{path}: the column 'next_observations' has the shape {given}, expected {shape}, that of observations."
        )


def _episodes(found: dict[str, Any], max_episode_steps: int | None) -> Episodes:
    """The transitions as episodes."""
    obs, count = found["observations"], len(found["rewards"])
    terminated = found["terminals"]
    truncated = found["timeouts"] & ~terminated if "timeouts" in found else np.zeros(count, np.bool_)
    if max_episode_steps is not None:
        truncated |= _is_at_limit(terminated | truncated, max_episode_steps) & ~terminated
    keep = np.ones(count, np.bool_)
    if "next_observations" in found:
        next_obs = found["next_observations"]
    else:
        next_obs = np.concatenate([obs[1:], obs[-1:]])
        next_obs[terminated] = obs[terminated]
        keep = ~truncated
        keep[-1:] &= terminated[-1:]
        starts = np.concatenate([[True], (terminated | truncated)[:-1]])
        before = np.flatnonzero(truncated & ~starts) - 1  # not that of a last episode that the file cuts: it is unfinished
        truncated[before] = True
    rows = {
        "obs": obs,
        "action": found["actions"],
        "reward": found["rewards"],
        "next_obs": next_obs,
        "terminated": terminated,
        "truncated": truncated,
    }
    rows = {name: column[keep] for name, column in rows.items()}
    ends = rows["terminated"] | rows["truncated"]
    ends[-1:] = True
    return Episodes(rows, np.diff(np.flatnonzero(ends) + 1, prepend=0))


def _is_at_limit(ended: np.ndarray[Any, Any], limit: int) -> np.ndarray[Any, Any]:
    """[N] bool, whether an episode has had this many steps, or a multiple, at this step."""
    steps = np.arange(len(ended))
    is_first = np.concatenate([[True], ended[:-1]])
    begin = np.maximum.accumulate(np.where(is_first, steps, 0))
    at_limit: np.ndarray[Any, Any] = (steps - begin + 1) % limit == 0
    return at_limit
