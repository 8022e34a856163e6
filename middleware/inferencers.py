"""Inferencers and what carries out what they said: collecting step by step, for pipelines that look at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gymnasium.vector import VectorEnv

from ding_lite.basics import seed_of
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Trajectories, holds_objects, map_leaves, stack_rows, tree
from ding_lite.engine import contract
from ding_lite.metrics import MetricsLogger
from ding_lite.middleware.arguments import require_mode
from ding_lite.middleware.collectors import ROLLOUT_DATA, hand_over_rollout
from ding_lite.middleware.outputs import hand_over
from ding_lite.middleware.settings import ActingSettings
from ding_lite.policy import CollectMode
from ding_lite.rollout import LocalWorker


def inferencer(
    seed: int,
    policy: CollectMode,
    env: VectorEnv[Any, Any, Any],
    collect_kwargs: Mapping[str, Any] | None = None,
) -> Callable[[OnlineRLContext], None]:
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
        collect_kwargs: as for StepCollector.
    """
    require_mode("inferencer", policy, "collect_mode")
    settings = ActingSettings("inferencer", [policy], collect_kwargs)
    seed = seed_of(seed, "inferencer({})")
    worker = LocalWorker(env, policy)

    @contract(
        reads=("collect_kwargs",),
        **settings.terms,
        writes=("obs", "action", "inference_output"),
        uses=(policy,),
        alone=(env,),
        stage="collect",
    )
    def infer(ctx: OnlineRLContext) -> None:
        if worker.env.current is None:
            worker.begin(seed)
        obs = map_leaves(lambda leaf: torch.from_numpy(leaf.copy()), worker.env.current)
        outputs = worker.act(obs, **settings.at(ctx))
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
    require_mode("rolloutor", policy, "collect_mode")
    worker = LocalWorker(env, policy)
    metrics = MetricsLogger(owner="the collector")

    @contract(
        reads=("action", "inference_output", "env_step", "env_episode"),
        writes=(*ROLLOUT_DATA, "env_step"),
        may_read=("collect_metrics",),
        may_write=("collect_metrics",),
        uses=(policy,),
        alone=(env,),
        fills=() if transitions is None else (transitions,),
        stage="collect",
    )
    def roll_out(ctx: OnlineRLContext) -> None:
        assert ctx.inference_output is not None
        rows = [{**output, "action": action} for output, action in zip(ctx.inference_output.values(), ctx.action, strict=True)]
        outputs = map_leaves(lambda *leaves: stack_rows(leaves), *rows)
        rollout = worker.record(outputs)
        if transitions is not None:
            transitions.append(rollout.trajectories)
        ctx.env_step += len(rollout.trajectories)
        metrics.log_value("env_steps", len(rollout.trajectories), reduce="sum", with_throughput=True)
        hand_over(ctx, "collect_metrics", [metrics.reduce(), *worker.reduce_metrics()])
        hand_over_rollout(rollout, ctx)

    return roll_out


def _row(outputs: dict[str, Any], index: int) -> dict[str, Any]:
    # An object stays in an array [], so that a dict is not taken for several outputs.
    row: dict[str, Any] = map_leaves(lambda leaf: leaf[index, ...] if holds_objects(leaf) else leaf[index], outputs)
    return row
