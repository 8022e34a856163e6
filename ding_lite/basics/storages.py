"""Storages: folders on any filesystem that pyarrow opens, such as S3, GCS or HDFS. Files appear there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ding_lite.basics.files import WriteError, temporary_beside, writing
from ding_lite.basics.messages import require_extra
from ding_lite.basics.uris import at_place, is_uri, normal_uri, problem_of_uri, shown_text, shown_uri

_CHUNK = 8 << 20  # bytes that are read and written at a time
UNFINISHED = ".uploading"
TRIAL = ".trial"
_PATTERN = re.compile(r"[*?\[]")
_OBJECT_STORES = ("s3", "gcs", "gs", "abfs", "az", "oss", "oci", "tos")
_REFUSED = re.compile(r"access.?denied|forbidden|permission|unauthori[sz]ed|\b40[13]\b", re.IGNORECASE)
_ABSENT = re.compile(r"no.?such|not.?found|does not exist|no response body", re.IGNORECASE)
_CREDENTIALS = (
    "Give this program credentials that may list, read, write and delete there, in its environment, such as AWS_ACCESS_KEY_ID "
    "or GOOGLE_APPLICATION_CREDENTIALS; or choose another storage_path."
)


class StorageError(OSError):
    """A storage cannot be used, or a file there cannot be read or written. The message has place, reason and fix."""

    def __str__(self) -> str:
        return str(self.strerror)


class Storage:
    """A folder on a filesystem of pyarrow.

    On object stores, an object appears when it is complete. Elsewhere a file is written under a temporary name and moved.

    Args:
        filesystem: a `pyarrow.fs.FileSystem`.
        path: path of the folder there.
        shown: the URI or path of the folder in messages, without secrets.
    """

    def __init__(self, filesystem: Any, path: str, shown: str) -> None:
        self._fs, self._path, self.shown = filesystem, path.rstrip("/") or "/", shown.rstrip("/") or "/"
        below = filesystem
        while hasattr(below, "base_fs"):
            below = below.base_fs
        kind = str(below.type_name).rpartition("+")[2]  # such as s3, or py::fsspec+s3
        self._has_patterns = "fsspec" in str(below.type_name)
        self._has_objects = kind in _OBJECT_STORES

    @property
    def uri(self) -> str:
        """What `resume` takes for this folder: the URI, also of a path of this machine."""
        return Path(self.shown).as_uri() if os.path.isabs(self.shown) else self.shown

    def at(self, place: str) -> Storage:
        """The subfolder with this name."""
        return Storage(self._fs, f"{self._path.rstrip('/')}/{place}", at_place(self.shown, place))

    def names(self) -> dict[str, int]:
        """The size in bytes of each file in the folder and its subfolders, by its path in the folder, in the order in which
        they were written. Empty without a folder.

        Raises:
            StorageError: the folder cannot be listed.
        """
        return {name: size for name, size in self._sizes().items() if not name.endswith(UNFINISHED)}

    def unfinished(self) -> list[str]:
        """The temporary files that uploads have left here, by their paths in the folder.

        Raises:
            StorageError: the folder cannot be listed.
        """
        return [] if self._has_objects else [name for name in self._sizes() if name.endswith(UNFINISHED)]

    def has(self, name: str) -> bool:
        """Whether there is a file with this name.

        Raises:
            StorageError: the storage cannot be read.
        """
        with self._using("read", name):
            return bool(self._fs.get_file_info([self._full(name)])[0].is_file)

    def _sizes(self) -> dict[str, int]:
        selector = importlib.import_module("pyarrow.fs").FileSelector
        with self._using("list", ""):
            found = self._fs.get_file_info(selector(self._path, allow_not_found=True, recursive=True))
        prefix = self._path.strip("/") + "/"
        files = sorted((one for one in found if one.is_file), key=lambda one: one.mtime_ns or 0)
        return {one.path.strip("/").removeprefix(prefix): one.size for one in files}

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            StorageError: it cannot be read.
        """
        with self._using("read", name), self._fs.open_input_stream(self._full(name)) as source:
            return bytes(source.read())

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to this path of the machine, atomically.

        Raises:
            StorageError: it cannot be read.
            WriteError: the copy cannot be written.
        """
        temporary = temporary_beside(target)
        try:
            with writing(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                file = temporary.open("wb")
            with file, self._using("read", name), self._fs.open_input_stream(self._full(name)) as source:
                while chunk := source.read(_CHUNK):
                    with writing(target):
                        file.write(chunk)
            with writing(target):
                os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)

    def put(self, name: str, content: bytes | Path, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Write a file, which replaces an older one.

        Args:
            name: path in the folder.
            content: the content, or the file that has it, of which the part is copied that is there now.
            goes_on: asked before each part; False gives up. An object of an object store is not given up once begun.

        Raises:
            FileNotFoundError: there is no file with the content.
            StorageError: it cannot be written; the older file is unchanged.
        """
        if isinstance(content, bytes):
            self._put(name, iter((content,)), goes_on)
            return
        with content.open("rb") as source:
            left = os.fstat(source.fileno()).st_size
            self._put(name, _chunks(source, left), goes_on)

    def _put(self, name: str, chunks: Iterator[bytes], goes_on: Callable[[], bool]) -> None:
        target = self._full(name)
        with self._using("write", name):
            if self._has_objects:
                self._write(target, chunks, lambda: True)
                return
            self._fs.create_dir(target.rpartition("/")[0], recursive=True)
            try:
                self._write(target + UNFINISHED, chunks, goes_on)
                self._fs.move(target + UNFINISHED, target)
            except BaseException:
                self._delete(target + UNFINISHED)
                raise

    def _write(self, target: str, chunks: Iterator[bytes], goes_on: Callable[[], bool]) -> None:
        sink = self._fs.open_output_stream(target)
        try:
            for chunk in chunks:
                if not goes_on():
                    raise InterruptedError(errno.EINTR, "it was given up")
                sink.write(chunk)
        except BaseException:
            # An object store completes what was written so far when the stream is closed.
            with contextlib.suppress(Exception):
                sink.close()
                self._delete(target)
            raise
        sink.close()

    def remove(self, name: str) -> None:
        """Remove a file, if it is there.

        Raises:
            StorageError: it cannot be removed.
        """
        with self._using("remove", name), contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(self._full(name))

    def _delete(self, target: str) -> None:
        with contextlib.suppress(Exception):
            self._fs.delete_file(target)

    def require_writable(self) -> None:
        """Raise an error if no file can be written here. To test it, an empty file is written and removed.

        Raises:
            StorageError: it cannot.
        """
        self.put(TRIAL, b"")
        self._delete(self._full(TRIAL))

    def _full(self, name: str) -> str:
        path = f"{self._path.rstrip('/')}/{name}"
        if self._has_patterns and _PATTERN.search(path):
            raise StorageError(
                errno.EINVAL,
                f"cannot use {at_place(self.shown, name)}: to fsspec, '*', '?' and '[' in a name stand for other names. Choose "
                "an exp_name and storage_path without them.",
            )
        return path

    @contextlib.contextmanager
    def _using(self, verb: str, name: str) -> Iterator[None]:
        """Within this block the filesystem is used; each of its errors is raised as a StorageError."""
        place = at_place(self.shown, name) if name else self.shown
        try:
            yield
        except (StorageError, WriteError):
            raise
        except Exception as error:
            raise _storage_error(verb, place, error) from error


