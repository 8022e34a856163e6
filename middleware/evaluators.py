"""Evaluators: measure the returns of the current policy."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gymnasium.vector import VectorEnv, VectorWrapper

from ding_lite.basics import foreign_arguments
from ding_lite.config import EnvConfig, RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.engine import Deferred, Task, WorkCancelled, contract
from ding_lite.envs import ChangingEnvs, EpisodeResult, name_of_envs, threshold_of_envs
from ding_lite.metrics import MetricsLogger, mean_of
from ding_lite.middleware.arguments import RUN_CONFIG, require, require_evaluations, require_mode
from ding_lite.middleware.foreign_names import ARGUMENTS
from ding_lite.middleware.metrics_aggregators import evaluation_of
from ding_lite.middleware.outputs import append_metrics
from ding_lite.middleware.own_runs import own_run
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
    whole episodes.

    Where iterations overlap (`max_lag` of at least 1), an evaluation runs beside the iterations that follow and stalls none of
    them. Its result is written in the iteration in which the next evaluation is due, or in the last but one or the last
    iteration of the run, if that comes first; only there can it end the run. In these two iterations none begins. Where the run
    ends earlier, the result is written before that of the final weights.

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
            `lambda episode: episode.info["is_success"]`.

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
    if recorder is None and cfg.log.video_every:
        recorder = _recorder_for(cfg, env)
    value = mean_return if score is None else _mean_of(score)
    return InteractionEvaluator("interaction_evaluator", cfg, [policy], env, make_worker(env, policy), value, recorder)


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


class _Restored:
    """An evaluation of a saved run, whose result is not written yet."""

    is_over, error = False, None

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation

    def result(self) -> Evaluation:
        """The result of the evaluation."""
        return self._evaluation

    def cancel(self) -> None:
        """Does nothing, because it is done."""


class InteractionEvaluator:
    """The middleware that `interaction_evaluator` and `agents_evaluator` return.

    Args:
        name: name of the factory.
        cfg: as for `interaction_evaluator`.
        policies: the policies that act.
        env: the environments in which they act.
        worker: runs the episodes.
        value: function from episodes to the number that is compared with stop_value; logged as the score, unless it is
            `mean_return`.
        recorder: records videos of the first policy; None for none.
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
    ) -> None:
        self.__name__ = name
        self._every_iter = cfg.policy.eval.evaluator.eval_freq
        self._every_env_step = cfg.policy.eval.evaluator.eval_freq_env_step
        if isinstance(cfg.env, EnvConfig):
            cfg.env.settle(name_of_envs(env), threshold_of_envs(env))
        self._env_name = name_of_envs(env)
        self._count, self._stop_value = cfg.env.n_evaluator_episode, cfg.env.stop_value
        self._policies, self._worker, self._env = tuple(policies), worker, env
        self._value, self._recorder = value, recorder
        self._metrics = MetricsLogger(owner="the evaluator")
        self._last_env_step = self._evaluations = 0
        self._under_way: tuple[int, Deferred[Evaluation] | _Restored] | None = None
        self._last_iter: int | None = None
        """Gradient steps taken when the last evaluation began; -1 before the first, None before it is known."""
        self._has_warned = False
        self._reached_in = -1
        """The iteration whose evaluation reached stop_value."""
        contract(
            reads=("train_iter", "last_eval_iter"),
            writes=("eval_value", "last_eval_value", "last_eval_iter", "eval_weights"),
            may_read=("env_step", "eval_metrics", "eval_value"),
            may_write=("eval_metrics",),
            uses=tuple(policies) if recorder is None else (*policies, recorder),
            alone=(env,),
            stage="evaluate",
        )(self)

    def __call__(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        task = own_run()
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

    def end_run(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        """Evaluate the final weights, if anything was learned since the last evaluation; see `interaction_evaluator`."""
        task = own_run()
        is_signal = _is_ended_by_signal(task)
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
        with contextlib.suppress(WorkCancelled):
            self._write(
                self._evaluate(_counters(ctx), lambda: task.running and (task.stopping or _is_ended_by_signal(task))), ctx
            )

    def _is_evaluated(self, ctx: OnlineRLContext | OfflineRLContext) -> bool:
        """Whether these very weights have been evaluated."""
        last_iter = ctx.last_eval_iter if self._last_iter is None else self._last_iter
        return bool(ctx.train_iter == last_iter)

    def _begin(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        """Begin an evaluation in parallel with the next iterations, with the current weights."""
        for policy in self._policies:
            policy.pin()
        begun: list[Deferred[Evaluation]] = []
        work = own_run().defer(self._deferred(), _counters(ctx), lambda: bool(begun) and begun[0].is_over)
        work.outlasts = True
        begun.append(work)
        if isinstance(self._env, ChangingEnvs):
            self._env.set_worker_thread(work.thread)
        self._under_way = ctx.train_iter, work

    def _deferred(self) -> Callable[[dict[str, int], Callable[[], bool]], Evaluation]:
        """`_evaluate` under the name of the factory, for notes on errors and names of threads."""

        def evaluate(counters: dict[str, int], is_stopping: Callable[[], bool]) -> Evaluation:
            return self._evaluate(counters, is_stopping)

        evaluate.__qualname__ = evaluate.__name__ = self.__name__
        return evaluate

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

    def _end(self) -> Evaluation | None:
        """The result of the evaluation in progress, or None if an earlier run ended before it was done."""
        assert self._under_way is not None
        _, work = self._under_way
        self._under_way = None
        try:
            return None if work.is_over else work.result()
        finally:
            for policy in self._policies:
                policy.unpin()

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
        """End the run with this iteration if stop_value is reached; return whether it is."""
        target = self._stop_value
        if target is None or not ctx.eval_value >= target:
            return False
        self._reached_in = ctx.total_step
        found = f"{self.__name__} found {ctx.eval_value:.1f} in {self._env_name}"
        own_run().finish_because(f"stop_value {target:g} was reached: {found}")
        return True

    def _is_due(self, ctx: OnlineRLContext | OfflineRLContext, env_step: int) -> bool:
        last_iter = self._last_iter if self._under_way is None else self._under_way[0]
        assert last_iter is not None
        learned = ctx.train_iter - last_iter
        if last_iter < 0 or learned >= self._every_iter:
            return True
        return self._every_env_step is not None and env_step - self._last_env_step >= self._every_env_step

    def state_dict(self) -> dict[str, Any]:
        """The steps of the last evaluation, the number of evaluations, and the result of one in progress; waits for it."""
        under_way = None
        if self._under_way is not None and not self._under_way[1].is_over:
            under_way = {"since": self._under_way[0], "result": _state_of(self._under_way[1].result())}
        return {
            "last_env_step": self._last_env_step,
            "last_iter": self._last_iter,
            "evaluations": self._evaluations,
            "under_way": under_way,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._last_env_step, self._last_iter = state["last_env_step"], state.get("last_iter")
        self._evaluations = state.get("evaluations", 0)  # older states do not have it
        under_way = state.get("under_way")
        self._under_way = None if under_way is None else (under_way["since"], _Restored(_evaluation_of(under_way["result"])))


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


def _is_ended_by_signal(task: Task) -> bool:
    return task.end_reason is not None and task.end_reason.kind == "signal"


def _counters(ctx: OnlineRLContext | OfflineRLContext) -> dict[str, int]:
    """The counters of the current weights; the result may be written some iterations later."""
    return {name: getattr(ctx, name) for name in ("env_step", "train_iter") if hasattr(ctx, name)}


def _recorder_for(cfg: RunConfig, env: VectorEnv[Any, Any, Any]) -> VideoRecorder:
    """A recorder with its own environment of the same kind."""
    every = cfg.log.video_every
    if env.spec is None or isinstance(env, VectorWrapper):
        raise ValueError(
            f"cfg.log.video_every = {every} needs an environment for videos, and {env} does not say how to make one: pass "
            f"interaction_evaluator(..., recorder=VideoRecorder(cfg.exp_name, factory, every={every})), where factory() "
            'returns a new environment with render_mode="rgb_array".'
        )
    return VideoRecorder(cfg.exp_name, env.spec, every, cfg.seed)
