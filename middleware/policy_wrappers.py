"""Policy wrappers: middleware put around the context of one policy, where there are several."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ding_lite.basics import did_you_mean
from ding_lite.basics.messages import name_of
from ding_lite.contexts import AgentsContext, OnlineRLContext
from ding_lite.engine import contract, contract_of, current_task, run_inside
from ding_lite.middleware.outputs import append_metrics
from ding_lite.pipeline import under_contract
from ding_lite.pipeline.contexts import same_iteration
from ding_lite.pipeline.generators import end_of, may_yield

_LOGGED = ("collect_metrics", "learn_metrics", "eval_metrics")
_ITER = "train_iter"
_TIME = "time"


def for_policy(name: str, middleware: Callable[[Any], Any]) -> ForPolicy:
    """Run a middleware on the context of one policy, `ctx.parts[name]`.

    Gradient steps that it takes are counted in ctx.train_iter, which it sees as its own. What it logs stands in the metrics of
    ctx under the policy's name, so that learn/policy_loss becomes learn/NAME/policy_loss. Several in a row are
    `for_policy(name, task.serial(first, second))`.

    Reads:
        ctx.parts; ctx.train_iter where the middleware reads or writes it.
    Writes:
        what the middleware writes, in ctx.parts[name]; ctx.train_iter and metrics where it writes these.

    Args:
        name: of the policy.
        middleware: any, also one with a backward step; it stands where it would without `for_policy`.

    Raises:
        ValueError: a middleware that says how to collect; at a call, there is no such policy.
        TypeError: no middleware.

    Example:
        >>> def learn(ctx):
        ...     ctx.train_iter += 1
        >>> ctx = AgentsContext(train_iter=5, parts={"learned": OnlineRLContext()})
        >>> for_policy("learned", learn)(ctx)
        >>> ctx.train_iter, ctx.parts["learned"].train_iter
        (6, 6)
    """
    if not callable(middleware):
        raise TypeError(f"for_policy({name!r}, ...) wants a middleware, a function of the context, got {middleware!r:.80}.")
    terms = contract_of(middleware)
    if terms is not None and "collect_kwargs" in terms.all_writes:
        raise ValueError(
            f"for_policy({name!r}, {name_of(middleware)}) would have no effect: it says how to collect, and parts are made "
            f"anew by what is collected. Put {name_of(middleware)} before AgentsCollector as it is, for all policies that take "
            "it."
        )
    return ForPolicy(name, middleware)


part = for_policy  # its name in earlier versions


class ForPolicy:
    """What `for_policy` returns."""

    def __init__(self, name: str, middleware: Callable[[Any], Any]) -> None:
        self._name, self._middleware = name, middleware
        self.__name__ = f"for_policy({name!r}, {name_of(middleware)})"
        self.inner_middleware = (middleware,)
        """What runs on the policy's context, for the check of the pipeline."""
        self.within = ("parts", name)
        """Where that context stands."""
        self.may_yield = may_yield(middleware)
        """Whether there may be a backward step."""
        terms = contract_of(middleware)
        self._logged = _LOGGED if terms is None else tuple(it for it in _LOGGED if it in (*terms.all_writes, *terms.may_write))
        self._counts = terms is None or _ITER in (*terms.reads, *terms.may_read, *terms.all_writes, *terms.may_write)
        self._counts_after = self._counts or (terms is not None and _ITER in (*terms.reads_after, *terms.writes_after))
        if terms is not None:
            late = self._counts_after and not self._counts
            contract(
                reads=("parts", *((_ITER,) if self._counts else ())),
                writes=("parts", *(name for name in (*terms.all_writes, *terms.may_write) if name == _ITER)),
                uses=terms.uses,
                fills=terms.fills,
                draws=terms.draws,
                alone=terms.alone,
                stage=terms.stage,
                may_read=self._logged,
                may_write=self._logged,
                reads_after=(_ITER,) if late else (),
                writes_after=(_ITER,) if _ITER in terms.writes_after else (),
            )(self)

    def __call__(self, ctx: AgentsContext) -> Iterator[None] | None:
        if self.may_yield:
            return self._in_halves(ctx)
        inner = under_contract(self, 0, self._middleware, ctx)
        with self._folded(ctx, self._counts) as context, run_inside(inner, context):
            return None

    @property
    def end_run(self) -> Callable[[AgentsContext], Iterator[None] | None] | None:
        """What the middleware does when a run has ended, where there was such a policy; None where it does nothing."""
        end = end_of(self._middleware)
        if end is None:
            return None
        ending = ForPolicy(self._name, end)

        def end_run(ctx: AgentsContext) -> Iterator[None] | None:
            last = current_task().ctx.parts or {}
            if self._name not in last:
                return None
            ctx.parts = {**(ctx.parts or {}), self._name: same_iteration(last[self._name])}
            return ending(ctx)

        end_run.__name__ = end_run.__qualname__ = f"{self.__name__}.end_run"
        return end_run

    def _in_halves(self, ctx: AgentsContext) -> Iterator[None]:
        context = self._context(ctx)
        both = run_inside(under_contract(self, 0, self._middleware, ctx), context)
        with self._folded(ctx, self._counts):
            both.__enter__()
        try:
            yield
        except BaseException:
            with self._folded(ctx, self._counts_after):
                if not both.__exit__(*sys.exc_info()):
                    raise
        else:
            with self._folded(ctx, self._counts_after):
                both.__exit__(None, None, None)

    def _context(self, ctx: AgentsContext) -> OnlineRLContext:
        parts = ctx.parts or {}
        if self._name not in parts:
            known = ", ".join(parts) or "none: AgentsCollector has not collected in this iteration"
            near = did_you_mean(self._name, parts)
            raise ValueError(f"{self.__name__} finds no policy {self._name!r} in ctx.parts{near} There are {known}.")
        return parts[self._name]

    @contextmanager
    def _folded(self, ctx: AgentsContext, counts: bool) -> Iterator[OnlineRLContext]:
        """The policy's context, with the counter of `ctx`; in the end what came of it is in `ctx`, also where that failed."""
        context = self._context(ctx)
        if counts:
            context.train_iter = ctx.train_iter
        try:
            yield context
        finally:
            if counts and context.train_iter != ctx.train_iter:  # who only reads it does not write it
                ctx.train_iter = context.train_iter
            for field in self._logged:
                append_metrics(ctx, field, [_under(self._name, reduced) for reduced in getattr(context, field)])
                setattr(context, field, [])


def _under(name: str, reduced: Mapping[Any, Any]) -> dict[Any, Any]:
    """What a policy's middleware logged, under its name; seconds among those of everybody."""
    own = {key: value for key, value in reduced.items() if key != _TIME}
    return {**({name: own} if own else {}), **({_TIME: {name: reduced[_TIME]}} if _TIME in reduced else {})}
