"""Chunks: some whole episodes of a dataset as one compressed file, in numpy's npz format.

Within an episode, the next observation of a step is the observation of the following one. So observations are stored once, with
the final one of each episode, and take N + E rows for N steps of E episodes.
"""

from __future__ import annotations

import hashlib
import io
import math
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import torch

from ding_lite.basics import unflatten, write_atomically
from ding_lite.data import Episodes, LeafSpec, flatten
from ding_lite.data.column_arrays import first_without_flag, rows_differ
from ding_lite.data.column_names import FLAGS, LENGTHS, RESERVED
from ding_lite.data.trees import holds_objects

"""Name of the array with the steps of each episode."""
OBS = "obs"
SCALARS = "reward", "terminated", "truncated", "weight"
"""Columns of one number for each step, as far as a dataset has them."""

NEEDED = (OBS, "next_obs", "action", "reward", "terminated", "truncated")
_MANY = 16  # steps
_PIECE = 1 << 20  # bytes of a file that are read at a time for its checksum
_LARGEST = np.iinfo(np.int64).max
_LEVEL = 1  # higher levels of zlib take several times as long, for files that are a few percent smaller
STACK_ROWS = "If each dict is one step, stack them: {name: np.stack([row[name] for row in rows]) for name in rows[0]}."
Arrays = dict[str, np.ndarray[Any, Any]]


class DatasetError(ValueError):
    """A dataset cannot be read or written: a file is damaged, missing, or of another kind, or the data does not fit."""


class MissingFileError(DatasetError):
    """A file of the index is missing: it was lost, or a writer has replaced it since the index was read."""


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
    lengths_sha256: str = ""
    """Checksum of the lengths of its episodes, with which a dataset is opened without reading all of the file; empty in
    datasets that were written without it."""


def name_of(path: Iterable[str]) -> str:
    """The name of a leaf in a file, such as "obs/position"."""
    return "/".join(quote(part, safe=" ") for part in path)


def path_of(name: str) -> tuple[str, ...]:
    """The path of the leaf with this name."""
    return tuple(map(unquote, name.split("/")))


def as_column(where: str, name: str, column: Any) -> np.ndarray[Any, Any]:
    """A column as an array, in the byte order of this machine; tensors of any device are detached.

    Raises:
        DatasetError: it is a masked array with masked numbers, whose mask a dataset would lose; or a tensor of a dtype that
            numpy does not have.
    """
    if isinstance(column, torch.Tensor):
        try:
            column = column.numpy(force=True)
        except TypeError:
            dtype = str(column.dtype).removeprefix("torch.")
            raise DatasetError(f"{where}: the column {name!r} is {dtype}, which datasets do not store: use .float().") from None
    if np.ma.is_masked(column):
        raise DatasetError(
            f"{where}: the column {name!r} is a masked array with {column.mask.sum():,} masked numbers, and a dataset "
            "has no masks: leave out the episodes with masked numbers, or give column.filled(number)."
        )
    return native(np.asarray(column))


def native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array itself, or a copy in the byte order of this machine, which tensors need."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def require_names(where: str, paths: Iterable[tuple[Any, ...]]) -> None:
    """Check the names of columns and of their parts.

    Args:
        where: the file or the dataset, for messages.
        paths: of all leaves.

    Raises:
        DatasetError: a name is no string, or one that datasets use themselves.
    """
    for path in paths:
        wrong = [part for part in path if not isinstance(part, str)]
        if wrong:
            raise DatasetError(
                f"{where}: the column {'/'.join(map(str, path))!r} has a part with the name {wrong[0]!r} of type "
                f"{type(wrong[0]).__name__}, expected strings: give {{str(name): part for name, part in parts.items()}}."
            )
        try:
            name_of(path)
        except UnicodeEncodeError:
            name = ascii("/".join(path))
            raise DatasetError(f"{where}: the column {name} has half of a character in its name: rename it.") from None
        if path[0] in RESERVED:
            raise DatasetError(
                f"{where}: no column can have the name {path[0]!r}, because datasets use the names {', '.join(RESERVED)}: "
                "choose another one."
            )


