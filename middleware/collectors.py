"""Collectors: act with the policy and record the transitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from gymnasium.vector import VectorEnv

from ding_lite.basics import base_state, foreign_arguments
from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import PendingWork, contract
from ding_lite.metrics import MetricsLogger
from ding_lite.metrics.outputs import append_metrics
from ding_lite.middleware.acting_settings import ActingSettings
from ding_lite.middleware.arguments import (
    RUN_CONFIG,
    require,
    require_count,
    require_info_columns,
    require_mode,
    require_same_algorithm,
    warn_of_normalizers,
    warn_of_other_settings,
)
from ding_lite.middleware.collector_checks import CollectorChecks
from ding_lite.middleware.foreign_names import ARGUMENTS
from ding_lite.policy import CollectMode
from ding_lite.ranks import total
from ding_lite.rollout import (
    EpisodeRollout,
    EpisodeUnit,
    LocalWorker,
    MultiAgentRollout,
    MultiAgentWorker,
    Rollout,
    SplitMultiAgentWorker,
    SplitWorker,
    make_worker,
)
from ding_lite.rollout.collection import WORKER_KEYS

ROLLOUT_DATA = ("trajectories", "trajectory_end_idx", "finished_episodes", "policy_version", "env_episode")
"""Fields that a rollout sets, except env_step, which is known before."""
_EPISODE_DATA = ("episodes", "trajectories", "finished_episodes", "policy_version", "env_step", "env_episode")
_TIME = ("time", "collect")
_HAS_COLLECTED = "has_collected"
_Local = TypeVar("_Local", LocalWorker, MultiAgentWorker)
_Split = TypeVar("_Split", SplitWorker, SplitMultiAgentWorker)
_Rollout = TypeVar("_Rollout", Rollout, EpisodeRollout, MultiAgentRollout)


class Acting(Generic[_Local, _Split]):
    """A worker, in this process or in worker processes, and the metrics of its work."""

    def __init__(self, worker: _Local | _Split) -> None:
        self.worker: _Local | _Split = worker
        self.elsewhere: _Split | None = (
            worker if isinstance(worker, (SplitWorker, SplitMultiAgentWorker)) and worker.works_in_background else None
        )
        """The worker, if it uses worker processes, which run in the background."""
        self._metrics = MetricsLogger(owner="the collector")
        self._kwargs = MetricsLogger(owner="the arguments of the policy")

    def now(self, ctx: Any, kwargs: dict[str, Any], collect: Callable[[], _Rollout]) -> _Rollout:
        """Call `collect`, log its metrics, and return its result."""
        with self._metrics.log_time(_TIME, reduce="mean"):
            rollout = collect()
        append_metrics(ctx, "collect_metrics", self._logged(rollout, kwargs))
        return rollout

    def later(
        self,
        ctx: Any,
        kwargs: dict[str, Any],
        asked: list[Any],
        take: Callable[[list[Any]], _Rollout],
        write: Callable[[_Rollout, Any], None],
    ) -> PendingWork:
        """The second part of a collection in worker processes: take the answers, log them, write them to the context."""
        worker = self.elsewhere
        assert worker is not None
        earlier = getattr(ctx, "collect_metrics", None)

        def finish(ctx: Any) -> None:
            rollout = take(asked)
            pending.span = worker.span
            if worker.span is not None:
                begun, ended = worker.span
                self._metrics.log_value(_TIME, (ended - begun) / 1e9)
            if earlier is not None:
                ctx.collect_metrics = earlier
            append_metrics(ctx, "collect_metrics", self._logged(rollout, kwargs))
            write(rollout, ctx)

        pending: PendingWork = PendingWork(finish, lambda: worker.drop(asked))
        return pending

    def _logged(self, rollout: Rollout | EpisodeRollout | MultiAgentRollout, kwargs: dict[str, Any]) -> list[dict[Any, Any]]:
        self._metrics.log_value("env_steps", rollout.env_steps, reduce="sum", with_throughput=True)
        for name, value in kwargs.items():
            if isinstance(value, (int, float)):
                self._kwargs.log_value(name, value)
        return [self._metrics.reduce(), self._kwargs.reduce(), *self.worker.reduce_metrics()]


class StepCollector:
    """Collect a fixed number of transitions with the newest weights; where iterations overlap, with those of the lag.

    Reads:
        ctx.collect_kwargs: settings, passed to the policy.
        ctx.env_step, ctx.env_episode.
    Writes:
        ctx.trajectories: the rollout, leaves [T, B, ...].
        ctx.trajectory_end_idx: index in trajectories of each environment's last transition.
        ctx.finished_episodes: episodes that ended during collection, with return and length.
        ctx.policy_version: version of the weights that acted, -1 for random actions.
        ctx.env_step, ctx.env_episode: incremented; in a data-parallel run, env_step by the steps of all processes.
        ctx.collect_metrics: steps, seconds, numeric settings, and the metrics that the policy logged while acting; if the
            context has this field.

    Args:
        cfg: uses policy.collect.n_sample: steps per call, rounded up to whole steps of all environments. Steps that are only
            resets count too: vector environments of gymnasium have one between two episodes, those of `make_envs` have none.
        policy: policy.collect_mode; acts with exploration.
        env: any gymnasium vector environment.
        random_collect_size: number of steps with random actions in the first call, before the policy acts, rounded and counted
            like n_sample; at least 0. The policy acts in the first call too if ctx.env_step is not below this number, as in a
            context that continues other training.
        collect_kwargs: settings for the policy, such as {"eps": 0.1}; ctx.collect_kwargs takes precedence. A pipeline is
            refused if a setting that acting needs (`acting_settings`) is neither here nor set by an earlier middleware.
    """

    def __init__(
        self,
        cfg: RunConfig,
        policy: CollectMode,
        env: VectorEnv[Any, Any, Any],
        random_collect_size: int = 0,
        collect_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        require("StepCollector", cfg, "policy.collect.n_sample", RUN_CONFIG)
        require_mode("StepCollector", policy, "collect_mode")
        require_same_algorithm("StepCollector", cfg, policy)
        warn_of_other_settings("StepCollector", cfg, policy, "collect.n_sample")
        require_info_columns("StepCollector", cfg, env)
        require_count("StepCollector", "random_collect_size", random_collect_size, low=0)
        self._settings = ActingSettings("StepCollector", [policy], collect_kwargs)
        warn_of_normalizers("StepCollector", env)
        self._acting: Acting[LocalWorker, SplitWorker] = Acting(make_worker(env, policy))
        in_pieces = isinstance(self._acting.worker, SplitWorker)
        self.checks = CollectorChecks("StepCollector", cfg, "collect.n_sample", [policy], in_pieces)
        self._num_envs: int = env.num_envs
        self._num_steps = math.ceil(cfg.policy.collect.n_sample / env.num_envs)
        self._random_steps = math.ceil(random_collect_size / env.num_envs)
        self._has_collected = False
        asks = self._acting.elsewhere is not None
        contract(
            reads=("collect_kwargs", "env_step", "env_episode"),
            **self._settings.terms,
            may_read=("collect_metrics",),
            may_write=("collect_metrics",),
            writes=("env_step",) if asks else (*ROLLOUT_DATA, "env_step"),
            writes_late=ROLLOUT_DATA if asks else (),
            uses=(policy,),
            exclusive=(env,),
            stage="collect",
        )(self)

    def begin_run(self) -> None:
        """Warn of settings without effect, of policies that the run does not train, and of modes that two collectors share. The
        task calls it."""
        self.checks()

    def __call__(self, ctx: OnlineRLContext) -> PendingWork | None:
        random = not self._has_collected and ctx.env_step < self._random_steps * self._num_envs
        num_steps = self._random_steps if random else self._num_steps
        kwargs = {} if random else self._settings.at(ctx)
        acting, worker = self._acting, self._acting.elsewhere
        if worker is None:
            rollout = acting.now(ctx, kwargs, partial(acting.worker.collect, num_steps, random, **kwargs))
            self._has_collected = True
            ctx.env_step += total_steps(rollout.env_steps)
            write_rollout(rollout, ctx)
            return None
        asked = worker.ask(num_steps, random, **kwargs)
        self._has_collected = True
        ctx.env_step += total_steps(num_steps * self._num_envs)  # in worker processes, no step is only a reset
        return acting.later(ctx, kwargs, asked, worker.take, write_rollout)

    def state_dict(self) -> dict[str, Any]:
        """The state of its worker (recurrent states, and the generator of random actions), and whether it has collected."""
        return {**self._acting.worker.state_dict(), _HAS_COLLECTED: self._has_collected}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        of_worker = {name: value for name, value in state.items() if name != _HAS_COLLECTED}
        self._acting.worker.load_state_dict(base_state(self, of_worker, WORKER_KEYS))
        self._has_collected = state.get(_HAS_COLLECTED, True)  # absent in older states, saved after iterations


class EpisodeCollector:
    """Collect whole episodes with the newest weights; where iterations overlap, with those of the lag.

    Every episode begins and ends within one call, with the same weights. Each environment runs a fixed share of the episodes,
    because taking the first ones that end would favour short episodes. With `unit="steps"`, each environment runs whole
    episodes until these have a fixed share of the steps. So the number of its episodes depends on their own lengths alone, not
    on other environments, and every episode that it begins is completed and used, however long it is. All environments together
    collect at least the required steps, and less than one episode per environment more.

    An environment of `make_envs` that has completed its share is not stepped until the others are done, and starts its next
    episode in the next call. Environments from elsewhere continue without being recorded, and are all reset at each call.

    Reads:
        ctx.collect_kwargs: settings, passed to the policy.
        ctx.env_step, ctx.env_episode.
    Writes:
        ctx.episodes: the transitions, episode by episode.
        ctx.trajectories: None.
        ctx.finished_episodes: the same episodes, with return and length.
        ctx.policy_version: version of the weights that acted.
        ctx.env_step: incremented by the transitions in ctx.episodes, and by unrecorded steps of environments from elsewhere,
            but not by steps that are only resets.
        ctx.env_episode: incremented by the episodes in ctx.episodes.
        ctx.collect_metrics: steps, seconds, numeric settings, and the metrics that the policy logged while acting; if the
            context has this field.

    Args:
        cfg: uses policy.collect.n_episode: episodes per call; with `unit="steps"`, policy.collect.n_sample instead: minimum
            number of transitions per call.
        policy: policy.collect_mode; acts with exploration.
        env: any gymnasium vector environment.
        collect_kwargs: as for StepCollector.
        unit: "episodes" for a fixed number of episodes; "steps" for whole episodes with at least a number of steps, as by
            RLlib's batch_mode="complete_episodes".

    Raises:
        ValueError: another unit.
        RuntimeError: in an iteration, an episode does not end within a million steps.
        MemoryError: in an iteration, an episode does not fit into memory.
    """

    @foreign_arguments(ARGUMENTS["EpisodeCollector"])
    def __init__(
        self,
        cfg: RunConfig,
        policy: CollectMode,
        env: VectorEnv[Any, Any, Any],
        collect_kwargs: Mapping[str, Any] | None = None,
        unit: EpisodeUnit = "episodes",
    ) -> None:
        if unit not in ("episodes", "steps"):
            raise ValueError(f"EpisodeCollector(unit={unit!r}): unknown unit, use 'episodes' or 'steps'.")
        setting = "n_sample" if unit == "steps" else "n_episode"
        require("EpisodeCollector", cfg, f"policy.collect.{setting}", RUN_CONFIG)
        require_mode("EpisodeCollector", policy, "collect_mode")
        require_same_algorithm("EpisodeCollector", cfg, policy)
        warn_of_other_settings("EpisodeCollector", cfg, policy, f"collect.{setting}")
        require_info_columns("EpisodeCollector", cfg, env)
        self._settings = ActingSettings("EpisodeCollector", [policy], collect_kwargs)
        warn_of_normalizers("EpisodeCollector", env)
        self._acting: Acting[LocalWorker, SplitWorker] = Acting(make_worker(env, policy))
        in_pieces = isinstance(self._acting.worker, SplitWorker)
        self.checks = CollectorChecks("EpisodeCollector", cfg, f"collect.{setting}", [policy], in_pieces)
        self._count: int = getattr(cfg.policy.collect, setting)
        self._unit: EpisodeUnit = unit
        asks = self._acting.elsewhere is not None
        contract(
            reads=("collect_kwargs", "env_step", "env_episode"),
            **self._settings.terms,
            may_read=("collect_metrics",),
            may_write=("collect_metrics",),
            writes=() if asks else _EPISODE_DATA,
            writes_late=_EPISODE_DATA if asks else (),  # env_step too: the number of steps is known only then
            uses=(policy,),
            exclusive=(env,),
            stage="collect",
        )(self)

    def begin_run(self) -> None:
        """Warn of settings without effect, of policies that the run does not train, and of modes that two collectors share. The
        task calls it."""
        self.checks()

    def __call__(self, ctx: OnlineRLContext) -> PendingWork | None:
        kwargs = self._settings.at(ctx)
        due = self._count, False, self._unit
        acting, worker = self._acting, self._acting.elsewhere
        if worker is None:
            _write_episodes(acting.now(ctx, kwargs, partial(acting.worker.collect_episodes, *due, **kwargs)), ctx)
            return None
        return acting.later(ctx, kwargs, worker.ask_episodes(*due, **kwargs), worker.take_episodes, _write_episodes)

    def state_dict(self) -> dict[str, Any]:
        """The state of its worker: recurrent states, and the generator of random actions."""
        return self._acting.worker.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._acting.worker.load_state_dict(base_state(self, state, WORKER_KEYS))


def total_steps(env_steps: int) -> int:
    """The environment steps of this collection in all processes that learn together, for ctx.env_step."""
    return total("the environment steps of an iteration", env_steps)


def write_rollout(rollout: Rollout, ctx: OnlineRLContext) -> None:
    """Write the fields of `ROLLOUT_DATA` to the context."""
    ctx.trajectories = rollout.trajectories
    ctx.trajectory_end_idx = rollout.trajectories.end_idx
    ctx.finished_episodes = rollout.episodes
    ctx.policy_version = rollout.version
    ctx.env_episode += len(rollout.episodes)


def _write_episodes(rollout: EpisodeRollout, ctx: OnlineRLContext) -> None:
    ctx.episodes, ctx.trajectories = rollout.transitions, None
    ctx.finished_episodes = rollout.episodes
    ctx.policy_version = rollout.version
    ctx.env_step += total_steps(rollout.env_steps)
    ctx.env_episode += len(rollout.episodes)
