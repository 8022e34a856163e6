"""Faults of files: the n-th operation on files fails, or ends the process."""

import builtins
import io
import os

NAMES = ("mkdir", "open", "fsync", "replace", "rename", "unlink", "write")


class Faults:
    """Counts operations on files, and makes the n-th one fail. A write that fails leaves half of its bytes.

    With `crash`, the process ends instead.
    """

    def __init__(self, fail_at, crash=False):
        self.calls, self.fail_at, self.crash = 0, fail_at, crash
        self.failed = None

    def happens(self, name):
        self.calls += 1
        if self.calls == self.fail_at:
            self.failed = name
        return self.calls == self.fail_at

    def fail(self):
        if self.crash:
            os._exit(9)
        raise OSError(28, "No space left on device")

    def around(self, name, real, wrap=lambda result: result):
        def call(*args, **kwargs):
            if self.happens(name):
                self.fail()
            return wrap(real(*args, **kwargs))

        return call

    def install(self, monkeypatch):
        opened = self.around("open", open, lambda file: File(file, self))
        monkeypatch.setattr(builtins, "open", opened)
        monkeypatch.setattr(io, "open", opened)  # that of pathlib
        for name in NAMES:
            monkeypatch.setattr(os, name, self.around(name, getattr(os, name)))


def overwrite(path, position, content):
    """Change some bytes of a file in place, without the flush to the disk that follows writing a file anew."""
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(content)


class File:
    def __init__(self, file, faults):
        self._file, self._faults = file, faults

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, content):
        if self._faults.happens("write"):
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            self._faults.fail()
        return self._file.write(content)

    def flush(self):
        return self._faults.around("flush", self._file.flush)()