def open_storage(storage_path: str | PathLike[str], filesystem: Any = None) -> Storage:
    """The storage at a URI, such as "s3://bucket/runs", "gs://bucket/runs", "hdfs://host:port/runs" or "file:///mnt/nfs/runs".

    A path without a scheme is one of this machine. What pyarrow does not know is opened by fsspec, if it is installed.

    Args:
        storage_path: the URI or path.
        filesystem: a `pyarrow.fs.FileSystem` on which storage_path is a path; None for that of the URI.

    Raises:
        ImportError: pyarrow is not installed.
        StorageError: no filesystem has this scheme, or it cannot be opened.
    """
    path = os.fspath(storage_path)
    require_usable(path)
    require_extra("pyarrow", "storage", f"storage_path={shown_uri(path)!r}")
    fs = importlib.import_module("pyarrow.fs")
    if filesystem is not None:
        return Storage(filesystem, path, shown_uri(path))
    if not is_uri(path):
        path = os.path.abspath(os.path.expanduser(path))
        return Storage(fs.LocalFileSystem(), path, path)
    path = normal_uri(path.strip())
    try:
        found, inner = fs.FileSystem.from_uri(path)
    except Exception as error:  # noqa: BLE001  each filesystem raises others
        found, inner = _of_fsspec(fs, path, error)
    return Storage(found, inner, shown_uri(path))


