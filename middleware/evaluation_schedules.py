"""Evaluation schedules: when an evaluator evaluates, beside which iterations, and where its result is written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ding_lite.config import RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.engine import Deferred, contract
from ding_lite.engine.run_parts import has_state
from ding_lite.metrics import MetricsLogger
from ding_lite.metrics.outputs import append_metrics
from ding_lite.middleware.evaluation_turns import EvaluationTurn
from ding_lite.middleware.own_runs import own_run, warn_of_idle_policies
from ding_lite.middleware.terminations import finish_if_reached
from ding_lite.policy import EvalMode
from ding_lite.ranks import is_first_rank
from ding_lite.rollout.metrics_aggregators import evaluation_of


class Evaluation(NamedTuple):
    """The result of one evaluation."""

    value: float
    """Mean undiscounted return, or another score of the episodes."""
    train_iter: int
    """Gradient steps at the start of the evaluation."""
    weights: dict[str, Any]
    """The weights that were evaluated."""
    metrics: list[dict[Any, Any]]
    """Reduced metrics of the evaluation."""


class ScheduledEvaluator:
    """An evaluator in a pipeline. Subclasses evaluate, in `_evaluate`.

    Args:
        name: name of the factory, for messages.
        cfg: uses policy.eval.evaluator.
        policies: the policies that act.
        stop_value: value that ends the run; None for none.
        place: where the value was found, for the message at the end of the run, such as "in CartPole-v1".
        uses: further objects that it uses.
        exclusive: objects that nothing else uses.
        measure: the function of the script that measures a policy, such as a metric; None for none. If it has a state, this is
            saved with that of the evaluator.
    """

    _format = ".1f"
    """Of its values in messages."""

    def __init__(
        self,
        name: str,
        cfg: RunConfig,
        policies: Sequence[EvalMode],
        stop_value: float | None,
        place: str,
        uses: Sequence[Any] = (),
        exclusive: Sequence[Any] = (),
        measure: Callable[..., Any] | None = None,
    ) -> None:
        self.__name__ = name
        self.calls_of_script = () if measure is None else (measure,)
        """Functions of the script whose memory is not that of another middleware: the check of unsaved state looks at them."""
        self._measure: Any = measure if has_state(measure) else None
        self._every = cfg.policy.eval.evaluator
        self._stop_value, self._place, self._policies = stop_value, place, tuple(policies)
        self._metrics = MetricsLogger(owner="the evaluator")
        self._last_env_step = self._evaluations = 0
        self._under_way: tuple[int, Deferred[Evaluation]] | None = None
        self._last_iter: int | None = None
        """Gradient steps taken when the last evaluation began; -1 before the first, None before it is known."""
        self._has_warned = self._is_checked = False
        self._reached_in = -1
        """The iteration whose evaluation reached stop_value."""
        contract(
            reads=("train_iter", "last_eval_iter"),
            writes=("eval_value", "last_eval_value", "last_eval_iter", "eval_weights"),
            may_read=("env_step", "eval_metrics", "eval_value"),
            may_write=("eval_metrics",),
            uses=(*policies, *uses),
            exclusive=tuple(exclusive),
            stage="evaluate",
        )(self)

    def __call__(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        task = own_run()
        if not is_first_rank():  # which evaluates for all
            return
        if not self._is_checked:
            self._is_checked = True
            warn_of_idle_policies(self.__name__, "evaluates", self._policies)
        if self._under_way is not None:
            work = self._under_way[1]
            if work.is_over or work.error is not None:  # it belongs to an earlier run, or it failed: raise its error
                self._end()
        if self._last_iter is None or ctx.last_eval_iter < 0:
            is_of_another = evaluation_of(ctx) is not None
            self._last_iter = -1 if is_of_another else ctx.last_eval_iter
        env_step = getattr(ctx, "env_step", 0)
        is_due = self._is_due(ctx, env_step)
        overlaps = task.max_lag > 0
        is_ending = overlaps and task.steps_left <= 1
        if not (is_due or (is_ending and self._under_way)) or not task.is_certain:
            return
        if self._under_way is not None:
            self._write(self._end(), ctx)
            if self._finish_if_reached(ctx):
                return
            is_due = self._is_due(ctx, env_step)
        if not is_due or is_ending:
            return
        self._last_env_step = env_step
        if overlaps:
            self._begin(ctx)
        else:
            self._write(self._evaluate(_counters(ctx)), ctx)
            self._finish_if_reached(ctx)

    def begin_run(self) -> None:
        """Forget in which iteration an earlier run of the process has ended. The task calls it."""
        self._reached_in = -1

    def end_run(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        """Evaluate the final weights, if anything was learned since the last evaluation; see `interaction_evaluator`."""
        task = own_run()
        if not is_first_rank():
            return
        is_signal = task.is_ended_by_signal
        if self._under_way is not None:
            if is_signal:
                self._under_way[1].cancel()
            self._write(self._end(), ctx)
            if not is_signal:
                task.repeat_end()
            return
        if is_signal or self._reached_in == ctx.total_step or self._is_evaluated(ctx):
            return
        self._last_env_step = getattr(ctx, "env_step", 0)
        evaluate = self._in_turn(EvaluationTurn(self._policies)) if task.max_lag > 0 else self._evaluate
        self._write(evaluate(_counters(ctx), lambda: False), ctx)  # a signal that comes now lets the run end

    def _is_evaluated(self, ctx: OnlineRLContext | OfflineRLContext) -> bool:
        """Whether these very weights have been evaluated."""
        last_iter = ctx.last_eval_iter if self._last_iter is None else self._last_iter
        return bool(ctx.train_iter == last_iter)

    def _begin(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        """Begin an evaluation in parallel with the next iterations, with the current weights."""
        turn = EvaluationTurn(self._policies)
        try:
            work = own_run().defer(self._in_turn(turn), _counters(ctx), lambda: turn.work is not None and turn.work.is_over)
        except BaseException:
            turn.end()
            raise
        turn.work, work.used_in_end_run = work, True
        self._has_begun(work)
        self._under_way = ctx.train_iter, work

    def _in_turn(self, turn: EvaluationTurn) -> Callable[[dict[str, int], Callable[[], bool]], Evaluation]:
        """`_evaluate` in this turn, under the name of the factory, for notes on errors and names of threads."""

        def evaluate(counters: dict[str, int], is_stopping: Callable[[], bool]) -> Evaluation:
            with turn.taken(is_stopping):
                return self._evaluate(counters, is_stopping)

        evaluate.__qualname__ = evaluate.__name__ = self.__name__
        return evaluate

    def _evaluate(self, counters: dict[str, int], is_stopping: Callable[[], bool] = lambda: False) -> Evaluation:
        """Evaluate the current weights; raise WorkCancelled once `is_stopping()` is true."""
        raise NotImplementedError

    def _has_begun(self, work: Deferred[Evaluation]) -> None:
        """Called when an evaluation has begun that runs beside the iterations."""

    def _end(self) -> Evaluation | None:
        """The result of the evaluation in progress, or None if an earlier run ended before it was done."""
        assert self._under_way is not None
        _, work = self._under_way
        self._under_way = None
        return None if work.is_over else work.result()

    def _write(self, evaluation: Evaluation | None, ctx: OnlineRLContext | OfflineRLContext) -> None:
        if evaluation is None:
            return
        self._evaluations += 1
        if evaluation_of(ctx) is not None and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"another evaluator has written ctx.eval_value before {self.__name__} in the same iteration: the files, "
                "best.pt and the end line have the value of the last one. Log the others by a middleware of your own.",
                stacklevel=3,
            )
        self._last_iter = evaluation.train_iter
        ctx.eval_value = ctx.last_eval_value = evaluation.value
        ctx.last_eval_iter, ctx.eval_weights = evaluation.train_iter, evaluation.weights
        append_metrics(ctx, "eval_metrics", evaluation.metrics)

    def _finish_if_reached(self, ctx: OnlineRLContext | OfflineRLContext) -> bool:
        if self._stop_value is None:
            return False
        found = f"{self.__name__} found {ctx.eval_value:{self._format}} {self._place}"
        if not finish_if_reached(ctx, self._stop_value, found):
            return False
        self._reached_in = ctx.total_step
        return True

    def _is_due(self, ctx: OnlineRLContext | OfflineRLContext, env_step: int) -> bool:
        last_iter = self._last_iter if self._under_way is None else self._under_way[0]
        assert last_iter is not None
        learned = ctx.train_iter - last_iter
        if last_iter < 0 or learned >= self._every.eval_freq:
            return True
        every = self._every.eval_freq_env_step
        return every is not None and env_step - self._last_env_step >= every

    def state_dict(self) -> dict[str, Any]:
        """The steps of the last evaluation, the number of evaluations, the result of one in progress, for which it waits, and
        the state of the function that measures."""
        under_way = None
        if self._under_way is not None and not self._under_way[1].is_over:
            under_way = {"since": self._under_way[0], "result": _state_of(self._under_way[1].result())}
        return {
            "last_env_step": self._last_env_step,
            "last_iter": self._last_iter,
            "evaluations": self._evaluations,
            "under_way": under_way,
            **({} if self._measure is None else {"measure": self._measure.state_dict()}),  # after the wait for the result
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        if self._measure is not None and "measure" in state:  # older states do not have it
            self._measure.load_state_dict(state["measure"])
        self._last_env_step, self._last_iter = state["last_env_step"], state.get("last_iter")
        self._evaluations = state.get("evaluations", 0)  # older states do not have it
        under_way = state.get("under_way")
        self._under_way = None
        if under_way is not None:  # work that is done, so that an error or the end of the run drops it like any other
            work = own_run().defer(_evaluation_of, under_way["result"])
            work.used_in_end_run = True
            self._under_way = under_way["since"], work


def _state_of(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as plain data."""
    metrics = MetricsLogger()
    metrics.aggregate(evaluation.metrics)
    return {**evaluation._asdict(), "metrics": metrics.get_state()}


def _evaluation_of(state: Mapping[str, Any]) -> Evaluation:
    """The evaluation of a result of `_state_of`."""
    metrics = MetricsLogger()
    metrics.set_state(state["metrics"])
    return Evaluation(state["value"], state["train_iter"], state["weights"], [metrics.reduce()])


def _counters(ctx: OnlineRLContext | OfflineRLContext) -> dict[str, int]:
    """The counters of the current weights; the result may be written some iterations later."""
    return {name: getattr(ctx, name) for name in ("env_step", "train_iter") if hasattr(ctx, name)}
