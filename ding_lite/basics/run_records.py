"""Run records: what has written the files in a run's folder (`run.json`), and the error that ended it (`error.txt`). A new run
moves the files of an earlier one aside."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import platform
import shlex
import socket
import sys
import traceback
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol
from weakref import WeakValueDictionary

from ding_lite.basics.files import WriteError, absolute, move_aside, numbered, remove_leftovers, write_atomically
from ding_lite.basics.json_numbers import json_number
from ding_lite.basics.run_locks import FolderInUseError, RunLock
from ding_lite.basics.uris import shown_text

RECORD, ERROR, LOG, ENV_ERROR = "run.json", "error.txt", "run.log", "env_error.pt"
FOLDERS = ("run", "ckpt", "videos", "tensorboard")
"""Folders in that of a run with its files. That of Weights & Biases is not one, because it has a folder for each run."""

_FILES = (
    *(*FOLDERS, "metrics.jsonl", "metrics.csv", "config.json", "pipeline.svg", "timeline.svg", "lanes.txt", "decisions.jsonl"),
    *(LOG, ERROR, ENV_ERROR, RECORD),  # the record last, which says that there was a run
)
"""What a run writes to its folder. Folders of ranks and of members of a population are those of runs of their own."""

_DEEPEST = 100  # levels of data for JSON
_LIBRARIES = ("ding_lite", "torch", "numpy", "gymnasium")


class Owner(Protocol):
    """What a task has opened, to run a pipeline: another object each time."""

    running: bool
    """Whether it is open."""


class RunRecord:
    """Keeps `run.json`, with the id of the run and its sessions, and writes `error.txt`.

    A run has one session per process that has worked on it, and holds the lock of the folder meanwhile. Objects of one task
    that write to the same folder each have a record; together they make one session, which ends with the first `end`.

    Args:
        folder: the run's folder, such as cfg.exp_name.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.name = os.path.expanduser(folder)
        """The folder, as it was given."""
        self.folder = absolute(folder)
        self.lock = RunLock(self.folder)
        self._session: _Session | None = None
        self._last_id: str | None = None

    @property
    def is_begun(self) -> bool:
        """Whether `begin` was called, and the session has not ended."""
        return self._session is not None and self._session.is_open

    @property
    def run_id(self) -> str:
        """Identifies the run: 12 random hex digits, kept when it is resumed. Empty before `begin`."""
        return "" if self._session is None else self._session.run_id

    @property
    def last_id(self) -> str | None:
        """The id of the run that was begun or continued last; empty if it is unknown, None if there was none."""
        return self._last_id if self._session is None else self._session.run_id

    def continue_from(self, run_id: str | None) -> None:
        """Note that a saved state was loaded, with this `last_id`; empty if the state does not tell."""
        self._last_id = run_id

    @property
    def other_id(self) -> str | None:
        """The id of the run in the folder if it is another one than `last_id`; otherwise None."""
        found = _read(self.folder / RECORD) if self.last_id else None
        return None if found is None or found["id"] == self.last_id else str(found["id"])

    @property
    def has_run(self) -> bool:
        """Whether the run in the folder is the one that was begun or continued last, as far as this is known."""
        return self.last_id is not None and self.other_id is None

    @property
    def goes_on(self) -> bool:
        """Whether the session continues the files in the folder."""
        return self._session is not None and self._session.goes_on

    def begin(
        self,
        goes_on: bool,
        done: int,
        facts: Mapping[str, Any] = MappingProxyType({}),
        owner: Owner | None = None,
    ) -> None:
        """Take the lock, and begin a session, or join that of the same task.

        What a killed process was writing is removed. If this is a new run, everything that an earlier run has written is
        renamed, with one number: `run.json` to `run.1.json`, `ckpt` to `ckpt.1` and so on. If the run goes on, only `error.txt`
        and `env_error.pt` are.

        Args:
            goes_on: whether the run in the folder goes on; if not, a new one begins there.
            done: number of iterations done before.
            facts: of the run, plain data by name. If another object of this process has begun the session, its facts stay.
            owner: what the task of the pipeline has opened; None if there is no task, as when middleware are called by hand.

        Raises:
            FolderInUseError: another process writes to the folder, or another task of this process that is still open.
            WriteError: a file cannot be written or renamed. The session has begun all the same.
        """
        self.lock.take()
        if self.is_begun:
            return
        place = os.path.realpath(self.folder)
        self._session = self._joined(place, owner)
        if self._session is not None:
            return
        record = _read(self.folder / RECORD) if goes_on else None
        self._session = _sessions[place] = _Session(record, done, facts, owner, goes_on)
        for name in ("", *FOLDERS):
            remove_leftovers(self.folder / name)
        moved = [ERROR, ENV_ERROR] if record else [ERROR, ENV_ERROR, RECORD]
        if not goes_on:  # without a record, other files may be those of the user
            moved = [*_FILES] if (self.folder / RECORD).exists() else [ERROR, ENV_ERROR, LOG]
        _name_env_error(self.folder, move_aside(*(self.folder / name for name in moved)))
        self.save()

    def move_error_aside(self) -> None:
        """Rename the report of an error after which the script goes on, before its next run. A failure leaves it there."""
        with contextlib.suppress(WriteError):
            if self.is_begun and (self.folder / ERROR).exists():
                _name_env_error(self.folder, move_aside(self.folder / ERROR, self.folder / ENV_ERROR))

    def _joined(self, place: str, owner: Owner | None) -> _Session | None:
        """The open session of this task in the folder; None if there is none. One that a closed task has left is ended.

        Raises:
            FolderInUseError: the session belongs to another task that is open.
        """
        session = _sessions.get(place)
        if session is None or session.owner is owner:
            return session
        if session.owner is not None and session.owner.running:
            self.lock.free()
            raise FolderInUseError(
                errno.EBUSY,
                f"a task of this process that is still open writes to the folder {self.folder}. Choose another folder for "
                "this run (exp_name), or leave the `with` block of that task first.",
                str(self.folder),
            )
        self._close(session)
        return None

    def known(self) -> dict[str, Any]:
        """What is known of the run, plain data by name; empty before `begin`."""
        return {} if self._session is None else self._session.known()

    def count(self, done: int) -> None:
        """Note that this many iterations of the run are done."""
        if self._session is not None:
            self._session.done = max(self._session.done, done)

    def save(self) -> None:
        """Write `run.json`, with the iterations done so far.

        Raises:
            WriteError: it cannot be written.
        """
        if self._session is not None and self._session.is_open:
            self._write(self._session)

    def _write(self, session: _Session) -> None:
        write_atomically(self.folder / RECORD, json.dumps(session.record(), indent=2).encode())

    def note_error(self, error: BaseException, row: Mapping[str, Any] | None = None) -> None:
        """Write the error that ends the run to `error.txt`. A failure to write it is a warning.

        Args:
            error: with its traceback and notes.
            row: the last row of metrics, if it is known.
        """
        if self._session is None or not self._session.is_open:
            return
        if row:
            self._session.row = dict(row)
        try:
            content = "\n".join([*self._session.described(error), ""]).encode(errors="backslashreplace")
            write_atomically(self.folder / ERROR, content)
        except WriteError as refused:
            warnings.warn(f"the error that ends the run is not written to {self.folder}: {refused}", stacklevel=2)

    def end(self) -> None:
        """End the session, and free the lock. A later `begin` begins another session."""
        if self._session is not None:
            session, self._last_id, self._session = self._session, self._session.run_id, None
            self._close(session)
        self.lock.free()

    def _close(self, session: _Session) -> None:
        if session.is_open:
            session.is_open = False
            for place in [place for place, other in _sessions.items() if other is session]:
                del _sessions[place]
            with contextlib.suppress(WriteError):  # only the number of iterations is lost
                self._write(session)


