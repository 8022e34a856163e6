"""Files of a run: written atomically; errors give path, reason and fix."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

_TEMPORARY = re.compile(r".+\.(?P<machine>[A-Za-z0-9-]+)\.(?P<pid>[0-9]+)\.tmp")
_BY_PATH = frozenset(
    getattr(errno, name) for name in ("ENOENT", "EEXIST", "ENOTDIR", "EISDIR", "EACCES", "EPERM", "EROFS", "ELOOP")
)
"""Errors caused by a part of the path."""
_ELSEWHERE = "choose another folder"


class WriteError(OSError):
    """A file cannot be written. The message has path, reason and fix; `errno` and `filename` are as in any OSError."""

    def __str__(self) -> str:
        return str(self.strerror)


class UnsavedError(WriteError):
    """A run has ended, but its final state could not be written."""


def absolute(path: str | PathLike[str]) -> Path:
    """The absolute path of a file or folder, with the home folder in place of a leading `~`.

    An object that writes to it later keeps this path, because the program may change its working directory.
    """
    path = Path(os.path.expanduser(path))
    with contextlib.suppress(OSError):  # the working directory was removed
        return path.absolute()
    return path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at `path` by one with this content, durably: temporary file, fsync, rename, fsync of the folder.

    Creates the folder if it is missing.

    Raises:
        WriteError: writing failed; the old file is unchanged.
    """
    _require_name(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise WriteError(errno.EINVAL, _message(path, "it is a device or pipe, not a file", "Choose another name."), str(path))
    temporary = temporary_beside(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def move_aside(*paths: Path) -> int:
    """Rename the files and folders at these paths, as far as they exist, to `name.1`, or to the next number that is free for
    all of them. Returns the number.

    Raises:
        WriteError: one cannot be renamed; the others are.
    """
    number = 1
    while any(os.path.lexists(numbered(path, number)) for path in paths):
        number += 1
    refused = None
    for path in paths:
        try:
            if path.exists():
                with writing(older := numbered(path, number)):
                    path.rename(older)
        except WriteError as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return number


def numbered(path: Path, number: int) -> Path:
    """The path of a file or folder that was moved aside with this number."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


@contextlib.contextmanager
def writing(path: str | PathLike[str]) -> Iterator[None]:
    """Within this block `path` is written; an OSError is raised as a `WriteError` with reason and fix."""
    _require_name(path)
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        number = error.errno or errno.EIO
        what, fix = (_obstacle(Path(path)) if number in _BY_PATH else None) or _refusal(Path(path), error)
        raise WriteError(number, _message(path, what, fix), str(path)) from error


def require_writable(path: str | PathLike[str]) -> None:
    """Raise an error if no file can be written at this path. To test it, an empty file beside it is written and removed.

    If folders are missing, the first one is created and removed, because permissions alone are not reliable, as in /proc.

    Raises:
        WriteError: a broken link or a file is in place of a folder, or no file can be written there.
    """
    _require_name(path)
    path = Path(path)
    found = _obstacle(path)
    if found is not None:
        raise WriteError(errno.EACCES, _message(path, *found), str(path))
    missing = [folder for folder in path.parents if not folder.exists()]
    trial = temporary_beside(missing[-1] if missing else path)
    with writing(path):
        if missing:
            trial.mkdir()
            trial.rmdir()
        else:
            trial.touch()
            trial.unlink()


def _require_name(path: str | PathLike[str]) -> None:
    if "\0" in os.fspath(path):
        shown = os.fspath(path).replace("\0", "\\x00")
        raise WriteError(errno.EINVAL, _message(shown, "a name must not contain NUL (\\x00)", "leave it out"), shown)
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        shown, letter = ascii(os.fspath(path)), ascii(error.object[error.start])
        what = f"a name must not contain half of a character ({letter})"
        raise WriteError(errno.EINVAL, _message(shown, what, "leave it out"), shown) from None


def temporary_beside(path: Path) -> Path:
    """The temporary path for an atomic write of `path`. Its name has machine and process: see `remove_leftovers`."""
    return path.with_name(f"{path.name}.{_machine()}.{os.getpid()}.tmp")


def remove_leftovers(folder: str | PathLike[str]) -> None:
    """Remove the temporary files that killed processes left directly in `folder`.

    A file is kept if its process is still running, or ran on another machine or in another container.
    """
    with contextlib.suppress(OSError):  # no such folder
        for name in os.listdir(folder):
            found = _TEMPORARY.fullmatch(name)
            if found and found["machine"] == _machine() and _is_gone(int(found["pid"])):
                with contextlib.suppress(OSError):  # another run has removed it, or permission is missing
                    os.unlink(os.path.join(folder, name))


def _machine() -> str:
    """The name of this machine, with the process namespace, which differs between containers."""
    name = re.sub("[^A-Za-z0-9-]", "-", socket.gethostname())[:40]
    with contextlib.suppress(OSError):
        return f"{name}-{os.stat('/proc/self/ns/pid').st_ino}"
    return name


def _is_gone(pid: int) -> bool:
    if os.name != "posix":  # on other systems, signal 0 ends the process
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # the process of another user, or an invalid number
        pass
    return False


def _message(path: str | PathLike[str], what: str, fix: str) -> str:
    return f"cannot write {os.fspath(path)}: {what}. {fix[0].upper()}{fix[1:]}."


def _obstacle(path: Path) -> tuple[str, str] | None:
    """The part of the path that is the cause, and the fix; None if there is none."""
    folder = path.parent
    for place in (*reversed(path.parents), path):
        if os.path.islink(place) and not os.path.exists(place):
            target = os.readlink(place)
            return f"{place} is a link to {target}, which does not exist", f"make {target}, or remove the link"
        if place == path or not os.path.exists(place):
            break
        if not os.path.isdir(place):
            return f"{place} is a file, but a folder is needed there", f"move the file away, or {_ELSEWHERE}"
        folder = place
    if os.path.isdir(path):
        return f"{path} is a folder", "move it away, or choose another name"
    if os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return None
    if hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY:
        return f"{folder} is on a disk that can only be read", f"mount it for writing, or {_ELSEWHERE}"
    return f"this user may not write to {folder}", f"change its permissions (chmod u+w), or {_ELSEWHERE}"


def _refusal(path: Path, error: OSError) -> tuple[str, str]:
    """The reason given by the system, and the fix."""
    said = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        return f"the disk is full ({said})", f"delete something on it, or {_ELSEWHERE}"
    if error.errno == errno.EDQUOT:
        return f"this user's disk quota is used up ({said})", f"delete something of yours on it, or {_ELSEWHERE}"
    if error.errno == errno.EFBIG:
        return f"it is larger than a file may be here ({said})", f"raise the limit (ulimit -f), or {_ELSEWHERE}"
    if error.errno == errno.ENAMETOOLONG:
        return f"its name is too long ({said})", "choose a shorter one"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"the system does not permit it ({said})", f"change the permissions of {path.parent}, or {_ELSEWHERE}"
    return f"the system refuses ({said})", f"check the disk, or {_ELSEWHERE}"
