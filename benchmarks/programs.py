"""Run the examples as programs, and send them signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 300.0


class Ended(NamedTuple):
    """How a program ended."""

    status: int
    run_s: float
    """Seconds since its run began."""
    end_s: float
    """Seconds since the last signal; 0 if there was none."""
    errors: str
    """What it wrote to stderr."""
    session: int
    """Id of the session that its processes belong to."""


def version(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file changes; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def run_example(
    name: str,
    given: Sequence[str],
    changes: Path,
    signals: Sequence[tuple[float, int]] = (),
    program: Sequence[str] = (),
) -> Ended:
    """Run an example, and send it signals.

    Args:
        name: the example.
        given: its arguments.
        changes: the run has begun when this file has changed, such as its run.log.
        signals: seconds since the beginning, or since the signal before, and a signal. As in a terminal, SIGINT is sent to the
            child processes too.
        program: arguments of Python for a program that runs the example, which follows as its first argument.
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *program, str(ROOT / "examples" / f"{name}.py"), *given]
    before, sent = version(changes), 0.0
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
        try:
            while process.poll() is None and version(changes) == before:
                time.sleep(0.005)
            begun = time.monotonic()
            for after_s, number in signals:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(after_s)
                if process.poll() is None:
                    sent = time.monotonic()
                    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
            process.wait(PATIENCE_S)
        finally:
            process.kill()
        ended = time.monotonic()
        errors.seek(0)
        return Ended(process.returncode, ended - begun, ended - sent if sent else 0.0, errors.read(), process.pid)