class _Session:
    """The work of one process on a run."""

    def __init__(
        self, record: Mapping[str, Any] | None, done: int, facts: Mapping[str, Any], owner: Owner | None, goes_on: bool
    ) -> None:
        start = _now()
        self._before: dict[str, Any] = {"id": os.urandom(6).hex(), "start": start, "sessions": [], **(record or {})}
        sessions = self._before.pop("sessions")
        self._before.update(facts, sessions=sessions)
        self._facts = {"pid": os.getpid(), "host": socket.gethostname(), "start": start}
        self._first = self.done = done
        self.run_id: str = self._before["id"]
        self.row: dict[str, Any] = {}
        self.is_open, self.owner, self.goes_on = True, owner, goes_on

    def record(self) -> dict[str, Any]:
        mine = {
            **self._facts,
            "command": command_line(),
            "versions": library_versions(),
            "from_iteration": self._first,
            "iterations": self.done - self._first,
        }
        return {**self._before, "sessions": [*self._before["sessions"], mine]}

    def known(self) -> dict[str, Any]:
        facts = {name: value for name, value in self._before.items() if name not in ("start", "sessions")}
        return {**facts, "command": command_line(), "versions": library_versions()}

    def described(self, error: BaseException) -> list[str]:
        """The lines of `error.txt`."""
        notes = [*getattr(error, "__notes__", ())]
        found = traceback.TracebackException.from_exception(error)
        lines = "".join(found.format()).splitlines()
        if sys.version_info < (3, 11):  # its tracebacks do not print them
            lines += notes
        facts, versions = self._facts, ", ".join(f"{name} {version}" for name, version in library_versions().items())
        head = [
            f"{type(error).__name__}: {found}".splitlines()[0],
            *(f"  {note}" for note in notes),
            "",
            f"time      {_now()}",
            f"run       {self.run_id}, after {self.done} iterations, {self.done - self._first} of them in this process",
            f"process   {facts['pid']} on {facts['host']}, since {facts['start']}",
            f"versions  {versions}",
            f"command   {command_line()}",
            f"cwd       {_cwd()}",
        ]
        table = ["", "The last row of metrics:", *(f"  {name}  {value}" for name, value in self.row.items())]
        return [*head, *(table if self.row else ()), "", *lines]


