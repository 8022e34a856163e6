"""Chunks: some whole episodes of a dataset as one compressed file, in numpy's npz format.

Within an episode, the next observation of a step is the observation of the following one. So observations are stored once, with
the final one of each episode, and take N + E rows for N steps of E episodes.
"""

from __future__ import annotations

import hashlib
import io
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from ding_lite.basics import unflatten, write_atomically
from ding_lite.data import Episodes, flatten
from ding_lite.data.trees import holds_objects

LENGTHS = "lengths"
"""Name of the array with the steps of each episode."""
OBS = "obs"
SCALARS = "reward", "terminated", "truncated", "weight"
"""Columns of one number for each step, as far as a dataset has them."""

_NEEDED = (OBS, "next_obs", "action", "reward", "terminated", "truncated")
_MANY = 16  # steps
_LEVEL = 1  # higher levels of zlib take several times as long, for files that are a few percent smaller
STACK_ROWS = "If each dict is one step, stack them: {name: np.stack([row[name] for row in rows]) for name in rows[0]}."
Arrays = dict[str, np.ndarray[Any, Any]]


class DatasetError(ValueError):
    """A dataset cannot be read or written: a file is damaged, missing, or of another kind, or the data does not fit."""


@dataclass(frozen=True)
class Chunk:
    """What the index of a dataset says about one file."""

    file: str
    """Its name in the folder."""
    steps: int
    episodes: int
    size: int
    """Bytes of the file."""
    sha256: str
    """Checksum of the file."""


def name_of(path: Iterable[str]) -> str:
    """The name of a leaf in a file, such as "obs/position"."""
    return "/".join(quote(part, safe=" ") for part in path)


def path_of(name: str) -> tuple[str, ...]:
    """The path of the leaf with this name."""
    return tuple(map(unquote, name.split("/")))


def as_column(where: str, name: str, column: Any) -> np.ndarray[Any, Any]:
    """A column as an array.

    Raises:
        DatasetError: it is a masked array with masked numbers, whose mask a dataset would lose.
    """
    if np.ma.is_masked(column):
        raise DatasetError(
            f"{where}: the column {name!r} is a masked array with {column.mask.sum():,} masked numbers, and a dataset "
            "has no masks: leave out the episodes with masked numbers, or give column.filled(number)."
        )
    return np.asarray(column)


def require_numbers(where: str, name: str, column: np.ndarray[Any, Any], shape: tuple[int, ...]) -> None:
    """Check a column of real numbers or booleans.

    Args:
        where: the file or the dataset, for messages.
        name: the column.
        column: its array.
        shape: the shape, or its beginning, that it must have.

    Raises:
        DatasetError: it has another shape, or holds objects, text or complex numbers.
    """
    if column.dtype.kind not in "biuf":
        fix = " Encode text as integers: np.unique(column, return_inverse=True)[1]." if column.dtype.kind in "USO" else ""
        raise DatasetError(f"{where}: the column {name!r} has the dtype {column.dtype}, expected real numbers.{fix}")
    if column.shape[: len(shape)] != shape:
        expected = str(shape) if len(shape) != 1 else f"({shape[0]}, ...)"
        fix = "" if column.ndim else f" {STACK_ROWS}"
        raise DatasetError(f"{where}: the column {name!r} has the shape {column.shape}, expected {expected}.{fix}")


