"""Launches: how a child process is started, from a server that has the slow imports behind it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from multiprocessing import spawn
from multiprocessing.process import BaseProcess
from typing import Any

PRELOADED = ["numpy", "torch", "gymnasium", "cloudpickle", "ding_lite.processes.servers", "ding_lite.rollout"]
"""What the fork server imports once for all its children; it passes over what is not there."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Many processes share the cores: threads in each would only take turns. Read when numpy and torch are imported."""

_LOCK = threading.Lock()
_server: tuple[int, Any] | None = None  # who started it, and it


def start(name: str, target: Callable[..., None], *args: Any) -> BaseProcess:
    """A daemon process that runs `target(*args)`, which it has to be able to import. It does not run the user's script.

    The first start waits for the fork server's imports, a few seconds; later ones take milliseconds.

    Raises:
        RuntimeError: this process is itself a daemon of multiprocessing, which may not have children.
        OSError, EOFError: the fork server did not start, or died.
    """
    if multiprocessing.current_process().daemon:
        raise RuntimeError(
            f"worker {name!r} cannot be started here: {multiprocessing.current_process().name} is itself a daemon process, "
            "and these may have no children. Start workers from the main process."
        )
    has_server = "forkserver" in multiprocessing.get_all_start_methods()
    # Fork would be faster to start, but a fork of a process that has run multi-threaded torch hangs when it uses torch.
    context: Any = multiprocessing.get_context("forkserver" if has_server else "spawn")
    process: BaseProcess = context.Process(target=target, args=args, name=name, daemon=True)
    with _LOCK, _environment(ONE_THREAD), _without_main(), _by_our_server() if has_server else contextlib.nullcontext():
        process.start()
    return process


@contextlib.contextmanager
def _by_our_server() -> Iterator[None]:
    """Processes that this thread starts meanwhile come from a fork server of our own.

    The one that multiprocessing keeps may have been started by somebody else, without the slow imports: each worker would then
    take seconds.
    """
    from multiprocessing import forkserver

    global _server
    if _server is None or _server[0] != os.getpid():  # a fork of this process cannot wait for what its parent started
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
    """These environment variables for what is started meanwhile."""
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
    """Processes that this thread starts meanwhile do not import `__main__`.

    By default a child runs the parent's script again, under another name. Scripts of ours have no `if __name__ ==
    "__main__":` around them, and would start training in every child. Processes that other threads start are left alone;
    taking `__main__.__file__` away for the moment would not do so, and its readers would find it gone.
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