def require_numbers(where: str, name: str, column: np.ndarray[Any, Any], shape: tuple[int, ...]) -> None:
    """Check a column of real numbers or booleans.

    Args:
        where: the file or the dataset, for messages.
        name: the column.
        column: its array.
        shape: the shape, or its beginning, that it must have.

    Raises:
        DatasetError: it has another shape, or holds objects, text or complex numbers, or numbers that no tensor can hold.
    """
    if column.dtype.kind not in "biuf":
        fix = " Encode text as integers: np.unique(column, return_inverse=True)[1]." if column.dtype.kind in "USO" else ""
        raise DatasetError(f"{where}: the column {name!r} has the dtype {column.dtype}, expected real numbers.{fix}")
    require_fit_for_tensors(where, name, column)
    if column.shape[: len(shape)] != shape:
        expected = str(shape) if len(shape) != 1 else f"({shape[0]}, ...)"
        fix = "" if column.ndim else f" {STACK_ROWS}"
        raise DatasetError(f"{where}: the column {name!r} has the shape {column.shape}, expected {expected}.{fix}")


def require_fit_for_tensors(where: str, name: str, column: np.ndarray[Any, Any]) -> None:
    """Check that batches, which are tensors, can have these numbers.

    Raises:
        DatasetError: they are floats of more than 64 bits, or one of them is an integer above 2**63 - 1.
    """
    if column.dtype.kind == "f" and column.dtype.itemsize > 8:
        raise DatasetError(
            f"{where}: the column {name!r} has the dtype {column.dtype}, and batches are tensors, whose floats have at most 64 "
            "bits: give column.astype(np.float64)."
        )
    if column.dtype.kind == "u" and column.dtype.itemsize == 8 and column.size and (largest := column.max()) > _LARGEST:
        raise DatasetError(
            f"{where}: the column {name!r} has the number {largest} of {column.dtype}, and batches are tensors, whose integers "
            "end at 2**63 - 1: give smaller numbers, or column.astype(np.float64), which rounds them."
        )


