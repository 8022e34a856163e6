"""Segments: shared memory without a name, so that it is freed when both processes end."""

from __future__ import annotations

import mmap
import os
import tempfile

_SMALLEST = 1 << 16


def anonymous_file(size: int) -> int:
    """The descriptor of a new file of `size` zero bytes in memory, or in the temporary folder, that has no path."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("ding_lite")
    else:
        fd, path = tempfile.mkstemp(prefix="ding_lite-")
        os.unlink(path)
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def mapped(fd: int, size: int) -> memoryview:
    """The first `size` bytes of the file, readable and writable; unmapped when they are no longer referenced."""
    return memoryview(mmap.mmap(fd, size))


class Segment:
    """Memory that one process writes and another one reads.

    Args:
        size: minimum number of bytes. The segment is larger; unused bytes take no memory.
    """

    def __init__(self, size: int) -> None:
        self.size = max(_SMALLEST, 1 << (size - 1).bit_length())
        self.fd: int | None = anonymous_file(self.size)
        """The descriptor to send to the other process; None after it was sent."""
        self.memory = mapped(self.fd, self.size)

    def handed_over(self) -> None:
        """Close the descriptor, after the other process has received it."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def __del__(self) -> None:
        if getattr(self, "fd", None) is not None:
            self.handed_over()
