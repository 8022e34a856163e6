"""Packages: compiled gradient steps, and the folder in which they are kept for later runs.

A package is the file KEY-HASH.pt2, and its manifest KEY.json says which. Both are written under other names and renamed, so
that processes may write at the same time. A package is only loaded if the manifest fits this program, torch and machine, and
the hash is that of the bytes that are loaded.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch

from ding_lite.basics.messages import describe_error
from ding_lite.compiling.programs import Program
from ding_lite.compiling.tracing import NotCompiledError
from ding_lite.processes.pickles import dumps

FOLDER_VARIABLE, SIZE_VARIABLE = "DING_LITE_CACHE", "DING_LITE_CACHE_MB"
_MEGABYTES = 512  # of all packages
_SECONDS = 900  # after which compilation is given up
_RESULT, _ERRORS = "step.pt2", "errors"
_TAIL = 400  # characters of an error of the compiler that are shown


def cache_folder() -> Path:
    """Where packages are kept: DING_LITE_CACHE, by default ding_lite in XDG_CACHE_HOME or in ~/.cache."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ding_lite"


@functools.cache
def _processor() -> str:
    """A hash of the processor's instruction sets, because the compiler uses all that it finds."""
    lines = []
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        lines = sorted({line for line in text.splitlines() if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join([platform.machine(), *lines]).encode()).hexdigest()[:16]


def environment() -> dict[str, Any]:
    """What a package depends on beside its program."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def require_settings() -> None:
    """Check the environment variables.

    Raises:
        ValueError: DING_LITE_CACHE_MB is not a number, or CXX is not a command.
    """
    _megabytes()
    _compiler()


def _compiler() -> str:
    """The C++ compiler: a program, or the path of one.

    Raises:
        ValueError: CXX is not a command.
    """
    given = os.environ.get("CXX") or ""
    try:
        command = shlex.split(given)
    except ValueError as error:
        raise ValueError(f"CXX = {given!r}: expected the command of a C++ compiler, such as g++. {error}.") from None
    return command[0] if command else next(filter(shutil.which, ("g++", "clang++")), "g++")


def _name_of(key: str) -> str:
    """The name of a program's manifest on this machine, with this torch."""
    return hashlib.sha256(json.dumps([key, environment()], sort_keys=True).encode()).hexdigest()[:40]


class Package:
    """A compiled program.

    Args:
        content: the bytes of the package.
    """

    def __init__(self, content: bytes) -> None:
        with tempfile.TemporaryDirectory(prefix="ding_lite_") as folder:  # so that what was checked is what is loaded
            path = Path(folder, "step.pt2")
            path.write_bytes(content)
            loader: Any = torch._C._aoti
            self._loader = loader.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
        self.run = self._loader.boxed_run
        """Runs the program on a list of its inputs, which is emptied, and returns a list of its outputs. Nothing is checked:
        inputs of another shape read beyond their memory."""


def load_package(program: Program) -> Package | None:
    """The package of a program from the cache; None if there is none that fits and is intact."""
    folder, name = cache_folder(), _name_of(program.key)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RuntimeError):
        path = folder / f"{name}.json"
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["key"] != program.key or manifest["environment"] != environment():
            return None
        file = folder / f"{name}-{manifest['sha256'][:16]}.pt2"
        if not all(_is_own(it) for it in (path, file)):
            return None
        content = file.read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
            return None
        package = Package(content)
        with contextlib.suppress(OSError):  # the folder may be read-only
            os.utime(path)
            os.utime(file)
        return package
    return None


def _is_own(path: Path) -> bool:
    """Whether a file is this user's, and nobody else may write to it."""
    found = path.stat()
    return not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)