def _of_fsspec(fs: Any, uri: str, error: Exception) -> tuple[Any, str]:
    """The filesystem of fsspec for this URI, and the path on it. Without one, raise this error of pyarrow."""
    scheme = uri.partition("://")[0]
    if "Unrecognized filesystem type" not in str(error):
        raise _storage_error("open", shown_uri(uri), error) from error
    with contextlib.suppress(ImportError):
        fsspec = importlib.import_module("fsspec")
        if scheme in fsspec.available_protocols():
            try:
                found, path = fsspec.core.url_to_fs(uri)
            except Exception as other:
                raise _storage_error("open", shown_uri(uri), other) from other
            return fs.PyFileSystem(fs.FSSpecHandler(found)), unquote(path)  # pyarrow does this for its own schemes
    raise StorageError(
        errno.EINVAL,
        f"storage_path={shown_uri(uri)!r}: neither pyarrow nor fsspec has a filesystem with the scheme {scheme!r}. Use one "
        "of s3://, gs://, abfs://, hdfs://, file://, a path, or install the package of fsspec that has this scheme.",
    )


def require_usable(storage_path: str) -> None:
    """Raise an error if a URI has secrets, or is written wrongly, or if there is nothing.

    Raises:
        StorageError: it cannot be used.
    """
    if not storage_path.strip():
        raise StorageError(
            errno.EINVAL,
            f"storage_path={storage_path!r} is empty: use a URI such as s3://bucket/runs, a path, or None for no copy.",
        )
    problem = problem_of_uri(storage_path) if is_uri(storage_path) else None
    if problem is not None:
        raise StorageError(errno.EINVAL, f"storage_path={shown_uri(storage_path)!r}: {problem}")


def place_in_storage(folder: str | PathLike[str]) -> str:
    """The place of a run's folder in a storage: its path, or its last name if the path is absolute or begins with "..".

    Example:
        >>> place_in_storage("runs/dqn"), place_in_storage("/home/me/runs/dqn")
        ('runs/dqn', 'dqn')
    """
    path = Path(os.path.normpath(os.fspath(folder)))
    if path.parts and not path.is_absolute() and path.parts[0] != "..":
        return path.as_posix()
    return path.name if path.name not in ("", "..") else Path(os.path.abspath(path)).name or "run"


def _chunks(source: Any, left: int) -> Iterator[bytes]:
    while left > 0 and (chunk := source.read(min(_CHUNK, left))):
        left -= len(chunk)
        yield chunk


def _storage_error(verb: str, place: str, error: Exception) -> StorageError:
    said = shown_text(" ".join(str(error).split()).rstrip(".")) or type(error).__name__
    number = getattr(error, "errno", None) or errno.EIO
    if number in (errno.EACCES, errno.EPERM) or _REFUSED.search(said):
        fix = _CREDENTIALS
    elif number == errno.ENOENT or _ABSENT.search(said):
        fix = "Check the name: the bucket, or the folder at its beginning, must exist."
    else:
        fix = "Check the name, the network and the credentials."
    return StorageError(number, f"cannot {verb} {place}: {said}. {fix}", place)
