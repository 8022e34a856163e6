"""Run locks: one process at a time writes to the folder of a run."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import socket
import sys
import threading
import warnings
import weakref
from os import PathLike
from typing import Any

if sys.platform != "win32":
    import fcntl

NAME = ".lock"

_UNSUPPORTED = frozenset(
    getattr(errno, name) for name in ("ENOLCK", "ENOSYS", "ENOTSUP", "EOPNOTSUPP", "EINVAL") if hasattr(errno, name)
)
_NO_LOCK = -1  # in the place of a file descriptor


class FolderInUseError(OSError):
    """Another process writes to this folder of a run. The message has folder, process and fix."""

    def __str__(self) -> str:
        return str(self.strerror)


class RunLock:
    """Lets only this process write to the folder of a run, from `take` until `free`, or until this object is gone.

    Several objects of one process may hold the lock of a folder at a time; it is free when the last one frees it. The kernel
    frees it when the process ends in any way. Child processes do not inherit it. On Windows, and on file systems without locks,
    where a warning says so, it does nothing.

    Args:
        folder: the run's folder, such as cfg.exp_name.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self._folder = folder
        self._holder = object()
        self._free = weakref.finalize(self, _free, self._holder)

    def take(self) -> None:
        """Take the lock, and make the folder if it is missing. Does nothing if this object holds it.

        If the folder cannot be written to, there is no lock: writing a file raises the error that says why.

        Raises:
            FolderInUseError: another process holds it.
        """
        if self._holder in _holders:
            return
        try:
            os.makedirs(self._folder, exist_ok=True)
            _take(self._holder, os.path.realpath(self._folder))
        except FolderInUseError:
            raise
        except OSError:
            pass

    def take_if_exists(self) -> None:
        """Take the lock if there is such a folder."""
        if os.path.isdir(self._folder):
            self.take()

    def free(self) -> None:
        """Free the lock; `take` takes it again."""
        _free(self._holder)


_holders: dict[object, str] = {}
"""The holders of a lock, with the path of their folder."""
_files: dict[str, int] = {}
"""The locked files, by path of the folder."""
_mutex = threading.RLock()  # reentrant, because the garbage collector may free a lock anywhere


def _take(holder: object, folder: str) -> None:
    with _mutex:
        _holders[holder] = folder  # first, so that a holder that is freed meanwhile is not the last one
        try:
            if folder in _files and not _is_in(folder, _files[folder]):  # the folder was removed or renamed since
                os.close(_files.pop(folder))
            if folder not in _files:
                _files[folder] = _locked(folder)
        except BaseException:
            _holders.pop(holder)
            raise


def _free(holder: object) -> None:
    with _mutex:
        folder = _holders.pop(holder, None)
        if folder is None or folder in _holders.values():
            return
        file = _files.pop(folder, _NO_LOCK)  # another process may have locked the folder after it was removed
        if file != _NO_LOCK:
            with contextlib.suppress(OSError):
                if _is_in(folder, file):
                    os.unlink(os.path.join(folder, NAME))
            os.close(file)


def _locked(folder: str) -> int:
    """The locked file of this folder, which says who has locked it."""
    if sys.platform == "win32":
        return _NO_LOCK
    while True:
        file = os.open(os.path.join(folder, NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_in(folder, file):
                break
            os.close(file)  # another process has freed it, and removed the file
        except OSError as error:
            holder = _read(file)
            os.close(file)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise FolderInUseError(errno.EBUSY, _in_use(folder, holder), folder) from None
            if error.errno not in _UNSUPPORTED:
                raise
            warnings.warn(
                f"the file system of {folder} has no locks ({error.strerror}): start no second run with this folder while this "
                "one is running, because each would overwrite the files of the other.",
                stacklevel=5,
            )
            return _NO_LOCK
    started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    with contextlib.suppress(OSError):  # a full disk: the lock works without it
        os.ftruncate(file, 0)
        os.write(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "start": started}).encode())
    return file


def _is_in(folder: str, file: int) -> bool:
    """Whether this is the open lock file of the folder as it is now."""
    if file == _NO_LOCK:
        return True
    try:
        return os.path.samestat(os.fstat(file), os.stat(os.path.join(folder, NAME)))
    except OSError:
        return False


def _read(file: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(file, 4096, 0))
    except (OSError, ValueError):  # it is being written
        return {}
    return found if isinstance(found, dict) else {}


def _in_use(folder: str, holder: dict[str, Any]) -> str:
    if {"pid", "host", "start"} <= holder.keys():
        who = f"process {holder['pid']} on {holder['host']}, since {holder['start']}"
    else:
        who = "another process"
    return (
        f"another run writes to the folder {folder}: {who}. Choose another folder for this run (exp_name), or end that process "
        "first."
    )


def _forget_in_child() -> None:
    """After a fork: the lock is that of the parent. Closing the child's copy of a file does not free it."""
    global _mutex
    _mutex = threading.RLock()
    for file in _files.values():
        if file != _NO_LOCK:
            os.close(file)
    _files.clear()
    _holders.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _mutex.acquire(), after_in_parent=lambda: _mutex.release(), after_in_child=_forget_in_child
    )
