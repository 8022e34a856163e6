"""Run copies in a pipeline: which storage the folder of a run is copied to, and by which saver."""

from __future__ import annotations

import errno
import os
import warnings
from os import PathLike

from ding_lite.basics import RunCopy, RunRecord, Storage, UnsavedError, place_in_storage
from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.engine import Task

LAST_UPLOAD_S = 120.0
"""Seconds for the last upload, at the end of a run."""
LATE_FILES_S = 20.0
"""Seconds for files that are written when the task stops, such as the last lines of run.log."""


def begun_copy(task: Task, record: RunRecord, continued: bool) -> RunCopy | None:
    """The copy of a run's folder, ready for uploads; None if the run has no storage.

    Args:
        task: runs the pipeline.
        record: the record of the run, which knows its folder.
        continued: whether the run in the folder goes on.

    Raises:
        StorageError: the storage cannot be written to; the copy is one of another run, or is ahead of the folder.
    """
    given = [task.storage, *(attribute_of(thing, "storage") for _, thing in task.used_objects())]
    storage = next((one for one in given if isinstance(one, Storage)), None)
    if storage is None:
        return None
    copy = RunCopy(record.folder, storage.at(place_in_storage(record.name)))
    copy.begin(continued)
    return copy


def copy_of(task: Task, folder: str | PathLike[str]) -> RunCopy | None:
    """The copy that a saver of the pipeline makes of this folder; None if there is none."""
    found = [attribute_of(thing, "run_copy") for _, thing in task.used_objects()]
    place = os.path.realpath(folder)
    return next((one for one in found if isinstance(one, RunCopy) and os.path.realpath(one.folder) == place), None)


def finish_copy(copy: RunCopy, watchdog_s: float | None) -> UnsavedError | None:
    """Upload what is left at the end of a run. Returns an error that says what is missing, or None.

    Args:
        copy: the copy.
        watchdog_s: seconds after which the watchdog ends the program; None for no limit.
    """
    missing = copy.finish(LAST_UPLOAD_S if watchdog_s is None else min(LAST_UPLOAD_S, watchdog_s / 2))
    _warn_of_problem(copy)
    return None if missing is None else UnsavedError(errno.EIO, f"the run has ended, but {missing}", copy.storage.shown)


def copy_late_files(copy: RunCopy) -> None:
    """Upload what was written since the end of the run, or since its error. A failure is a warning."""
    missing = copy.finish(LATE_FILES_S)
    _warn_of_problem(copy)
    if missing is not None:
        warnings.warn(missing, stacklevel=3)


def _warn_of_problem(copy: RunCopy) -> None:
    problem = copy.problem()
    if problem is not None:
        warnings.warn(problem, stacklevel=4)
