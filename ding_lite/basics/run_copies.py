"""Run copies: the folder of a run, copied to a storage beside the run, and restored from there."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from ding_lite.basics.checkpoints import CheckpointError
from ding_lite.basics.run_files import RunFiles
from ding_lite.basics.run_locks import NAME as LOCK
from ding_lite.basics.run_locks import FolderInUseError, RunLock
from ding_lite.basics.run_records import RECORD
from ding_lite.basics.storages import Storage, StorageError, is_uri, open_storage, place_in_storage

MANIFEST = "run/manifest.json"

_TRIES = 5  # of one upload, before a warning
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
_LONGEST_DOWNLOAD_S = 600.0  # by another process of torchrun
_GRACE_S = 0.1  # for an attempt that fails at the last moment
_OF_A_STATE = re.compile(r"run/(state|rows)_[^/]*\.pt")
_REMOVED = re.compile(r"run/(state|rows)_[^/]*\.pt|ckpt/[^/]*\.pt|error\.txt")
"""Files that are removed from the copy when the run has removed or renamed them."""
_EARLIER = re.compile(r"(run|ckpt)\.[0-9]+")
"""Folders of earlier runs, which were moved aside."""


class RunCopy:
    """Copies the folder of a run to a storage, on a thread of its own.

    New files are written first, then the manifest that names them; then files that it does not name any more are removed. So
    the copy can be resumed at any moment. An upload that fails is tried again, with growing waits.

    Args:
        folder: the run's folder.
        storage: the folder of the copy.
    """

    def __init__(self, folder: str | PathLike[str], storage: Storage) -> None:
        self.folder, self.storage = Path(folder), storage
        self.held: frozenset[str] = frozenset()
        """Names of files in `run/` that must not be removed yet."""
        self._changed = threading.Condition()
        self._next: _Snapshot | None = None
        self._now: _Snapshot | None = None
        self._thread: threading.Thread | None = None
        self._deadline: float | None = None
        """Until then an upload is tried again at the end of the run; None before."""
        self._is_hurried = self._is_given_up = False
        self._saved = self._copied = self._failures = 0
        self._error: Exception | None = None
        """Why the last attempt has failed; None if it has not."""
        self._problem: str | None = None
        self._has_warned = False
        self._there: dict[str, int] = {}
        """Size of each file that was in the copy at the beginning."""
        self._written: dict[str, object] = {}
        """What was last written to each file of the copy: time, size and number of the file, or its content."""

    def begin(self, continued: bool) -> None:
        """Look at the copy, before the run begins.

        Args:
            continued: whether the run in the folder goes on, instead of a new one.

        Raises:
            StorageError: the storage cannot be written to; the copy is one of another run, or is ahead of the folder.
        """
        self.storage.require_writable()
        self._there = self.storage.names()
        if not any(name == MANIFEST or name.startswith("ckpt/") for name in self._there):
            return
        there = _loads(self.storage.read(RECORD)) if RECORD in self._there else {}
        here = _loads(_content(self.folder / RECORD)) if continued else {}
        if not continued or there.get("id") != here.get("id"):
            raise StorageError(
                errno.EEXIST,
                f"there is another run in {self.storage.shown}, with the id {there.get('id', 'unknown')}: choose another "
                f"exp_name or storage_path, remove that copy, or continue it with --resume {self.storage.shown}.",
            )
        ahead, behind = (_latest(_loads(one)) for one in (self._manifest_there(), _content(self.folder / MANIFEST)))
        if ahead > behind:
            raise StorageError(
                errno.ESTALE,
                f"the copy in {self.storage.shown} is after {ahead} iterations, and the run in {self.folder} after {behind}: "
                f"continue from the copy with --resume {self.storage.shown}, or remove it.",
            )

    def _manifest_there(self) -> bytes:
        return self.storage.read(MANIFEST) if MANIFEST in self._there else b""

    def save(self) -> None:
        """Copy what is new in the folder. Returns at once; if an upload is in progress, the next one follows it."""
        with self._changed:
            self._saved += 1
            self._next = _Snapshot(self.folder, self._saved)
            self._hold()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="run copy", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _hold(self) -> None:
        self.held = frozenset[str]().union(*(one.names for one in (self._now, self._next) if one is not None))

    def settle(self, timeout_s: float) -> bool:
        """Wait until uploads have ended, or have failed for now. Returns whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout_s)

    def finish(self, timeout_s: float) -> str | None:
        """Copy what is new, and wait for it. Returns what is missing and why, or None.

        Args:
            timeout_s: seconds after which the upload is given up.
        """
        if self._is_given_up:
            return None  # this was said before
        self._deadline, self._is_hurried = time.monotonic() + timeout_s, True
        self.save()
        try:
            is_over = self.settle(timeout_s + _GRACE_S)
        except BaseException:
            self._is_given_up = True
            raise
        self._deadline, self._is_hurried = None, False
        if is_over and self._error is None:
            return None
        self._is_given_up = True
        missing = self._missing()
        names = f"{', '.join(missing[:3])}{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}"
        reason = f"the upload has not ended after {timeout_s:.0f} s." if self._error is None else str(self._error)
        return (
            f"the copy in {self.storage.shown} lacks the latest {names or 'files'}: {reason} The files are in {self.folder}. "
            f"Copy that folder by hand, or resume the run with --resume {self.folder}, which uploads it."
        )

    def problem(self) -> str | None:
        """The failure of an upload, once, for a warning; None if there is none."""
        found, self._problem = self._problem, None
        return found

    def metrics(self) -> dict[str, int]:
        """Columns of a row of metrics: saves that are not copied yet, and attempts that have failed so far."""
        return {"storage/saves_behind": self._saved - self._copied, "storage/failed_uploads": self._failures}

    def _work(self) -> None:
        while self._has_next():
            self._upload_newest()

    def _has_next(self) -> bool:
        """Take the newest snapshot. Without one the thread ends."""
        with self._changed:
            if self._next is None or self._is_given_up:
                self._thread = None
                self._changed.notify_all()
                return False
            self._now, self._next = self._next, None
            return True

    def _upload_newest(self) -> None:
        """Upload the snapshot, or after a failure the newest one by then, until an attempt succeeds or it is given up."""
        wait_s, attempts = _FIRST_WAIT_S, 0
        while not self._has_uploaded():
            attempts += 1
            with self._changed:
                if self._deadline is None and attempts >= _TRIES:
                    self._note_problem(attempts)
                    break
                self._changed.wait_for(lambda: self._is_hurried or self._is_given_up, min(wait_s, self._left_s()))
                self._is_hurried = False
                if self._is_given_up or not self._left_s():
                    break
                if self._next is not None:
                    self._now, self._next = self._next, None
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        with self._changed:
            self._now = None
            self._hold()

    def _left_s(self) -> float:
        """Seconds that are left for further attempts."""
        return math.inf if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _has_uploaded(self) -> bool:
        """Try once to upload the current snapshot."""
        assert self._now is not None
        try:
            self._upload(self._now)
        except Exception as error:  # noqa: BLE001  filesystems raise different ones
            if not self._is_given_up:
                self._error, self._failures = error, self._failures + 1
            return False
        self._error, self._has_warned, self._copied = None, False, self._now.number
        return True

    def _note_problem(self, attempts: int) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._problem = (
                f"the run is not copied after {attempts} attempts: {self._error} The run goes on, {self.folder} has its files, "
                "and later saves try again."
            )

    def _upload(self, snapshot: _Snapshot) -> None:
        local = dict(_files(self.folder))
        for name in sorted(snapshot.files, key=lambda name: name.startswith("run/state_")):  # rows before states
            self._put(name, _signature(self.folder / name))
        for name, signature in sorted(local.items(), key=lambda one: one[1]):  # the oldest first, as a download has them again
            if name != MANIFEST and not _OF_A_STATE.fullmatch(name):
                with contextlib.suppress(FileNotFoundError):  # it was replaced or removed meanwhile
                    self._put(name, signature)
        if snapshot.manifest and self._written.get(MANIFEST) != snapshot.manifest:
            self.storage.put(MANIFEST, snapshot.manifest)
            self._written[MANIFEST] = snapshot.manifest
        for name in [*self._there, *self._written]:
            is_left = name in snapshot.files if _OF_A_STATE.fullmatch(name) else name in local
            if _REMOVED.fullmatch(name) and not is_left:
                self.storage.remove(name)
                self._there.pop(name, None)
                self._written.pop(name, None)

    def _put(self, name: str, signature: object) -> None:
        """Write a file of the folder to the copy, unless it is there."""
        if self._is_given_up:
            raise StorageError(errno.EINTR, "the upload was given up.")
        # The names of rows have a checksum. A state with this name may be another one.
        is_there = name.startswith("run/rows_") and self._there.get(name) == os.stat(self.folder / name).st_size
        if not is_there and self._written.get(name) != signature:
            self.storage.put(name, self.folder / name, lambda: not self._is_given_up)
        self._written[name] = signature

    def _missing(self) -> list[str]:
        """The files of the folder that the copy does not have in their latest form."""
        manifest = _content(self.folder / MANIFEST)
        found = [name for name, signature in _files(self.folder) if name != MANIFEST and self._written.get(name) != signature]
        return found + ([MANIFEST] if manifest and self._written.get(MANIFEST) != manifest else [])


