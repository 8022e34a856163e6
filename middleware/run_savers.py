"""Savers of runs: write the state of a whole run, from which it can be resumed, and copy it to a storage."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
import warnings

from ding_lite.basics import RunCopy, RunFiles, RunRecord, UnsavedError, WriteError, move_aside
from ding_lite.middleware.own_runs import own_run
from ding_lite.middleware.run_copies import begun_copy, copy_late_files
from ding_lite.ranks import current_ranks

_LOGGED_EVERY_S = 60.0  # a line about a regular save of the run
_LONGEST_WAIT_S = 60.0  # for a moment without deferred work, before a warning
_SHARE = 0.01  # of the time, at most, goes into saving the whole run

_logger = logging.getLogger(__name__)


class RunSaver:
    """Saves everything in the pipeline that has a `state_dict`, to the folder `run` of a run. `CkptSaver` has one.

    Args:
        record: the record of the run, which knows its folder.
        is_regular: whether there are regular saves; without them, only a run that ends before its time is saved.
    """

    def __init__(self, record: RunRecord, is_regular: bool) -> None:
        self.run_copy: RunCopy | None = None
        """The copy of the folder in a storage, during a run; None if it has none."""
        self.is_asked = False
        """Whether the task will call `save` before the next iteration."""
        self.is_postponed = False
        """Whether a regular save is due, but deferred work was in progress."""
        self.saved_step = -1
        """The iteration with which the latest state that was saved here continues; -1 if there is none."""
        self._record, self._files, self._is_regular = record, RunFiles(record.folder), is_regular
        self._is_unsavable = False
        self._next_save = -math.inf
        """The earliest time of the next regular save."""
        self._postponed_since: float | None = None
        self._bytes_left, self._spent_s = 0, 0.0
        """Bytes that are left to write for the current regular save, and the seconds that it took so far."""
        self._logged = -math.inf
        """Time of the last line about a save."""

    def begin_copy(self, is_continued: bool) -> None:
        """Begin the copy in the storage of the run, unless it has begun or there is no storage. It is not written to yet.

        Args:
            is_continued: whether the folder has files of this run already.

        Raises:
            StorageError: the storage cannot be written to; the copy is one of another run, or is ahead of the folder.
        """
        if self.run_copy is not None:
            return
        resumed = own_run().resumed_from
        is_resumed = resumed is not None and os.path.realpath(resumed) == os.path.realpath(self._record.folder)
        copy = begun_copy(own_run(), self._record, is_continued or is_resumed)
        if copy is not None:
            self.run_copy, self._files.held = copy, lambda: copy.held

    def claim_copy(self) -> None:
        """Write the record, which has begun, to the copy.

        Raises:
            StorageError: it cannot be written.
        """
        if self.run_copy is not None and not self.run_copy.is_claimed:
            self.run_copy.claim(self._record.run_id)

    def make_room(self) -> None:
        """Rename the folder of an earlier run, if it is still there."""
        with contextlib.suppress(WriteError):  # the first save fails as well, with a warning
            move_aside(self._files.folder)

    def is_due(self, is_wanted: bool) -> bool:
        """Whether to call `ask` after this iteration.

        Args:
            is_wanted: whether a regular save belongs here; it is left out if saves would take too much of the time.
        """
        is_time = is_wanted and time.monotonic() >= self._next_save
        return bool(is_time or self._bytes_left or self.is_postponed) and not self.is_asked

    def ask(self) -> None:
        """Have the task call `save` before the next iteration."""
        self.is_asked = True
        own_run().between_iterations(self.save)

    def save(self) -> None:
        """Save the state of the whole run, and copy it to a storage. To be called when no middleware runs.

        A failure during the run is a warning, and later iterations try again; at its end it is raised after everything else.

        Raises:
            RankError: the processes of a data-parallel run have different weights.
        """
        if own_run().is_complete and current_ranks() is not None:  # a late signal, which other processes need not have
            return
        if self.run_copy is not None and current_ranks() is not None:
            self.run_copy.settle(_LONGEST_WAIT_S)  # so that the copies of all processes have a state in common
        self._save()
        if self.run_copy is not None and not self._bytes_left and not self.is_postponed:
            self.run_copy.save()

    def _save(self) -> None:
        is_asked, self.is_asked = self.is_asked, False
        ranks = current_ranks()
        if ranks is not None:
            ranks.require_equal_weights("saving the run" if is_asked else "the end of the run")
        reason = own_run().end_reason
        is_cut = own_run().is_cut or (reason is not None and reason.kind == "signal")
        if self._is_unsavable or not (self._is_regular or is_cut):
            return
        self.is_postponed = is_asked and own_run().has_deferred_work
        if self.is_postponed:  # the next iteration tries again, instead of waiting for its end
            self._warn_of_postponing()
            return
        self._postponed_since = None
        begun = time.monotonic()
        left_before, self._bytes_left = self._bytes_left or math.inf, 0
        try:
            state = own_run().state_dict(in_pieces=True)
            left = self._files.save_rows(state) if is_asked and current_ranks() is None else 0
            if 0 < left < left_before:  # the next iteration continues, so that none is held up for long
                self._bytes_left = left
                self._spent_s += time.monotonic() - begun
                return
            path = self._files.save(state, state["done"])
            self.saved_step = state["context"]["total_step"]
            self._record.save()
            is_quiet = is_asked and begun - self._logged < _LOGGED_EVERY_S
            self._logged = self._logged if is_quiet else begun
            _logger.log(
                logging.DEBUG if is_quiet else logging.INFO, "the run is saved after %d iterations: %s", state["done"], path
            )
        except WriteError as error:
            if is_asked:
                warnings.warn(f"{error} The state of the run is not saved; later iterations try again.", stacklevel=3)
            else:
                words = f"the run has ended, but its last state is not saved, so it cannot be resumed from here: {error}"
                own_run().raise_at_end(UnsavedError(error.errno, words, error.filename))
        except (TypeError, ValueError) as error:  # ValueError: a RunStateError, or a state that contains itself
            self._is_unsavable = True
            warnings.warn(
                f"this run cannot be resumed later, because its state cannot be saved: {error} The policy is saved.",
                stacklevel=3,
            )
        ended = time.monotonic()
        self._next_save = ended + (self._spent_s + ended - begun) / _SHARE
        self._spent_s = 0.0

    def _warn_of_postponing(self) -> None:
        """Warn once if deferred work has been in progress, at each attempt to save the run, for a long time."""
        now = time.monotonic()
        if self._postponed_since is None:
            self._postponed_since = now
        elif now - self._postponed_since > _LONGEST_WAIT_S:
            self._postponed_since = math.inf  # one warning is enough
            warnings.warn(
                f"the run has not been saved for {_LONGEST_WAIT_S:.0f} s, because deferred work (task.defer) was always in "
                "progress: it is saved at a moment without any. Begin the next work later, or make it shorter.",
                stacklevel=2,
            )

    def release(self) -> None:
        """End the copy in the storage."""
        copy, self.run_copy = self.run_copy, None
        if copy is None:
            return
        with contextlib.suppress(WriteError):
            self._record.save()
        copy_late_files(copy)
        self._files.remove_others()
