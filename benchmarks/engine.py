"""The engine: one iteration of ten empty middleware and a renewed context, in microseconds.

The limit is a bare loop over the same ten functions with the same renewal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from measure import compare

from ding_lite import Task, contract
from ding_lite.contexts import OnlineRLContext
from ding_lite.pipeline import contract_guards

LOOPS = 2000


def function() -> Callable[[Any], None]:
    def empty(ctx: Any) -> None:
        pass

    return empty


def generator() -> Callable[[Any], Iterator[None]]:
    def empty(ctx: Any) -> Iterator[None]:
        yield

    return empty


def ours(middleware: list[Callable[[Any], Any]], **mode: Any) -> Callable[[], None]:
    """A run of LOOPS iterations."""
    task = Task().start(ctx=OnlineRLContext(), **mode)
    for one in middleware:
        task.use(one)
    return lambda: task.run(max_step=LOOPS)


def pipelines(middleware: list[Callable[[Any], Any]], checked: int) -> Callable[[], None]:
    """LOOPS iterations with pipelines that run for five iterations each, of which this number are checked."""

    def run() -> None:
        contract_guards.CHECKED_ITERATIONS, before = checked, contract_guards.CHECKED_ITERATIONS
        for _ in range(LOOPS // 5):
            with Task().start(ctx=OnlineRLContext()) as task:
                for one in middleware:
                    task.use(one)
                task.run(max_step=5)
        contract_guards.CHECKED_ITERATIONS = before

    return run


def bare(middleware: list[Callable[[Any], Any]], halves: bool) -> Callable[[], None]:
    def run() -> None:
        ctx = OnlineRLContext()
        for _ in range(LOOPS):
            waiting = []
            for one in middleware:
                result = one(ctx)
                if halves and result is not None:
                    next(result)
                    waiting.append(result)
            while waiting:
                next(waiting.pop(), None)
            ctx = ctx.renew()

    def run_plain() -> None:
        ctx = OnlineRLContext()
        for _ in range(LOOPS):
            for one in middleware:
                one(ctx)
            ctx = ctx.renew()

    return run if halves else run_plain


def renewals(make: Callable[[Any], Any]) -> Callable[[], None]:
    def run() -> None:
        ctx = OnlineRLContext()
        for _ in range(LOOPS):
            ctx = make(ctx)

    return run


def main() -> None:
    plain = [function() for _ in range(10)]
    mixed = [make() for make in (function, generator) * 5]
    for what, middleware in (("ten functions", plain), ("five functions and five generators", mixed)):
        functions = {"limit": bare(middleware, middleware is mixed), "ours": ours(middleware)}
        compare("engine", "us_per_iteration", functions, LOOPS, microseconds=True, middleware=what)
    # The cost of enforcing contracts: in each iteration with a lag, and in the checked iterations of a plain loop.
    promised = [contract(("env_step",), stage="learn")(function()) for _ in range(10)]
    costs = {
        "lag, enforced": {"limit": ours(promised), "ours": ours(promised, max_lag=1)},
        "pipelines of 5 iterations, all checked": {"limit": pipelines(promised, 0), "ours": pipelines(promised, 5)},
    }
    for what, functions in costs.items():
        compare("engine", "us_per_iteration", functions, LOOPS, microseconds=True, limit="not enforced", middleware=what)
    functions = {"limit": renewals(lambda ctx: OnlineRLContext()), "ours": renewals(lambda ctx: ctx.renew())}
    compare("engine", "us_per_renewal", functions, LOOPS, microseconds=True, limit="constructing the dataclass")


if __name__ == "__main__":
    main()
