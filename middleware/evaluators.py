"""Evaluators: how good is the policy now?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gymnasium.vector import VectorEnv, VectorWrapper

from ding_lite.config import EnvConfig, RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.engine import BrokenOff, Deferred, Task, contract
from ding_lite.envs import Episode, name_of_envs, threshold_of_envs
from ding_lite.metrics import MetricsLogger, mean_of
from ding_lite.middleware.arguments import RUN_CONFIG, require, require_evaluations, require_mode
from ding_lite.middleware.outputs import hand_over
from ding_lite.middleware.runs import own_run
from ding_lite.policy import EvalMode
from ding_lite.rollout import EpisodeRecorder, make_worker, summarize_episodes


def interaction_evaluator(
    cfg: RunConfig, policy: EvalMode, env: VectorEnv[Any, Any, Any], recorder: EpisodeRecorder | None = None
) -> InteractionEvaluator:
    """Play whole episodes with the policy at its best, now and then, and end the run when it is good enough.

    It evaluates in the first iteration, whenever train_iter or env_step has gone on by its interval, and, if anything was
    learned since, the final weights when the run has ended: by max_step or `task.finish`. A run that it ended
    itself is not evaluated once more, nor one that a signal, an error or `task.stop()` ended. Each environment plays the same
    number of episodes, to the end.

    Where iterations overlap (`max_lag` of at least 1), an evaluation runs beside the iterations that follow and stalls none of
    them. Its result is written in the iteration in which the next evaluation is due, or in the last but one or the last
    iteration of the run, if that comes first; only there it can end the run. Where the run ends earlier, the result is written
    before that of the final weights.

    Where nobody set them, cfg.env.id and cfg.env.stop_value become those of the environments that it plays in.

    After an evaluation the recorder may film one more episode, with the same weights; no number depends on that.

    Reads:
        ctx.train_iter, ctx.last_eval_iter; ctx.env_step where there is one.
    Writes:
        ctx.eval_value, ctx.last_eval_value: mean undiscounted return.
        ctx.last_eval_iter: train_iter of the weights that were evaluated.
        ctx.eval_weights: the weights that were evaluated, so that a saver keeps just those.
        ctx.eval_metrics: return and length of its episodes, the counters of the weights that were evaluated, seconds, and what
            the policy logged while acting; where the context has it.

    Args:
        cfg: uses policy.eval.evaluator, env.n_evaluator_episode and env.stop_value; the task finishes with the iteration
            whose evaluation reaches stop_value. Without a recorder, log.video_every, exp_name and seed. A stop_value that
            nobody set, and that is only the default of another environment, does not count: see `EnvConfig.settle`.
        policy: acts without exploring.
        env: any gymnasium vector environment, not the one that is collected in.
        recorder: of videos; None makes one where cfg.log.video_every is not 0.

    Raises:
        ValueError: `env` does not tell how to make one more of its environments, to film in.
    """
    require("interaction_evaluator", cfg, "policy.eval.evaluator", RUN_CONFIG)
    require_evaluations("interaction_evaluator", cfg)
    require_mode("interaction_evaluator", policy, "eval_mode")
    if recorder is None and cfg.log.video_every:
        recorder = _recorder_for(cfg, env)
    return InteractionEvaluator("interaction_evaluator", cfg, [policy], env, make_worker(env, policy), recorder=recorder)


def mean_return(episodes: Sequence[Episode]) -> float:
    """Of these episodes, undiscounted."""
    return mean_of([it.return_ for it in episodes])


class Player(Protocol):
    """Plays whole episodes with the policies that it has, such as a `LocalWorker`."""

    def play_episodes(self, count: int, is_stopping: Callable[[], bool]) -> list[Episode]:
        """Play so many episodes from their start; break off, by raising BrokenOff, once `is_stopping()` is true."""

    def reduce_metrics(self) -> list[dict[Any, Any]]:
        """What the policies logged while they acted."""

    def get_weights(self) -> dict[str, Any]:
        """A copy of the weights that it acted with last."""


class Evaluation(NamedTuple):
    """One evaluation."""

    value: float
    """Mean undiscounted return, or what else is made of the episodes."""
    train_iter: int
    """Gradient steps taken when it began."""
    weights: dict[str, Any]
    """That were evaluated."""
    metrics: list[dict[Any, Any]]
    """What was logged of it."""


class InteractionEvaluator:
    """What `interaction_evaluator` and `agents_evaluator` return.

    Args:
        name: what a script calls it.
        cfg: as for `interaction_evaluator`.
        policies: that act.
        env: in which they act.
        worker: plays the episodes.
        value: of the episodes of one evaluation, what is to be reached; logged as the score, where it is not the mean return.
        recorder: of videos of the first policy; None for none.
    """

    def __init__(
        self,
        name: str,
        cfg: RunConfig,
        policies: Sequence[EvalMode],
        env: object,
        worker: Player,
        value: Callable[[Sequence[Episode]], float] = mean_return,
        recorder: EpisodeRecorder | None = None,
    ) -> None:
        self.__name__ = name
        self._every_iter = cfg.policy.eval.evaluator.eval_freq
        self._every_env_step = cfg.policy.eval.evaluator.eval_freq_env_step
        if isinstance(cfg.env, EnvConfig):
            cfg.env.settle(name_of_envs(env), threshold_of_envs(env))
        self._env_name = name_of_envs(env)
        self._count, self._stop_value = cfg.env.n_evaluator_episode, cfg.env.stop_value
        self._policies, self._worker = tuple(policies), worker
        self._value, self._recorder = value, recorder
        self._metrics = MetricsLogger(owner="the evaluator")
        self._last_env_step = self._evaluations = 0
        self._under_way: tuple[int, Deferred[Evaluation]] | None = None
        self._reached_in = -1
        """The iteration whose evaluation reached stop_value."""
        contract(
            reads=("train_iter", "last_eval_iter"),
            writes=("eval_value", "last_eval_value", "last_eval_iter", "eval_weights"),
            may_read=("env_step", "eval_metrics"),
            may_write=("eval_metrics",),
            uses=tuple(policies) if recorder is None else (*policies, recorder),
            alone=(env,),
            stage="evaluate",
        )(self)

    def __call__(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        task = own_run()
        if self._under_way is not None:
            work = self._under_way[1]
            if work.is_over or work.error is not None:  # of a run that has ended; or it failed, and the run is not to go on
                self._end()
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
                self._under_way[1].break_off()
            self._write(self._end(), ctx)
            if not is_signal:
                task.repeat_end()
            return
        if is_signal or self._reached_in == ctx.total_step or ctx.train_iter == ctx.last_eval_iter:
            return
        self._last_env_step = getattr(ctx, "env_step", 0)
        with contextlib.suppress(BrokenOff):
            self._write(
                self._evaluate(_counters(ctx), lambda: task.running and (task.stopping or _is_ended_by_signal(task))), ctx
            )

    def _begin(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        """Begin an evaluation beside the iterations that follow, with the weights of now."""
        for policy in self._policies:
            policy.pin()
        begun: list[Deferred[Evaluation]] = []
        work = own_run().defer(self._deferred(), _counters(ctx), lambda: bool(begun) and begun[0].is_over)
        work.outlasts = True
        begun.append(work)
        self._under_way = ctx.train_iter, work

    def _deferred(self) -> Callable[[dict[str, int], Callable[[], bool]], Evaluation]:
        """`_evaluate` under the name that the script knows, which notes on errors and threads then bear."""

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
            metrics.reset()  # what was logged of it is no part of the next one
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
        """The result of what is under way, or None if a run that has ended broke it off."""
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
        ctx.eval_value = ctx.last_eval_value = evaluation.value
        ctx.last_eval_iter, ctx.eval_weights = evaluation.train_iter, evaluation.weights
        hand_over(ctx, "eval_metrics", evaluation.metrics)

    def _finish_if_reached(self, ctx: OnlineRLContext | OfflineRLContext) -> bool:
        """Whether stop_value is reached; the run ends with this iteration then."""
        target = self._stop_value
        if target is None or not ctx.eval_value >= target:
            return False
        self._reached_in = ctx.total_step
        found = f"{self.__name__} found {ctx.eval_value:.1f} in {self._env_name}"
        own_run().finish_because(f"stop_value {target:g} was reached: {found}")
        return True

    def _is_due(self, ctx: OnlineRLContext | OfflineRLContext, env_step: int) -> bool:
        last_iter = ctx.last_eval_iter if self._under_way is None else self._under_way[0]
        learned = ctx.train_iter - last_iter
        if last_iter < 0 or learned >= self._every_iter:
            return True
        return self._every_env_step is not None and env_step - self._last_env_step >= self._every_env_step

    def state_dict(self) -> dict[str, Any]:
        """When it evaluated last, and how often."""
        return {"last_env_step": self._last_env_step, "evaluations": self._evaluations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._last_env_step = state["last_env_step"]
        self._evaluations = state.get("evaluations", 0)  # states from before videos have none


def _is_stopping(task: Task) -> bool:
    return task.stopping or _is_ended_by_signal(task)


def _is_ended_by_signal(task: Task) -> bool:
    return task.end_reason is not None and task.end_reason.kind == "signal"


def _counters(ctx: OnlineRLContext | OfflineRLContext) -> dict[str, int]:
    """How far the weights are that are evaluated now; the result may be written some iterations later."""
    return {name: getattr(ctx, name) for name in ("env_step", "train_iter") if hasattr(ctx, name)}


def _recorder_for(cfg: RunConfig, env: VectorEnv[Any, Any, Any]) -> EpisodeRecorder:
    """One that films in an environment like these."""
    every = cfg.log.video_every
    if env.spec is None or isinstance(env, VectorWrapper):
        raise ValueError(
            f"cfg.log.video_every = {every} wants an environment to film in, and {env} does not tell how to make one: pass "
            f"interaction_evaluator(..., recorder=EpisodeRecorder(cfg.exp_name, factory, every={every})), factory() returning "
            'a new one, made with render_mode="rgb_array".'
        )
    return EpisodeRecorder(cfg.exp_name, env.spec, every, cfg.seed)
