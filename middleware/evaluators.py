"""Evaluators: measure the returns of the current policy."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gymnasium.vector import VectorEnv, VectorWrapper

from ding_lite.basics import foreign_arguments
from ding_lite.config import EnvConfig, RunConfig
from ding_lite.engine import Deferred
from ding_lite.envs import (
    ChangeableEnvs,
    EpisodeResult,
    LocalVectorEnv,
    SplitVectorEnv,
    with_render_mode,
)
from ding_lite.envs.making import may_ignore_render_mode
from ding_lite.envs.names import name_of_envs, threshold_of_envs
from ding_lite.metrics.sums import mean_of
from ding_lite.middleware.arguments import (
    RUN_CONFIG,
    require,
    require_evaluations,
    require_mode,
    warn_of_normalizers,
)
from ding_lite.middleware.evaluation_schedules import Evaluation, ScheduledEvaluator
from ding_lite.middleware.foreign_names import ARGUMENTS
from ding_lite.policy import EvalMode
from ding_lite.rollout import VideoRecorder, make_worker, summarize_episodes


@foreign_arguments(ARGUMENTS["interaction_evaluator"])
def interaction_evaluator(
    cfg: RunConfig,
    policy: EvalMode,
    env: VectorEnv[Any, Any, Any],
    recorder: VideoRecorder | None = None,
    score: Callable[[EpisodeResult], float] | None = None,
) -> InteractionEvaluator:
    """Evaluate the policy on whole episodes without exploration, at intervals, and end the run at stop_value.

    It evaluates in the first iteration, then at intervals of train_iter or env_step. When the run ends by max_step or
    `task.finish`, it evaluates the final weights, if there were gradient steps since the last evaluation. It does not do so if
    one of its own evaluations ended the run, or a signal, an error or `task.stop()`. Each environment runs the same number of
    whole episodes; if the number of episodes is not a multiple of the number of environments, the first ones run one more.

    Where iterations overlap (`max_lag` of at least 1), an evaluation runs beside the iterations that follow and stalls none of
    them. Its result is written in the iteration in which the next evaluation is due, or in one of the last two iterations of
    the run, in which no evaluation begins. An evaluation can end the run only when its result is written. Where the run ends
    earlier, the result is written before that of the final weights. Evaluators that share a mode evaluate one after another.

    Unless they were set, cfg.env.id and cfg.env.stop_value become those of the evaluated environments.

    After an evaluation, the recorder may record one more episode with the same weights; it affects no number.

    Reads:
        ctx.train_iter, ctx.last_eval_iter; ctx.env_step if the context has it.
    Writes:
        ctx.eval_value, ctx.last_eval_value: mean undiscounted return, or the mean score.
        ctx.last_eval_iter: train_iter of the weights that were evaluated.
        ctx.eval_weights: the weights that were evaluated, for savers.
        ctx.eval_metrics: the mean score, if there is one; return and length of the episodes, the counters at the time of the
            evaluated weights, seconds, and the metrics that the policy logged while acting; if the context has this field.

    Args:
        cfg: uses policy.eval.evaluator, env.n_evaluator_episode and env.stop_value; the run ends with the iteration
            whose evaluation reaches stop_value. Without a recorder, also log.video_every, exp_name and seed. A stop_value that
            is only the default of another environment is ignored: see `EnvConfig.settle`.
        policy: policy.eval_mode; acts without exploration.
        env: any gymnasium vector environment, not the one used for collecting.
        recorder: video recorder; None makes one unless cfg.log.video_every is 0.
        score: function of an episode, whose mean is compared with env.stop_value instead of the mean return, such as
            `lambda episode: episode.info["is_success"]`. What an object with `__call__` remembers is saved with the run if it
            has `state_dict` and `load_state_dict`.

    Raises:
        ValueError: videos are recorded, and `env` cannot say how to make another of its environments.
    """
    require("interaction_evaluator", cfg, "policy.eval.evaluator", RUN_CONFIG)
    require_evaluations("interaction_evaluator", cfg)
    require_mode("interaction_evaluator", policy, "eval_mode")
    if (getattr(env, "metadata", None) or {}).get("is_for_training"):
        warnings.warn(
            'the environments for evaluation are made for training, by atari="train": their returns are those of single lives '
            'with clipped rewards. Make them with make_envs(..., atari="eval").',
            stacklevel=2,
        )
    warn_of_normalizers("interaction_evaluator", env, is_evaluator=True)
    if recorder is None and cfg.log.video_every:
        recorder = _recorder_for(cfg, env)
    value = mean_return if score is None else _mean_of(score)
    worker = make_worker(env, policy)
    return InteractionEvaluator("interaction_evaluator", cfg, [policy], env, worker, value, recorder, measure=score)


def _mean_of(score: Callable[[EpisodeResult], float]) -> Callable[[Sequence[EpisodeResult]], float]:
    """A function from episodes to their mean score."""

    def mean_score(episodes: Sequence[EpisodeResult]) -> float:
        return mean_of([float(score(episode)) for episode in episodes])

    return mean_score


def mean_return(episodes: Sequence[EpisodeResult]) -> float:
    """The mean undiscounted return of the episodes."""
    return mean_of([it.return_ for it in episodes])


class EpisodePlayer(Protocol):
    """Runs whole episodes with its policies, such as a `LocalWorker`."""

    def play_episodes(self, count: int, is_stopping: Callable[[], bool]) -> list[EpisodeResult]:
        """Run `count` episodes from their start; raise WorkCancelled once `is_stopping()` is true."""

    def reduce_metrics(self) -> list[dict[Any, Any]]:
        """The metrics that the policies logged while acting."""

    def get_weights(self) -> dict[str, Any]:
        """A copy of the weights that acted last."""


class InteractionEvaluator(ScheduledEvaluator):
    """The middleware that `interaction_evaluator` and `multi_agent_evaluator` return.

    Args:
        name: name of the factory.
        cfg: as for `interaction_evaluator`.
        policies: the policies that act.
        env: the environments in which they act.
        worker: runs the episodes.
        value: function from episodes to the number that is compared with stop_value; logged as the score, unless it is
            `mean_return`.
        recorder: records videos of the first policy; None for none.
        measure: the function of the script that `value` calls; None for none.
    """

    def __init__(
        self,
        name: str,
        cfg: RunConfig,
        policies: Sequence[EvalMode],
        env: object,
        worker: EpisodePlayer,
        value: Callable[[Sequence[EpisodeResult]], float] = mean_return,
        recorder: VideoRecorder | None = None,
        measure: Callable[..., Any] | None = None,
    ) -> None:
        if isinstance(cfg.env, EnvConfig):
            cfg.env.settle(name_of_envs(env), threshold_of_envs(env))
        uses = () if recorder is None else (recorder,)
        super().__init__(name, cfg, policies, cfg.env.stop_value, f"in {name_of_envs(env)}", uses, (env,), measure)
        self._count, self._worker, self._env = cfg.env.n_evaluator_episode, worker, env
        self._value, self._recorder = value, recorder

    def _evaluate(self, counters: dict[str, int], is_stopping: Callable[[], bool] = lambda: False) -> Evaluation:
        metrics = self._metrics
        try:
            with metrics.log_time(("time", "evaluate"), reduce="mean"):
                episodes = self._worker.play_episodes(self._count, is_stopping)
        except BaseException:
            metrics.reset()  # its metrics must not count for the next evaluation
            self._worker.reduce_metrics()
            raise
        metrics.log_dict({**summarize_episodes(episodes), **counters}, reduce="item")
        metrics.log_value("episodes", len(episodes), reduce="sum")
        value = self._value(episodes)
        if self._value is not mean_return:
            metrics.log_value("score", value, reduce="item")
        logged = [metrics.reduce(), *self._worker.reduce_metrics()]
        if self._recorder is not None:
            env_step, train_iter = counters.get("env_step", 0), counters["train_iter"]
            self._recorder.record(self._policies[0], self._evaluations, env_step, train_iter, is_stopping)
        return Evaluation(value, counters["train_iter"], self._worker.get_weights(), logged)

    def _has_begun(self, work: Deferred[Evaluation]) -> None:
        if isinstance(self._env, ChangeableEnvs):
            self._env.set_worker_thread(work.thread)


def _rendered_factory(env: VectorEnv[Any, Any, Any]) -> Callable[[], Any] | None:
    """A function that makes one of these environments with all of its wrappers, for videos; None if it is unknown how."""
    if not isinstance(env, (LocalVectorEnv, SplitVectorEnv)):
        return None
    try:
        factory = with_render_mode(env.factory, "rgb_array")
    except ValueError:  # a function without the argument render_mode
        return env.factory if env.render_mode == "rgb_array" else None
    if may_ignore_render_mode(env.factory):
        with contextlib.suppress(Exception):  # the recorder warns of it
            one = factory()
            one.close()
            return factory if one.render_mode == "rgb_array" else None
    return factory


def _recorder_for(cfg: RunConfig, env: VectorEnv[Any, Any, Any]) -> VideoRecorder:
    """A recorder with its own environment of the same kind."""
    every = cfg.log.video_every
    factory = _rendered_factory(env)
    if factory is not None:
        return VideoRecorder(cfg.exp_name, factory, every, cfg.seed)
    if env.spec is None or isinstance(env, VectorWrapper):
        raise ValueError(
            f"cfg.log.video_every = {every} needs an environment for videos, and {env} does not say how to make one: pass "
            f"interaction_evaluator(..., recorder=VideoRecorder(cfg.exp_name, factory, every={every})), where factory() "
            'returns a new environment with render_mode="rgb_array".'
        )
    return VideoRecorder(cfg.exp_name, env.spec, every, cfg.seed)
