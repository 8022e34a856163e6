"""Run copies: the folder of a run, copied to a storage during the run."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import threading
import time
from os import PathLike
from pathlib import Path
from typing import Any

from ding_lite.basics.copied_files import (
    MANIFEST,
    OF_A_STATE,
    FolderFiles,
    content_of,
    id_in,
    inner_runs,
    is_copied,
    latest_in,
    mapping_in,
    signature_of,
    states_in,
)
from ding_lite.basics.run_records import RECORD
from ding_lite.basics.storages import UNFINISHED, Storage, StorageError

_TRIES = 5  # of one upload, before a warning
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
_GRACE_S = 0.1  # for an attempt that fails at the last moment
_REMOVED = re.compile(r"run/(state|rows)_[^/]*\.pt|ckpt/[^/]*\.pt|error\.txt|env_error\.pt|lanes\.txt|timeline\.svg")
"""Files that are removed from the copy when the run has removed or renamed them."""


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
        self._error: BaseException | None = None
        """Why the last attempt has failed; None if it has not."""
        self._failed: set[str] = set()
        """Files whose upload has failed in the last attempt."""
        self._problems: list[str] = []
        self._left_out: set[str] = set()
        """What a warning has said that it is not copied."""
        self._owner: object = None
        """The process that writes to the copy, by its record there; None before `claim`."""
        self._lost: str | None = None
        """Why nothing is copied any more; None if the copy is that of this run."""
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
        self._require_same_run(continued)
        inner = inner_runs(self._there)
        for name in self.storage.unfinished():  # of a process that was killed
            if is_copied(name.removesuffix(UNFINISHED), inner):
                self.storage.remove(name)

    def _require_same_run(self, continued: bool) -> None:
        if not any(name == MANIFEST or name.startswith("ckpt/") for name in self._there):
            return
        there = id_in(mapping_in(self.storage.read(RECORD))) if RECORD in self._there else None
        if not continued or there != id_in(mapping_in(content_of(self.folder / RECORD))):
            raise StorageError(
                errno.EEXIST,
                f"there is another run in {self.storage.shown}, with the id {there or 'unknown'}: choose another "
                f"exp_name or storage_path, remove that copy, or continue it with --resume {self.storage.uri}.",
            )
        ahead, behind = (latest_in(mapping_in(one)) for one in (self._manifest_there(), content_of(self.folder / MANIFEST)))
        if ahead > behind:
            raise StorageError(
                errno.ESTALE,
                f"the copy in {self.storage.shown} is after {ahead} iterations, and the run in {self.folder} after {behind}: "
                f"continue from the copy with --resume {self.storage.uri}, or remove it.",
            )

    @property
    def is_claimed(self) -> bool:
        """Whether `claim` was called."""
        return self._owner is not None

    def claim(self, run_id: str) -> None:
        """Write the record of the run to the copy, by which programs notice that another one writes to it.

        Args:
            run_id: identifies the run.

        Raises:
            StorageError: it cannot be written.
        """
        content = content_of(self.folder / RECORD)
        if id_in(mapping_in(content)) != run_id:  # the disk is full
            content = json.dumps({"id": run_id}).encode()
        self._owner = _owner_in(content)
        self.storage.put(RECORD, content)

    def _require_own(self) -> None:
        """Raise an error if another process has begun to write to the copy. If it was removed, it is written anew."""
        if self._owner is None:
            return
        try:
            other = mapping_in(self.storage.read(RECORD))
        except StorageError:
            if self.storage.has(RECORD):
                raise
            self._there.clear()
            self._written.clear()
            return
        if _owner_in(other) != self._owner:
            self._lost = (
                f"another program has begun to copy the run {id_in(other) or 'with an unknown id'} to {self.storage.shown}"
                f"{_process_in(other)}: this run is not copied any more. Give each run an exp_name of its own. This one is in "
                f"{self.folder}: copy it with --resume {self.folder} and another --storage-path."
            )
            raise StorageError(errno.EEXIST, self._lost)

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
        if is_over and self._error is None and self._lost is None:
            return None
        self._is_given_up = True
        if self._lost is not None:
            return self._lost
        missing = self._missing()
        names = f"{', '.join(missing[:3])}{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}"
        reason = f"the upload has not ended after {timeout_s:.0f} s." if self._error is None else _reason(self._error)
        return (
            f"the copy in {self.storage.shown} lacks the latest {names or 'files'}: {reason} The files are in {self.folder}. "
            f"Copy that folder by hand, or resume the run with --resume {self.folder}, which uploads it."
        )

    def problem(self) -> str | None:
        """Failures of uploads, and what cannot be copied, once, for a warning; None if there is nothing to say."""
        with self._changed:
            found, self._problems = self._problems, []
        return " ".join(found) or None

    def metrics(self) -> dict[str, int]:
        """Columns of a row of metrics: saves that are not copied yet, and attempts that have failed so far."""
        return {"storage/saves_behind": self._saved - self._copied, "storage/failed_uploads": self._failures}

    def _work(self) -> None:
        try:
            while self._has_next():
                self._upload_newest()
        finally:  # also if something is raised that no attempt can
            with self._changed:
                if self._thread is threading.current_thread():  # `save` may have started another one
                    self._thread = None
                self._changed.notify_all()

    def _has_next(self) -> bool:
        """Take the newest snapshot. Without one the thread ends."""
        with self._changed:
            if self._lost is not None:
                self._next = None
                self._hold()
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
                if self._lost is not None:
                    self._problems.append(self._lost)
                    break
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
        except BaseException as error:  # noqa: BLE001  filesystems raise different ones, also SystemExit
            if not self._is_given_up:
                self._error, self._failures = error, self._failures + 1
            return False
        self._error, self._has_warned, self._copied = None, False, self._now.number
        return True

    def _note_problem(self, attempts: int) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._problems.append(
                f"the run is not copied after {attempts} attempts: {_reason(self._error)} The run goes on, {self.folder} has "
                "its files, and later saves try again."
            )

    def _upload(self, snapshot: _Snapshot) -> None:
        self._require_own()
        files = FolderFiles(self.folder)
        self._note_left_out(files.left_out)
        local = files.signatures
        for name in sorted(snapshot.files, key=lambda name: name.startswith("run/state_")):  # rows before states
            self._put(name, signature_of(self.folder / name))
        failed: dict[str, str] = {}
        for name, signature in sorted(local.items(), key=lambda one: one[1]):  # the oldest first, as a download has them again
            if name != MANIFEST and not OF_A_STATE.fullmatch(name):
                if name == RECORD:  # it would hide that another program has written its own since
                    self._require_own()
                self._put_other(name, signature, failed)
        self._failed = set(failed)
        if snapshot.manifest and self._written.get(MANIFEST) != snapshot.manifest:
            self._require_own()
            self.storage.put(MANIFEST, snapshot.manifest)
            self._written[MANIFEST] = snapshot.manifest
        self._remove(snapshot, local)
        for reason in failed.values():
            raise StorageError(errno.EIO, reason)

    def _put_other(self, name: str, signature: object, failed: dict[str, str]) -> None:
        """Write a file that is not of a state. If it cannot be read, it is left out.

        If it has failed in the attempt before too, the others and the manifest do not wait for it.
        """
        try:
            self._put(name, signature)
        except FileNotFoundError:  # it was replaced or removed meanwhile
            pass
        except BaseException as error:
            if isinstance(error, OSError) and not isinstance(error, StorageError):
                self._note_left_out({name: f"it cannot be read ({error.strerror})"})
                return
            failed[name] = _reason(error)  # not the error itself, whose traceback would keep the open file in a cycle
            if name not in self._failed or self._is_given_up:
                self._failed = set(failed)
                raise

    def _note_left_out(self, found: dict[str, str]) -> None:
        new = sorted(found.keys() - self._left_out)
        if new:
            self._left_out.update(new)
            names = ", ".join(f"{name.encode(errors='backslashreplace').decode()} ({found[name]})" for name in new[:5])
            more = f" and {len(new) - 5} more" if len(new) > 5 else ""
            with self._changed:
                self._problems.append(f"not copied from {self.folder} to {self.storage.shown}: {names}{more}.")

    def _remove(self, snapshot: _Snapshot, local: dict[str, tuple[int, ...]]) -> None:
        """Remove what the run has removed or renamed."""
        for name in [*self._there, *self._written]:
            is_left = name in snapshot.files if OF_A_STATE.fullmatch(name) else name in local
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
        manifest = content_of(self.folder / MANIFEST)
        files = FolderFiles(self.folder).signatures
        found = [name for name, signature in files.items() if name != MANIFEST and self._written.get(name) != signature]
        return found + ([MANIFEST] if manifest and self._written.get(MANIFEST) != manifest else [])


class _Snapshot:
    """The manifest of a run's folder at a moment, and the files that it names."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self.manifest = content_of(folder / MANIFEST)
        states = states_in(mapping_in(self.manifest))
        self.names = frozenset(name for one in states for name in (one["file"], *one.get("rows", ())))
        self.files = frozenset(f"run/{name}" for name in self.names)


def _reason(error: BaseException | None) -> str:
    """Why an attempt has failed."""
    return str(error) if isinstance(error, Exception) else f"the filesystem has raised {type(error).__name__}({error})."


def _owner_in(record: bytes | dict[str, Any]) -> object:
    """What identifies the process that has written a `run.json`: the run, and its last session."""
    record = mapping_in(record) if isinstance(record, bytes) else record
    return id_in(record), *(_last_session(record).get(name) for name in ("host", "pid", "start"))


def _last_session(record: dict[str, Any]) -> dict[str, Any]:
    sessions = record.get("sessions")
    last = sessions[-1] if isinstance(sessions, list) and sessions else None
    return last if isinstance(last, dict) else {}


def _process_in(record: dict[str, Any]) -> str:
    last = _last_session(record)
    is_known = {"pid", "host", "start"} <= last.keys()
    return f" (process {last['pid']} on {last['host']}, since {last['start']})" if is_known else ""
