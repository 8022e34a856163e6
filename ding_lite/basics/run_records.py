"""Run records: what has written the files in a run's folder (`run.json`), and the error that ended it (`error.txt`)."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
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
from typing import Any
from weakref import WeakValueDictionary

from ding_lite.basics.files import WriteError, absolute, move_aside, write_atomically
from ding_lite.basics.run_locks import RunLock
from ding_lite.basics.uris import shown_text

RECORD, ERROR, LOG = "run.json", "error.txt", "run.log"

_LIBRARIES = ("ding_lite", "torch", "numpy", "gymnasium")


class RunRecord:
    """Keeps `run.json`, with the id of the run and its sessions, and writes `error.txt`.

    A run has one session per process that has worked on it, and holds the lock of the folder meanwhile. Objects of one process
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

    @property
    def is_begun(self) -> bool:
        """Whether `begin` was called, and `end` was not."""
        return self._session is not None

    @property
    def run_id(self) -> str:
        """Identifies the run: 12 random hex digits, kept when it is resumed. Empty before `begin`."""
        return "" if self._session is None else self._session.run_id

    def begin(self, continued: str | PathLike[str] | None, done: int, facts: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Take the lock, and begin a session, or join that of this process.

        `error.txt` of an earlier session is renamed to `error.1.txt`; for a new run, `run.json` and `run.log` are renamed too.

        Args:
            continued: the folder of the run that goes on; another folder, or None, means a new run in this folder.
            done: number of iterations done before.
            facts: of the run, plain data by name. If another object of this process has begun the session, its facts stay.

        Raises:
            FolderInUseError: another process writes to the folder.
            WriteError: a file cannot be written or renamed. The session has begun all the same.
        """
        self.lock.take()
        if self._session is not None and self._session.is_open:
            return
        place = os.path.realpath(self.folder)
        self._session = _sessions.get(place)
        if self._session is not None:
            return
        goes_on = continued is not None and os.path.realpath(continued) == place
        record = _read(self.folder / RECORD) if goes_on else None
        self._session = _sessions[place] = _Session(record, done, facts)
        move_aside(self.folder / ERROR)
        if record is None:
            move_aside(self.folder / RECORD)
        if not goes_on:
            move_aside(self.folder / LOG)
        self.save()

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
        if self._session is not None:
            self._write(self._session)

    def _write(self, session: _Session) -> None:
        write_atomically(self.folder / RECORD, json.dumps(session.record(), indent=2).encode())

    def note_error(self, error: BaseException, row: Mapping[str, Any] | None = None) -> None:
        """Write the error that ends the run to `error.txt`. A failure to write it is a warning.

        Args:
            error: with its traceback and notes.
            row: the last row of metrics, if it is known.
        """
        if self._session is None:
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
        session, self._session = self._session, None
        if session is not None and session.is_open:
            session.is_open = False
            for place in [place for place, other in _sessions.items() if other is session]:
                del _sessions[place]
            with contextlib.suppress(WriteError):  # only the number of iterations is lost
                self._write(session)
        self.lock.free()


class _Session:
    """The work of one process on a run."""

    def __init__(self, record: Mapping[str, Any] | None, done: int, facts: Mapping[str, Any]) -> None:
        start = _now()
        self._before: dict[str, Any] = {"id": os.urandom(6).hex(), "start": start, "sessions": [], **(record or {})}
        sessions = self._before.pop("sessions")
        self._before.update(facts, sessions=sessions)
        self._facts = {"pid": os.getpid(), "host": socket.gethostname(), "start": start}
        self._first = self.done = done
        self.run_id: str = self._before["id"]
        self.row: dict[str, Any] = {}
        self.is_open = True

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


def _read(path: Path) -> dict[str, Any] | None:
    """The record in this file; None if there is none that is whole."""
    try:
        found = json.loads(path.read_bytes())
        whole = isinstance(found["id"], str) and isinstance(found["sessions"], list)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if whole else None


def json_ready(value: Any) -> Any:
    """The value with infinite numbers as text, because JSON has none."""
    if isinstance(value, Mapping):
        return {str(name): json_ready(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


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
