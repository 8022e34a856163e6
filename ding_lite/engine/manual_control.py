"""Manual control, the engine driven by hand: one middleware, one step at a time, now or on the pool's threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from ding_lite.basics.blocks import block
from ding_lite.basics.messages import HelperContext, add_note, describe_error, name_of
from ding_lite.engine.lanes import current_lane
from ding_lite.engine.pipelines import PipelineMixin
from ding_lite.pipeline.composites import Middleware
from ding_lite.pipeline.contracts import contract_of
from ding_lite.pipeline.generators import Backward, WaitingGenerator, forward_step, locked, unwind
from ding_lite.pipeline.pipeline_checks import require_middleware

if TYPE_CHECKING:
    from collections.abc import Iterator

Self_ = TypeVar("Self_", bound="ManualControl")

_current: ContextVar[Any] = ContextVar("current_task", default=None)


def running_task() -> Any:
    """The task whose middleware calls this, or None."""
    return _current.get()


class ManualControl(PipelineMixin):
    """Something whose middleware can be run by hand, step by step."""

    async_mode: bool
    """Default of `async_mode` in `forward`: whether to use the pool's threads."""

    def _clear_halves(self) -> None:
        self._own_waiting: list[WaitingGenerator] = []
        self._begun_by_hand: list[Future[WaitingGenerator | None]] = []

    @property
    def _waiting(self) -> list[WaitingGenerator]:
        """The waiting generators of the current lane, or of the task."""
        lane = current_lane() if self._network is not None else None
        return self._own_waiting if lane is None else lane.waiting

    @block
    def _current(self) -> Iterator[None]:
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def forward(self, fn: Middleware, ctx: Any = None, async_mode: bool | None = None) -> Any:
        """Run the first half of `fn` by hand, on this context or the task's. If it is a generator, it then waits.

        Args:
            fn: a middleware.
            ctx: None for the task's own.
            async_mode: run it on one of the `n_async_workers` threads; `sync` waits for it. None means the task's mode, or
                False inside a middleware.

        Returns:
            The waiting generator, or None; with `async_mode` a `concurrent.futures.Future` of it.
        """
        self._require_open(f"forward({name_of(fn)!r})")
        if async_mode if async_mode is not None else self.async_mode and not self._iterating:
            future = self._pool.submit(functools.partial(HelperContext().run, self._begin, fn, ctx))
            self._begun_by_hand.append(future)
            return future
        generator = self._begin(fn, ctx)
        if generator is not None:
            self._waiting.append(generator)
        return generator

    def _begin(self, fn: Middleware, ctx: Any) -> WaitingGenerator | None:
        with self._current():
            ctx = self.ctx if ctx is None else ctx
            return forward_step(fn, fn(ctx), ctx)

    def sync(self: Self_) -> Self_:
        """Wait for all calls of `forward(..., async_mode=True)`. Returns itself.

        Raises:
            BaseException: the first error in the order of the calls; later ones are added as notes.
        """
        first: BaseException | None = None
        others = 0
        self._pool.wait(self._begun_by_hand)
        while self._begun_by_hand:
            future = self._begun_by_hand.pop(0)
            error = future.exception()
            if error is None:
                generator = future.result()
                if generator is not None:  # in the order of the calls, not in the order of completion
                    self._waiting.append(generator)
            elif first is None:
                first = error
            else:
                others += 1
                add_note(first, f"beside it, {describe_error(error)}", place=f"beside it {others}")
        if first is not None:
            raise first
        return self

    def backward(self: Self_, backward_stack: list[WaitingGenerator] | None = None) -> Self_:
        """Run the waiting second halves, last first: all of this task's, or only those given. Calls `sync` first.

        Returns itself.
        """
        self.sync()
        with self._current():
            unwind(self._waiting if backward_stack is None else backward_stack)
        return self

    def wrap(self, fn: Middleware, lock: bool | AbstractContextManager[Any] = False) -> Callable[[Any], Backward]:
        """Wrap `fn` for use inside another middleware: a call runs its first half and returns a function for the other one.

        If that function is not called, the second half runs at the end of the iteration.
        """
        require_middleware(fn)
        held = self._held(lock)
        call = fn if held is None else locked(fn, held)

        def wrapped(ctx: Any) -> Backward:
            return Backward(self.forward(call, ctx, async_mode=False), self._waiting)

        wrapped.__name__ = wrapped.__qualname__ = name_of(fn)
        wrapped.__dict__.update({"__contract__": terms} if (terms := contract_of(fn)) else {})
        return wrapped
