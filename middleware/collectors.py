"""Collectors: let the policy act, and keep what happens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from gymnasium.vector import VectorEnv

from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import Remainder, contract
from ding_lite.metrics import MetricsLogger
from ding_lite.middleware.arguments import RUN_CONFIG, require, require_count, require_mode, require_same_algorithm
from ding_lite.middleware.outputs import hand_over
from ding_lite.middleware.settings import ActingSettings
from ding_lite.policy import CollectMode
from ding_lite.rollout import EpisodeRollout, Rollout, SplitWorker, make_worker

ROLLOUT_DATA = ("trajectories", "trajectory_end_idx", "finished_episodes", "policy_version", "env_episode")
"""What a rollout brings; and the number of its steps, which is known before."""
_EPISODE_DATA = ("episodes", "trajectories", "finished_episodes", "policy_version", "env_step", "env_episode")
_TIME = ("time", "collect")
_Gathered = TypeVar("_Gathered", Rollout, EpisodeRollout)


class _Acting:
    """A worker that acts, here or in processes of its own, and what is logged of it."""

    def __init__(self, policy: CollectMode, env: VectorEnv[Any, Any, Any]) -> None:
        self.worker = make_worker(env, policy)
        self.elsewhere = self.worker if isinstance(self.worker, SplitWorker) and self.worker.works_alone else None
        """The worker, where it acts in processes that work while nobody waits for them."""
        self._metrics = MetricsLogger(owner="the collector")
        self._kwargs = MetricsLogger(owner="the arguments of the policy")

    def now(self, ctx: OnlineRLContext, kwargs: dict[str, Any], collect: Callable[[], _Gathered]) -> _Gathered:
        """What `collect` gives; it is logged."""
        with self._metrics.log_time(_TIME, reduce="mean"):
            gathered = collect()
        hand_over(ctx, "collect_metrics", self._logged(gathered, kwargs))
        return gathered

    def later(
        self,
        ctx: OnlineRLContext,
        kwargs: dict[str, Any],
        asked: list[Any],
        take: Callable[[list[Any]], _Gathered],
        write: Callable[[_Gathered, OnlineRLContext], None],
    ) -> Remainder:
        """The rest, for when the answers are there that were asked for: take them, log them, write them to the context."""
        worker = self.elsewhere
        assert worker is not None
        earlier = getattr(ctx, "collect_metrics", None)

        def finish(ctx: OnlineRLContext) -> None:
            gathered = take(asked)
            remainder.span = worker.span
            if worker.span is not None:
                begun, ended = worker.span
                self._metrics.log_value(_TIME, (ended - begun) / 1e9)
            if earlier is not None:
                ctx.collect_metrics = earlier
            hand_over(ctx, "collect_metrics", self._logged(gathered, kwargs))
            write(gathered, ctx)

        remainder: Remainder = Remainder(finish, lambda: worker.drop(asked))
        return remainder

    def _logged(self, gathered: Rollout | EpisodeRollout, kwargs: dict[str, Any]) -> list[dict[Any, Any]]:
        self._metrics.log_value("env_steps", gathered.env_steps, reduce="sum", with_throughput=True)
        for name, value in kwargs.items():
            if isinstance(value, (int, float)):
                self._kwargs.log_value(name, value)
        return [self._metrics.reduce(), self._kwargs.reduce(), *self.worker.reduce_metrics()]


class StepCollector:
    """Collect a fixed number of transitions with the newest policy.

    Reads:
        ctx.collect_kwargs: settings, passed to the policy.
        ctx.env_step, ctx.env_episode.
    Writes:
        ctx.trajectories: the rollout, leaves [T, B, ...].
        ctx.trajectory_end_idx: index in it of each environment's last transition.
        ctx.finished_episodes: those that ended on the way, with return and length.
        ctx.policy_version: of the weights that acted, -1 for random actions.
        ctx.env_step, ctx.env_episode: counted on.
        ctx.collect_metrics: steps, seconds, numbers among the settings, and what the policy logged while acting; where the
            context has it.

    Args:
        cfg: uses policy.collect.n_sample: transitions a call, rounded up to whole steps of all environments.
        policy: acts, exploring.
        env: any gymnasium vector environment.
        random_collect_size: environment steps made with random actions, in the first call, before the policy acts; at least 0.
        collect_kwargs: for the policy, where ctx.collect_kwargs does not say otherwise, such as {"eps": 0.1}. What its acting
            needs (`acting_settings`) stands in the one or is set by an earlier middleware; else the pipeline is refused.
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
        require_count("StepCollector", "random_collect_size", random_collect_size, low=0)
        self._settings = ActingSettings("StepCollector", [policy], collect_kwargs)
        self._acting = _Acting(policy, env)
        self._num_envs: int = env.num_envs
        self._num_steps = math.ceil(cfg.policy.collect.n_sample / env.num_envs)
        self._random_steps = math.ceil(random_collect_size / env.num_envs)
        asks = self._acting.elsewhere is not None
        contract(
            reads=("collect_kwargs", "env_step", "env_episode"),
            **self._settings.terms,
            may_read=("collect_metrics",),
            may_write=("collect_metrics",),
            writes=("env_step",) if asks else (*ROLLOUT_DATA, "env_step"),
            writes_late=ROLLOUT_DATA if asks else (),
            uses=(policy,),
            alone=(env,),
            stage="collect",
        )(self)

    def __call__(self, ctx: OnlineRLContext) -> Remainder | None:
        random = ctx.env_step < self._random_steps * self._num_envs
        num_steps = self._random_steps if random else self._num_steps
        kwargs = {} if random else self._settings.at(ctx)
        acting, worker = self._acting, self._acting.elsewhere
        if worker is None:
            rollout = acting.now(ctx, kwargs, partial(acting.worker.collect, num_steps, random, **kwargs))
            ctx.env_step += rollout.env_steps
            hand_over_rollout(rollout, ctx)
            return None
        asked = worker.ask(num_steps, random, **kwargs)
        ctx.env_step += num_steps * self._num_envs  # worker processes make no steps that are only resets
        return acting.later(ctx, kwargs, asked, worker.take, hand_over_rollout)


