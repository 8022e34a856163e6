"""Several middleware as one: one after the other, or side by side on threads.

Room: ding_lite.pipeline, floor 0. Standard library only.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, wait
from typing import Any

from ding_lite.basics.messages import add_note, name_of
from ding_lite.pipeline.checks import require_middleware
from ding_lite.pipeline.contracts import joint_contract
from ding_lite.pipeline.generators import Half, end_of, first_half, may_yield, named, unwind
from ding_lite.pipeline.lifecycles import Parts

Middleware = Callable[..., Any]

_on_a_thread_of_the_pool: contextvars.ContextVar[bool] = contextvars.ContextVar("on_a_thread_of_the_pool", default=False)


class Serial:
    """Middleware run in order, as one; their second halves in reverse order."""

    kind = "serial"
    side_by_side = False

    def __init__(self, *fns: Middleware) -> None:
        for fn in fns:
            require_middleware(fn, f"task.{self.kind}")
        self.fns = fns
        self.__name__ = f"{self.kind}({', '.join(map(name_of, fns))})"
        self.may_yield = any(map(may_yield, fns))
        self.__contract__ = joint_contract(fns, side_by_side=self.side_by_side)

    @property
    def end_run(self) -> Serial | None:
        """What its parts do when a run has ended, in order; None where none does anything."""
        ends = [end for fn in self.fns if (end := end_of(fn)) is not None]
        return Serial(*ends) if ends else None

    def __call__(self, ctx: Any) -> Half | None:
        waiting: list[Half] = []
        try:
            self.begin(ctx, waiting)
        except BaseException as error:  # noqa: BLE001  the halves that wait may handle it
            unwind(waiting, error)
        return named(self.__name__, self._rest(waiting)) if waiting else None

    @staticmethod
    def _rest(waiting: list[Half]) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001  the halves that wait may handle it
            unwind(waiting, error)
        else:
            unwind(waiting)

    def begin(self, ctx: Any, waiting: list[Half]) -> None:
        """Run the first halves, and append the generators that wait for their second."""
        for fn in self.fns:
            half = first_half(fn, fn(ctx), ctx)
            if half is not None:
                waiting.append(half)


class Parallel(Serial):
    """Middleware whose first halves run at the same time, a thread each; their second halves in reverse order.

    Nothing orders them against each other: they must not touch the same fields or objects.
    """

    kind = "parallel"
    side_by_side = True

    def __init__(self, *fns: Middleware, executor: Callable[[], Executor], parts: Parts) -> None:
        super().__init__(*fns)
        self._executor, self._parts = executor, parts

    def begin(self, ctx: Any, waiting: list[Half]) -> None:
        """Run the first halves side by side, and wait for all of them, also when one fails.

        Raises:
            BaseException: the error of the first in order that failed, with the others as notes.
        """
        submit = self._executor().submit
        futures = [submit(contextvars.copy_context().run, self._run, fn, ctx) for fn in self.fns]
        if _on_a_thread_of_the_pool.get():  # which may have no other thread to spare
            futures = [self._run_here(fn, ctx) if future.cancel() else future for fn, future in zip(self.fns, futures)]
        wait(futures)
        waiting += [half for future in futures if not future.exception() and (half := future.result()) is not None]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in errors[1:]:
            add_note(errors[0], f"side by side with it, {type(error).__name__}: {error}")
        if errors:
            raise errors[0]

    def _run(self, fn: Middleware, ctx: Any) -> Half | None:
        _on_a_thread_of_the_pool.set(True)
        with self._parts.counted("running"):
            return first_half(fn, fn(ctx), ctx)

    @staticmethod
    def _run_here(fn: Middleware, ctx: Any) -> Future[Half | None]:
        done: Future[Half | None] = Future()
        try:
            done.set_result(first_half(fn, fn(ctx), ctx))
        except BaseException as error:  # noqa: BLE001  reported with those of the other threads
            done.set_exception(error)
        return done
