"""Evaluators: how good is the policy now?

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gymnasium.vector import VectorEnv

from ding_lite.config import RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.engine import Deferred, contract, current_task
from ding_lite.policy import EvalMode
from ding_lite.rollout import make_worker


def interaction_evaluator(cfg: RunConfig, policy: EvalMode, env: VectorEnv[Any, Any, Any]) -> InteractionEvaluator:
    """Play whole episodes with the policy at its best, now and then, and end the run when it is good enough.

    It evaluates in the first iteration, whenever train_iter or env_step has gone on by its interval, and in the last
    iteration if anything was learned since. Each environment plays the same number of episodes, to the end.

    Where iterations overlap (`max_lag` of at least 1), an evaluation runs beside the iterations that follow and stalls none of
    them. Its result is written in the iteration in which the next evaluation is due, or in the last but one or the last
    iteration of the run, if that comes first; only there it can end the run. What a run that ends otherwise leaves unfinished
    is dropped.

    Reads:
        ctx.train_iter, ctx.last_eval_iter; ctx.env_step where there is one.
    Writes:
        ctx.eval_value, ctx.last_eval_value: mean undiscounted return.
        ctx.last_eval_iter: train_iter of the weights that were evaluated.
        ctx.eval_weights: the weights that were evaluated, so that a saver keeps just those.

    Args:
        cfg: uses policy.eval.evaluator, env.n_evaluator_episode and env.stop_value; the task finishes with the iteration
            whose evaluation reaches stop_value.
        policy: acts without exploring.
        env: any gymnasium vector environment, not the one that is collected in.
    """
    return InteractionEvaluator(cfg, policy, env)


class Evaluation(NamedTuple):
    """One evaluation."""

    value: float
    """Mean undiscounted return."""
    train_iter: int
    """Gradient steps taken when it began."""
    weights: dict[str, Any]
    """That were evaluated."""


class InteractionEvaluator:
    """What `interaction_evaluator` returns."""

    __name__ = "interaction_evaluator"

    def __init__(self, cfg: RunConfig, policy: EvalMode, env: VectorEnv[Any, Any, Any]) -> None:
        self._every_iter = cfg.policy.eval.evaluator.eval_freq
        self._every_env_step = cfg.policy.eval.evaluator.eval_freq_env_step
        self._count, self._stop_value = cfg.env.n_evaluator_episode, cfg.env.stop_value
        self._policy = policy
        self._worker = make_worker(env, policy)
        self._last_env_step = 0
        self._under_way: tuple[int, Deferred[Evaluation]] | None = None
        contract(
            reads=("train_iter", "last_eval_iter"),
            writes=("eval_value", "last_eval_value", "last_eval_iter", "eval_weights"),
            may_read=("env_step",),
            uses=(env, policy),
            stage="evaluate",
        )(self)

    def __call__(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        task = current_task()
        if self._under_way is not None and self._under_way[1].is_over:  # left by a run that has ended
            self._end()
        env_step = getattr(ctx, "env_step", 0)
        is_due = self._is_due(ctx, env_step)
        overlaps = task.max_lag > 0
        is_ending = overlaps and (task.steps_left <= 1 or task.finish)
        if self._under_way is not None and (is_due or is_ending):
            self._write(self._end(), ctx)
            is_due = self._is_due(ctx, env_step)
        if not is_due or (is_ending and not task.finish):
            return
        self._last_env_step = env_step
        if overlaps and not is_ending:
            self._policy.hold()
            self._under_way = ctx.train_iter, task.defer(self._evaluate, ctx.train_iter, lambda: task.stopping)
        else:
            self._write(self._evaluate(ctx.train_iter), ctx)

    def _evaluate(self, train_iter: int, is_stopping: Callable[[], bool] = lambda: False) -> Evaluation:
        episodes = self._worker.play_episodes(self._count, is_stopping)
        return Evaluation(sum(it.return_ for it in episodes) / len(episodes), train_iter, self._worker.get_weights())

    def _end(self) -> Evaluation | None:
        """The result of what is under way, or None if a run that has ended broke it off."""
        assert self._under_way is not None
        _, work = self._under_way
        self._under_way = None
        try:
            return None if work.is_over else work.result()
        finally:
            self._policy.let_go()

    def _write(self, evaluation: Evaluation | None, ctx: OnlineRLContext | OfflineRLContext) -> None:
        if evaluation is None:
            return
        ctx.eval_value = ctx.last_eval_value = evaluation.value
        ctx.last_eval_iter, ctx.eval_weights = evaluation.train_iter, evaluation.weights
        if self._stop_value is not None and evaluation.value >= self._stop_value:
            current_task().finish = True

    def _is_due(self, ctx: OnlineRLContext | OfflineRLContext, env_step: int) -> bool:
        last_iter = ctx.last_eval_iter if self._under_way is None else self._under_way[0]
        learned = ctx.train_iter - last_iter
        if last_iter < 0 or learned >= self._every_iter:
            return True
        if self._every_env_step is not None and env_step - self._last_env_step >= self._every_env_step:
            return True
        return current_task().finish and learned > 0

    def state_dict(self) -> dict[str, Any]:
        """When it evaluated last."""
        return {"last_env_step": self._last_env_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._last_env_step = state["last_env_step"]