class Compilation:
    """The compilation of a program in another process, which keeps the compiler out of this one. It ends with this object.

    Args:
        program: the program.

    Raises:
        NotCompiledError: there is no compiler.
        ValueError: CXX is not a command.
    """

    def __init__(self, program: Program) -> None:
        compiler = _compiler()
        if shutil.which(compiler) is None:
            raise NotCompiledError(f"there is no C++ compiler {compiler}: install g++, or set CXX.")
        self._program = program
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="ding_lite_"))
            try:
                self._process = _started(program, self._folder)
            except BaseException:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise
        except Exception as error:
            raise NotCompiledError(f"the compiler cannot be started ({describe_error(error)}).") from error
        self._finalizer = weakref.finalize(self, _end, self._process, self._folder)

    def package(self) -> Package:
        """Wait for the end, and keep the package in the cache if its folder can be written to.

        Raises:
            NotCompiledError: compilation fails.
        """
        try:
            self._process.wait(_SECONDS)
            content = (self._folder / _RESULT).read_bytes() if self._process.returncode == 0 else b""
            errors = (self._folder / _ERRORS).read_text(encoding="utf-8", errors="replace")
        except subprocess.TimeoutExpired:
            raise NotCompiledError(f"compilation takes longer than {_SECONDS} s.") from None
        except OSError as error:
            content, errors = b"", str(error)
        finally:
            self._finalizer()
        if not content:
            raise NotCompiledError(f"torch cannot compile it: {_short(errors)}")
        with contextlib.suppress(OSError):  # full, or read-only: it is compiled again in the next run
            _keep(self._program, content)
        try:
            return Package(content)
        except RuntimeError as error:
            raise NotCompiledError(f"the compiled step cannot be loaded: {_short(str(error))}") from error


def _started(program: Program, folder: Path) -> subprocess.Popen[bytes]:
    """Start the compiler, all of whose files are in this folder."""
    source = folder / "in.pkl"
    source.write_bytes(dumps((program, torch.get_num_threads(), torch.get_float32_matmul_precision())))
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with (folder / _ERRORS).open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "ding_lite.compiling.compiler", str(source), str(folder / _RESULT), str(os.getpid())],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,  # so that Ctrl-C does not reach it, and that it is ended with the C++ compiler
        )


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """End the compiler if it has not ended, and delete its folder."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _short(text: str) -> str:
    """The last lines of an error, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = next(
        (line for line in reversed(lines) if "Error" in line or "error:" in line), lines[-1] if lines else "no message"
    )
    return found[:_TAIL]


def _keep(program: Program, content: bytes) -> None:
    """Write a package and its manifest, and delete the packages that were not used for longest if there are too many."""
    folder, name, digest = cache_folder(), _name_of(program.key), hashlib.sha256(content).hexdigest()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    manifest = {"key": program.key, "sha256": digest, "environment": environment()}
    _write(folder / f"{name}-{digest[:16]}.pt2", content)
    _write(folder / f"{name}.json", json.dumps(manifest, indent=1).encode())
    _delete_old(folder)


def _write(path: Path, content: bytes) -> None:
    """Write a file that is whole at every moment."""
    # Not write_atomically: threads of one process may write the same package, and only its owner may write what is loaded.
    handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _delete_old(folder: Path) -> None:
    """Delete packages, the longest unused first, until the rest is small enough; and what killed processes have left."""
    limit, found = _megabytes() * 1e6, []
    for path in (*folder.glob("*.pt2"), *folder.glob(".*.tmp")):
        with contextlib.suppress(OSError):  # another process deletes too
            found.append((path.stat().st_mtime, path.stat().st_size, path))
    found.sort(reverse=True)
    used = 0.0
    for place, (_, size, path) in enumerate(found):
        used += size
        if used > limit and place:  # the newest stays
            with contextlib.suppress(OSError):
                path.unlink()
                for manifest in folder.glob(f"{path.name.partition('-')[0]}.json"):
                    if path.stem.partition("-")[2] in manifest.read_text(encoding="utf-8"):
                        manifest.unlink()


def _megabytes() -> float:
    """The size of all packages to keep.

    Raises:
        ValueError: DING_LITE_CACHE_MB is not a number.
    """
    given = os.environ.get(SIZE_VARIABLE) or _MEGABYTES
    try:
        return float(given)
    except ValueError:
        raise ValueError(f"{SIZE_VARIABLE} = {given!r}: expected a number of megabytes, such as {_MEGABYTES}.") from None
