"""Inferencers: collecting one step per iteration, for pipelines that look at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gymnasium.vector import VectorEnv

from ding_lite.basics import foreign_arguments, seed_of
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Trajectories, tree
from ding_lite.data.column_arrays import stack_rows
from ding_lite.data.trees import holds_objects, map_leaves
from ding_lite.engine import contract
from ding_lite.metrics import MetricsLogger
from ding_lite.metrics.outputs import append_metrics
from ding_lite.middleware.acting_settings import ActingSettings
from ding_lite.middleware.arguments import require_mode
from ding_lite.middleware.collector_checks import IdleCollectorCheck
from ding_lite.middleware.collectors import ROLLOUT_DATA, total_steps, write_rollout
from ding_lite.middleware.foreign_names import ARGUMENTS
from ding_lite.policy import CollectMode
from ding_lite.rollout import LocalWorker


def inferencer(
    seed: int,
    policy: CollectMode,
    env: VectorEnv[Any, Any, Any],
    collect_kwargs: Mapping[str, Any] | None = None,
) -> Callable[[OnlineRLContext], None]:
    """Compute actions for the current observations.

    Followed by `rolloutor`, it is a collector of one step per iteration, for pipelines that look at every step.

    Reads:
        ctx.collect_kwargs: passed to the policy.
    Writes:
        ctx.obs: the observations, a tensor or tree [B, ...].
        ctx.action: the actions, a list by environment.
        ctx.inference_output: action and the policy's extra outputs, by environment.

    Args:
        seed: seed of the environments, used if their first episodes have not begun.
        policy: policy.collect_mode; acts with exploration.
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
        exclusive=(env,),
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

    infer.begin_run = IdleCollectorCheck("inferencer", [policy])  # type: ignore[attr-defined]
    return with_state_of(worker, infer)


@foreign_arguments(ARGUMENTS["rolloutor"])
def rolloutor(
    policy: CollectMode, env: VectorEnv[Any, Any, Any], transitions: list[Trajectories] | None = None
) -> Callable[[OnlineRLContext], None]:
    """Step every environment with the actions of the inferencer.

    Reads:
        ctx.action, ctx.inference_output; ctx.env_step, ctx.env_episode.
    Writes:
        ctx.trajectories: the step as a rollout, leaves [1, B, ...], and ctx.trajectory_end_idx.
        ctx.finished_episodes: episodes that ended with this step.
        ctx.policy_version: version of the weights that acted.
        ctx.env_step, ctx.env_episode: incremented.
        ctx.collect_metrics: steps, and the metrics that the policy logged while acting.

    Args:
        policy: the policy of the inferencer.
        env: the environment of the inferencer.
        transitions: list to which the rollout of each step is appended as well; None for none.
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
        exclusive=(env,),
        fills=() if transitions is None else (transitions,),
        stage="collect",
    )
    def roll_out(ctx: OnlineRLContext) -> None:
        assert ctx.inference_output is not None
        if len(ctx.action) != len(ctx.inference_output):
            raise ValueError(
                f"rolloutor found {len(ctx.action)} actions in ctx.action for {len(ctx.inference_output)} environments in "
                "ctx.inference_output: write one for each."
            )
        rows = [{**output, "action": action} for output, action in zip(ctx.inference_output.values(), ctx.action)]
        outputs = map_leaves(lambda *leaves: stack_rows(leaves), *rows)
        rollout = worker.complete_step(outputs)
        if transitions is not None:
            transitions.append(rollout.trajectories)
        ctx.env_step += total_steps(len(rollout.trajectories))
        metrics.log_value("env_steps", len(rollout.trajectories), reduce="sum", with_throughput=True)
        append_metrics(ctx, "collect_metrics", [metrics.reduce(), *worker.reduce_metrics()])
        write_rollout(rollout, ctx)

    return with_state_of(worker, roll_out)


def with_state_of(worker: LocalWorker, fn: Callable[[OnlineRLContext], None]) -> Callable[[OnlineRLContext], None]:
    """The same middleware with the state of its worker: recurrent states, and the generator of random actions."""
    fn.__dict__.update(state_dict=worker.state_dict, load_state_dict=worker.load_state_dict)
    return fn


def _row(outputs: dict[str, Any], index: int) -> dict[str, Any]:
    # Keep objects in 0-d arrays, so that a dict is not mistaken for nested outputs.
    row: dict[str, Any] = map_leaves(lambda leaf: leaf[index, ...] if holds_objects(leaf) else leaf[index], outputs)
    return row
