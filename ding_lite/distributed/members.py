"""Members: runs that a program drives in slices, and whose settings it may change in between."""

from __future__ import annotations

import contextlib
import copy
import numbers
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ding_lite.basics.optional_attributes import attribute_behind, attribute_of
from ding_lite.basics.signatures import signature_of
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.engine import Context, Task, contract, current_task
from ding_lite.engine.tasks import opened_for
from ding_lite.policy_base import FixedSettingError, Policy, live_changes, settings_of, values_of
from ding_lite.rollout.metrics_aggregators import COUNTERS, MetricsAggregator, evaluation_of
from ding_lite.run_configs import OfflineRunConfig, RunConfig

PipelineBuilder = Callable[..., Policy]
"""A function of a run's configuration that adds the middleware of a run to the opened task, and returns the policy.

It does not start or run the task. With a second parameter it gets the task; `ding_lite.task.use` adds to it too.
"""

_READ = (
    *("collect_metrics", "learn_metrics", "eval_metrics", "finished_episodes", "train_output"),
    *("eval_value", "last_eval_value", "last_eval_iter", *COUNTERS),
)


def reset_config(cfg: RunConfig, policy: Policy, values: Mapping[str, Any]) -> dict[str, Any]:
    """Change settings of a run by their dotted names in its configuration, such as `policy.learn.batch_size`. All, or none.

    Args:
        cfg: the configuration of the run.
        policy: its policy, made with `cfg.policy`.
        values: new values by dotted name.

    Returns:
        The former values of the settings that have changed, by dotted name.

    Raises:
        ConfigError: a name does not exist, or a value is out of range or of the wrong type.
        FixedSettingError: a ConfigError; a setting cannot be changed in a run, or not with the middleware of the current task.
        ValueError: the policy was made with another configuration.
    """
    require_live(cfg, values)
    _require_followed(cfg, policy, values, current_task())
    return _reset(cfg, policy, values)


def _require_followed(cfg: RunConfig, policy: Policy, values: Mapping[str, Any], task: Task) -> None:
    """Check that no middleware of a task has settings that cannot change.

    Raises:
        FixedSettingError: naming them.
    """
    fixed: dict[str, str] = {}
    for fn in task.middleware:
        if attribute_behind(fn, "fixed_for", cfg.policy) is cfg.policy:  # not that of another policy
            fixed |= attribute_behind(fn, "fixed_settings", {})
    if not fixed:
        return
    changes = live_changes(
        cfg.policy, {name.removeprefix("policy."): value for name, value in values.items()}, policy.settings_made
    )
    refused = [
        f"{name} cannot be changed in this run: {why}" for name, why in fixed.items() if name.removeprefix("policy.") in changes
    ]
    if refused:
        raise FixedSettingError("\n".join(refused))


def _reset(cfg: RunConfig, policy: Policy, values: Mapping[str, Any]) -> dict[str, Any]:
    """`reset_config`, of values that were checked."""
    if policy.cfg is not cfg.policy:
        raise ValueError(
            f"the {type(policy).__name__} was made with another configuration than cfg.policy, so the middleware would not "
            "follow: make it with cfg.policy."
        )
    before = policy.reset_config({name.removeprefix("policy."): value for name, value in values.items()})
    return {f"policy.{name}": value for name, value in before.items()}


def require_live(cfg: RunConfig, values: Mapping[str, Any]) -> None:
    """Check that settings of a run exist and can be changed, and that the values are legal.

    Raises:
        ConfigError: a name does not exist, or a value is out of range or of the wrong type.
        FixedSettingError: a ConfigError; a setting cannot be changed in a run.
    """
    cfg.trial().override(values)  # raises ConfigError for names and values
    fixed = [name for name in values if not name.startswith("policy.")]
    if fixed:
        raise FixedSettingError(
            "\n".join(
                f"{name} cannot be changed in a run: only settings of the policy can, see docs/populations.md. Start a new run."
                for name in fixed
            )
        )
    live_changes(cfg.policy, {name.removeprefix("policy."): value for name, value in values.items()})


