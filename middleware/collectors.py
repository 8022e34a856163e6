"""Collectors: let the policy act, and keep what happens.

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Trajectories, map_leaves, tree
from ding_lite.engine import Remainder, contract
from ding_lite.metrics import MetricsLogger
from ding_lite.middleware.outputs import hand_over
from ding_lite.policy import CollectMode
from ding_lite.rollout import LocalWorker, Rollout, SplitWorker, make_worker

_DATA = ("trajectories", "trajectory_end_idx", "finished_episodes", "policy_version", "env_episode")
"""What a rollout brings; and the number of its steps, which is known before."""
_TIME = ("time", "collect")


class StepCollector:
    """Collect a fixed number of transitions with the newest policy.

    Reads:
        ctx.collect_kwargs: passed to the policy.
        ctx.env_step, ctx.env_episode.
    Writes:
        ctx.trajectories: the rollout, leaves [T, B, ...].
        ctx.trajectory_end_idx: index in it of each environment's last transition.
        ctx.finished_episodes: those that ended on the way, with return and length.
        ctx.policy_version: of the weights that acted, -1 for random actions.
        ctx.env_step, ctx.env_episode: counted on.
        ctx.collect_metrics: steps, seconds, numbers in ctx.collect_kwargs, and what the policy logged while acting; where the
            context has it.

    Args:
        cfg: uses policy.collect.n_sample: transitions a call, rounded up to whole steps of all environments.
        policy: acts, exploring.
        env: any gymnasium vector environment.
        random_collect_size: environment steps made with random actions, in the first call, before the policy acts.
    """

    def __init__(
        self, cfg: RunConfig, policy: CollectMode, env: VectorEnv[Any, Any, Any], random_collect_size: int = 0
    ) -> None:
        self._worker = make_worker(env, policy)
        self._asks = isinstance(self._worker, SplitWorker) and self._worker.works_alone
        self._num_steps = math.ceil(cfg.policy.collect.n_sample / env.num_envs)
        self._random_steps = math.ceil(random_collect_size / env.num_envs)
        self._metrics, self._kwargs = MetricsLogger(), MetricsLogger()
        contract(
            reads=("collect_kwargs", "env_step", *(() if self._asks else ("env_episode",))),
            may_read=("collect_metrics",),
            may_write=("collect_metrics",),
            writes=("env_step",) if self._asks else (*_DATA, "env_step"),
            writes_late=_DATA if self._asks else (),
            uses=(env, policy),
            stage="collect",
        )(self)

    def __call__(self, ctx: OnlineRLContext) -> Remainder | None:
        random = ctx.env_step < self._random_steps * self._worker.num_envs
        num_steps = self._random_steps if random else self._num_steps
        kwargs = {} if random else ctx.collect_kwargs
        if self._asks:
            return self._remainder(num_steps, random, kwargs, ctx)
        with self._metrics.log_time(_TIME, reduce="mean"):
            rollout = self._worker.collect(num_steps, random, **kwargs)
        ctx.env_step += len(rollout.trajectories)
        hand_over(ctx, "collect_metrics", self._logged(rollout, kwargs))
        _hand_over(rollout, ctx)
        return None

    def _logged(self, rollout: Rollout, kwargs: dict[str, Any]) -> list[dict[Any, Any]]:
        self._metrics.log_value("env_steps", len(rollout.trajectories), reduce="sum", with_throughput=True)
        for name, value in kwargs.items():
            if isinstance(value, (int, float)):
                self._kwargs.log_value(name, value)
        return [self._metrics.reduce(), self._kwargs.reduce(), *self._worker.reduce_metrics()]

    def _remainder(self, num_steps: int, random: bool, kwargs: dict[str, Any], ctx: OnlineRLContext) -> Remainder:
        """Ask the workers, and leave the rest for when their answers are there."""
        worker = self._worker
        assert isinstance(worker, SplitWorker)
        asked = worker.ask(num_steps, random, **kwargs)
        ctx.env_step += num_steps * worker.num_envs  # worker processes make no steps that are only resets
        earlier = getattr(ctx, "collect_metrics", None)

        def take(ctx: OnlineRLContext) -> None:
            rollout = worker.take(asked)
            remainder.span = worker.span
            if worker.span is not None:
                begun, ended = worker.span
                self._metrics.log_value(_TIME, (ended - begun) / 1e9)
            if earlier is not None:
                ctx.collect_metrics = earlier
            hand_over(ctx, "collect_metrics", self._logged(rollout, kwargs))
            _hand_over(rollout, ctx)

        remainder = Remainder(take, lambda: worker.drop(asked))
        return remainder


def inferencer(seed: int, policy: CollectMode, env: VectorEnv[Any, Any, Any]) -> Callable[[OnlineRLContext], None]:
    """One step of acting: what does the policy do about the current observations?

    With `rolloutor` after it, a collector of one step an iteration, for pipelines that look at every step.

    Reads:
        ctx.collect_kwargs: passed to the policy.
    Writes:
        ctx.obs: the observations, a tensor or tree [B, ...].
        ctx.action: what to do, a list by environment.
        ctx.inference_output: action and the policy's other outputs, by environment.

    Args:
        seed: of the environments, where their first episodes have not begun.
        policy: acts, exploring.
        env: any gymnasium vector environment.
    """
    worker = LocalWorker(env, policy)

    @contract(reads=("collect_kwargs",), writes=("obs", "action", "inference_output"), uses=(env, policy), stage="collect")
    def infer(ctx: OnlineRLContext) -> None:
        if worker.env.current is None:
            worker.begin(seed)
        obs = map_leaves(lambda leaf: torch.from_numpy(leaf.copy()), worker.env.current)
        outputs = worker.act(obs, **ctx.collect_kwargs)
        ctx.obs = tree(obs) if isinstance(obs, dict) else obs
        ctx.inference_output = {index: _row(outputs, index) for index in range(worker.num_envs)}
        ctx.action = [output["action"] for output in ctx.inference_output.values()]

    return infer


def rolloutor(
    policy: CollectMode, env: VectorEnv[Any, Any, Any], transitions: list[Trajectories] | None = None
) -> Callable[[OnlineRLContext], None]:
    """Do what the inferencer said: one step of every environment.

    Reads:
        ctx.action, ctx.inference_output; ctx.env_step, ctx.env_episode.
    Writes:
        ctx.trajectories: the step as a rollout, leaves [1, B, ...], and ctx.trajectory_end_idx.
        ctx.finished_episodes: those that ended with it.
        ctx.policy_version: of the weights that acted.
        ctx.env_step, ctx.env_episode: counted on.
        ctx.collect_metrics: steps, and what the policy logged while acting.

    Args:
        policy: the one that the inferencer uses.
        env: the one that the inferencer uses.
        transitions: each step's rollout is appended to it as well, where a list is given.
    """
    worker = LocalWorker(env, policy)
    metrics = MetricsLogger()

    @contract(
        reads=("action", "inference_output", "env_step", "env_episode"),
        writes=(*_DATA, "env_step"),
        may_read=("collect_metrics",),
        may_write=("collect_metrics",),
        uses=(env, policy, *([] if transitions is None else [transitions])),
        stage="collect",
    )
    def roll_out(ctx: OnlineRLContext) -> None:
        assert ctx.inference_output is not None
        rows = [{**output, "action": action} for output, action in zip(ctx.inference_output.values(), ctx.action, strict=True)]
        outputs = map_leaves(lambda *leaves: np.stack(leaves), *rows)
        rollout = worker.record(outputs)
        if transitions is not None:
            transitions.append(rollout.trajectories)
        ctx.env_step += len(rollout.trajectories)
        metrics.log_value("env_steps", len(rollout.trajectories), reduce="sum", with_throughput=True)
        hand_over(ctx, "collect_metrics", [metrics.reduce(), *worker.reduce_metrics()])
        _hand_over(rollout, ctx)

    return roll_out


def _hand_over(rollout: Rollout, ctx: OnlineRLContext) -> None:
    ctx.trajectories = rollout.trajectories
    ctx.trajectory_end_idx = rollout.trajectories.end_idx
    ctx.finished_episodes = rollout.episodes
    ctx.policy_version = rollout.version
    ctx.env_episode += len(rollout.episodes)


def _row(outputs: dict[str, Any], index: int) -> dict[str, Any]:
    row: dict[str, Any] = map_leaves(lambda leaf: leaf[index], outputs)
    return row
