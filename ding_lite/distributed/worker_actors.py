"""Worker actors: processes of a Ray cluster that hold objects, run functions on them, and say how far they are."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import numpy as np
import ray
from numpy.typing import NDArray
from ray import exceptions

from ding_lite.basics.messages import add_note, describe_error, name_of
from ding_lite.basics.thread_frames import frames_of_threads
from ding_lite.basics.torch_threads import torch_threads
from ding_lite.distributed.clusters import Resources, available, kept_workers
from ding_lite.distributed.references import (
    Answer,
    count_loss,
    packed,
    packed_answer,
    stored_here,
    unpacked,
    unpacked_answer,
)
from ding_lite.processes import WorkerDied, WorkerHangs
from ding_lite.processes.errors import pack, unpack
from ding_lite.processes.launches import PRELOADED
from ding_lite.processes.servers import close_objects, not_sent, settle

_ASK_EVERY_S = 1.0
_STACK_WAIT_S = 1.0
_MOST_SPARES = 4
_ANSWER_S = 5.0
"""Maximum seconds for a kept actor to answer."""
_CLOSED = "was closed"


class WorkerActor:
    """Runs in the cluster: a dict of objects, and functions that are called as `function(objects, *args)`."""

    def __init__(self) -> None:
        settle()
        for name in PRELOADED:  # slow imports are part of the start
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        self._objects = _no_objects()
        self._working: int | None = None  # id of the thread that runs a request

    def begin(self, progress_size: int) -> tuple[int, str]:
        """Prepare for requests. Returns the ids of the process and of its machine."""
        self._objects["progress"] = np.zeros(progress_size, np.int64)
        return os.getpid(), ray.get_runtime_context().get_node_id()

    def run(self, data: bytes, refs: list[Any]) -> Answer:
        """Run a request of `packed`. Returns whether it succeeded, and its result or the packed error, of `packed_answer`."""
        self._working = threading.get_ident()
        try:
            with torch_threads(1):
                return self._answer(data, refs)
        except BaseException as error:  # noqa: BLE001  raised by the driver
            return packed_answer((False, pack(error)))
        finally:
            self._working = None

    def _answer(self, data: bytes, refs: list[Any]) -> Answer:
        try:
            function, args = unpacked(data, refs)
        except Exception as error:
            add_note(error, "The worker could not load its request: each machine must be able to import every module in it.")
            raise
        value = function(self._objects, *args)
        try:
            return packed_answer((True, value))
        except Exception as problem:
            raise not_sent("the worker", function, value, problem) from problem

    @ray.method(concurrency_group="status")
    def progress(self) -> NDArray[np.int64]:
        """A copy of `objects["progress"]`."""
        progress: NDArray[np.int64] = self._objects["progress"]
        return progress.copy()

    @ray.method(concurrency_group="status")
    def stack(self) -> str:
        """The stack of the running request; empty if there is none."""
        frame = frames_of_threads().get(self._working or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def close(self) -> None:
        """Close the objects that have a `close`."""
        close_objects(self._objects, "an actor")

    def forget(self) -> None:
        """Be as new, for other environments."""
        self._objects = _no_objects()
        settle()


def _no_objects() -> dict[str, Any]:
    """The objects of a new worker: its progress, and the function that stores a value for its answer."""
    return {"progress": np.zeros(0, np.int64), "share": stored_here}


_options: dict[str, Any] = {"concurrency_groups": {"status": 1}, "max_restarts": 0, "max_task_retries": 0}
_remote_class: Any = ray.remote(**_options)(WorkerActor)


class Actors:
    """Starts worker actors of a group, which are spread over the machines of the cluster.

    Args:
        resources: what each of them reserves.
        spares: number of actors that are started in advance once the first worker works, so that a replacement of a dead worker
            need not wait for its imports. While workers die faster than spares start, there are more, up to `_MOST_SPARES`.
            They end with the last worker of the group.
    """

    _kept: ClassVar[list[tuple[str, dict[str, Any], Any]]] = []
    """Job, options and handle of each actor that waits for other groups."""
    _groups: ClassVar[weakref.WeakSet[Actors]] = weakref.WeakSet()

    def __init__(self, resources: Resources, spares: int = 0) -> None:
        self.resources, self._spares = resources, spares
        self._options = resources.options
        self._waiting: list[tuple[Any, Any]] = []  # each spare, and a reference that is ready when it has started
        self._lock = threading.Lock()
        self._taken, self._job = 0, _job()
        self._groups.add(self)

    @classmethod
    def held(cls) -> dict[str, float]:
        """What the workers of all groups of this program have reserved, by name."""
        found: dict[str, float] = {}
        for group in [one for one in cls._groups if one._taken and one._job == _job()]:  # not of an earlier cluster
            for name, amount in group.resources.asked.items():
                found[name] = found.get(name, 0.0) + amount * group._taken
        return found

    def take(self) -> Any:
        """A new actor, which `give_back` ends."""
        with self._lock:
            self._taken += 1
            spare = next((one for one in self._waiting if _is_ready(one[1])), None)
            if spare is None and self._waiting:  # all were taken before they had started
                self._spares, spare = min(self._spares + 1, _MOST_SPARES), self._waiting[0]
            if spare is not None:
                self._waiting.remove(spare)
                self._add_spares()
                return spare[0]
            return self._kept_one() or self._new()

    def _kept_one(self) -> Any:
        """A kept actor with these resources that answers, or None. Those with other resources end, because they hold them."""
        kept, self._kept[:] = list(self._kept), []
        found = None
        for job, options, actor in kept:
            if job != _job():  # of an earlier cluster
                continue
            fits = options == self._options
            if fits and found is None and _answers(actor):
                found = actor
            elif (fits and found is None) or (options and not fits):
                _kill(actor)
            else:
                self._kept.append((job, options, actor))
        return found

    def start_spares(self) -> None:
        """Start the spare actors that are missing."""
        with self._lock:
            self._add_spares()

    def give_back(self, actor: Any, is_clean: bool) -> None:
        """Kill an actor; or keep it for other groups, if its objects are closed."""
        with self._lock:
            if is_clean and len(self._kept) < kept_workers():
                actor.forget.remote()
                self._kept.append((_job(), self._options, actor))
            else:
                _kill(actor)
            self._taken -= 1
            while not self._taken and self._waiting:
                _kill(self._waiting.pop()[0])

    def _add_spares(self) -> None:
        while self._taken and len(self._waiting) < self._spares:
            actor = self._new()
            self._waiting.append((actor, actor.progress.remote()))

    def _new(self) -> Any:
        return _remote_class.options(scheduling_strategy="SPREAD", **self._options).remote()


def _is_ready(ref: Any, timeout_s: float = 0.0) -> bool:
    """Whether an object is ready, within so many seconds."""
    ready, _ = ray.wait([ref], timeout=timeout_s)
    return bool(ready)


def _answers(actor: Any) -> bool:
    """Whether an actor lives, and is not stopped."""
    try:
        ref = actor.progress.remote()
        return _is_ready(ref, _ANSWER_S) and ray.get(ref) is not None
    except Exception:  # noqa: BLE001  Ray raises several kinds
        return False


def _job() -> str:
    """Id of this program in its cluster."""
    return str(ray.get_runtime_context().get_job_id())


def _kill(actor: Any) -> None:
    if ray.is_initialized():
        with contextlib.suppress(exceptions.RayError, ValueError):
            ray.kill(actor)


class RayWorker:
    """A worker of a Ray cluster, with the interface of `WorkerProcess`.

    Results are read-only arrays of the object store, which they leave when they are collected. The worker is asked for its
    progress once a second; without an answer, or progress, for `timeout_s` seconds it is killed.

    Args:
        name, progress_size, describe, timeout_s, start_timeout_s: as for `WorkerProcess`. The time until the worker is ready
            includes the wait for a machine with free resources.
        actors: starts the actor.
        depth: maximum number of requests in flight.
    """

    def __init__(
        self,
        actors: Actors,
        name: str,
        progress_size: int,
        describe: Callable[[NDArray[np.int64]], str] | None,
        timeout_s: float,
        start_timeout_s: float,
        depth: int,
    ) -> None:
        if not timeout_s > 0 or not start_timeout_s > 0:
            raise ValueError(
                f"worker {name!r} wants timeout_s > 0 and start_timeout_s > 0, got timeout_s={timeout_s}, "
                f"start_timeout_s={start_timeout_s}."
            )
        self.name, self.timeout_s, self.start_timeout_s = name, timeout_s, start_timeout_s
        self._actors, self._describe, self._depth = actors, describe, depth
        self._ask_every_s = min(_ASK_EVERY_S, timeout_s / 5)
        self.pid: int | None = None
        """Id of the process on its machine, once it has started."""
        self._node = ""
        self.progress = np.zeros(progress_size, np.int64)
        """The progress of the worker when it was last asked for it, [progress_size] int64."""
        self._flying: deque[tuple[Any, bool]] = deque()  # (reference, is_start) of each request in flight
        self._lock = threading.Lock()
        self._answer: tuple[bool, Any] | None = None
        self._end = ""  # how it ended
        self._was_starting = False
        self._is_finished = False
        self._closing: Any = None
        self._asked: Any = None  # the request for its progress
        self._asked_at = self._idle_since = time.monotonic()
        try:
            self._actor = actors.take()
            self._begun = self._actor.begin.remote(progress_size)
        except exceptions.RayError as error:
            raise WorkerDied(f"{self} could not be started: {describe_error(error)}") from error

    @property
    def is_starting(self) -> bool:
        """Whether it is not ready for requests yet, or creates objects; after its end, whether this was so at the end."""
        if self._end:
            return self._was_starting
        return self.pid is None or (bool(self._flying) and self._flying[0][1])

    @property
    def is_finished(self) -> bool:
        """Whether `finish` or `close` was called, or the worker has ended."""
        return bool(self._end) or self._is_finished

    def submit(self, function: Callable[..., Any], *args: Any, is_start: bool = False) -> None:
        """Let the worker run `function(objects, *args)`; see `WorkerProcess.submit`.

        Raises:
            RuntimeError: there are `depth` requests in flight, or the worker is closed.
            WorkerDied: the worker has ended.
            Exception: the request cannot be pickled; the worker stays usable.
        """
        self._require_alive()
        if len(self._flying) >= self._depth:
            raise RuntimeError(f"{self} got {name_of(function)}() while {self._depth} requests are in flight: take a result().")
        try:
            data, refs = packed(function, args)
        except Exception as error:
            add_note(error, f"{name_of(function)}() and its arguments were pickled by cloudpickle, to send them to {self}.")
            raise
        with self._lock:
            self._require_alive()
            if not self._flying:
                self._idle_since = time.monotonic()
            self._flying.append((self._actor.run.remote(data, refs), is_start))

    def poll(self, wait: bool = False) -> bool:
        """Whether the answer to the first request in flight has arrived; see `WorkerProcess.poll`."""
        self._require_alive()
        if self._answer is None:
            ref, _ = self._flying[0]
            if not _is_ready(ref, self._ask_every_s if wait else 0.0):
                self._look()
                return False
            try:
                self._answer = unpacked_answer(ray.get(ref))
                self._learn_of_start()
            except exceptions.RayError as error:
                self._has_died(error)
        return True

    def result(self, is_stopping: Callable[[], bool] = lambda: False) -> Any:
        """Wait for the result of the first request in flight; see `WorkerProcess.result`. Large arrays cannot be changed."""
        self._require_alive()
        if not self._flying:
            raise RuntimeError(f"{self} has no request in flight: submit() one before result().")
        while not self.poll(wait=True):
            if is_stopping():
                raise InterruptedError(f"the wait for {self} was stopped, because the run is stopping.")
        assert self._answer is not None, "poll() is true once there is an answer"
        (is_success, value), self._answer = self._answer, None
        with self._lock:
            self._flying.popleft()
        self._idle_since = time.monotonic()
        if is_success:
            return value
        error = unpack(value, str(self))
        if isinstance(error, exceptions.ObjectLostError):
            count_loss()
            self._let_go(f"could not read a value that all workers share, because the object store lost it: {error}.")
            raise WorkerDied(f"{self} {self._end}") from error
        raise error

    def finish(self) -> None:
        """Send no further requests: the worker answers those in flight and closes its objects, without a wait here."""
        if not self.is_finished:
            self._is_finished = True
            self._closing = self._actor.close.remote()

    def close(self, timeout_s: float = 2.0) -> None:
        """End the worker. It closes its objects; it is killed after `timeout_s`, or at once if a request is in flight."""
        if self._end:
            return
        is_clean = False
        try:
            if not self._flying and self.pid is not None:
                self.finish()
                is_clean = _is_ready(self._closing, timeout_s)
        finally:
            self._let_go(_CLOSED, is_clean)

    def __str__(self) -> str:
        return f"worker {self.name!r}"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self} cannot be sent to another process: remove it from the function that you sent.")

    def _look(self) -> None:
        """Measure the time without progress. After the limit, the worker is killed."""
        now = time.monotonic()
        if self.pid is None and _is_ready(self._begun, 0.0):
            try:
                self._learn_of_start()
            except exceptions.RayError as error:
                self._has_died(error)
            self._idle_since = now
        if self.pid is not None:
            self._ask_for_progress(now)
        if now - self._idle_since >= (self.start_timeout_s if self.is_starting else self.timeout_s):
            self._hangs()

    def _learn_of_start(self) -> None:
        if self.pid is None:
            self.pid, self._node = ray.get(self._begun)
            self._actors.start_spares()

    def _ask_for_progress(self, now: float) -> None:
        if self._asked is not None and _is_ready(self._asked, 0.0):
            try:
                found = ray.get(self._asked)
            except exceptions.RayError as error:
                self._has_died(error)
            self._asked = None
            if not np.array_equal(found, self.progress):
                self.progress, self._idle_since = found, now
        if self._asked is None and now >= self._asked_at + self._ask_every_s:
            self._asked, self._asked_at = self._actor.progress.remote(), now

    def _has_died(self, cause: Exception) -> NoReturn:
        reason = _reason(cause)
        place = self._place("; it was at ")
        self._let_go(f"{reason}{place}.")
        if isinstance(cause, exceptions.ObjectLostError):
            count_loss()
        raise WorkerDied(f"{self} {self._end}") from cause

    def _hangs(self) -> NoReturn:
        if self.pid is None:
            end = (
                f"did not start within {self.start_timeout_s} s: {available(self._actors.resources)}. If that is too little, "
                f"wait for other programs of the cluster or ask for less; else raise start_timeout_s={self.start_timeout_s}, "
                "because imports take seconds."
            )
        else:
            stack = self._stack()
            option = "start_timeout_s" if self.is_starting else "timeout_s"
            limit_s = getattr(self, option)
            end = (
                f"made no progress for {limit_s} s{self._place(' at ')} and was killed: it hangs, or its machine does not "
                f"answer; or its work takes longer, then raise {option}={limit_s}." + (f" Its stack:\n{stack}" if stack else "")
            )
            self._kill_here()
        self._let_go(end)
        raise WorkerHangs(f"{self} {self._end}")

    def _stack(self) -> str:
        ref = self._actor.stack.remote()
        if not _is_ready(ref, _STACK_WAIT_S):
            return ""
        with contextlib.suppress(exceptions.RayError):
            return str(ray.get(ref))
        return ""

    def _kill_here(self) -> None:
        """Kill a process of this machine at once: a stopped one does not hear Ray for some seconds."""
        if self.pid is not None and self._node == ray.get_runtime_context().get_node_id():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, 9)

    def _place(self, lead: str) -> str:
        if self.pid is None:
            return f"{lead}its start"
        if self._describe is None or not self.progress.any():
            return ""
        try:
            return f"{lead}{self._describe(self.progress)}"
        except Exception as error:  # noqa: BLE001  this is only part of the message of another error
            return f"{lead}{self.progress.tolist()} (describe() failed: {describe_error(error)})"

    def _let_go(self, end: str, is_clean: bool = False) -> None:
        """Give the actor back, free all references, and store how it ended."""
        with self._lock:
            self._was_starting, self._end = self.is_starting, end
            self._flying.clear()
            self._answer = self._asked = self._closing = self._begun = None
            self._actors.give_back(self._actor, is_clean)
            del self._actor

    def _require_alive(self) -> None:
        if self._end == _CLOSED:
            raise RuntimeError(f"{self} is closed: make a new one.")
        if self._end:
            raise WorkerDied(f"{self} is dead, make a new one: it {self._end}")


def _reason(cause: Exception) -> str:
    """How a worker ended, in short: Ray's own text is a page."""
    if isinstance(cause, exceptions.ActorDiedError) and "__init__" in str(cause):
        return f"failed to start: {cause}"
    if isinstance(cause, exceptions.RayActorError):
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        return f"has ended, as Ray reports: {lines[-1] if lines else type(cause).__name__}"
    if isinstance(cause, exceptions.ObjectLostError):
        return f"lost its result: {type(cause).__name__}"
    return f"failed with {describe_error(cause)}"
