"""Channels: messages between two processes, large arrays through shared memory and the rest through a socket."""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import struct
from typing import Any, NamedTuple

from ding_lite.processes.pickles import dumps
from ding_lite.processes.segments import Segment, mapped

INLINE_BYTES = 16384
"""Maximum size of a message in the socket. The rest goes through shared memory. The buffer of the socket always has room for
this much, so sending never waits for the receiver."""

REQUEST, ANSWER, FAILURE = range(3)

_ALIGNMENT = 64
_HEADER = struct.Struct(
    "=qBBIQQQ"
)  # number, slot, kind, buffers, bytes of the rest, size of a new segment or 0, place of the rest or 0
_SIZE = struct.Struct("=Q")
_SPACE_FOR_DESCRIPTORS = socket.CMSG_SPACE(8 * 4) if hasattr(socket, "CMSG_SPACE") else 0


class Message(NamedTuple):
    """A received message. `load()` returns the object; its large arrays are views of the sender's segment."""

    number: int
    slot: int
    kind: int
    pickled: bytes | memoryview
    buffers: list[memoryview]

    def load(self) -> Any:
        return pickle.loads(self.pickled, buffers=self.buffers)


class Channel:
    """One end of a connection. Both ends have the same interface, and take turns.

    Contiguous buffers of 4 KiB and more, such as those of numpy arrays, are copied once, into a shared segment that belongs to
    the sender. The receiver uses them there: a loaded object is valid until the sender sends again in the same slot. The
    receiver may write to it; the sender's object does not change.

    Args:
        connection: a socket of the family AF_UNIX. The channel closes it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._segments: dict[int, Segment] = {}
        self._others: dict[int, memoryview] = {}
        self._received = bytearray()  # kept here, so that an interrupted receive() can be repeated
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        """The socket's descriptor; readable when a message has arrived or the other end is closed."""
        return self._socket.fileno()

    def send(self, number: int, kind: int, value: Any, by_value: bool = False, slot: int = 0) -> None:
        """Send `value`.

        Args:
            number: number of the request.
            kind: REQUEST, ANSWER or FAILURE.
            value: the object to send.
            by_value: see `dumps`.
            slot: index of the segment to use, 0 to 255; concurrent messages need different slots.

        Raises:
            OSError: the other end is closed.
            Exception: an error of pickling. Then nothing was sent.
        """
        buffers: list[memoryview] = []
        pickled = dumps(value, by_value, buffers)
        rest = b"".join([*(_SIZE.pack(buffer.nbytes) for buffer in buffers), pickled])
        is_inline = len(rest) <= INLINE_BYTES
        places = self._stored(slot, buffers if is_inline else [*buffers, memoryview(rest)])
        segment = self._segments.get(slot)
        fd = segment.fd if segment is not None and places else None
        size, place = segment.size if segment is not None and fd is not None else 0, 0 if is_inline else places[-1]
        header = _HEADER.pack(number, slot, kind, len(buffers), len(rest), size, place)
        self._send_bytes(header + rest if is_inline else header, fd)
        if segment is not None and fd is not None:
            segment.handed_over()

    def _stored(self, slot: int, buffers: list[memoryview]) -> list[int]:
        """Copy the buffers into the segment of this slot, and return their positions. Allocates a larger segment if needed."""
        if not buffers:
            return []
        places = _places([buffer.nbytes for buffer in buffers])
        size = places[-1] + buffers[-1].nbytes
        segment = self._segments.get(slot)
        if segment is None or segment.size < size:
            del segment  # first, so that both are never in memory at the same time
            self._segments.pop(slot, None)
            segment = self._segments[slot] = Segment(size)
        memory = segment.memory
        for place, buffer in zip(places, buffers):
            memory[place : place + buffer.nbytes] = buffer
        return places

    def _send_bytes(self, data: bytes, fd: int | None) -> None:
        if fd is None:
            self._socket.sendall(data)
        else:
            sent = socket.send_fds(self._socket, [data], [fd])
            self._socket.sendall(data[sent:])

    def receive(self, wait: bool = True) -> Message | None:
        """The next message; None if `wait` is false and no whole message has arrived.

        Raises:
            EOFError: the other end is closed, perhaps in the middle of a message.
        """
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0) | (0 if wait else socket.MSG_DONTWAIT)
        while (message := self.arrived()) is None:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(2 * INLINE_BYTES, _SPACE_FOR_DESCRIPTORS, flags)
            except BlockingIOError:
                return None
            self._received += data
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    self._descriptors += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
            if not data:
                raise EOFError("the other end of the channel is closed.")
        return message

    def arrived(self) -> Message | None:
        """The next message, if it was received already, for example together with the previous one; else None."""
        if len(self._received) < _HEADER.size:
            return None
        number, slot, kind, count, length, size, place = _HEADER.unpack_from(self._received)
        end = _HEADER.size + (0 if place else length)
        if len(self._received) < end:
            return None
        if size:
            if not self._descriptors:
                raise OSError(
                    "a file descriptor did not arrive, most likely because too many files are open: raise the limit, `ulimit "
                    "-n`."
                )
            fd = self._descriptors.pop(0)
            try:
                self._others.pop(slot, None)
                self._others[slot] = mapped(fd, size)
            finally:
                os.close(fd)
        memory = self._others.get(slot, memoryview(b""))
        rest = bytes(memory[place : place + length] if place else self._received[_HEADER.size : end])
        del self._received[:end]
        sizes = [_SIZE.unpack_from(rest, _SIZE.size * index)[0] for index in range(count)]
        buffers = [memory[at : at + nbytes] for at, nbytes in zip(_places(sizes), sizes)]
        return Message(number, slot, kind, memoryview(rest)[_SIZE.size * count :], buffers)

    def finish(self) -> None:
        """Close the connection for sending."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Free all resources, except memory of loaded objects that are still in use."""
        self._socket.close()
        self._segments.clear()
        self._others.clear()
        while self._descriptors:
            os.close(self._descriptors.pop())


def _places(sizes: list[int]) -> list[int]:
    """The positions of buffers of these sizes in a segment, one after another. Position 0 is unused."""
    padded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    return list(itertools.accumulate(padded, initial=_ALIGNMENT))[:-1]
