"""Evaluators: how good is the policy now?

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.vector import VectorEnv

from ding_lite.config import RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.engine import contract, current_task
from ding_lite.policy import EvalMode
from ding_lite.rollout import LocalWorker, play_episodes


def interaction_evaluator(cfg: RunConfig, policy: EvalMode, env: VectorEnv[Any, Any, Any]) -> InteractionEvaluator:
    """Play whole episodes with the policy at its best, now and then, and end the run when it is good enough.

    It evaluates in the first iteration, whenever train_iter or env_step has gone on by its interval, and in the last
    iteration if anything was learned since. Each environment plays the same number of episodes, to the end.

    Reads:
        ctx.train_iter, ctx.last_eval_iter; ctx.env_step where there is one.
    Writes:
        ctx.eval_value, ctx.last_eval_value: mean undiscounted return.
        ctx.last_eval_iter: train_iter now.
        ctx.eval_weights: the weights that were evaluated, so that a saver keeps just those.

    Args:
        cfg: uses policy.eval.evaluator, env.n_evaluator_episode and env.stop_value; the task finishes with the iteration
            whose evaluation reaches stop_value.
        policy: acts without exploring.
        env: any gymnasium vector environment, not the one that is collected in.
    """
    return InteractionEvaluator(cfg, policy, env)


class InteractionEvaluator:
    """What `interaction_evaluator` returns."""

    __name__ = "interaction_evaluator"

    def __init__(self, cfg: RunConfig, policy: EvalMode, env: VectorEnv[Any, Any, Any]) -> None:
        self._every_iter = cfg.policy.eval.evaluator.eval_freq
        self._every_env_step = cfg.policy.eval.evaluator.eval_freq_env_step
        self._count, self._stop_value = cfg.env.n_evaluator_episode, cfg.env.stop_value
        self._policy = policy
        self._worker = LocalWorker(env, policy)
        self._last_env_step = 0
        contract(
            reads=("train_iter", "last_eval_iter"),
            writes=("eval_value", "last_eval_value", "last_eval_iter", "eval_weights"),
            may_read=("env_step",),
            uses=(env, policy),
            stage="evaluate",
        )(self)

    def __call__(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        env_step = ctx.env_step if isinstance(ctx, OnlineRLContext) else getattr(ctx, "env_step", 0)
        if not self._is_due(ctx, env_step):
            return
        episodes = play_episodes(self._worker, self._count)
        ctx.eval_value = ctx.last_eval_value = sum(episode.return_ for episode in episodes) / len(episodes)
        ctx.last_eval_iter = ctx.train_iter
        ctx.eval_weights = self._policy.get_weights()
        self._last_env_step = env_step
        if self._stop_value is not None and ctx.eval_value >= self._stop_value:
            current_task().finish = True

    def _is_due(self, ctx: OnlineRLContext | OfflineRLContext, env_step: int) -> bool:
        learned = ctx.train_iter - ctx.last_eval_iter
        if ctx.last_eval_iter < 0 or learned >= self._every_iter:
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
