"""Writers: add episodes to a dataset."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ding_lite.basics import RunLock, arrays, base_state, plain, remove_leftovers, require_writable, unflatten
from ding_lite.basics.json_numbers import spelt_as_now
from ding_lite.data import Episodes, LeafSpec, Trajectories, flatten
from ding_lite.data.column_arrays import spec_like
from ding_lite.data.column_names import FLAGS, LENGTHS
from ding_lite.data.episodes import cut_episodes
from ding_lite.data.state_checks import require_integer, require_state, state_error
from ding_lite.data.trees import map_leaves, merge_leading_dims
from ding_lite.datasets.chunks import Chunk, DatasetError, column_specs, native, packed, storable, write_chunk
from ding_lite.datasets.indexes import INDEX, Index, read_index, source_of, write_index
from ding_lite.datasets.offline_datasets import OfflineDataset
from ding_lite.envs.space_records import same_elements

STATE_KEYS = ("chunks", "sources", "columns", "valid", "rows", "lengths", "bytes")
"""The keys of the state of a DatasetWriter."""

_CHUNK_BYTES = 8 << 20
_KEPT = 8
"""Files that were replaced, and stay until the writer is closed, so that who opened the dataset before can read it."""
_SAME = ("seed", "environments", "environment_seeds", "policies", "weights")
"""What two recordings of the same transitions have in common, of their sources."""


class DatasetWriter:
    """Adds whole episodes to a dataset: files of about 8 MB before compression, and an index.

    A rollout may cut episodes: its steps are held in memory until there are enough for a file, and those of unfinished episodes
    until these end. While these are more than 8 MB, the next file has as much as them. `flush` writes a file with all that is
    held, unfinished episodes too, which the next file replaces. Each file, and the index after it, is written atomically, so
    that the dataset is whole after any crash.

    A dataset can be read beside its writer: a reader has the episodes of the time when it opened it. The last 8 files that were
    replaced stay until `close`; a reader that needs one that is gone raises a DatasetError that says to open the dataset again.

    Args:
        path: folder of the dataset.
        append: whether to add to an existing dataset.
        is_copy: whether what is added belongs to the dataset only after `flush`; a copy that is interrupted leaves nothing.

    Raises:
        WriteError: nothing can be written there.
    """

    def __init__(self, path: str | PathLike[str], append: bool = False, is_copy: bool = False) -> None:
        self.path = Path(path).absolute()  # the working folder may change while the dataset is written
        self.append, self._is_copy = append, is_copy
        self._lock = RunLock(self.path)
        self._index = Index()
        self._is_open = False
        self._has_begun = False
        self._listed: list[str] | None = None
        """The files in the index on disk, as this writer knows it; None if there is no index."""
        self._replaced: list[str] = []
        """Files that were in an index before, the last ones of them; see `_KEPT`."""
        self._saved: dict[str, Any] | None = None
        self._rollouts: list[Trajectories] = []
        self._episodes: list[Episodes] = []
        self._specs: Mapping[str, LeafSpec] = {}
        """The columns of what is held; empty if nothing is, or after loading."""
        self._bytes = 0
        """Of the steps that were added since the last file was written."""
        self._write_at = _CHUNK_BYTES
        """For how many bytes the next file is written."""
        self._held: np.ndarray[Any, Any] | None = None
        """[B] bool: whether steps of an unfinished episode are held; None before the first rollout, or after loading."""
        self._has_warned = False
        require_writable(self.path / INDEX)

    def begin(
        self,
        observation_space: gymnasium.Space[Any] | None,
        action_space: gymnasium.Space[Any] | None,
        *sources: Mapping[str, Any],
    ) -> None:
        """Open the dataset, or begin a new one, and remove temporary files of killed writers. Does nothing if it is open.

        Args:
            observation_space, action_space: spaces of one environment; None if they are unknown.
            *sources: plain data about where the data is from, mostly one: environment, policy, seed, versions.

        Raises:
            DatasetError: there is a dataset already, and `append` is False; its spaces differ, or its rows do not fit the
                spaces, if it does not say its own; a source has something that is no plain data; or, after `load_state_dict`,
                it is not the one of the saved run. Or another writer has written to it since this one has.
            FolderInUseError: another process writes to it.
        """
        if self._is_open:
            return
        self._lock.take()
        remove_leftovers(self.path)
        found = read_index(self.path) if (self.path / INDEX).exists() else None
        listed = None if found is None else [chunk.file for chunk in found.chunks]
        if self._saved is not None:
            index = self._continued(found, self._saved)
        elif self._has_begun:
            self._require_unchanged()
            index = self._index
        elif found is None or self.append:
            index = Index() if found is None else found
            added = [source_of(source) for source in sources]
            _warn_of_copies(self.path, index.sources, added)
            index.sources += [{**source, "first_chunk": len(index.chunks)} for source in added]
        else:
            raise DatasetError(
                f"there is a dataset of {found.steps:,} transitions in {self.path}: choose another folder, or add to it with "
                "append=True."
            )
        self._give_spaces(index, {"observation_space": observation_space, "action_space": action_space})
        if not self._has_begun:
            self._listed = listed
        self._index, self._saved, self._is_open, self._has_begun = index, None, True, True

    def _give_spaces(self, index: Index, given: Mapping[str, gymnasium.Space[Any] | None]) -> None:
        """Put these spaces into the index, where it has none.

        Raises:
            DatasetError: it has others, or rows are stored that do not fit them.
        """
        new = {name: space for name, space in given.items() if space is not None and getattr(index, name) is None}
        for name, own in given.items():
            known = getattr(index, name)
            if own is not None and known is not None and not same_elements(known, own):
                raise DatasetError(
                    f"the dataset {self.path} has the {name.replace('_', ' ')} {known}, and the environments have {own}: write "
                    "to another folder."
                )
        if index.chunks and new:
            OfflineDataset(self.path).with_spaces(**new)
        for name, space in new.items():
            setattr(index, name, space)

    def _require_unchanged(self) -> None:
        """Raise an error if another writer has changed the dataset."""
        if not self._is_unchanged():
            raise DatasetError(
                f"another offline_data_saver has written to the dataset {self.path} since this one has opened it: give each a "
                "folder of its own."
            )

    def _is_unchanged(self) -> bool:
        found = read_index(self.path) if (self.path / INDEX).exists() else None
        return (None if found is None else [chunk.file for chunk in found.chunks]) == self._listed

    def _continued(self, found: Index | None, saved: Mapping[str, Any]) -> Index:
        """The index at the time of the saved state; files that were written later are dropped."""
        index = Index() if found is None else found
        if index.sources != saved["sources"][: len(index.sources)]:
            raise DatasetError(
                f"another run has added to the dataset {self.path} since this state was saved, and its data would be lost: "
                "copy the dataset, and begin a new run."
            )
        known = {chunk.file for chunk in index.chunks}
        index.chunks = [Chunk(**chunk) for chunk in saved["chunks"]]
        missing = [chunk.file for chunk in index.chunks if chunk.file not in known]
        if missing:
            raise DatasetError(
                f"the dataset {self.path} lacks {missing[0]}, which the saved run had written: restore its folder, or begin a "
                "new run."
            )
        index.sources = list(saved["sources"])
        return index

    def add(self, found: Trajectories | Episodes) -> None:
        """Add the steps of a rollout, or episodes. Copies are held until there are 8 MB of them for a file, and as much as is
        held of unfinished episodes.

        Raises:
            DatasetError: the columns differ from those before, or cannot be stored; what was added before is kept.
            WriteError: a file cannot be written.
        """
        copied: Any
        specs = column_specs(_storable(found))
        self._require_columns(specs)
        if isinstance(found, Episodes):
            copied = Episodes(map_leaves(_copy, found.rows()), found.lengths)
            self._episodes.append(copied)
        else:
            if self._rollouts and self._rollouts[-1].num_envs != found.num_envs:
                raise DatasetError(
                    f"a rollout of {found.num_envs} environments follows one of {self._rollouts[-1].num_envs}: a dataset takes "
                    "the rollouts of one collector. Use an offline_data_saver with a folder of its own for each."
                )
            columns = map_leaves(_copy, found.columns)
            copied = Trajectories(columns, None if found.valid is None else found.valid.copy())
            copied = self._without_rests(copied, found.begins)
            self._rollouts.append(copied)
        self._specs = specs
        self._bytes += _bytes_of(copied)
        if self._bytes >= self._write_at:
            self._write_finished()

    def _without_rests(self, rollout: Trajectories, begins: np.ndarray[Any, Any] | None) -> Trajectories:
        """The rollout without the first steps of environments in the middle of an episode of which no steps are held.

        Args:
            rollout: a copy, which may be changed.
            begins: see `Trajectories.begins`.
        """
        held = self._held
        if held is None or len(held) != rollout.num_envs:
            held = np.zeros(rollout.num_envs, np.bool_)
            for earlier in self._rollouts:
                held = _unfinished(earlier, held)
        valid = _valid(rollout)
        is_rest = np.zeros_like(held) if begins is None else ~begins & ~held & valid[0]
        if is_rest.any():
            ends = valid & (rollout.columns["terminated"] | rollout.columns["truncated"])
            valid = valid & ((np.cumsum(ends, 0) > ends) | ~is_rest)
            for flag in FLAGS:
                rollout.columns[flag] &= valid
            rollout = Trajectories(rollout.columns, valid)
            self._warn_of_rests(int(is_rest.sum()), len(is_rest))
        self._held = _unfinished(rollout, held)
        return rollout

    def _warn_of_rests(self, count: int, num_envs: int) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{count} of {num_envs} environments are in the middle of an episode where the recording of {self.path} "
                "begins: the rest of it is left out, because a dataset has whole episodes. To record from a first step, reset "
                "the environments before the run, env.reset(), or make new ones.",
                stacklevel=4,
            )

    def flush(self) -> None:
        """Write all that is held, unfinished episodes too, and the index. What is added later replaces this file."""
        finished, rest = self._cut()
        unfinished = [] if rest is None else [_pieces(rest)]
        self._require_open()
        tail = self._chunk([*finished, *unfinished])
        self._write_index([*self._index.chunks, *tail])

    def close(self) -> None:
        """Let others write to the dataset, and remove files that were replaced. What is held in memory stays; `begin` opens the
        dataset again."""
        with contextlib.suppress(DatasetError, OSError):  # the next writer removes them
            if self._is_open and (self._replaced or self._is_copy) and self._is_unchanged():
                self._replaced = []
                self._remove_unlisted()
        self._is_open = False
        self._lock.free()

    @property
    def is_open(self) -> bool:
        """Whether the dataset is open for this writer, from `begin` until `close`."""
        return self._is_open

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any] | None, gymnasium.Space[Any] | None]:
        """The observation space and the action space of the dataset, after `begin`; None for one that it does not say."""
        return self._index.observation_space, self._index.action_space

    def _require_open(self) -> None:
        if not self._is_open:
            self.begin(None, None, {})

    def _write_finished(self) -> None:
        """Write the finished episodes to a file, and hold the steps of the others."""
        finished, rest = self._cut()
        self._require_open()
        self._index.chunks += self._chunk(finished)
        self._rollouts, self._episodes = [] if rest is None else [rest], []
        # All that is held is joined for each file: only after as many steps again, or an episode that goes on would take a
        # time quadratic in its length.
        self._bytes, self._write_at = 0, max(_CHUNK_BYTES, self._bytes_held())
        if finished and not self._is_copy:
            self._write_index(self._index.chunks)

    def _bytes_held(self) -> int:
        """Of what is held of unfinished episodes; the rows of others between them, which are not valid, do not count."""
        return sum(map(_bytes_of, self._rollouts)) + sum(map(_bytes_of, self._episodes))

    def _chunk(self, episodes: Sequence[Episodes]) -> list[Chunk]:
        """Write these episodes to a file, if there are any."""
        if not episodes:
            return []
        found = [packed(part) for part in episodes]
        for part in found:
            specs = {name: LeafSpec(array.shape[1:], array.dtype) for name, array in part.items() if name != LENGTHS}
            self._index.columns = self._index.columns or specs
            self._require_columns(specs)
        joined = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
        return [write_chunk(self.path, len(self._index.chunks), joined)]

    def _require_columns(self, specs: Mapping[str, LeafSpec]) -> None:
        """Check that columns of these shapes and dtypes are those of the dataset, or of what is held for it."""
        held: list[Any] = [*self._episodes[:1], *self._rollouts[:1]]
        if held and not self._specs:
            self._specs = column_specs(_storable(held[0]))
        known = self._index.columns or self._specs
        if not known or specs == known:
            return
        for name in sorted(specs.keys() | known.keys()):
            if specs.get(name) != known.get(name):
                one, other = (_shown(where.get(name)) for where in (specs, known))
                raise DatasetError(
                    f"the column {name} is {one}, and {other} in the dataset {self.path}: write transitions with other columns "
                    "to another folder."
                )

    def _write_index(self, chunks: Sequence[Chunk]) -> None:
        self._require_unchanged()
        write_index(self.path, dataclasses.replace(self._index, chunks=list(chunks)))
        listed = [chunk.file for chunk in chunks]
        self._replaced = [file for file in (*self._replaced, *(self._listed or ())) if file not in listed][-_KEPT:]
        self._listed = listed
        self._remove_unlisted()

    def _remove_unlisted(self) -> None:
        """Remove files that are not in the index, such as those of killed writers, but not those that readers may use."""
        for file in self.path.glob("chunk_*.npz"):
            if file.name not in (*(self._listed or ()), *self._replaced):
                file.unlink(missing_ok=True)

    def _cut(self) -> tuple[list[Episodes], Trajectories | None]:
        """The finished episodes that are held, and the steps of the others."""
        finished = list(self._episodes)
        joined = _joined(self._rollouts)
        if joined is None:
            return finished, None
        valid = _valid(joined)
        ends = valid & (joined.columns["terminated"] | joined.columns["truncated"])
        if ends.any():
            finished.append(cut_episodes(joined, ends.sum(0).tolist()))
        left = valid & ~np.maximum.accumulate(ends[::-1])[::-1]
        steps = np.flatnonzero(left.any(1))
        if not len(steps):
            return finished, None
        left = left[steps[0] :]
        rest = map_leaves(lambda leaf: leaf[steps[0] :].copy(), joined.columns)
        for flag in FLAGS:
            rest[flag] &= left  # the ends of finished episodes are not in it
        return finished, Trajectories(rest, left)

    def state_dict(self) -> dict[str, Any]:
        """The files that were written, and the steps that are held."""
        joined, lengths = _joined(self._rollouts), [length for part in self._episodes for length in part.lengths.tolist()]
        rows = [part.rows() for part in self._episodes]
        whole = map_leaves(lambda *parts: np.concatenate(parts), *rows) if rows else {}
        chunks, sources = [dataclasses.asdict(chunk) for chunk in self._index.chunks], self._index.sources
        if self._saved is not None:  # until `begin`, the index is that of a loaded state
            chunks, sources = self._saved["chunks"], self._saved["sources"]
        return {
            "chunks": chunks,
            "sources": sources,
            "columns": None if joined is None else _to_plain(joined.columns),
            "valid": None if joined is None else plain(_valid(joined)),
            "rows": _to_plain(whole),
            "lengths": lengths,
            "bytes": self._bytes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a saved run: files that were written after it was saved are dropped at `begin`.

        Raises:
            TypeError, ValueError: it is not the state of a DatasetWriter.
        """
        state = base_state(self, state, STATE_KEYS)
        require_state(state, "DatasetWriter", STATE_KEYS)
        try:
            [Chunk(**chunk) for chunk in state["chunks"]]
            rollouts = [] if state["columns"] is None else [Trajectories(_from_plain(state["columns"]), arrays(state["valid"]))]
            episodes = [Episodes(_from_plain(state["rows"]), state["lengths"])] if state["lengths"] else []
        except (TypeError, ValueError, KeyError, AttributeError, StopIteration) as error:
            raise state_error("DatasetWriter", "columns", state["columns"], f"columns of rollouts ({error})") from None
        self._rollouts, self._episodes, self._held, self._specs = rollouts, episodes, None, {}
        self._bytes = require_integer(state, "bytes", "DatasetWriter", 0)
        self._write_at = max(_CHUNK_BYTES, self._bytes_held() - self._bytes)
        self.close()
        self._saved, self._has_begun = dict(state), False


