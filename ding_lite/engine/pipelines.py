"""The pipeline of a task: adding middleware, wrappers and locks, and showing the pipeline."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from ding_lite.basics.messages import location_of, name_of
from ding_lite.basics.user_output import show
from ding_lite.engine.deferrals import Deferrals
from ding_lite.engine.lanes import current_lane
from ding_lite.engine.run_parts import holders_of, may_use_anything, used_objects
from ding_lite.engine.token_networks import Network
from ding_lite.pipeline.composites import Middleware, Parallel, Serial
from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.contracts import contract_of
from ding_lite.pipeline.diagrams import draw_pipeline, pipeline_table
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.generators import locked, method_of, wrap_both_steps
from ding_lite.pipeline.leader_reads import with_leaders
from ding_lite.pipeline.lifecycle import Lifecycle
from ding_lite.pipeline.pipeline_checks import check_pipeline, require_middleware
from ding_lite.pipeline.pools import Pool
from ding_lite.pipeline.used_middleware import middleware_of
from ding_lite.pipeline.views import seen_whole

Wrapper = Callable[[Middleware], Middleware]
Self_ = TypeVar("Self_", bound="PipelineMixin")


class _Void:
    """A placeholder for no middleware."""

    def __call__(self, ctx: Context) -> None:
        return None


class PipelineMixin(Lifecycle):
    """Middleware in order, each with its contract."""

    n_async_workers: int
    """Maximum number of parts of `parallel` and calls of `forward` that run at a time."""
    _pool: Pool
    _iterating: bool
    _network: Network | None
    _deferrals: Deferrals
    _ctx: Any

    @property
    def ctx(self) -> Any:
        """The context of the current iteration of the caller, or of the last one.

        Raises:
            RuntimeError: deferred work calls this; it belongs to no iteration.
        """
        if self._deferrals.current() is not None:
            raise RuntimeError(
                "task.ctx was used in deferred work, which belongs to no iteration: read the values in the middleware that "
                "defers it, and pass them: task.defer(work, ctx.train_iter)."
            )
        lane = current_lane() if self._network is not None else None
        return self._ctx if lane is None else lane.ctx

    @ctx.setter
    def ctx(self, value: Any) -> None:
        self._ctx = value

    def _clear_pipeline(self) -> None:
        self._entries: list[Entry] = []
        self._wrappers: list[Wrapper] = []
        self._lock = threading.RLock()

    def use(self: Self_, fn: Middleware, lock: bool | AbstractContextManager[Any] = False) -> Self_:
        """Add a middleware at the end of the pipeline.

        Within `opened_for(other)`, `ding_lite.task.use` adds to the other task.

        Args:
            fn: a function or object of one argument, ctx; it may be a generator with one `yield`. If it has a method
                `end_run(ctx)`, which may be a generator too, this is called after the last iteration of a run.
            lock: True to hold the task's lock while each step runs; or another lock.

        Raises:
            RuntimeError: the task is not open.
            TypeError: `fn` is not callable, is a class or an async function, or does not take just ctx.
        """
        self._built()._add(fn, lock, sys._getframe(1))
        return self

    def _built(self) -> PipelineMixin:
        """The object whose pipeline is built."""
        return self

    def _add(self, fn: Middleware, lock: bool | AbstractContextManager[Any], caller: FrameType) -> None:
        if isinstance(fn, _Void):
            return
        require_middleware(fn)
        end = method_of(fn, "end_run")
        if end is not None:
            require_middleware(end, f"{name_of(fn)}.end_run")
        self._require_open(f"use({name_of(fn)!r})")
        call = fn
        for wrapper in self._wrappers:
            call = wrap_both_steps(call, wrapper)
        held = self._held(lock)
        call = call if held is None else locked(call, held)
        used_at = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        terms = contract_of(fn)
        terms = None if terms is None else with_leaders(fn, terms)
        entry = Entry(fn, call, name_of(fn), location_of(fn), terms, used_at, held)
        if self._iterating and self._network is not None:
            raise RuntimeError(
                f"task.use({entry.name!r}) while iterations overlap: the plan of the run is fixed. Add it before run()."
            )
        if self._iterating:
            with seen_whole(self.ctx):
                check_pipeline(self.ctx, [*self._entries, entry])
        self._entries.append(entry)

    def use_wrapper(self: Self_, fn: Wrapper) -> Self_:
        """Apply a decorator to every middleware, present and future. The last decorator is the outermost.

        The decorator need not support generators: it wraps the first half, and the second half still runs.
        """
        if not callable(fn):
            raise TypeError(f"task.use_wrapper() wants a wrapper, a function of a middleware, got {fn!r}.")
        built = self._built()
        built._require_open(f"use_wrapper({name_of(fn)!r})")
        calls = [wrap_both_steps(entry.call, fn) for entry in built._entries]
        built._wrappers.append(fn)
        for entry, call in zip(built._entries, calls):
            entry.call = call
        return self

    def serial(self, *fns: Middleware) -> Middleware:
        """One middleware that runs these in order."""
        return Serial(*fns)

    def parallel(self, *fns: Middleware) -> Middleware:
        """One middleware that runs the first halves of these at the same time, on threads, and waits for all of them."""
        return Parallel(*fns, pool=lambda: self._pool)

    @property
    def middleware(self) -> list[Middleware]:
        """The middleware of the pipeline, as they were passed to `use`."""
        return [entry.fn for entry in self._entries]

    def middleware_objects(self) -> list[Any]:
        """The middleware one by one, also those inside `serial`, `parallel` and `for_policy`, and those inside decorators with
        `functools.wraps`; of a bound method, its object."""
        return [held for used in middleware_of(self._entries) for held in holders_of(used.fn)]

    @staticmethod
    def void() -> Middleware:
        """A middleware that `use` ignores, for a factory that has nothing to do in this process."""
        return _Void()

    def used_objects(self) -> list[tuple[str, Any]]:
        """(stage, object) for each object that the contracts of the pipeline name in `uses`, such as a policy's mode."""
        return used_objects(self._entries)

    def may_use_anything(self) -> bool:
        """Whether a middleware has no contract, so that `used_objects` may lack some objects."""
        return may_use_anything(self._entries)

    def describe(self) -> str:
        """Print the pipeline as a table: stage, middleware, reads, writes, objects filled and drawn from, lane. Returns it."""
        table = pipeline_table(self._entries)
        show(table)
        return table

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw the pipeline as a picture: a box for each middleware, coloured by stage, with what it reads and writes.

        Args:
            path: ends in .svg, or in .png, which needs the extra `plot`.
        """
        return draw_pipeline(self._entries, type(self.ctx).__name__, Path(path))

    def _held(self, lock: bool | AbstractContextManager[Any]) -> AbstractContextManager[Any] | None:
        """The lock for an argument `lock`, if any."""
        if isinstance(lock, bool):
            return self._lock if lock else None
        return lock
