"""Errors of workers: sending an exception from a child process to its parent."""

from __future__ import annotations

import contextlib
import pickle
import signal
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from ding_lite.basics.messages import add_note, describe_error
from ding_lite.processes.pickles import dumps


class WorkerError(RuntimeError):
    """A worker raised an exception that could not be sent to this process unchanged; the worker is still usable."""

    def __init__(self, message: str, type_name: str = "", notes: Sequence[str] = (), traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        """The exception's class in the worker, with its module; empty if there was no exception."""
        self.notes = tuple(notes)
        """Notes of the exception."""
        self.traceback = traceback
        """Traceback of the exception as text."""


class WorkerDied(WorkerError):
    """The process of a worker has ended."""

    def __init__(self, message: str, exitcode: int | None = None) -> None:
        super().__init__(message)
        self.exitcode = exitcode
        """Its exit status, or minus the number of the signal that killed it; None if it never ran or still closes."""


class WorkerHangs(WorkerDied, TimeoutError):
    """A worker made no progress for too long, and was killed."""


class WorkerTraceback(Exception):
    """The traceback in the worker, as text; the `__cause__` of the error in the parent."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Failure(NamedTuple):
    """An exception as sent to the parent: strings, and the exception itself if it can be pickled."""

    type_name: str
    message: str
    notes: list[str]
    traceback: str
    pickled: bytes | None
    """The exception, pickled separately, so that the rest arrives even if it cannot be unpickled; or None."""
    hindrance: str
    """Why it was not pickled."""
    env_location: bytes | None = None
    """Its attribute `env_location`, pickled separately, because an exception may not pickle its attributes; or None."""


def pack(error: BaseException) -> Failure:
    """The Failure to send for the exception that a worker has caught."""
    cls = type(error)
    type_name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    inner = error.__traceback__
    for _ in range(2):  # skip the worker's frames, which called the function
        inner = (inner.tb_next or inner) if inner is not None else None
    try:
        message, text = str(error), "".join(traceback.format_exception(cls, error, inner))
    except Exception as problem:  # noqa: BLE001 (a __str__ of user code must not end the worker)
        message, text = f"<its __str__ raised {type(problem).__name__}>", "".join(traceback.format_tb(inner))
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    failure = Failure(type_name, message, notes, text, None, "", _pickled_location(error))
    if not isinstance(error, Exception):  # in the parent, it would end or interrupt the run
        return failure
    try:
        return failure._replace(pickled=dumps(error))
    except Exception as problem:  # noqa: BLE001 (pickling runs user code)
        return failure._replace(hindrance=describe_error(problem))


def _pickled_location(error: BaseException) -> bytes | None:
    """The attribute `env_location` of an error of an environment; None if there is none."""
    location = getattr(error, "env_location", None)
    if location is None:
        return None
    try:
        return dumps(location)
    except Exception:  # noqa: BLE001 (the actions of an environment may be objects; the notes name the last one)
        return None


def unpack(failure: Failure, worker: str) -> Exception:
    """The exception to raise in the parent, with its cause; a WorkerError if the exception itself could not be sent."""
    error, hindrance = None, failure.hindrance
    if failure.pickled is not None:
        try:
            error = pickle.loads(failure.pickled)
        except Exception as problem:  # noqa: BLE001 (unpickling calls constructors of user code)
            hindrance = describe_error(problem)
    if not isinstance(error, Exception):
        why = f" (a {failure.type_name} cannot be sent from a worker: {hindrance})" if hindrance else ""
        text = f"{worker} raised {failure.type_name}: {failure.message}{why}"
        error = WorkerError(text, failure.type_name, failure.notes, failure.traceback)
    if failure.env_location is not None:
        with contextlib.suppress(Exception):  # user code may refuse attributes
            error.env_location = pickle.loads(failure.env_location)  # type: ignore[attr-defined]
    for note in failure.notes:
        add_note(error, note)
    add_note(error, f"It was raised in {worker}.")
    BaseException.__setattr__(error, "__cause__", WorkerTraceback(failure.traceback))  # its class may refuse attributes
    return error


def describe_exit(exitcode: int | None) -> str:
    """A description of how a process ended.

    Example:
        >>> describe_exit(3), describe_exit(-15)
        ('exited with status 3', 'was killed by signal 15 (SIGTERM)')
    """
    if exitcode is None:
        return "closed its connection"
    if exitcode >= 0:
        return f"exited with status {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:  # a real-time signal
        name = "a signal without a name"
    hint = "; the system sends it when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by signal {-exitcode} ({name}{hint})"
