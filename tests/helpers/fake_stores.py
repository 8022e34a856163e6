"""Stores in memory behind pyarrow, which can fail at any operation, wait, or die."""

import io
import threading

import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem


class _Files(MemoryFileSystem):
    """Files in memory, of its own."""

    cachable = False

    def __init__(self):
        super().__init__()
        self.store, self.pseudo_dirs = {}, [""]


class _Sink(io.BytesIO):
    """A file that is written: visible from the beginning, or an object that appears when it is complete."""

    def __init__(self, store, path):
        super().__init__()
        self._store, self._path = store, path
        self._show()

    def _show(self, is_complete=False):
        if is_complete or not self._store.has_objects:
            self._store.files.pipe_file(self._path, self.getvalue())

    def write(self, content):
        content = bytes(content)
        half = len(content) // 2
        count = super().write(content[:half])
        self._show()
        self._store.count("write", self._path)
        count += super().write(content[half:])
        self._show()
        return count

    def close(self):
        if not self.closed:
            self._store.count("close", self._path)
            self._show(is_complete=True)
        super().close()


class FakeStore(FSSpecHandler):
    """A store whose operations are counted.

    Args:
        has_objects: whether it is an object store, where objects appear when they are complete.
        fails: function of (number, name, path) of an operation; True if it fails.
    """

    def __init__(self, has_objects=False, fails=lambda number, name, path: False):
        self.files, self.has_objects, self.fails = _Files(), has_objects, fails
        self.done = []
        self.gate = threading.Event()
        self.gate.set()
        super().__init__(self.files)

    def count(self, name, path):
        self.gate.wait(10)
        self.done.append((name, path))
        if self.fails(len(self.done), name, path):
            raise OSError(5, "the network is down")

    @property
    def filesystem(self):
        return PyFileSystem(self)

    def get_type_name(self):
        return "fsspec+s3" if self.has_objects else "fsspec+memory"

    def open_output_stream(self, path, metadata):
        self.count("open", path)
        return pa.PythonFile(_Sink(self, path), mode="w")

    def move(self, src, dest):
        self.count("move", dest)
        super().move(src, dest)

    def delete_file(self, path):
        self.count("delete", path)
        super().delete_file(path)

    def create_dir(self, path, recursive):
        if not self.has_objects:
            self.count("create", path)
            super().create_dir(path, recursive)
