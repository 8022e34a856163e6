"""Errors of workers: how an exception travels from a child process to its parent, and what is raised where it cannot."""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from ding_lite.basics.messages import add_note
from ding_lite.processes.pickles import dumps


class WorkerError(RuntimeError):
    """Something failed in a worker and could not be brought over as it was; the worker itself is well."""

    def __init__(self, message: str, type_name: str = "", notes: Sequence[str] = (), traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        """The exception's class in the worker, with its module; empty where there was no exception."""
        self.notes = tuple(notes)
        """The notes that it bore there."""
        self.traceback = traceback
        """Its traceback as text."""


class WorkerDied(WorkerError):
    """The process of a worker is gone."""

    def __init__(self, message: str, exitcode: int | None = None) -> None:
        super().__init__(message)
        self.exitcode = exitcode
        """Its exit status, or minus the number of the signal that killed it; None where it never ran."""


class WorkerHangs(WorkerDied, TimeoutError):
    """A worker made no progress for too long, and was killed."""


class WorkerTraceback(Exception):
    """The traceback in the worker, as text: the cause of the error that is raised in the parent."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Failure(NamedTuple):
    """An exception as it travels: plain strings, and itself where it can be pickled."""

    type_name: str
    message: str
    notes: list[str]
    traceback: str
    pickled: bytes | None
    """The exception, pickled by itself so that the rest arrives whatever it is."""
    hindrance: str
    """Why it was not pickled."""


def pack(error: BaseException) -> Failure:
    """What a worker sends about the exception that it has just caught."""
    cls = type(error)
    type_name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    inner = error.__traceback__
    for _ in range(2):  # the worker's own frames, which called the function
        inner = (inner.tb_next or inner) if inner is not None else None
    try:
        message, text = str(error), "".join(traceback.format_exception(cls, error, inner))
    except Exception as problem:  # noqa: BLE001 (its __str__ is the user's, and must not take the worker down)
        message, text = f"<its __str__ raised {type(problem).__name__}>", "".join(traceback.format_tb(inner))
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    if not isinstance(error, Exception):  # raised in the parent it would end or interrupt that one
        return Failure(type_name, message, notes, text, None, "")
    try:
        return Failure(type_name, message, notes, text, dumps(error), "")
    except Exception as problem:  # noqa: BLE001 (pickling runs the user's code)
        return Failure(type_name, message, notes, text, None, f"{type(problem).__name__}: {problem}")


def unpack(failure: Failure, worker: str) -> Exception:
    """The exception to raise in the parent, its cause set; a WorkerError where the exception itself did not make it."""
    error, hindrance = None, failure.hindrance
    if failure.pickled is not None:
        try:
            error = pickle.loads(failure.pickled)
        except Exception as problem:  # noqa: BLE001 (unpickling calls the constructor of the user's class)
            hindrance = f"{type(problem).__name__}: {problem}"
    if not isinstance(error, Exception):
        why = f" (a {failure.type_name} cannot be brought over from a worker: {hindrance})" if hindrance else ""
        text = f"{worker} raised {failure.type_name}: {failure.message}{why}"
        error = WorkerError(text, failure.type_name, failure.notes, failure.traceback)
    for note in failure.notes:
        add_note(error, note)
    add_note(error, f"It was raised in {worker}.")
    error.__cause__ = WorkerTraceback(failure.traceback)
    return error


def describe_exit(exitcode: int | None) -> str:
    """How a process ended, in words.

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
    hint = "; the system does so when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by signal {-exitcode} ({name}{hint})"
