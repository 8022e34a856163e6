"""Run beginnings: the record of a run begins when all that writes files in the pipeline has found its folder right."""

from __future__ import annotations

import os
from typing import Any, Protocol

from ding_lite.basics import RunRecord
from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.middleware.own_runs import own_run
from ding_lite.middleware.run_descriptions import describe_run


class RunWriter(Protocol):
    """A middleware that writes files of a run."""

    @property
    def run_record(self) -> RunRecord | None:
        """The record of the run; None if it writes no files."""

    def require_folder(self) -> None:
        """Raise an error if it cannot write to its folder in this run. Nothing in the folder is changed."""


def begin_record(writer: RunWriter, done: int) -> None:
    """Begin the record of the run in the folder of this middleware. The run goes on there if the task resumes it, or if a
    middleware has a state of it; otherwise the files of an earlier run are renamed.

    Args:
        writer: the middleware, which has a record.
        done: number of iterations done before.

    Raises:
        FolderInUseError: another process, or another open task, writes to the folder.
        WriteError: a file cannot be written or renamed. The record has begun all the same.
        Exception: a middleware of the pipeline cannot write to its folder.
    """
    task, record = own_run(), writer.run_record
    assert record is not None
    others = [it for it in task.middleware_objects() if isinstance(attribute_of(it, "run_record"), RunRecord)]
    writers: list[Any] = [writer, *(it for it in others if it is not writer)]
    for one in writers:
        one.require_folder()
    continued = [task.resumed_from, *(one.run_record.folder for one in writers if one.run_record.has_run)]
    place = os.path.realpath(record.folder)
    goes_on = any(it is not None and os.path.realpath(it) == place for it in continued)
    record.begin(goes_on, done, describe_run(task), task.opening)