def write_dataset(dataset: OfflineDataset, path: str | PathLike[str], append: bool = False) -> OfflineDataset:
    """Write a dataset to a folder, for `OfflineDataset(path)` and `--dataset path`.

    Args:
        dataset: the dataset, such as arrays opened with their spaces, `open_dataset(arrays, observation_space, action_space)`.
        path: folder of the new dataset.
        append: whether to add to a dataset that exists.

    Returns:
        The dataset in the folder.

    Raises:
        DatasetError: there is a dataset already; or, with `append`, its spaces or columns differ, or the rows of one do not fit
            the spaces of the other.
        FolderInUseError: another process writes to it.
        WriteError: nothing can be written there.
    """
    writer = DatasetWriter(path, append, is_copy=True)
    observation_space = dataset.observation_space if dataset.knows("observation_space") else None
    action_space = dataset.action_space if dataset.knows("action_space") else None
    try:
        writer.begin(observation_space, action_space, *(dataset.sources or [{"dataset": dataset.name}]))
        if (found := dataset.misfit(*writer.spaces)) is not None:
            raise DatasetError(f"the dataset {dataset.name} does not fit the spaces of the dataset {writer.path}: {found}")
        row_bytes = sum(int(np.prod(spec.shape)) * spec.dtype.itemsize for _, spec in flatten(dataset.columns))
        group = np.cumsum(dataset.lengths) * row_bytes // _CHUNK_BYTES
        for numbers in np.split(np.arange(dataset.num_episodes), np.flatnonzero(np.diff(group)) + 1):
            if len(numbers):
                writer.add(dataset.episodes(numbers))
        writer.flush()
    finally:
        writer.close()
    return OfflineDataset(path)


