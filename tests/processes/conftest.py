"""A worker, and a way to run scripts that start some.

A worker cannot import the test files, so what it needs from them is pickled by value: each registers itself for that.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ding_lite.processes import WorkerProcess


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    """A worker that all tests of a file share: it survives what they do to it."""
    with WorkerProcess("shared", timeout_s=30) as process:
        yield process


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Runs this text as a script of its own, in a process group of its own."""
    running = []

    def run(text: str) -> "subprocess.Popen[str]":
        path = tmp_path / "script.py"
        path.write_text(text, encoding="utf-8")
        running.append(
            subprocess.Popen(
                [sys.executable, str(path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def gone() -> Callable[..., bool]:
    """Whether the processes of these numbers end within `timeout_s`."""

    def runs(pid: int) -> bool:
        try:
            status: str = psutil.Process(pid).status()
        except psutil.NoSuchProcess:
            return False
        return status != psutil.STATUS_ZOMBIE

    def wait(*pids: int, timeout_s: float = 5.0) -> bool:
        deadline = time.monotonic() + timeout_s
        while any(map(runs, pids)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    return wait