def flags(where: str, name: str, column: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """A column of flags [N], which may be stored as numbers 0 and 1, as bool.

    Raises:
        DatasetError: it has another shape, or other values.
    """
    require_vector(where, name, column, count)
    if column.dtype == np.bool_:
        return column
    wrong = np.flatnonzero((column != 0) & (column != 1))  # NaN is neither
    if len(wrong):
        row = int(wrong[0])
        raise DatasetError(f"{where}: the column {name!r} has the value {column[row]} in row {row}, expected 0 or 1.")
    return column.astype(np.bool_)


def squeezed(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A column [N, 1] of one number for each step, as d3rlpy has them, as [N]; others are unchanged."""
    return column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column


def require_vector(where: str, name: str, column: np.ndarray[Any, Any], count: int) -> None:
    """Check a column of one number for each of `count` steps.

    Raises:
        DatasetError: it has another shape, or no real numbers.
    """
    require_numbers(where, name, column, ())
    if column.shape != (count,):
        fix = (
            " If these are steps of several environments, [T, B, ...], give the steps of one after those of another, "
            "np.swapaxes(column, 0, 1).reshape(-1, *column.shape[2:]) for every column; if the last step of each ends no "
            "episode, say so in truncated."
        )
        is_wide = column.ndim == 2 and column.shape[1] > 1
        raise DatasetError(
            f"{where}: the column {name!r} has the shape {column.shape}, expected ({count},).{fix if is_wide else ''}"
        )


def packed(episodes: Episodes, where: str = "transitions for a dataset") -> Arrays:
    """The arrays of a file with these episodes, by name: observations [N + E, ...], all other leaves [N, ...].

    An episode in which an environment was reset without an end is two.

    Args:
        episodes: the episodes.
        where: what messages call them.

    Raises:
        DatasetError: a column is missing, has another shape or dtype than it must have, or rewards of several steps; or no next
            observation is the observation of the following step.
    """
    rows, lengths = episodes.rows(), episodes.lengths
    missing = [name for name in _NEEDED if name not in rows]
    if missing:
        raise DatasetError(f"{where} lack the column {missing[0]!r}, they have {', '.join(rows)}.")
    if "discount" in rows:
        raise DatasetError(
            f"{where} have the column 'discount': nstep_reward_enhancer has summed their rewards. Put "
            "offline_data_saver before it."
        )
    _require_columns(where, rows, int(lengths.sum()))
    lengths = _without_jumps(rows, lengths)
    ends = np.cumsum(lengths)
    found: Arrays = {LENGTHS: lengths}
    for path, leaf in flatten({name: column for name, column in rows.items() if name != "next_obs"}):
        found[name_of(path)] = leaf
    places = np.arange(lengths.sum()) + np.repeat(np.arange(len(lengths)), lengths)
    following = dict(flatten(rows["next_obs"]))
    for path, leaf in flatten(rows[OBS]):
        stored = np.empty((len(leaf) + len(lengths), *leaf.shape[1:]), leaf.dtype)
        stored[places] = leaf
        stored[places[ends - 1] + 1] = following[path][ends - 1]
        found[name_of((OBS, *path))] = stored
    return found


def _require_columns(where: str, rows: dict[str, Any], count: int) -> None:
    """Check shapes and dtypes of all columns, and make the flags bool."""
    for path, leaf in flatten(rows):
        if holds_objects(leaf) or leaf.dtype.hasobject:
            fix = "leave it out of what the policy or the environment returns."
            if path[0] in _NEEDED:
                fix = "give numbers of one dtype and shape. Encode text as integers: np.unique(column, return_inverse=True)[1]."
            raise DatasetError(f"{where} have the column {'/'.join(path)} of objects, and a dataset holds numbers only: {fix}")
        as_column(where, "/".join(path), leaf)
        require_numbers(where, "/".join(path), leaf, (count,))
    for name in SCALARS:
        if name in rows:
            require_vector(where, name, rows[name], count)
    for name in ("terminated", "truncated"):
        rows[name] = flags(where, name, rows[name], count)
    following, own = dict(flatten(rows["next_obs"])), dict(flatten(rows[OBS]))
    if following.keys() != own.keys():
        parts = ["/".join(("next_obs", *path)) for path in own if path not in following]
        more = ["/".join(("next_obs", *path)) for path in following if path not in own]
        found = f"lack the column {parts[0]!r}" if parts else f"have the column {more[0]!r}"
        has = [", ".join("/".join((name, *path)) for path in leaves) for name, leaves in ((OBS, own), ("next_obs", following))]
        raise DatasetError(f"{where} {found}: obs has {has[0]}, and next_obs {has[1]}. Give both the same parts.")
    for path, leaf in flatten(rows[OBS]):
        name = "/".join(("next_obs", *path))
        if following[path].shape != leaf.shape:
            raise DatasetError(
                f"{where}: the column {name!r} has the shape {following[path].shape}, expected {leaf.shape}, that of obs."
            )


def _without_jumps(rows: Mapping[str, Any], lengths: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The lengths of the episodes, cut where the next observation of a step is not the observation of the following one,
    because its environment was reset.

    Raises:
        DatasetError: this is so in all of many steps.
    """
    is_inner = np.ones(int(lengths.sum()), np.bool_)
    is_inner[np.cumsum(lengths) - 1] = False
    inner = np.flatnonzero(is_inner)
    following, jumps = dict(flatten(rows["next_obs"])), np.zeros(len(inner), np.bool_)
    for path, leaf in flatten(rows[OBS]):
        jumps |= _differ(following[path][inner], leaf[inner + 1])
    if not jumps.any():
        return lengths
    if jumps.all() and len(jumps) >= _MANY:
        raise DatasetError(
            "next_obs of a step is never the observation of the following step, and a dataset stores observations once: give "
            "arrays in the order of time, one episode after the other; or, if each row is a transition by itself, mark every "
            "one as an end, terminated or truncated; put offline_data_saver before middleware that changes observations."
        )
    warnings.warn(
        f"next_obs of {int(jumps.sum()):,} of {int(lengths.sum()):,} steps is not the observation of the following step, as "
        "after a reset without an end: their episodes are cut there, and the first parts count as unfinished.",
        stacklevel=4,
    )
    ends = np.union1d(np.cumsum(lengths), inner[jumps] + 1)
    return np.diff(ends, prepend=0)


def _differ(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[N] bool, whether two rows [N, ...] differ; NaN equals NaN. Floats are compared with the precision that both have."""
    if one.dtype != other.dtype and one.dtype.kind == other.dtype.kind == "f":
        narrower = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
        one, other = one.astype(narrower), other.astype(narrower)
    differ = (one != other) & ~((one != one) & (other != other))
    return differ.any(tuple(range(1, differ.ndim)))  # type: ignore[no-any-return]


def write_chunk(folder: Path, number: int, arrays: Arrays) -> Chunk:
    """Write these arrays to file `number` of the dataset. Its name has a part of its checksum, so that a file of an index that
    is in use is never replaced by another one.

    Raises:
        WriteError: it cannot be written.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy")  # without the date, so that equal data gives equal files
            archive.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED, _LEVEL)
    held, lengths = content.getvalue(), arrays[LENGTHS]
    digest = hashlib.sha256(held).hexdigest()
    file = f"chunk_{number:06d}_{digest[:8]}.npz"
    write_atomically(folder / file, held)
    return Chunk(file, int(lengths.sum()), len(lengths), len(held), digest)


def read_chunk(folder: Path, chunk: Chunk, specs: Mapping[str, Any], names: Iterable[str], is_verified: bool = False) -> Arrays:
    """The arrays of these names.

    Args:
        folder: the dataset.
        chunk: the file.
        specs: shape and dtype of one row of each leaf, by name.
        names: the leaves; `LENGTHS` too.
        is_verified: whether the checksum of the file was compared before.

    Raises:
        DatasetError: the file is missing, damaged, or does not fit the index.
    """
    path = folder / chunk.file
    try:
        if not is_verified:
            _verify(path, chunk)
        with zipfile.ZipFile(path) as archive:
            found = {name: _array(archive, name) for name in names}
    except FileNotFoundError:
        raise DatasetError(f"the dataset {folder} is not whole: {chunk.file} is missing.") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        if isinstance(error, DatasetError):
            raise
        raise damaged(path, f"it cannot be read as an npz file with these arrays ({error})") from None
    for name, array in found.items():
        rows = chunk.episodes if name == LENGTHS else chunk.steps + (chunk.episodes if is_obs(name) else 0)
        shape, dtype = ((), np.dtype(np.int64)) if name == LENGTHS else (specs[name].shape, specs[name].dtype)
        if array.shape != (rows, *shape) or array.dtype != dtype:
            raise damaged(path, f"{name} is {array.dtype} {array.shape}, expected {dtype} {(rows, *shape)}")
    return found


def _verify(path: Path, chunk: Chunk) -> None:
    content = path.read_bytes()
    if len(content) != chunk.size or hashlib.sha256(content).hexdigest() != chunk.sha256:
        raise damaged(path, "its content does not match the checksum in the index")


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
    with archive.open(f"{name}.npy") as member:
        found: np.ndarray[Any, Any] = np.lib.format.read_array(member, allow_pickle=False)
    return found


def is_obs(name: str) -> bool:
    """Whether it is the name of observations, or of a part of them."""
    return name == OBS or name.startswith(f"{OBS}/")


def damaged(path: Path, what: str) -> DatasetError:
    """The error for a file that is damaged."""
    return DatasetError(f"{path} is damaged: {what}. Restore the file, or collect the dataset again.")


def nested_by_name(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by the names in a file as nested dicts."""
    made: dict[str, Any] = unflatten({path_of(name): leaf for name, leaf in leaves.items()})
    return made