class Member:
    """A run that is driven in slices: it gives the same result as the same pipeline run alone.

    Args:
        pipeline: adds the middleware, and returns the policy; see `PipelineBuilder`.
        cfg: the configuration of the run. The member has its own copy, `member.cfg`.
        ctx: context of the first iteration; None for an OnlineRLContext, or an OfflineRLContext with an OfflineRunConfig.

    Raises:
        TypeError: the pipeline returns no policy.

    Example:
        >>> member = Member(pipeline, PPOConfig())  # doctest: +SKIP
        >>> member.advance(10)["train_iter"]  # doctest: +SKIP
        400
    """

    def __init__(self, pipeline: PipelineBuilder, cfg: RunConfig, ctx: Context | None = None) -> None:
        self.cfg = copy.deepcopy(cfg)
        self.task = Task()
        self.is_finished = False
        """Whether a middleware has ended the run. Then `advance` does nothing."""
        self._left_out = 0
        if ctx is None:
            ctx = OfflineRLContext() if isinstance(cfg, OfflineRunConfig) else OnlineRLContext()
        self.task.start(async_mode=cfg.async_mode, max_lag=cfg.max_lag, watchdog_s=cfg.watchdog_s, ctx=ctx)
        try:
            with opened_for(self.task):
                policy = pipeline(self.cfg, self.task) if _takes_task(pipeline) else pipeline(self.cfg)
            if not isinstance(policy, Policy):
                name = getattr(pipeline, "__name__", "pipeline")
                raise TypeError(f"{name}(cfg) wants to return the policy of the pipeline, got {policy!r:.60}.")
            self.policy = policy
            self._results = _Results()
            self.task.use(self._results)
        except BaseException:
            self.close()
            raise

    def advance(self, iterations: int | None = None, env_steps: int | None = None) -> dict[str, Any]:
        """Run a slice.

        Args:
            iterations: number of iterations.
            env_steps: instead of these, the least number of environment steps to take in the slice.

        Returns:
            Counters, and the metrics of the slice, under the names that they have in the rows of a logger, such as
            `collect/episode_return_mean` and `evaluate/episode_return_mean`; the last evaluation of the slice as `eval_value`,
            with `last_eval_iter`, the gradient steps of the evaluated weights; `time_s`, its seconds; and `is_finished`.

        Raises:
            ValueError: neither or both are given.
            BaseException: the error of a middleware.
        """
        if (iterations is None) == (env_steps is None):
            raise ValueError("advance() wants a number of iterations, or of env_steps: pass one of them.")
        begun = time.monotonic()
        if iterations is not None:
            self._run(iterations)
        else:
            assert env_steps is not None
            stop = self.task.ctx.env_step + env_steps
            while self.task.ctx.env_step < stop and not self.is_finished:
                self._run(1)
        return {**self.results(), "time_s": time.monotonic() - begun}

    def _run(self, iterations: int) -> None:
        if self.is_finished or not iterations:
            return
        self.task.run(self._left_out + iterations, final=False)
        self._left_out = 0
        reason = self.task.end_reason
        self.is_finished = reason is not None and reason.kind != "max_step"

    def results(self) -> dict[str, Any]:
        """The counters, and the metrics since the last call; see `advance`."""
        ctx = self.task.ctx
        row = {name: value for name, value in self._results.row(ctx).items() if isinstance(value, numbers.Real)}
        return {**row, "is_finished": self.is_finished}

    def reset_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Change settings by their dotted names in the configuration, such as `policy.learn.learning_rate`; see `reset_config`.

        Raises:
            FixedSettingError: the policy, or a middleware of this pipeline, cannot follow a change.
        """
        self.require_live(values)
        return _reset(self.cfg, self.policy, values)

    def require_live(self, values: Mapping[str, Any]) -> None:
        """Check that settings can be changed in this run, without a change.

        Raises:
            ConfigError: a name does not exist, or a value is out of range or of the wrong type.
            FixedSettingError: a ConfigError; a setting cannot be changed.
        """
        require_live(self.cfg, values)
        _require_followed(self.cfg, self.policy, values, self.task)

    def learned_state(self) -> dict[str, Any]:
        """What the policy has learned; see `Policy.learned_state`."""
        return self.policy.learned_state()

    def load_learned_state(self, state: Mapping[str, Any]) -> None:
        """Take what the policy of another member has learned; settings, counters, data and random generators stay.

        Metrics begin anew, because those so far are of another policy.
        """
        self.policy.load_learned_state(state)
        self._results.forget()

    def state_dict(self) -> dict[str, Any]:
        """The state of the whole run, with all settings that can change; see `Task.state_dict`."""
        run = self.task.state_dict()
        for part in run["parts"].values():
            if isinstance(part, dict) and "made_with" in part:  # the policy
                part["settings"] = self._live_settings()
        return {"run": run, "is_finished": self.is_finished}

    def load_state_dict(self, state: Mapping[str, Any], keep_settings: bool = False) -> None:
        """Continue from a saved state of a member with the same pipeline. A state that does not fit raises an error.

        Args:
            state: a result of `state_dict`.
            keep_settings: whether the settings stay, instead of becoming those of the saved member.
        """
        own = self._live_settings()
        self.task.load_state_dict(state["run"])
        self._left_out, self.is_finished = state["run"]["done"], state["is_finished"]
        if keep_settings:
            self.policy.restore_settings({"optimizer": None, "settings": own})

    def _live_settings(self) -> dict[str, Any]:
        return values_of(self.policy.cfg, [name for name, is_live, _ in settings_of(self.policy.cfg) if is_live])

    def close(self) -> None:
        """Free environments and other resources."""
        with contextlib.ExitStack() as stack:
            for _, thing in self.task.used_objects() if self.task.running else ():
                close = attribute_of(thing, "close")
                if callable(close):
                    stack.callback(close)
            stack.callback(self.task.stop)


def _takes_task(pipeline: PipelineBuilder) -> bool:
    try:
        signature_of(pipeline).bind(None, None)
    except TypeError:
        return False
    return True


class _Results:
    """Aggregates the metrics of a member."""

    __name__ = "member_results"
    reads_at_end = True

    def __init__(self) -> None:
        self._aggregator = MetricsAggregator()
        self._evaluation: dict[str, Any] = {}
        """The last evaluation of the slice."""
        contract(may_read=_READ, uses=(self,), stage="record")(self)

    def __call__(self, ctx: Context) -> Iterator[None]:
        yield
        self._aggregator.take(ctx)  # type: ignore[arg-type]
        value = evaluation_of(ctx)
        if value is not None:
            self._evaluation = {"eval_value": value, "last_eval_iter": getattr(ctx, "last_eval_iter", -1)}

    def row(self, ctx: Context) -> dict[str, Any]:
        """The metrics of the slice; the next one begins."""
        row = {**self._aggregator.row(ctx), **self._evaluation}  # type: ignore[arg-type]
        self._evaluation = {}
        return {name: value for name, value in row.items() if not name.startswith(("system/", "time/"))}

    def forget(self) -> None:
        """Forget episodes and metrics, because the policy is another one now."""
        self._aggregator, self._evaluation = MetricsAggregator(), {}

    def state_dict(self) -> dict[str, Any]:
        return {"metrics": self._aggregator.state_dict(), "evaluation": dict(self._evaluation)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.forget()  # also those that the saved member did not have yet
        self._aggregator.load_state_dict(state["metrics"])
        self._evaluation = dict(state["evaluation"])