def flags(where: str, name: str, column: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """A column of flags [N], which may be stored as numbers 0 and 1, as bool.

    Raises:
        DatasetError: it has another shape, or other values.
    """
    require_vector(where, name, column, count)
    if column.dtype == np.bool_:
        return column
    if (place := first_without_flag(column)) is not None:
        raise DatasetError(f"{where}: the column {name!r} has the value {column[place]} in row {place[0]}, expected 0 or 1.")
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

    An episode is cut, with a warning, after a step in it that is terminated or truncated, and where an environment was reset
    without an end.

    Args:
        episodes: the episodes.
        where: what messages call them.

    Raises:
        DatasetError: a column is missing, has another shape or dtype than it must have, or rewards of several steps; or no next
            observation is the observation of the following step.
    """
    rows = storable(episodes.rows(), int(episodes.lengths.sum()), where)
    lengths = _without_jumps(rows, _without_inner_ends(rows, episodes.lengths, where))
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


def storable(rows: Mapping[str, Any], count: int, where: str = "transitions for a dataset") -> dict[str, Any]:
    """These rows [count, ...] of steps, if a dataset can store them: in the byte order of this machine, with flags as bool.

    Args:
        rows: arrays by name, nested like the spaces. They are not changed.
        count: the number of steps.
        where: what messages call them.

    Raises:
        DatasetError: a column is missing, has another shape or dtype than it must have, a name that datasets use, or rewards of
            several steps; or the dtype of observations cannot hold a next observation.
    """
    require_names(where, [path for path, _ in flatten(rows)])
    missing = [name for name in NEEDED if name not in rows]
    if missing:
        raise DatasetError(f"{where} lack the column {missing[0]!r}, they have {', '.join(rows)}.")
    if "discount" in rows:
        raise DatasetError(
            f"{where} have the column 'discount': nstep_reward_enhancer has summed their rewards. Put "
            "offline_data_saver before it."
        )
    made: dict[str, Any] = unflatten(dict(_checked_leaves(where, rows, count)))
    for name in SCALARS:
        if name in made:
            require_vector(where, name, made[name], count)
    for name in FLAGS:
        made[name] = flags(where, name, made[name], count)
    _require_next_obs(where, made)
    return made


def column_specs(rows: Mapping[str, Any]) -> dict[str, LeafSpec]:
    """Shape and dtype of one row of each stored leaf, by name, of rows that `storable` has returned."""
    stored = flatten({name: column for name, column in rows.items() if name != "next_obs"})
    return {name_of(path): LeafSpec(leaf.shape[1:], leaf.dtype) for path, leaf in stored}


def _checked_leaves(where: str, rows: Mapping[str, Any], count: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    for path, leaf in flatten(rows):
        if holds_objects(leaf) or leaf.dtype.hasobject:
            fix = "leave it out of what the policy or the environment returns."
            if path[0] in NEEDED:
                fix = "give numbers of one dtype and shape. Encode text as integers: np.unique(column, return_inverse=True)[1]."
            raise DatasetError(f"{where} have the column {'/'.join(path)} of objects, and a dataset holds numbers only: {fix}")
        array = as_column(where, "/".join(path), leaf)
        require_numbers(where, "/".join(path), array, (count,))
        yield path, array


def _require_next_obs(where: str, rows: Mapping[str, Any]) -> None:
    """Check that next observations have the parts and the shapes of observations, and numbers that their dtype can hold."""
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
        lost = _lost_in(following[path], leaf.dtype)
        if len(lost):
            raise DatasetError(
                f"{where}: the column {name!r} is {following[path].dtype}, and is stored as {leaf.dtype}, the dtype of obs, "
                f"which cannot hold {following[path][tuple(lost[0])]} in row {lost[0][0]}: give obs and next_obs one dtype."
            )


def _lost_in(column: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """[n, ndim] int64, the places of the numbers that a cast to this dtype changes. Floats may be rounded to other floats."""
    if np.can_cast(column.dtype, dtype, "safe") and not (column.dtype.kind in "iu" and dtype.kind == "f"):
        return np.zeros((0, column.ndim), np.int64)
    with np.errstate(all="ignore"):
        cast = column.astype(dtype)
        if column.dtype.kind == dtype.kind == "f":
            return np.argwhere(~np.isfinite(cast) & np.isfinite(column))
        return np.argwhere((cast != column) | (cast.astype(column.dtype) != column))


def _without_inner_ends(rows: Mapping[str, Any], lengths: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    """The lengths of the episodes, cut after each step that is terminated or truncated."""
    ends = np.cumsum(lengths)
    inner = np.setdiff1d(np.flatnonzero(rows["terminated"] | rows["truncated"]) + 1, ends)
    if not len(inner):
        return lengths
    warnings.warn(
        f"{where}: {len(inner):,} steps inside of episodes are terminated or truncated, which ends an episode: their episodes "
        "are cut after them.",
        stacklevel=4,
    )
    return np.diff(np.union1d(ends, inner), prepend=0)


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
        jumps |= rows_differ(following[path][inner], leaf[inner + 1])
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
    return Chunk(file, int(lengths.sum()), len(lengths), len(held), digest, lengths_digest(lengths))


def lengths_digest(lengths: np.ndarray[Any, Any]) -> str:
    """The checksum of the lengths of episodes, see `Chunk`."""
    return hashlib.sha256(lengths.astype("<i8").tobytes()).hexdigest()


def read_chunk(folder: Path, chunk: Chunk, specs: Mapping[str, Any], names: Iterable[str], is_verified: bool = False) -> Arrays:
    """The arrays of these names.

    Args:
        folder: the dataset.
        chunk: the file.
        specs: shape and dtype of one row of each leaf, by name.
        names: the leaves; `LENGTHS` too.
        is_verified: whether the checksum of the file was compared before.

    Raises:
        MissingFileError: the file is missing.
        DatasetError: the file is damaged, or does not fit the index.
    """
    path = folder / chunk.file
    found: Arrays = {}
    try:
        if not is_verified:
            _verify(path, chunk)
        with zipfile.ZipFile(path) as archive:
            for name in names:
                rows = chunk.episodes if name == LENGTHS else chunk.steps + (chunk.episodes if is_obs(name) else 0)
                shape, dtype = ((), np.dtype(np.int64)) if name == LENGTHS else (specs[name].shape, specs[name].dtype)
                found[name] = _array(archive, name, (rows, *shape), dtype)
    except FileNotFoundError:
        raise MissingFileError(f"the dataset {folder} is not whole: {chunk.file} is missing.") from None
    except (DatasetError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  zipfile, zlib and numpy raise errors of many kinds for damaged content
        raise damaged(path, f"it cannot be read as an npz file with these arrays ({error})") from None
    return found


def _verify(path: Path, chunk: Chunk) -> None:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
        size = file.tell()
    if size != chunk.size or digest.hexdigest() != chunk.sha256:
        raise damaged(path, "its content does not match the checksum in the index")


def _array(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The array of this name, read-only, if it has this shape and dtype; they are compared before memory is taken for it, and
    no more than that is read."""
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(f"{name}.npy") as member:
        has_shape, is_fortran, has_dtype = headers[np.lib.format.read_magic(member)](member)
        if has_shape != shape or has_dtype != dtype or (is_fortran and len(shape) > 1):
            raise ValueError(f"{name} is {has_dtype} {has_shape}, expected {dtype} {shape}")
        size = math.prod(shape) * dtype.itemsize
        data = member.read(size + 1)  # to the end, where zipfile compares its checksum
        if len(data) != size:
            raise ValueError(f"{name} has {'more' if len(data) > size else 'less'} than the {size:,} bytes of {dtype} {shape}")
        return np.ndarray(shape, dtype, data)


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
