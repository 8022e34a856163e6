"""Run downloads: the folder of a run, restored from its copy in a storage. A copy does not decide where files are written."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ding_lite.basics.blocks import block
from ding_lite.basics.checkpoint_files import CheckpointError
from ding_lite.basics.copied_files import MANIFEST, content_of, id_in, inner_runs, is_copied, latest_in, mapping_in
from ding_lite.basics.run_files import RunFiles
from ding_lite.basics.run_locks import NAME as LOCK
from ding_lite.basics.run_locks import FolderInUseError, RunLock
from ding_lite.basics.run_records import RECORD
from ding_lite.basics.storages import Storage, open_storage, place_in_storage
from ding_lite.basics.uris import is_uri, last_name, without_place

_LONGEST_S = 600.0  # of a download by another process of torchrun
_CONFIG = "config.json"
_RANK = re.compile(rf"(rank_[0-9]+)/{re.escape(MANIFEST)}")


def restored_run(
    run: str | PathLike[str],
    storage_path: str | PathLike[str] | None = None,
    filesystem: Any = None,
    folder: str | PathLike[str] | None = None,
) -> Path:
    """The folder of a run to resume, downloaded first if it is not on this machine.

    The folder must be absent, empty, or that of the same run. Runs inside the folder are left out, except those of ranks, which
    are restored as runs of their own.

    Args:
        run: the URI of a copy; or a folder, which is downloaded from storage_path if it has no saved run.
        storage_path: where runs are copied; None for nowhere.
        filesystem: the `pyarrow.fs.FileSystem` of storage_path; None for that of its URI.
        folder: where the copy at a URI is downloaded to. None for a folder in the working directory: the exp_name of its
            configuration if the URI ends with it, and otherwise the last name of the URI.

    Raises:
        CheckpointError: there is no run in the copy; the folder has another run or other files; or a file would be written
            outside of it.
        StorageError: the copy cannot be read.
        TypeError: run is neither text nor a path.
        FolderInUseError: another process writes to the folder.
        WriteError: the folder cannot be written to.
    """
    if not isinstance(run, (str, PathLike)):
        raise TypeError(f"resume={run!r:.60} wants the folder of a run, or the URI of its copy.")
    run = run if is_uri(run) else os.path.expanduser(run)
    if is_uri(run):
        storage = open_storage(run)
    elif storage_path is None or RunFiles(run).saved():
        return Path(run)
    else:
        storage, folder = open_storage(storage_path, filesystem).at(place_in_storage(run)), run
    there = storage.names()
    if MANIFEST not in there:
        only = f", only {', '.join(sorted(there)[:3])}" if there else ""
        raise CheckpointError(
            f"there is no saved run in {storage.shown}{only}: check the name. A copy can be resumed from its first complete "
            "upload on."
        )
    _require_inside(storage, there)
    target = Path(folder) if folder is not None else _own_folder(os.fspath(run), storage, there)
    _Download(storage, there, target).perform()
    for found in filter(None, map(_RANK.fullmatch, sorted(there))):
        rank = found[1]
        _require_no_link(target, f"{rank}/{RECORD}")
        names = {name.removeprefix(f"{rank}/"): size for name, size in there.items() if name.startswith(f"{rank}/")}
        _Download(storage.at(rank), names, target / rank).perform()
    return target


@block
def downloaded_run(uri: str) -> Iterator[Path]:
    """The description and the checkpoints of the run in a copy, in a temporary folder within this block.

    Raises:
        CheckpointError: there are no checkpoints; or a file would be written outside of the folder.
        StorageError: the copy cannot be read.
    """
    storage = open_storage(uri)
    names = [name for name in storage.names() if name.startswith("ckpt/") or name in (RECORD, _CONFIG)]
    _require_inside(storage, names)
    if not any(name.startswith("ckpt/") for name in names):
        raise CheckpointError(f"there are no checkpoints of a run in {storage.shown}: check the name.")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            storage.fetch(name, Path(folder) / name)
        yield Path(folder)


def _own_folder(uri: str, storage: Storage, there: Mapping[str, int]) -> Path:
    """The folder in the working directory that the URI names. The copy only says how many of its last names are those of it."""
    config = mapping_in(storage.read(_CONFIG)) if _CONFIG in there else {}
    name = config.get("exp_name")
    place = os.path.normpath(name) if isinstance(name, str) and name.strip() else ""
    if not place or without_place(uri, place) is None:
        place = last_name(uri)
    if not place or "/" in last_name(uri) or "\0" in place or any(part.startswith(".") for part in place.split("/")):
        raise CheckpointError(f"{storage.shown} has no name for a folder on this machine: give one with --exp-name.")
    return Path(place)


class _Download:
    """Downloads one run.

    Args:
        storage: the copy.
        there: size of each file there, in the order in which they were written.
        folder: the run's folder.
    """

    def __init__(self, storage: Storage, there: Mapping[str, int], folder: Path) -> None:
        self.storage, self.there, self.folder = storage, there, folder
        self._record = mapping_in(storage.read(RECORD)) if RECORD in there else {}
        self._latest = latest_in(mapping_in(storage.read(MANIFEST)))

    def perform(self) -> None:
        """Download the run, unless the folder has it already."""
        lock = RunLock(self.folder)
        # The processes of torchrun on this machine download the same copy: one does, and the others wait.
        patient_until = time.monotonic() + (_LONGEST_S if "LOCAL_RANK" in os.environ else 0.0)
        while self._is_needed():
            try:
                lock.take()
            except FolderInUseError:
                if time.monotonic() >= patient_until:
                    raise
                time.sleep(0.1)
                continue
            try:
                if self._is_needed():
                    self._fetch()
            finally:
                lock.free()
                with contextlib.suppress(OSError):  # it has files
                    self.folder.rmdir()
            break

    def _is_needed(self) -> bool:
        """Whether the copy has iterations that the folder lacks.

        Raises:
            CheckpointError: the folder is that of something else.
        """
        is_saved = self.folder.is_dir() and bool(RunFiles(self.folder).saved())
        if is_saved and not self._is_same():
            raise CheckpointError(
                f"{self.folder} has another run, with the id {self._own_id()}, than {self.storage.shown}, with the id "
                f"{id_in(self._record)}: move that folder away, or download to another one with --exp-name."
            )
        if not self._is_same():
            self._require_free()
        return not is_saved or self._latest > latest_in(mapping_in(content_of(self.folder / MANIFEST)))

    def _own_id(self) -> str | None:
        return id_in(mapping_in(content_of(self.folder / RECORD)))

    def _is_same(self) -> bool:
        """Whether the folder is that of the run in the copy."""
        mine = self._own_id()
        return mine is not None and mine == id_in(self._record)

    def _require_free(self) -> None:
        """Raise an error if the folder has files, except folders of other runs."""
        if not os.path.lexists(self.folder):
            return
        names = sorted(os.listdir(self.folder)) if self.folder.is_dir() else [self.folder.name]
        names = [name for name in names if name != LOCK and not name.endswith(".tmp") and not self._is_run(name)]
        if names and not self._is_same():  # another process may have begun the download meanwhile
            raise CheckpointError(
                f"{self.folder} is not the folder of the run in {self.storage.shown}: it has {', '.join(names[:3])}. Move it "
                "away, or download to another folder with --exp-name."
            )

    def _is_run(self, name: str) -> bool:
        return (self.folder / name / RECORD).is_file()

    def _fetch(self) -> None:
        """Download the files in the order in which they were written: the record first, by which an interrupted download is
        known, and the manifest last, without which it is no run."""
        inner = inner_runs(self.there)
        names = [name for name in self.there if is_copied(name, inner)]
        for name in names:
            _require_no_link(self.folder, name)
        for name in sorted(names, key=lambda name: (name == MANIFEST, name != RECORD)):
            target = self.folder / name
            is_here = name.startswith("run/rows_") and target.is_file() and target.stat().st_size == self.there[name]
            if not is_here:
                self.storage.fetch(name, target)


def _require_inside(storage: Storage, names: Iterable[str]) -> None:
    """Raise an error if a name in the copy leads out of its folder."""
    for name in names:
        parts = name.split("/")
        is_plain = not any(part in ("", ".", "..") or "\0" in part for part in parts)
        if not is_plain or Path(name).is_absolute() or Path(name).drive or ".." in Path(name).parts:
            raise CheckpointError(f"{storage.shown} has a file named {name!r}, outside of its folder.")


def _require_no_link(folder: Path, name: str) -> None:
    """Raise an error if a part of this path in the folder is a link, through which a file elsewhere would be written."""
    for part in (Path(name), *Path(name).parents):
        if part != Path() and (folder / part).is_symlink():
            raise CheckpointError(
                f"{folder / part} is a link, and a download does not write through links: remove it, or download to another "
                "folder with --exp-name."
            )
