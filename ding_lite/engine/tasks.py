"""The task: a pipeline of middleware over one context, run again and again.

Room: ding_lite.engine, floor 0. Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, SupportsIndex

from ding_lite.basics.messages import add_note, name_of
from ding_lite.engine.events import Events, HasEvents
from ding_lite.engine.interrupts import interruptible
from ding_lite.engine.pipelines import HasPipeline
from ding_lite.engine.roles import HasRoles
from ding_lite.engine.schedules import iterate
from ding_lite.pipeline.checks import check_pipeline, require_middleware
from ding_lite.pipeline.composites import Middleware
from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.contracts import contract_of
from ding_lite.pipeline.generators import Backward, Half, first_half, unwind


class Task(HasPipeline, HasEvents, HasRoles):
    """A loop of middleware over a context. `ding_lite.task` is the one that scripts use; tests may make their own.

    Each iteration runs every middleware in order of `use`; then the second halves of those that are generators, in reverse;
    then the context is renewed. It ends after `max_step` iterations, or after the one in which `finish` was set.

    Example:
        >>> loop = Task()
        >>> with loop.start():
        ...     _ = loop.use(lambda ctx: print("iteration", ctx.total_step))
        ...     loop.run(max_step=2)
        iteration 0
        iteration 1
    """

    def __init__(self) -> None:
        self.ctx = Context()
        self._finish = self._ended = self._ran = self._iterating = False
        self._left = 0
        self._clear()

    def _clear(self) -> None:
        self.labels, self._roles = set(), set()
        self._clear_pipeline()
        self._backward_stack: list[Half] = []
        self._events = Events()

    def start(
        self,
        async_mode: bool = False,
        n_async_workers: int = 3,
        ctx: Context | None = None,
        labels: Iterable[str] = (),
    ) -> Task:
        """Open the task, empty, on this context. Use it in a `with` block, which stops it.

        Args:
            async_mode: overlap evaluation, collection and training; not available yet.
            n_async_workers: the most threads that `parallel` may use.
            ctx: the context of the first iteration.
            labels: what `match_labels` looks for, beside "local" and "node.0".

        Raises:
            RuntimeError: it is open already, or `async_mode` is asked for.
            TypeError: `ctx` is no Context, or is a class.
        """
        if self._started_at is not None:
            raise RuntimeError(
                f"task.start() while the task opened at {self._started_at} is still running: leave its `with` block or call "
                "task.stop() first; a task does not nest."
            )
        if async_mode:
            raise RuntimeError(
                "task.start(async_mode=True): asynchronous mode does not exist in this version. Use async_mode=False; the "
                "pipeline itself stays as it is."
            )
        if ctx is not None and not isinstance(ctx, Context):
            mend = f"write ctx={ctx.__name__}()" if isinstance(ctx, type) else "pass an instance of a Context subclass"
            raise TypeError(f"task.start(ctx=...) wants a context, got {ctx!r}: {mend}.")
        if n_async_workers < 1:
            raise ValueError(f"task.start(n_async_workers={n_async_workers}): at least 1 thread is needed.")
        self._clear()
        self.ctx = Context() if ctx is None else ctx
        self.labels = {"local", "node.0", *([labels] if isinstance(labels, str) else labels)}
        self.n_async_workers = n_async_workers
        self._finish = self._ended = self._ran = False
        caller = sys._getframe(1)
        self._started_at = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        return self

    def stop(self) -> None:
        """Close the task: generators that still wait are closed, events delivered, threads joined, the pipeline forgotten.

        Inside a middleware it ends the run there and then; `finish = True` is the gentle way.
        """
        if self._started_at is None:
            return
        try:
            while self._backward_stack:
                self._backward_stack.pop().close()
            self._events.close()
        finally:
            self._shut_pool()
            self._started_at = None
            self._entries.clear()  # where an iteration is going through them, it ends
            self._clear()

    def __enter__(self) -> Task:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.stop()
        except BaseException as closing:
            if error is None:
                raise
            add_note(error, f"and closing the task raised {type(closing).__name__}: {closing}")

    def run(self, max_step: int = int(1e12)) -> None:
        """Run `max_step` more iterations, or fewer if `finish` is set; the iteration that sets it completes in full.

        `finish` is true during the whole last iteration where it can be known, so that savers write the final state. Ctrl-C
        and SIGTERM let the iteration finish as the last one; a second signal stops at once.

        Raises:
            PipelineError: the contracts show that this pipeline cannot work. Nothing has run.
            BaseException: what a middleware raised, with a note naming it and the iteration. The generators that had
                yielded have seen it.
        """
        self._require_open("run()")
        if self._iterating:
            raise RuntimeError("task.run() inside one of its own middleware: one run at a time.")
        if not isinstance(max_step, SupportsIndex) or max_step.__index__() < 0:
            raise ValueError(f"task.run(max_step={max_step!r}) wants a whole number of iterations, 0 or more.")
        if not self._entries or max_step == 0:
            return
        check_pipeline(self.ctx, self._entries)
        if self._ended:
            self._finish = self._ended = False
        token = _current.set(self)
        self._iterating = True
        try:
            with interruptible(self._ask_to_finish) as interrupts:
                self._loop(max_step.__index__())
                interrupts.raise_again()
        finally:
            self._ended, self._iterating = True, False
            _current.reset(token)

    def _loop(self, max_step: int) -> None:
        if self._ran:
            self.ctx = self.ctx.renew()
        self._ran = True
        while True:
            max_step -= 1
            self._left = max_step
            if not max_step:
                self._finish = True
            iterate(self.ctx, self._entries, self._backward_stack)
            if self._finish or not max_step or not self.running:
                return
            self.ctx = self.ctx.renew()

    def forward(self, fn: Middleware, ctx: Any = None) -> Half | None:
        """Run the first half of `fn` by hand, on this context or the task's. Its generator, if it is one, waits."""
        self._require_open(f"forward({name_of(fn)!r})")
        token = _current.set(self)
        try:
            half = first_half(fn, fn(self.ctx if ctx is None else ctx))
        finally:
            _current.reset(token)
        if half is not None:
            self._backward_stack.append(half)
        return half

    def backward(self, backward_stack: list[Half] | None = None) -> None:
        """Run the second halves that wait, last first: all of this task's, or just those given."""
        waiting = self._backward_stack if backward_stack is None else backward_stack
        token = _current.set(self)
        try:
            unwind(waiting)
        finally:
            _current.reset(token)

    def wrap(self, fn: Middleware, lock: bool | AbstractContextManager[Any] = False) -> Callable[[Any], Backward]:
        """`fn` for use inside another middleware: calling it runs its first half and returns a function that ends it.

        Whoever does not end it leaves that to the end of the iteration.
        """
        require_middleware(fn)
        call = self._with_lock(fn, lock)

        def wrapped(ctx: Any) -> Backward:
            return Backward(self.forward(call, ctx), self._backward_stack)

        wrapped.__name__ = wrapped.__qualname__ = name_of(fn)
        wrapped.__dict__.update({"__contract__": terms} if (terms := contract_of(fn)) else {})
        return wrapped

    def renew(self) -> Task:
        """Go on to a new context, as `run` does between iterations; a run that follows begins with it."""
        self.ctx = self.ctx.renew()
        self._ran = False
        return self

    def sync(self) -> None:
        """Wait until everything begun has run. Without asynchronous mode it has, whenever this can be called."""

    @property
    def steps_left(self) -> int:
        """The most iterations that may follow the current one in this run."""
        return self._left

    @property
    def finish(self) -> bool:
        """Whether the current iteration is the last. Set it to end the run; the iteration still completes in full."""
        return self._finish

    @finish.setter
    def finish(self, value: bool) -> None:
        self._finish = bool(value)
        self._ended = False

    def _ask_to_finish(self) -> None:
        self.finish = True


_current: ContextVar[Task | None] = ContextVar("current_task", default=None)

task = Task()
"""The task that scripts use."""


def current_task() -> Task:
    """The task that is running the middleware that calls this, or `ding_lite.task` outside of any."""
    return _current.get() or task
