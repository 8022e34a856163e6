"""Several middleware as one: one after the other, or side by side on threads."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, wait
from typing import Any

from ding_lite.basics.messages import add_note, name_of
from ding_lite.pipeline.checks import require_middleware
from ding_lite.pipeline.contracts import joint_contract
from ding_lite.pipeline.generators import Half, end_of, first_half, may_yield, named, unwind
from ding_lite.pipeline.guards import under_contract
from ding_lite.pipeline.lifecycles import Parts
from ding_lite.pipeline.views import alias

Middleware = Callable[..., Any]

_on_a_thread_of_the_pool: contextvars.ContextVar[bool] = contextvars.ContextVar("on_a_thread_of_the_pool", default=False)


class Serial:
    """Middleware run in order, as one; their second halves in reverse order."""

    kind = "serial"
    side_by_side = False

    def __init__(self, *fns: Middleware) -> None:
        for fn in fns:
            require_middleware(fn, f"task.{self.kind}")
        self.fns = self.inner_middleware = fns
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
        for index, fn in enumerate(self.fns):
            half = first_half(fn, under_contract(self, index, fn, ctx)(ctx), ctx)
            if half is not None:
                waiting.append(half)


class Parallel(Serial):
    """Middleware whose first halves run at the same time, a thread each; their second halves in reverse order.

    Nothing orders them against each other: they must not touch the same fields or objects, and contracts that do are refused.
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
        calls = [self._on_its_view(index, fn, ctx) for index, fn in enumerate(self.fns)]
        futures = [submit(contextvars.copy_context().run, self._run, call) for call in calls]
        if _on_a_thread_of_the_pool.get():  # which may have no other thread to spare
            futures = [self._run_here(call) if future.cancel() else future for call, future in zip(calls, futures)]
        wait(futures)
        waiting += [half for future in futures if not future.exception() and (half := future.result()) is not None]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in errors[1:]:
            add_note(errors[0], f"side by side with it, {type(error).__name__}: {error}")
        if errors:
            raise errors[0]

    def _on_its_view(self, index: int, fn: Middleware, ctx: Any) -> Callable[[], Half | None]:
        """The first half of `fn`, on a context of the same fields whose view is its own."""
        call = under_contract(self, index, fn, ctx)
        seen = ctx if call is fn else alias(ctx)
        return lambda: first_half(fn, call(seen), seen)

    def _run(self, call: Callable[[], Half | None]) -> Half | None:
        _on_a_thread_of_the_pool.set(True)
        with self._parts.counted("running"):
            return call()

    @staticmethod
    def _run_here(call: Callable[[], Half | None]) -> Future[Half | None]:
        done: Future[Half | None] = Future()
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001  reported with those of the other threads
            done.set_exception(error)
        return done
