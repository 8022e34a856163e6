"""Servers: the worker's side, a loop that takes requests, runs them and answers."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import numpy as np

from ding_lite.basics.messages import add_note
from ding_lite.basics.user_output import tell
from ding_lite.processes.channels import ANSWER, FAILURE, Channel, Message
from ding_lite.processes.errors import WorkerError, pack
from ding_lite.processes.launches import PRELOADED
from ding_lite.processes.shared_status import SharedStatus


def serve(parent: socket.socket, progress_size: int) -> None:
    """Answer requests one after another until the parent closes its end, then close the objects that have a `close`.

    Args:
        parent: connection to the parent's channel; the descriptor of the status comes first.
        progress_size: size of `objects["progress"]`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(os, "setpgid"):
        # torchrun and others send SIGTERM to the group of the parent, which needs its workers to complete the iteration.
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # blocked by `launches.start`
    parent.set_inheritable(False)
    settle()
    status = SharedStatus.received_from(parent, progress_size)
    threading.Thread(target=_die_with_parent, name="die with parent", daemon=True).start()
    channel, objects = Channel(parent), {"progress": status.progress}
    for name in PRELOADED:  # slow imports are part of the start, also without a fork server
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    status.started = True
    while True:
        try:
            message = channel.receive()
            assert message is not None, "receive(wait=True) returns a message or raises"
            _answer(channel, message, objects)
        except (EOFError, ConnectionError):
            break
        del message  # with its views of the parent's memory
    close_objects(objects, multiprocessing.current_process().name)


def settle() -> None:
    """Use one thread, and seed the global random generators."""
    # All children of a fork server inherit its global generators, and would draw the same numbers.
    np.random.seed()  # noqa: NPY002
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.set_num_threads(1)
        torch.default_generator.seed()


def _die_with_parent() -> None:
    """Wait for the end of the parent, then end this process, also in the middle of a request."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is started by multiprocessing"
    connection.wait([parent.sentinel])
    os._exit(1)


def _answer(channel: Channel, message: Message, objects: dict[str, Any]) -> None:
    try:
        value, function = _run(message, objects)
    except BaseException as error:  # noqa: BLE001 (it is raised in the parent; a SystemExit there would end the wrong process)
        channel.send(message.number, FAILURE, pack(error), slot=message.slot)
        return
    try:
        channel.send(message.number, ANSWER, value, slot=message.slot)
    except ConnectionError:
        raise
    except Exception as problem:  # noqa: BLE001 (pickling runs user code)
        unsent = not_sent(f"worker {multiprocessing.current_process().name!r}", function, value, problem)
        channel.send(message.number, FAILURE, pack(unsent), slot=message.slot)


def not_sent(worker: str, function: Callable[..., Any], value: Any, problem: Exception) -> WorkerError:
    """The error to raise in the parent, if the result of a function cannot be pickled."""
    name = getattr(function, "__name__", type(function).__name__)
    error = WorkerError(
        f"{worker}: the result of {name}(), a {type(value).__name__}, cannot be sent: {type(problem).__name__}: "
        f"{problem}. Return numbers, strings, arrays, and lists and dicts of them."
    )
    error.__cause__ = problem
    return error


def _run(message: Message, objects: dict[str, Any]) -> tuple[Any, Callable[..., Any]]:
    try:
        function, args = message.load()
    except Exception as error:
        add_note(error, "The worker could not load its request: it must be able to import every module that the request uses.")
        raise
    return function(objects, *args), function


def close_objects(objects: dict[str, Any], worker: str) -> None:
    """Close the objects that have a `close`, the last one first. Errors are printed.

    Args:
        objects: the objects by name.
        worker: name of the worker, for messages.
    """
    for name, thing in reversed(objects.items()):
        close = getattr(thing, "close", None)
        if isinstance(thing, type) or not callable(close):
            continue
        try:
            close()
        except Exception:  # noqa: BLE001 (the other objects must be closed too, and the parent waits for no answer)
            tell(f"worker {worker!r}: closing {name!r} failed.\n{traceback.format_exc().rstrip()}")
