"""Run logs: a text file with the events of a run, written by Python's logging."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
import weakref
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from ding_lite.basics import is_closed, writing

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

_logger = logging.getLogger("ding_lite")


class RunLog:
    """Appends to a file what is logged to the logger "ding_lite" or below it, and warnings, until `close`.

    The level of this logger is lowered meanwhile, if necessary. Warnings are shown as before, too.

    Args:
        path: path of the file; its folder is created.
        level: the lowest level of lines to write.
        is_mine: returns whether the calling thread works on this run; lines from elsewhere are left out.

    Raises:
        WriteError: the file cannot be opened.
    """

    def __init__(self, path: str | PathLike[str], level: Level = "INFO", is_mine: Callable[[], bool] = lambda: True) -> None:
        with writing(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            handler = _File(path, encoding="utf-8", errors="backslashreplace")
        handler.setLevel(level)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        handler.addFilter(lambda record: is_mine())
        _attach(handler)
        self.close = weakref.finalize(self, _detach, handler)
        """Close the file."""


class _File(logging.FileHandler):
    """A file in which an error of writing is one warning."""

    is_broken = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.is_broken:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        self.is_broken = True
        warnings.warn(f"{self.baseFilename} cannot be written, and gets no further lines. The run goes on.", stacklevel=2)


_handlers: list[logging.Handler] = []
"""Of the open logs."""
_level_before = logging.NOTSET  # the level of the logger without them
_show_before = warnings.showwarning  # how warnings are shown without them


def _attach(handler: logging.Handler) -> None:
    global _level_before, _show_before
    if not _handlers:
        _level_before = _logger.level
        if warnings.showwarning is not _record_and_show:  # it may be, if other code has put it back
            _show_before, warnings.showwarning = warnings.showwarning, _record_and_show
    _handlers.append(handler)
    _logger.addHandler(handler)
    _set_level()


def _detach(handler: logging.Handler) -> None:
    _handlers.remove(handler)
    _logger.removeHandler(handler)
    _set_level()
    if not _handlers and warnings.showwarning is _record_and_show:  # else other code has replaced it
        warnings.showwarning = _show_before
    with contextlib.suppress(OSError):  # the disk is full
        handler.close()


def _set_level() -> None:
    _logger.setLevel(_level_before)
    lowest = min((handler.level for handler in _handlers), default=_logger.getEffectiveLevel())
    if lowest < _logger.getEffectiveLevel():
        _logger.setLevel(lowest)


def _record_and_show(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:
    """Write a warning to the open logs, and show it as usual. Other handlers do not get it, so it is not shown twice."""
    if file is None:
        text = f"{category.__name__}: {message} ({filename}:{lineno})"
        for handler in list(_handlers):
            if handler.level <= logging.WARNING:
                handler.handle(_logger.makeRecord(_logger.name, logging.WARNING, filename, lineno, text, (), None))
    if file is None and is_closed(sys.stderr):  # Python would raise an error
        return
    _show_before(message, category, filename, lineno, file, line)