def _warn_of_copies(path: Path, known: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]]) -> None:
    """Warn if a recording begins as one in the dataset did, with the same seed, environments and weights of the policies."""
    for source in added:
        if None in (source.get("seed"), source.get("environment_seeds")) or "weights" not in source:
            continue
        own = _what_is_same(source)
        if any(own == _what_is_same(one) for one in known):
            warnings.warn(
                f"the dataset {path} has a recording with seed {source['seed']}, the same environments and the same policy "
                "already, so that the new one is a copy of it if both begin in the same way: use another seed, for the "
                "configuration and for make_envs.",
                stacklevel=4,
            )


def _what_is_same(source: Mapping[str, Any]) -> dict[str, Any]:
    return {name: spelt_as_now(source.get(name)) for name in _SAME}


def _storable(found: Trajectories | Episodes) -> dict[str, Any]:
    """The steps of a rollout, or of episodes, as rows [N, ...] that a dataset can store.

    Raises:
        DatasetError: see `storable`.
    """
    if isinstance(found, Episodes):
        return storable(found.rows(), int(found.lengths.sum()))
    shape = found.num_steps, found.num_envs
    for path, leaf in flatten(found.columns):
        if leaf.shape[:2] != shape:
            raise DatasetError(
                f"a rollout for a dataset: the column {'/'.join(map(str, path))!r} has the shape {leaf.shape}, expected {shape}"
                " first: all columns have the same steps and environments."
            )
    rows = map_leaves(merge_leading_dims, found.columns)
    if found.valid is not None:
        is_step = found.valid.reshape(-1)
        rows = map_leaves(lambda leaf: leaf[is_step], rows)
    return storable(rows, len(rows["reward"]) if "reward" in rows else 0)


