"""Policy wrappers: run a middleware on the context of one of several policies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ding_lite.basics import did_you_mean
from ding_lite.basics.blocks import block
from ding_lite.basics.messages import name_of
from ding_lite.contexts import MultiAgentContext, OnlineRLContext
from ding_lite.engine import contract, contract_of, run_inside
from ding_lite.metrics.outputs import append_metrics
from ding_lite.pipeline import under_contract
from ding_lite.pipeline.contracts import Contract, of_both_halves
from ding_lite.pipeline.generators import may_yield, method_of

_LOGGED = ("collect_metrics", "learn_metrics", "eval_metrics")
_ITER = "train_iter"
_TIME = "time"


def for_policy(name: str, middleware: Callable[[Any], Any]) -> ForPolicy:
    """Run a middleware on the context of one policy, `ctx.parts[name]`.

    The gradient steps of the middleware are counted in ctx.train_iter, and it sees this counter as train_iter. Its metrics are
    logged under the policy's name: learn/policy_loss becomes learn/NAME/policy_loss. For several middleware, use
    `for_policy(name, task.serial(first, second))`.

    Reads:
        ctx.parts; ctx.train_iter if the middleware reads or writes it.
    Writes:
        the fields of the middleware, in ctx.parts[name]; ctx.train_iter and metrics if the middleware writes these.

    Args:
        name: name of the policy.
        middleware: any middleware, including one with a second half.

    Raises:
        ValueError: the middleware writes ctx.collect_kwargs; or, in an iteration, the policy does not exist.
        TypeError: not a middleware.

    Example:
        >>> def learn(ctx):
        ...     ctx.train_iter += 1
        >>> ctx = MultiAgentContext(train_iter=5, parts={"learned": OnlineRLContext()})
        >>> for_policy("learned", learn)(ctx)
        >>> ctx.train_iter, ctx.parts["learned"].train_iter
        (6, 6)
    """
    if not callable(middleware):
        raise TypeError(f"for_policy({name!r}, ...) wants a middleware, a function of the context, got {middleware!r:.80}.")
    terms = contract_of(middleware)
    if terms is not None and "collect_kwargs" in terms.all_writes:
        raise ValueError(
            f"for_policy({name!r}, {name_of(middleware)}) would have no effect: it sets how to collect, and "
            f"MultiAgentCollector makes the parts only afterwards. Put {name_of(middleware)} before MultiAgentCollector "
            "without for_policy; it then counts for all policies."
        )
    return ForPolicy(name, middleware)


part = for_policy  # its name in earlier versions


class ForPolicy:
    """The middleware that `for_policy` returns."""

    def __init__(self, name: str, middleware: Callable[[Any], Any], terms: Contract | None = None) -> None:
        self._name, self._middleware, self._terms = name, middleware, terms
        self.__name__ = f"for_policy({name!r}, {name_of(middleware)})"
        self.inner_middleware = (middleware,)
        """The middleware on the policy's context, for the check of the pipeline."""
        self.within = ("parts", name)
        """Field and name of that context."""
        self.may_yield = may_yield(middleware)
        """Whether the middleware may have a second half."""
        terms = contract_of(middleware) if terms is None else terms
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
                exclusive=terms.exclusive,
                stage=terms.stage,
                may_read=self._logged,
                may_write=self._logged,
                reads_after=(_ITER,) if late else (),
                writes_after=(_ITER,) if _ITER in terms.writes_after else (),
            )(self)

    def __call__(self, ctx: MultiAgentContext) -> Iterator[None] | None:
        if self.may_yield:
            return self._in_halves(ctx)
        inner = under_contract(self, 0, self._middleware, ctx, self._terms)
        with self._folded(ctx, self._counts) as context, run_inside(inner, context):
            return None

    @property
    def end_run(self) -> Callable[[MultiAgentContext], Iterator[None] | None] | None:
        """The middleware's `end_run`, on the context of the policy if it exists; None if the middleware has none."""
        end = method_of(self._middleware, "end_run")
        if end is None:
            return None
        terms = contract_of(self._middleware)  # the method itself has none
        ending = ForPolicy(self._name, end, None if terms is None else of_both_halves(terms))

        def end_run(ctx: MultiAgentContext) -> Iterator[None] | None:
            return ending(ctx) if self._name in (ctx.parts or {}) else None

        end_run.__name__ = end_run.__qualname__ = f"{self.__name__}.end_run"
        return end_run

    def _in_halves(self, ctx: MultiAgentContext) -> Iterator[None]:
        context = self._context(ctx)
        both = run_inside(under_contract(self, 0, self._middleware, ctx, self._terms), context)
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

    def _context(self, ctx: MultiAgentContext) -> OnlineRLContext:
        parts = ctx.parts or {}
        if self._name not in parts:
            known = ", ".join(parts) or "none: MultiAgentCollector has not collected in this iteration"
            near = did_you_mean(self._name, parts)
            raise ValueError(f"{self.__name__} finds no policy {self._name!r} in ctx.parts{near} There are {known}.")
        return parts[self._name]

    @block
    def _folded(self, ctx: MultiAgentContext, counts: bool) -> Iterator[OnlineRLContext]:
        """The policy's context, with the counter of `ctx`; counter and metrics are copied back, even after errors."""
        context = self._context(ctx)
        if counts:
            context.train_iter = ctx.train_iter
        try:
            yield context
        finally:
            if counts and context.train_iter != ctx.train_iter:  # a middleware that only reads it must not write it
                ctx.train_iter = context.train_iter
            for field in self._logged:
                append_metrics(ctx, field, [_under(self._name, reduced) for reduced in getattr(context, field)])
                setattr(context, field, [])


def _under(name: str, reduced: Mapping[Any, Any]) -> dict[Any, Any]:
    """The metrics of a policy's middleware, under the policy's name; seconds stay under `time`."""
    own = {key: value for key, value in reduced.items() if key != _TIME}
    return {**({name: own} if own else {}), **({_TIME: {name: reduced[_TIME]}} if _TIME in reduced else {})}
