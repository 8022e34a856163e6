"""Scripts that run in a fork of this process: its own interpreter would take seconds to import torch and ding_lite again."""

import atexit
import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import types
import warnings
from typing import Any


class Script(subprocess.Popen):
    """A process that runs this code as `python -c` would, with a `__main__`, signals, streams and an exit status of its own.

    Args:
        code: of the script.
        *arguments: sys.argv[1:].
        **options: of subprocess.Popen, for the streams, the folder and the environment.
    """

    def __init__(self, code: str, *arguments: Any, **options: Any) -> None:
        super().__init__([code, *map(str, arguments)], **options)

    def _execute_child(  # the part of Popen that would start another program
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others,
    ):  # fmt: skip
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be_script(args, cwd, env, (p2cread, c2pwrite, errwrite))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def run_script(
    code: str, *arguments: Any, timeout: float = 60.0, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a script to its end. Its output is text, and is captured. With `check`, another status than 0 is an error."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Script(code, *arguments, **{**pipes, **options}) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def _be_script(args: list[str], cwd: Any, env: dict[str, str] | None, streams: tuple[int, int, int]) -> None:
    """Run the code and end this process. Nothing of the tests remains: no handlers, no files, no captured output."""
    status = 1
    try:
        for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            signal.signal(number, handler)
        _open_streams(streams)
        atexit._clear()  # among these are the removal of temporary folders and the end of other processes
        sys.excepthook, sys.unraisablehook, threading.excepthook = (
            sys.__excepthook__,
            sys.__unraisablehook__,
            threading.__excepthook__,
        )
        logging.root.handlers.clear()
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        warnings.showwarning = _show_warning
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        os.chdir(cwd or ".")
        sys.argv = ["-c", *args[1:]]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        status = _status_of(args[0], vars(main))
    finally:
        os._exit(status)


def _show_warning(*one: Any) -> None:
    """As Python does it; the tests record warnings instead."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(warnings.formatwarning(*one[:4]))


def _open_streams(streams: tuple[int, int, int]) -> None:
    """Make these descriptors, of which -1 leaves one as it is, the standard streams, and close all others."""
    # Copies first, because a pipe may have the number of a standard stream.
    copies = [os.dup(one) if one >= 0 else -1 for one in streams]
    for number, copy in enumerate(copies):
        if copy >= 0:
            os.dup2(copy, number)
    os.closerange(3, 1 << 16)
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8")
    sys.stdout = sys.__stdout__ = _writable(1, line_buffering=os.isatty(1))
    sys.stderr = sys.__stderr__ = _writable(2, line_buffering=True)


def _writable(number: int, line_buffering: bool) -> io.TextIOWrapper:
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    binary = os.fdopen(number, "wb", 0 if at_once else -1)
    return io.TextIOWrapper(binary, encoding="utf-8", line_buffering=line_buffering, write_through=at_once)


def _status_of(code: str, names: dict[str, Any]) -> int:
    """Run the code, and end it as the interpreter does: with its threads, exit functions and exit status."""
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), names)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001  as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status if status < 0 else 120
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status
