"""Children: a process, the channel to it and the status it writes, which begin and end together."""

from __future__ import annotations

import contextlib
import select
import socket

from ding_lite.processes.channels import Channel, Message
from ding_lite.processes.launches import start
from ding_lite.processes.servers import serve
from ding_lite.processes.shared_status import SharedStatus


class Child:
    """A process that takes requests. `free` it, or it stays.

    Args:
        name: of the process.
        progress_size: of its status.

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
        """Whether it has been sent word that no further request comes."""
        self._poller = select.poll()
        self._poller.register(self.channel.fileno(), select.POLLIN)
        self._poller.register(self.process.sentinel, select.POLLIN)

    def receive(self, timeout_s: float) -> Message | None:
        """Its message, as soon as it is there; None where there is none by then, or not yet the whole of it.

        Raises:
            EOFError, OSError: the process is gone, or has closed the channel, and no message is left.
        """
        message = self.channel.arrived()  # with the one before it, so that the socket is silent
        if message is not None:
            return message
        events = self._poller.poll(1000 * timeout_s)
        # Read first: a process may end right after its last answer.
        message = self.channel.receive(wait=False) if events else None
        if message is None and any(fd == self.process.sentinel for fd, _ in events):
            raise EOFError("the process has ended.")
        return message

    def exitcode(self, timeout_s: float) -> int | None:
        """How the process ended, if it does so by then: its status, or minus the number of the signal that killed it."""
        self.process.join(timeout_s)
        return self.process.exitcode

    def finish(self) -> None:
        """Tell it that no further request comes: it ends when it has answered those that are under way."""
        self.is_finished = True
        with contextlib.suppress(OSError):  # it is dead already
            self.channel.finish()

    def end(self, timeout_s: float) -> None:
        """Ask it to end, and tell it to where it has not done so by then."""
        self.finish()
        if self.exitcode(timeout_s) is None:
            self.process.terminate()
            self.process.join(0.5)

    def free(self) -> int | None:
        """Kill it if it is there, give everything back, and say how it ended."""
        if self.process.is_alive():
            self.process.kill()
        exitcode = self.exitcode(5.0)
        self.channel.close()
        with contextlib.suppress(ValueError):  # the system does not let it die: it waits for a broken disk, say
            self.process.close()
        return exitcode
