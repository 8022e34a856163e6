"""Launches: starts child processes from a fork server with preloaded modules."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker, spawn
from multiprocessing.process import BaseProcess
from typing import Any

PRELOADED = ["numpy", "torch", "gymnasium", "cloudpickle", "ding_lite.processes.servers", "ding_lite.rollout"]
"""Modules that the fork server imports once for all its children; missing ones are skipped."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""One thread per process, because several processes share the cores. numpy and torch read this when they are imported."""

_LOCK = threading.Lock()
_started: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
_server: tuple[int, Any] | None = None  # id of the process that started it, and the fork server


def _disown() -> None:
    """Let a fork of this process not know the processes that this one has started: `multiprocessing` ends all that it knows
    when a process exits, and does not ask whose they are."""
    multiprocessing.process._children.difference_update(_started)  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


def start(name: str, target: Callable[..., None], *args: Any) -> BaseProcess:
    """Start a daemon process that runs `target(*args)`. It must be able to import `target`; it does not run the user's script.

    The first start waits a few seconds for the fork server's imports; later ones take milliseconds.

    Raises:
        RuntimeError: this process is itself a daemon of multiprocessing, which must not have children.
        OSError, EOFError: the fork server did not start, or died.
    """
    if multiprocessing.current_process().daemon:
        raise RuntimeError(
            f"worker {name!r} cannot be started here: {multiprocessing.current_process().name} is itself a daemon process, "
            "which must not have child processes. Start workers from the main process."
        )
    has_server = "forkserver" in multiprocessing.get_all_start_methods()
    # Fork would start faster, but a fork of a process that has run multi-threaded torch hangs when it uses torch.
    context: Any = multiprocessing.get_context("forkserver" if has_server else "spawn")
    process: BaseProcess = context.Process(target=target, args=args, name=name, daemon=True)
    by_server = _by_our_server() if has_server else contextlib.nullcontext()
    with _LOCK, _environment(ONE_THREAD), _without_main(), by_server, _without_sigterm():
        process.start()
    _started.add(process)
    return process


@contextlib.contextmanager
def _without_sigterm() -> Iterator[None]:
    """Within the context, SIGTERM waits on this thread. A fork server that starts here inherits this: it ignores a SIGTERM to
    the whole process group, and ends with its parent."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it unblocks the signal when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _by_our_server() -> Iterator[None]:
    """Within the context, processes started by this thread come from a separate fork server.

    Other code may have started the global fork server of multiprocessing without preloaded modules. Then the start of each
    worker would take seconds.
    """
    from multiprocessing import forkserver

    global _server
    if _server is None or _server[0] != os.getpid():  # a fork of this process cannot use the server of its parent
        server = forkserver.ForkServer()
        server.set_forkserver_preload(PRELOADED)
        _server = os.getpid(), server
    ours, connect, thread = _server[1].connect_to_new_process, forkserver.connect_to_new_process, threading.get_ident()

    def connect_here(fds: Any) -> Any:
        return (ours if threading.get_ident() == thread else connect)(fds)

    forkserver.connect_to_new_process = connect_here
    try:
        yield
    finally:
        forkserver.connect_to_new_process = connect


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set these environment variables within the context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Within the context, processes started by this thread do not import `__main__`.

    By default a child runs the parent's script again, under another name. Scripts without `if __name__ == "__main__":` would
    start training in every child. Processes started by other threads are not affected. Removing `__main__.__file__` instead
    would affect them, and other readers of it.
    """
    describe_parent, thread = spawn.get_preparation_data, threading.get_ident()

    def describe_without_main(name: str) -> dict[str, Any]:
        data = describe_parent(name)
        if threading.get_ident() == thread:
            data.pop("init_main_from_name", None)
            data.pop("init_main_from_path", None)
        return data

    spawn.get_preparation_data = describe_without_main
    try:
        yield
    finally:
        spawn.get_preparation_data = describe_parent
