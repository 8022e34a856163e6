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
"""What is longer than this besides the buffers goes through shared memory too: the socket's own buffer always has room for
this much, so that sending never waits for the receiver."""

REQUEST, ANSWER, FAILURE = range(3)

_ALIGNMENT = 64
_HEADER = struct.Struct(
    "=qBBIQQQ"
)  # number, slot, kind, buffers, bytes of the rest, size of a new segment or 0, place of the rest or 0
_SIZE = struct.Struct("=Q")
_SPACE_FOR_DESCRIPTORS = socket.CMSG_SPACE(8 * 4) if hasattr(socket, "CMSG_SPACE") else 0


class Message(NamedTuple):
    """What came: `load()` gives the object, whose large arrays lie in the sender's segment."""

    number: int
    slot: int
    kind: int
    pickled: bytes | memoryview
    buffers: list[memoryview]

    def load(self) -> Any:
        return pickle.loads(self.pickled, buffers=self.buffers)


class Channel:
    """One end of a connection. Both ends are alike; they take turns.

    Contiguous buffers of 4 KiB and more (those of numpy arrays, whatever object holds them) are copied once, into a segment
    that belongs to the sender, and are used there by the receiver: what it loads is valid until the sender sends again, in the
    same slot. It may be written to, as its original could be; the sender does not see that.

    Args:
        connection: a socket of the family AF_UNIX, which is the channel's from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._segments: dict[int, Segment] = {}
        self._others: dict[int, memoryview] = {}
        self._received = bytearray()  # kept here, so that an interrupted receive() can be repeated
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        """The socket's descriptor, ready to be read when a message or the end is there."""
        return self._socket.fileno()

    def send(self, number: int, kind: int, value: Any, by_value: bool = False, slot: int = 0) -> None:
        """Send `value`.

        Args:
            number: of the request that it is or belongs to.
            by_value: see `dumps`.
            slot: which of its segments to use, 0 to 255; each message under way needs one of its own.

        Raises:
            OSError: the other end is closed.
            Exception: whatever pickling raised. Nothing was sent then.
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
        """Copy the buffers into the segment, a larger one where need be; where they are."""
        if not buffers:
            return []
        places = _places([buffer.nbytes for buffer in buffers])
        size = places[-1] + buffers[-1].nbytes
        segment = self._segments.get(slot)
        if segment is None or segment.size < size:
            del segment  # first, so that both are never in memory at once
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
        """The next message; None where it has not arrived whole and `wait` is false.

        Raises:
            EOFError: the other end is closed.
            OSError: it was closed amid something.
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
        """The next message, if the bytes that were received are enough for one; it may have come with the one before."""
        if len(self._received) < _HEADER.size:
            return None
        number, slot, kind, count, length, size, place = _HEADER.unpack_from(self._received)
        end = _HEADER.size + (0 if place else length)
        if len(self._received) < end:
            return None
        if size:
            if not self._descriptors:
                raise OSError("a descriptor did not arrive, most likely because too many files are open: raise `ulimit -n`.")
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
        """Tell the other end that nothing more will come."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Give everything back but the memory of what was loaded and is still in use."""
        self._socket.close()
        self._segments.clear()
        self._others.clear()
        while self._descriptors:
            os.close(self._descriptors.pop())


def _places(sizes: list[int]) -> list[int]:
    """Where buffers of these sizes lie in a segment, one after the other; 0 is nobody's."""
    padded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    return list(itertools.accumulate(padded, initial=_ALIGNMENT))[:-1]
