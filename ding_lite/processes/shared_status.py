"""Shared status: what a worker writes at any time and its parent may read at any time, also when the worker is dead."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket

import numpy as np

from ding_lite.processes.segments import anonymous_file, mapped

_STACK_BYTES = 1 << 16


class SharedStatus:
    """Shared memory: whether the worker has started, its progress, and its stack if it is asked for it.

    Args:
        fd: of a file of `SharedStatus.size(progress_size)` bytes.
        progress_size: how many numbers the worker writes about its progress.
    """

    def __init__(self, fd: int, progress_size: int) -> None:
        self._memory = mapped(fd, self.size(progress_size))
        self.words = np.frombuffer(self._memory, np.int64, 1 + progress_size)
        """Whatever changes as the worker gets on."""
        self.progress = self.words[1:]
        """The worker's own. [progress_size] int64."""
        self._stack = self._memory[8 * (1 + progress_size) :]
        self._stack_from, self._text = 0, ""

    @staticmethod
    def size(progress_size: int) -> int:
        return 8 * (1 + progress_size) + _STACK_BYTES

    @classmethod
    def sent_over(cls, connection: socket.socket, progress_size: int) -> SharedStatus:
        """A new status, whose descriptor waits in the connection for the worker."""
        fd = anonymous_file(cls.size(progress_size))
        try:
            socket.send_fds(connection, [b"b"], [fd])
            return cls(fd, progress_size)
        finally:
            os.close(fd)

    @classmethod
    def received_from(cls, connection: socket.socket, progress_size: int) -> SharedStatus:
        """The worker's side: what `sent_over` sent. From now on SIGUSR1 makes this process write its stack there."""
        _, (fd, *_), _, _ = socket.recv_fds(connection, 1, 1)
        os.set_inheritable(fd, False)
        os.lseek(fd, 8 * (1 + progress_size), os.SEEK_SET)
        # Written by a handler in C, which needs neither the interpreter's lock nor memory. The descriptor stays open for it.
        faulthandler.register(signal.SIGUSR1, file=fd, all_threads=True, chain=False)
        return cls(fd, progress_size)

    @property
    def started(self) -> bool:
        """Whether the worker is ready for requests, or was."""
        return bool(self.words[0])

    @started.setter
    def started(self, value: bool) -> None:
        self.words[0] = value

    def ask_for_stack(self, pid: int) -> None:
        """Have the worker write where it is right now."""
        self._text, self._stack_from = "", len(bytes(self._stack).rstrip(b"\0"))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)

    def stack(self) -> str:
        """What it wrote since it was asked, as a traceback; empty where that is not there yet, or still grows."""
        before, self._text = self._text, bytes(self._stack[self._stack_from :]).rstrip(b"\0").decode(errors="replace")
        if not self._text or self._text != before:
            return ""
        threads = self._text.split("\n\n")
        return "\n\n".join(thread for thread in threads if "_die_with_parent" not in thread).strip()
