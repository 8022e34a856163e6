"""Children: a child process with the channel to it and its shared status."""

from __future__ import annotations

import contextlib
import select
import socket

from ding_lite.processes.channels import Channel, Message
from ding_lite.processes.launches import start
from ding_lite.processes.servers import serve
from ding_lite.processes.shared_status import SharedStatus


class Child:
    """A process that takes requests, until `free` is called.

    Args:
        name: name of the process.
        progress_size: size of the array of its progress, see `SharedStatus`.

    Raises:
        OSError, EOFError, RuntimeError: it could not be started, see `start`.
    """

    def __init__(self, name: str, progress_size: int) -> None:
        connection, other_end = socket.socketpair()
        with other_end:
            try:
                self.status = SharedStatus.sent_over(connection, progress_size)
                self.process = start(name, serve, other_end, progress_size)
            except BaseException:
                connection.close()
                raise
        self.pid = self.process.pid or 0
        self.channel = Channel(connection)
        self.is_finished = False
        """Whether `finish` was called."""
        self._poller = select.poll()
        self._poller.register(self.channel.fileno(), select.POLLIN)
        self._poller.register(self.process.sentinel, select.POLLIN)

    def receive(self, timeout_s: float) -> Message | None:
        """Its next message; None if no whole message arrives within this time.

        Raises:
            EOFError, OSError: the process has ended or closed the channel, and no message is left.
        """
        message = self.channel.arrived()  # it may have come with the previous one, then the socket is not readable
        if message is not None:
            return message
        events = self._poller.poll(1000 * timeout_s)
        # Read first: a process may end right after its last answer.
        message = self.channel.receive(wait=False) if events else None
        if message is None and any(fd == self.process.sentinel for fd, _ in events):
            raise EOFError("the process has ended.")
        return message

    def exitcode(self, timeout_s: float) -> int | None:
        """The exit status, or minus the number of the signal that killed it; None if it does not end within this time."""
        self.process.join(timeout_s)
        return self.process.exitcode

    def finish(self) -> None:
        """Send no further requests: the process ends after it has answered those in flight."""
        self.is_finished = True
        with contextlib.suppress(OSError):  # the process has ended already
            self.channel.finish()

    def end(self, timeout_s: float) -> None:
        """Let the process end, and terminate it if it has not ended within this time."""
        self.finish()
        if self.exitcode(timeout_s) is None:
            self.process.terminate()
            self.process.join(0.5)

    def free(self) -> int | None:
        """Kill the process if it is alive, free all resources, and return its `exitcode`."""
        if self.process.is_alive():
            self.process.kill()
        exitcode = self.exitcode(5.0)
        self.channel.close()
        with contextlib.suppress(ValueError):  # it cannot be killed, for example because it waits for a broken disk
            self.process.close()
        return exitcode
