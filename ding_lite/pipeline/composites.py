"""Several middleware as one: in order, or at the same time on threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ding_lite.basics.messages import HelperContext, add_note, describe_error, location_of, name_of
from ding_lite.pipeline.contract_guards import under_contract
from ding_lite.pipeline.contracts import joint_contract
from ding_lite.pipeline.generators import WaitingGenerator, at_yield, forward_step, may_yield, method_of, named, unwind
from ding_lite.pipeline.pipeline_checks import require_middleware
from ding_lite.pipeline.pools import Pool, WouldBlockError
from ding_lite.pipeline.views import alias

Middleware = Callable[..., Any]


class Serial:
    """Middleware run in order, as one; their second halves in reverse order."""

    kind = "serial"
    side_by_side = False

    def __init__(self, *fns: Middleware) -> None:
        for fn in fns:
            require_middleware(fn, f"task.{self.kind}")
        self.fns = self.inner_middleware = fns
        self.__name__ = f"{self.kind}({', '.join(map(name_of, fns))})"
        self.__location__ = location_of(fns[0]) if fns else ""
        self.may_yield = any(map(may_yield, fns))
        self.__contract__ = joint_contract(fns, side_by_side=self.side_by_side)

    @property
    def end_run(self) -> Serial | None:
        """A middleware that calls the `end_run` of the parts, in order; None if no part has one."""
        ends = [end for fn in self.fns if (end := method_of(fn, "end_run")) is not None]
        return Serial(*ends) if ends else None

    def __call__(self, ctx: Any) -> WaitingGenerator | None:
        waiting: list[WaitingGenerator] = []
        try:
            self.begin(ctx, waiting)
        except BaseException as error:
            if not waiting:
                raise
            unwind(waiting, error)
        return named(self.__name__, at_yield(unwind, waiting)) if waiting else None

    def begin(self, ctx: Any, waiting: list[WaitingGenerator]) -> None:
        """Run the first halves, and append waiting generators to `waiting`."""
        for index, fn in enumerate(self.fns):
            generator = forward_step(fn, under_contract(self, index, fn, ctx)(ctx), ctx)
            if generator is not None:
                waiting.append(generator)


class Parallel(Serial):
    """Middleware whose first halves run at the same time, each on a thread; second halves run in reverse order.

    The first halves have no order, so they must not touch the same fields or objects; conflicting contracts are refused.
    """

    kind = "parallel"
    side_by_side = True

    def __init__(self, *fns: Middleware, pool: Callable[[], Pool]) -> None:
        super().__init__(*fns)
        self._pool = pool

    def begin(self, ctx: Any, waiting: list[WaitingGenerator]) -> None:
        """Run the first halves at the same time, and wait for all of them, even if one fails.

        Raises:
            BaseException: the first error in pipeline order, with the others as notes. An error of a part that waited for an
                event of a failed one comes last.
        """
        pool = self._pool()
        calls = [self._on_its_view(index, fn, ctx) for index, fn in enumerate(self.fns)]
        futures = [pool.submit(functools.partial(HelperContext().run, call)) for call in calls]
        pool.wait(futures)
        waiting += [generator for future in futures if not future.exception() and (generator := future.result()) is not None]
        errors = {index: error for index, future in enumerate(futures) if (error := future.exception()) is not None}
        for first in sorted(errors.values(), key=lambda error: isinstance(error, WouldBlockError))[:1]:
            for index, error in errors.items():
                if error is not first:
                    add_note(first, f"side by side with it, {describe_error(error)}", place=f"part {index}")
            raise first

    def _on_its_view(self, index: int, fn: Middleware, ctx: Any) -> Callable[[], WaitingGenerator | None]:
        """The first half of `fn`, on an alias of the context with its own view."""
        call = under_contract(self, index, fn, ctx)
        seen = ctx if call is fn else alias(ctx)
        if seen is ctx:  # a context with slots can have only one view at a time
            call = fn
        return lambda: forward_step(fn, call(seen), seen)