_sessions: WeakValueDictionary[str, _Session] = WeakValueDictionary()
"""The open sessions of this process, by path of the folder."""


def command_line() -> str:
    """The command that started this process, as typed in a shell, without passwords and queries in URIs."""
    return shlex.join(map(shown_text, sys.orig_argv))


def _name_env_error(folder: Path, number: int) -> None:
    """Let an `error.txt` that was moved aside name the `env_error.pt` that was moved with it."""
    error, episode = numbered(folder / ERROR, number), numbered(folder / ENV_ERROR, number)
    if error.is_file() and episode.is_file():
        write_atomically(error, error.read_bytes().replace(ENV_ERROR.encode(), episode.name.encode()))


def _read(path: Path) -> dict[str, Any] | None:
    """The record in this file; None if there is none that is whole."""
    try:
        found = json.loads(path.read_bytes())
        whole = isinstance(found["id"], str) and isinstance(found["sessions"], list)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if whole else None


def json_ready(value: Any, where: str = "the record", level: int = 0) -> Any:
    """Plain data for JSON: numbers and arrays of numpy as those of Python, and paths as text, as are NaN and infinities, which
    JSON does not have.

    Args:
        value: the data.
        where: what messages call it.
        level: how deep it is nested in other data.

    Raises:
        TypeError: a part of it is something else, which is named; two names of a dict are the same text; or it is nested in
            more than 100 levels, or contains itself.
    """
    import numpy as np

    if level > _DEEPEST:
        raise TypeError(f"{where:.60}... is nested in more than {_DEEPEST} levels, or contains itself: give plain data.")
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, PathLike):
        value = os.fspath(value)
    if isinstance(value, Mapping):
        _require_different_names([*value], where)
        return {str(name): json_ready(part, f"{where}[{name!r:.60}]", level + 1) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(part, f"{where}[{place}]", level + 1) for place, part in enumerate(value)]
    if isinstance(value, float):
        return json_number(value)
    if value is None or isinstance(value, (str, int)):
        return value
    raise TypeError(
        f"{where} is {value!r:.60} of type {type(value).__name__}, and JSON has only numbers, text, lists and dicts: give one "
        "of these, such as str(it) or list(it)."
    )


def _require_different_names(names: list[Any], where: str) -> None:
    texts = [*map(str, names)]
    if len({*texts}) < len(texts):
        twice = [name for name in names if texts.count(str(name)) > 1]
        raise TypeError(
            f"{where} has the names {twice[0]!r:.60} and {twice[1]!r:.60}, and in JSON both are the same text: rename one."
        )


def library_versions() -> dict[str, str]:
    """The versions of Python and of the libraries that are loaded."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
    return {"python": platform.python_version(), **{name: str(version) for name, version in found.items() if version}}


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "a folder that was removed"


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
