"""Copied files: which files of a run's folder are copied to a storage and back, and what their manifest says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from ding_lite.basics.run_locks import NAME as LOCK
from ding_lite.basics.run_records import FOLDERS, RECORD
from ding_lite.basics.storages import TRIAL, UNFINISHED

MANIFEST = "run/manifest.json"
OF_A_STATE = re.compile(r"run/(state|rows)_[^/]*\.pt")

_EARLIER = re.compile(rf"({'|'.join(FOLDERS)})\.[0-9]+")
"""Folders of earlier runs, which were moved aside."""


def inner_runs(names: Iterable[str]) -> frozenset[str]:
    """The folders of other runs inside that of a run, such as those of ranks.

    Args:
        names: of all files, by their paths in the folder of the run.
    """
    ends = tuple(f"/{name}" for name in (RECORD, MANIFEST))
    return frozenset(name.removesuffix(end) for name in names for end in ends if name.endswith(end))


def is_copied(name: str, inner: Collection[str]) -> bool:
    """Whether the file with this path in the folder of a run belongs to the run, so that it is copied.

    Args:
        name: the path.
        inner: the folders of other runs in it.
    """
    if name == MANIFEST or OF_A_STATE.fullmatch(name):
        return True
    *folders, last = name.split("/")
    if last in (LOCK, TRIAL) or last.endswith((".tmp", UNFINISHED)) or any(folder.startswith(".") for folder in folders):
        return False
    if folders and _EARLIER.fullmatch(folders[0]):
        return False
    return not any("/".join(folders[:count]) in inner for count in range(1, len(folders) + 1))


class FolderFiles:
    """The files of a run's folder at a moment.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.signatures: dict[str, tuple[int, ...]] = {}
        """The `signature_of` each file, by its path in the folder."""
        self.left_out: dict[str, str] = {}
        """Why something of the run is not copied, by its path in the folder."""
        for place, folders, names in os.walk(folder):
            inner = Path(place).relative_to(folder)
            folders[:] = [name for name in sorted(folders) if self._is_entered(Path(place), inner, name)]
            for name in sorted(names):
                if is_copied((inner / name).as_posix(), ()):
                    self._add(Path(place) / name, (inner / name).as_posix())

    def _is_entered(self, place: Path, inner: Path, name: str) -> bool:
        folder, path = place / name, (inner / name).as_posix()
        if not is_copied(f"{path}/x", ()) or (folder / RECORD).exists() or (folder / MANIFEST).exists():
            return False  # the latter are of another run, such as that of a rank
        if folder.is_symlink():
            self.left_out[path] = "it is a link to a folder"
        elif not _is_text(name):
            self.left_out[path] = "its name is not UTF-8"
        return path not in self.left_out

    def _add(self, file: Path, path: str) -> None:
        try:
            is_regular = stat.S_ISREG(file.stat().st_mode)
            if is_regular and _is_text(path):
                self.signatures[path] = signature_of(file)
            else:
                self.left_out[path] = "its name is not UTF-8" if is_regular else "it is no regular file"
        except OSError as error:
            if file.is_symlink():
                self.left_out[path] = f"it is a link that leads nowhere ({error.strerror})"
            elif not isinstance(error, FileNotFoundError):  # it was removed meanwhile
                self.left_out[path] = f"it cannot be read ({error.strerror})"


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def signature_of(path: Path) -> tuple[int, ...]:
    """What identifies the content of a file: when it was written, its size and its number."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def content_of(path: Path) -> bytes:
    """The content of a small file; empty if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def mapping_in(content: bytes) -> dict[str, Any]:
    """The mapping in JSON; empty if it is damaged."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(content)
        if isinstance(found, dict):
            return found
    return {}


def states_in(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The states in a manifest that are written as they should be."""
    states = manifest.get("states")
    return [one for one in states if _is_state(one)] if isinstance(states, list) else []


def _is_state(one: object) -> bool:
    if not isinstance(one, dict) or not isinstance(rows := one.get("rows", []), list):
        return False
    return all(isinstance(name, str) for name in (one.get("file"), *rows))


def latest_in(manifest: dict[str, Any]) -> int:
    """The iterations of the latest state in a manifest; -1 if there is none."""
    done = [one.get("done") for one in states_in(manifest)[:1]]
    return done[0] if done and isinstance(done[0], int) else -1


def id_in(record: dict[str, Any]) -> str | None:
    """The id of the run in a `run.json`; None if there is none."""
    found = record.get("id")
    return found if isinstance(found, str) and found else None
