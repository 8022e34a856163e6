"""Shared status: memory that a worker writes and its parent reads at any time, also after the death of the worker."""

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
    """Shared memory with a flag that the worker has started, its progress, and its stack on request.

    Args:
        fd: descriptor of a file of `SharedStatus.size(progress_size)` bytes.
        progress_size: number of values that describe the worker's progress.
    """

    def __init__(self, fd: int, progress_size: int) -> None:
        self._memory = mapped(fd, self.size(progress_size))
        self.words = np.frombuffer(self._memory, np.int64, 1 + progress_size)
        """The flag `started`, then the progress, int64; any change is a sign of life."""
        self.progress = self.words[1:]
        """Values that code in the worker writes, [progress_size] int64."""
        self._stack = self._memory[8 * (1 + progress_size) :]
        self._stack_from, self._text = 0, ""

    @staticmethod
    def size(progress_size: int) -> int:
        return 8 * (1 + progress_size) + _STACK_BYTES

    @classmethod
    def sent_over(cls, connection: socket.socket, progress_size: int) -> SharedStatus:
        """A new status; its descriptor is sent through the connection to the worker."""
        fd = anonymous_file(cls.size(progress_size))
        try:
            socket.send_fds(connection, [b"b"], [fd])
            return cls(fd, progress_size)
        finally:
            os.close(fd)

    @classmethod
    def received_from(cls, connection: socket.socket, progress_size: int) -> SharedStatus:
        """The status that `sent_over` sent, in the worker. From now on, SIGUSR1 makes this process write its stack to it."""
        _, (fd, *_), _, _ = socket.recv_fds(connection, 1, 1)
        os.set_inheritable(fd, False)
        os.lseek(fd, 8 * (1 + progress_size), os.SEEK_SET)
        # Written by a handler in C, which needs neither the GIL nor new memory. The descriptor must stay open for it.
        faulthandler.register(signal.SIGUSR1, file=fd, all_threads=True, chain=False)
        return cls(fd, progress_size)

    @property
    def started(self) -> bool:
        """Whether the worker has started, so that it was ready for requests."""
        return bool(self.words[0])

    @started.setter
    def started(self, value: bool) -> None:
        self.words[0] = value

    def ask_for_stack(self, pid: int) -> None:
        """Send the signal that makes the worker write its stack."""
        self._text, self._stack_from = "", len(bytes(self._stack).rstrip(b"\0"))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)

    def stack(self) -> str:
        """The traceback that it wrote since `ask_for_stack`; empty if it is not there yet, or has changed since the last
        call."""
        before, self._text = self._text, bytes(self._stack[self._stack_from :]).rstrip(b"\0").decode(errors="replace")
        if not self._text or self._text != before:
            return ""
        threads = self._text.split("\n\n")
        return "\n\n".join(thread for thread in threads if "_die_with_parent" not in thread).strip()
