"""HDF5: read files in the layout of D4RL. Needs the extra `offline`."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.basics import require_extra
from ding_lite.data import Episodes
from ding_lite.datasets.chunks import DatasetError, flags, require_numbers, require_vector
from ding_lite.datasets.offline_datasets import OfflineDataset

_NEEDED = ("observations", "actions", "rewards", "terminals")


def read_d4rl(path: str | PathLike[str]) -> OfflineDataset:
    """A file in the layout of D4RL, in memory: observations, actions, rewards, terminals, and usually timeouts.

    Where the file has no `next_observations`, the next observation of a step is the observation of the following one. That of
    the last step before a timeout, and of the last step of the file, is then unknown: the step is left out, and the one before
    it is truncated, as by D4RL's `qlearning_dataset`. Next observations of terminal steps, which no target uses, are then the
    observations of these steps. Further columns, such as infos, are left out.

    The file does not say the spaces: make the policy with those of the environment.

    Args:
        path: the HDF5 file.

    Raises:
        DatasetError: it cannot be read, or is of another layout.
        ImportError: without the extra `offline`.
    """
    require_extra("h5py", "offline", "reading a file in the layout of D4RL")
    import h5py

    path = Path(path)
    try:
        with h5py.File(path, "r") as file:
            lacking = [name for name in _NEEDED if not isinstance(file.get(name), h5py.Dataset)]
            if lacking:
                raise DatasetError(
                    f"{path} is not in the layout of D4RL: it has no {lacking[0]!r}, but {', '.join(file) or 'nothing'}."
                )
            further = [name for name in ("timeouts", "next_observations") if isinstance(file.get(name), h5py.Dataset)]
            names = [*_NEEDED, *further]
            found = {name: file[name][()] for name in names}
    except FileNotFoundError:
        raise DatasetError(f"there is no file {path}.") from None
    except (OSError, RuntimeError) as error:
        raise DatasetError(f"{path} cannot be read as HDF5, it may be damaged: {error}") from None
    _require_layout(str(path), found)
    episodes = _episodes(found)
    if not len(episodes):
        raise DatasetError(f"{path}: no step has a known next observation, so there are no transitions.")
    return OfflineDataset.from_episodes(episodes, source={"d4rl": str(path)}, name=str(path))


def _require_layout(path: str, found: dict[str, Any]) -> None:
    """Check shapes and dtypes, and make the flags bool.

    Raises:
        DatasetError: a column is not as in the layout of D4RL.
    """
    found.update({name: np.asarray(column) for name, column in found.items()})
    shape = found["observations"].shape
    if not shape or not shape[0]:
        raise DatasetError(f"{path}: the column 'observations' has the shape {shape}, expected at least one row.")
    count = shape[0]
    for name, column in found.items():
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


def _episodes(found: dict[str, Any]) -> Episodes:
    """The transitions as episodes."""
    obs, count = found["observations"], len(found["rewards"])
    terminated = found["terminals"]
    truncated = found["timeouts"] & ~terminated if "timeouts" in found else np.zeros(count, np.bool_)
    keep = np.ones(count, np.bool_)
    if "next_observations" in found:
        next_obs = found["next_observations"]
    else:
        next_obs = np.concatenate([obs[1:], obs[-1:]])
        next_obs[terminated] = obs[terminated]
        unknown = truncated.copy()
        unknown[-1:] |= ~terminated[-1:]
        keep = ~unknown
        starts = np.concatenate([[True], (terminated | truncated)[:-1]])
        before = np.flatnonzero(unknown & ~starts) - 1
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