class _Snapshot:
    """The manifest of a run's folder at a moment, and the files that it names."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self.manifest = _content(folder / MANIFEST)
        states = _states(_loads(self.manifest))
        self.names = frozenset(name for one in states for name in (one["file"], *one.get("rows", ())))
        self.files = frozenset(f"run/{name}" for name in self.names)


def restored_run(
    run: str | PathLike[str],
    storage_path: str | PathLike[str] | None = None,
    filesystem: Any = None,
    folder: str | PathLike[str] | None = None,
) -> Path:
    """The folder of a run to resume, downloaded first if it is not on this machine.

    Args:
        run: the URI of a copy; or a folder, which is downloaded from storage_path if it has no saved run.
        storage_path: where runs are copied; None for nowhere.
        filesystem: the `pyarrow.fs.FileSystem` of storage_path; None for that of its URI.
        folder: where the copy at a URI is downloaded to; None for the exp_name of its configuration, or its last name.

    Raises:
        CheckpointError: there is no run in the copy; or the folder has another one.
        StorageError: the copy cannot be read.
        FolderInUseError: another process writes to the folder.
        WriteError: the folder cannot be written to.
    """
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
    target = Path(folder) if folder is not None else _own_folder(storage, there)
    lock = RunLock(target)
    # The processes of torchrun on this machine download the same copy: one does, and the others wait.
    patient_until = time.monotonic() + (_LONGEST_DOWNLOAD_S if "LOCAL_RANK" in os.environ else 0.0)
    while _needs_download(storage, there, target):
        try:
            lock.take()
        except FolderInUseError:
            if time.monotonic() >= patient_until:
                raise
            time.sleep(0.1)
            continue
        try:
            if _needs_download(storage, there, target):
                _download(storage, there, target)
        finally:
            lock.free()
            with contextlib.suppress(OSError):  # it has files
                target.rmdir()
        break
    return target


@contextlib.contextmanager
def downloaded_run(uri: str) -> Iterator[Path]:
    """The description and the checkpoints of the run in a copy, in a temporary folder within this block.

    Raises:
        CheckpointError: there are no checkpoints.
        StorageError: the copy cannot be read.
    """
    storage = open_storage(uri)
    names = [name for name in storage.names() if name.startswith("ckpt/") or name in (RECORD, "config.json")]
    if not any(name.startswith("ckpt/") for name in names):
        raise CheckpointError(f"there are no checkpoints of a run in {storage.shown}: check the name.")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            storage.fetch(name, Path(folder) / name)
        yield Path(folder)


def _own_folder(storage: Storage, there: dict[str, int]) -> Path:
    config = _loads(storage.read("config.json")) if "config.json" in there else {}
    name = config.get("exp_name")
    return Path(name if isinstance(name, str) and name.strip() else storage.shown.rpartition("/")[2])


def _needs_download(storage: Storage, there: dict[str, int], folder: Path) -> bool:
    """Whether the copy has iterations that the folder lacks."""
    if not RunFiles(folder).saved():
        return True
    mine = _loads(_content(folder / RECORD)).get("id")
    other = _loads(storage.read(RECORD)).get("id") if RECORD in there else None
    if mine != other:
        raise CheckpointError(
            f"{folder} has another run, with the id {mine}, than {storage.shown}, with the id {other}: move that folder away, "
            "or download to another one with --exp-name."
        )
    return _latest(_loads(storage.read(MANIFEST))) > _latest(_loads(_content(folder / MANIFEST)))


def _download(storage: Storage, there: dict[str, int], folder: Path) -> None:
    """Download all files in the order in which they were written, and the manifest last: an interrupted download is no run."""
    for name in sorted(there, key=lambda name: name == MANIFEST):
        target = folder / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise CheckpointError(f"{storage.shown} has a file named {name!r}, outside of its folder.")
        is_here = name.startswith("run/rows_") and target.is_file() and target.stat().st_size == there[name]
        if not is_here:
            storage.fetch(name, target)


def _files(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The files of a run, by their path in its folder, each with its `_signature`."""
    for place, folders, names in os.walk(folder):
        inner = Path(place).relative_to(folder)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and not (inner == Path() and _EARLIER.fullmatch(name))
            and not (Path(place) / name / RECORD).exists()  # another run, such as that of a rank
        )
        for name in sorted(names):
            if name != LOCK and not name.endswith(".tmp"):
                with contextlib.suppress(FileNotFoundError):
                    yield (inner / name).as_posix(), _signature(Path(place) / name)


def _signature(path: Path) -> tuple[int, ...]:
    """What identifies the content of a file: when it was written, its size and its number."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _content(path: Path) -> bytes:
    """The content of a small file; empty if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _loads(content: bytes) -> dict[str, Any]:
    """The mapping in JSON; empty if it is damaged."""
    with contextlib.suppress(ValueError):
        found = json.loads(content)
        if isinstance(found, dict):
            return found
    return {}


def _states(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    states = manifest.get("states")
    found = [one for one in states if isinstance(one, dict) and "file" in one] if isinstance(states, list) else []
    return [one for one in found if all(isinstance(name, str) for name in (one["file"], *one.get("rows", ())))]


def _latest(manifest: dict[str, Any]) -> int:
    """The iterations of the latest state in a manifest; -1 if there is none."""
    done = [one.get("done") for one in _states(manifest)[:1]]
    return done[0] if done and isinstance(done[0], int) else -1