class EpisodeCollector:
    """Collect a fixed number of whole episodes with the newest policy.

    Every episode begins and ends within one call, with the same weights. Each environment plays its share of them: to take the
    first that end would favour short ones. Environments of `make_envs` that have played theirs rest until the others have,
    and begin the next call with their next episode; those made elsewhere go on, unrecorded, and are all reset at each call.

    Reads:
        ctx.collect_kwargs: settings, passed to the policy.
        ctx.env_step, ctx.env_episode.
    Writes:
        ctx.episodes: the transitions, episode by episode.
        ctx.trajectories: None, in the place of what a StepCollector would have collected.
        ctx.finished_episodes: the same episodes, with return and length.
        ctx.policy_version: of the weights that acted.
        ctx.env_step: counted on by the transitions in ctx.episodes and, where environments made elsewhere go on beyond their
            share, by these steps too; not by steps that were only resets.
        ctx.env_episode: counted on by the episodes in ctx.episodes.
        ctx.collect_metrics: steps, seconds, numbers among the settings, and what the policy logged while acting; where the
            context has it.

    Args:
        cfg: uses policy.collect.n_episode: episodes a call.
        policy: acts, exploring.
        env: any gymnasium vector environment.
        collect_kwargs: as for StepCollector.

    Raises:
        RuntimeError: at a call, an episode does not end within a million steps.
        MemoryError: at a call, it does not end before memory does.
    """

    def __init__(
        self,
        cfg: RunConfig,
        policy: CollectMode,
        env: VectorEnv[Any, Any, Any],
        collect_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        require("EpisodeCollector", cfg, "policy.collect.n_episode", RUN_CONFIG)
        require_mode("EpisodeCollector", policy, "collect_mode")
        require_same_algorithm("EpisodeCollector", cfg, policy)
        self._settings = ActingSettings("EpisodeCollector", [policy], collect_kwargs)
        self._acting = _Acting(policy, env)
        self._num_episodes: int = cfg.policy.collect.n_episode
        asks = self._acting.elsewhere is not None
        contract(
            reads=("collect_kwargs", "env_step", "env_episode"),
            **self._settings.terms,
            may_read=("collect_metrics",),
            may_write=("collect_metrics",),
            writes=() if asks else _EPISODE_DATA,
            writes_late=_EPISODE_DATA if asks else (),  # also how many steps they take is known only then
            uses=(policy,),
            alone=(env,),
            stage="collect",
        )(self)

    def __call__(self, ctx: OnlineRLContext) -> Remainder | None:
        count, kwargs = self._num_episodes, self._settings.at(ctx)
        acting, worker = self._acting, self._acting.elsewhere
        if worker is None:
            _hand_over_episodes(acting.now(ctx, kwargs, partial(acting.worker.collect_episodes, count, **kwargs)), ctx)
            return None
        return acting.later(ctx, kwargs, worker.ask_episodes(count, **kwargs), worker.take_episodes, _hand_over_episodes)


def hand_over_rollout(rollout: Rollout, ctx: OnlineRLContext) -> None:
    """Write what a rollout brings, which is `ROLLOUT_DATA`, to the context."""
    ctx.trajectories = rollout.trajectories
    ctx.trajectory_end_idx = rollout.trajectories.end_idx
    ctx.finished_episodes = rollout.episodes
    ctx.policy_version = rollout.version
    ctx.env_episode += len(rollout.episodes)


def _hand_over_episodes(rollout: EpisodeRollout, ctx: OnlineRLContext) -> None:
    ctx.episodes, ctx.trajectories = rollout.recorded, None
    ctx.finished_episodes = rollout.episodes
    ctx.policy_version = rollout.version
    ctx.env_step += rollout.env_steps
    ctx.env_episode += len(rollout.episodes)
