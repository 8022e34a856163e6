"""Segments: memory that two processes share and that has no name, so that nothing remains of it when they die."""

from __future__ import annotations

import mmap
import os
import tempfile

_SMALLEST = 1 << 16


def anonymous_file(size: int) -> int:
    """The descriptor of a file of `size` zero bytes in memory (or on a temporary disk) that no folder lists."""
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
    """The first `size` bytes of the file, readable and writable; unmapped when nobody refers to them any more."""
    return memoryview(mmap.mmap(fd, size))


class Segment:
    """Memory that one process writes and another one reads.

    Args:
        size: bytes that it has to hold. It gets more, which costs nothing until they are written to.
    """

    def __init__(self, size: int) -> None:
        self.size = max(_SMALLEST, 1 << (size - 1).bit_length())
        self.fd: int | None = anonymous_file(self.size)
        """The descriptor to hand to the other process; None once that is done."""
        self.memory = mapped(self.fd, self.size)

    def handed_over(self) -> None:
        """The other process has the descriptor: this one needs it no more."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def __del__(self) -> None:
        if getattr(self, "fd", None) is not None:
            self.handed_over()