def _bytes_of(found: Trajectories | Episodes) -> int:
    """The bytes of its valid rows in a file, which has no next_obs."""
    columns, valid = (found.columns, _valid(found)) if isinstance(found, Trajectories) else (found.rows(), None)
    whole: int = sum(leaf.nbytes for path, leaf in flatten(columns) if path[0] != "next_obs")
    return whole if valid is None or not valid.size else whole // valid.size * int(valid.sum())


def _copy(leaf: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return native(np.copy(leaf))


def _valid(rollout: Trajectories) -> np.ndarray[Any, Any]:
    return np.ones((rollout.num_steps, rollout.num_envs), np.bool_) if rollout.valid is None else rollout.valid


def _unfinished(rollout: Trajectories, before: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[B] bool: whether the last real step of each environment ends no episode; `before` where there is none."""
    valid = _valid(rollout)
    last = len(valid) - 1 - valid[::-1].argmax(0), np.arange(rollout.num_envs)
    ended = rollout.columns["terminated"][last] | rollout.columns["truncated"][last]
    found: np.ndarray[Any, Any] = np.where(valid.any(0), ~ended, before)
    return found


def _joined(rollouts: Sequence[Trajectories]) -> Trajectories | None:
    """The rollouts one after the other as one; None if there are none.

    Raises:
        DatasetError: their columns differ.
    """
    if len(rollouts) < 2:
        return rollouts[0] if rollouts else None
    first, *others = (dict(flatten(spec_like(rollout.columns, 2))) for rollout in rollouts)
    for spec in others:
        for path in spec.keys() | first.keys() if spec != first else ():
            if spec.get(path) != first.get(path):
                raise DatasetError(
                    f"the column {'/'.join(path)} is {_shown(spec.get(path))} in a rollout, and {_shown(first.get(path))} in "
                    "an earlier one: write transitions with other columns to another folder."
                )
    columns = map_leaves(lambda *parts: np.concatenate(parts), *(rollout.columns for rollout in rollouts))
    return Trajectories(columns, np.concatenate([_valid(rollout) for rollout in rollouts]))


def _pieces(rest: Trajectories) -> Episodes:
    """The steps of unfinished episodes as episodes, one of each environment that has any."""
    valid = _valid(rest).T
    rows = map_leaves(lambda leaf: leaf.swapaxes(0, 1)[valid], rest.columns)
    return Episodes(rows, [count for count in valid.sum(1).tolist() if count])


def _shown(spec: LeafSpec | None) -> str:
    return "missing" if spec is None else f"{spec.dtype} {spec.shape}"


def _to_plain(columns: Mapping[str, Any]) -> list[Any]:
    return [[list(path), plain(leaf)] for path, leaf in flatten(columns)]


def _from_plain(saved: Any) -> dict[str, Any]:
    made: dict[str, Any] = unflatten({tuple(path): arrays(leaf) for path, leaf in saved})
    return made
