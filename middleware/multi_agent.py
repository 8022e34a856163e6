"""Multi-agent middleware: collecting and evaluating with several policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ding_lite.basics import base_state
from ding_lite.config import RunConfig
from ding_lite.contexts import MultiAgentContext, OnlineRLContext
from ding_lite.engine import NestedContext, PendingWork, contract
from ding_lite.envs import EpisodeResult
from ding_lite.envs.agent_bases import MultiAgentVectorBase
from ding_lite.metrics.sums import mean_of
from ding_lite.middleware.acting_settings import ActingSettings
from ding_lite.middleware.arguments import (
    RUN_CONFIG,
    require,
    require_evaluations,
    require_info_columns,
    require_modes,
)
from ding_lite.middleware.collector_checks import CollectorChecks
from ding_lite.middleware.collectors import Acting, total_steps
from ding_lite.middleware.evaluators import InteractionEvaluator, mean_return
from ding_lite.policy import CollectMode, EvalMode
from ding_lite.rollout import MultiAgentRollout, MultiAgentWorker, SplitMultiAgentWorker, make_multi_agent_worker

_ROLLOUT_DATA = ("parts", "finished_episodes", "env_episode")
"""Fields that a rollout sets, except env_step, which is known before."""
_PART_DATA = ("env_step", "env_episode", "collect_kwargs", "trajectories", "trajectory_end_idx", "policy_version")
"""Fields that MultiAgentCollector sets in the context of each policy."""


class MultiAgentCollector:
    """Collect a fixed number of environment steps; every policy acts for its agents.

    Reads:
        ctx.collect_kwargs: settings, passed to every policy.
        ctx.env_step, ctx.env_episode.
    Writes:
        ctx.parts: for each policy, a new context with the fields that StepCollector would write: trajectories, leaves
            [T, B, ...] with one row per agent of the policy and environment; trajectory_end_idx; policy_version; and the
            counters of this context. `valid` in the trajectories excludes steps in which an agent took no part.
        ctx.finished_episodes: episodes that ended during collection. The return is the sum over all agents; `info["return"]`
            has the return of each agent, `info["policy_return"]` the mean return of the agents of each policy.
        ctx.env_step, ctx.env_episode: incremented by steps and episodes of environments.
        ctx.collect_metrics: steps, seconds, numeric settings, and the metrics that each policy logged while acting.

    Args:
        cfg: uses policy.collect.n_sample: environment steps per call, rounded up to whole steps of all environments. Each step
            gives one transition per agent.
        policies: the collect_mode of each policy, by name.
        env: from `make_multi_agent_envs`.
        policy_of: function or mapping from an agent to the name of its policy.
        collect_kwargs: for every policy, as for StepCollector.

    Raises:
        ValueError: an agent has no policy, or a policy has no agent.
        SpaceError: the agents of a policy have different spaces, or the policy was made for other spaces.
    """

    def __init__(
        self,
        cfg: RunConfig,
        policies: Mapping[str, CollectMode],
        env: MultiAgentVectorBase,
        policy_of: Callable[[Any], str] | Mapping[Any, str],
        collect_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        require("MultiAgentCollector", cfg, "policy.collect.n_sample", RUN_CONFIG)
        require_modes("MultiAgentCollector", policies, "collect_mode")
        require_info_columns("MultiAgentCollector", cfg, env)
        self._settings = ActingSettings("MultiAgentCollector", policies.values(), collect_kwargs)
        self._acting: Acting[MultiAgentWorker, SplitMultiAgentWorker] = Acting(
            make_multi_agent_worker(env, policies, policy_of)
        )
        in_pieces = isinstance(self._acting.worker, SplitMultiAgentWorker)
        self.checks = CollectorChecks("MultiAgentCollector", cfg, "collect.n_sample", tuple(policies.values()), in_pieces)
        self._num_envs, self._names = env.num_envs, tuple(policies)
        self._num_steps = math.ceil(cfg.policy.collect.n_sample / env.num_envs)
        asks = self._acting.elsewhere is not None
        contract(
            reads=("collect_kwargs", "env_step", "env_episode"),
            **self._settings.terms,
            may_read=("collect_metrics",),
            may_write=("collect_metrics",),
            writes=("env_step",) if asks else (*_ROLLOUT_DATA, "env_step"),
            writes_late=_ROLLOUT_DATA if asks else (),
            uses=tuple(policies.values()),
            exclusive=(env,),
            creates=tuple(_made(name, policy) for name, policy in policies.items()),
            stage="collect",
        )(self)

    def begin_run(self) -> None:
        """Warn of settings without effect, of policies that the run does not train, and of modes that two collectors share. The
        task calls it."""
        self.checks()

    def __call__(self, ctx: MultiAgentContext) -> PendingWork | None:
        kwargs, num_steps = self._settings.at(ctx), self._num_steps
        acting, worker = self._acting, self._acting.elsewhere
        if worker is None:
            rollout = acting.now(ctx, kwargs, partial(acting.worker.collect, num_steps, **kwargs))
            ctx.env_step += total_steps(rollout.env_steps)
            _write(kwargs, ctx.total_step, ctx.env_step, rollout, ctx)
            return None
        asked = worker.ask(num_steps, **kwargs)
        ctx.env_step += total_steps(num_steps * self._num_envs)
        return acting.later(ctx, kwargs, asked, worker.take, partial(_write, kwargs, ctx.total_step, ctx.env_step))

    def state_dict(self) -> dict[str, Any]:
        """The recurrent states of every policy."""
        return self._acting.worker.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._acting.worker.load_state_dict(base_state(self, state, (*self._names, "pieces")))


def _made(name: str, policy: CollectMode) -> NestedContext:
    """Describes the context of one policy to the check of the pipeline."""
    modes = (policy, getattr(policy, "leader", policy))
    return NestedContext("parts", name, OnlineRLContext, _PART_DATA, f"for_policy({name!r}, ...)", modes)


def _write(
    kwargs: Mapping[str, Any], total_step: int, env_step: int, rollout: MultiAgentRollout, ctx: MultiAgentContext
) -> None:
    """Write the fields of `_ROLLOUT_DATA` to the context; the counters are those of the request."""
    ctx.env_episode += len(rollout.episodes)
    ctx.finished_episodes = rollout.episodes
    ctx.parts = {
        name: OnlineRLContext(
            total_step=total_step,
            env_step=env_step,
            env_episode=ctx.env_episode,
            collect_kwargs=dict(kwargs),
            trajectories=trajectories,
            trajectory_end_idx=trajectories.end_idx,
            policy_version=int(trajectories.columns["policy_version"][0, 0]),
        )
        for name, trajectories in rollout.trajectories.items()
    }


def multi_agent_evaluator(
    cfg: RunConfig,
    policies: Mapping[str, EvalMode],
    env: MultiAgentVectorBase,
    policy_of: Callable[[Any], str] | Mapping[Any, str],
    score: Callable[[dict[Any, float]], float] | None = None,
) -> InteractionEvaluator:
    """Evaluate all policies on whole episodes without exploration, at intervals, and end the run at stop_value.

    Times of evaluation, and overlap with other iterations, are as for `interaction_evaluator`.

    Reads:
        ctx.train_iter, ctx.last_eval_iter, ctx.env_step.
    Writes:
        ctx.eval_value, ctx.last_eval_value: the score.
        ctx.last_eval_iter: train_iter of the weights that were evaluated.
        ctx.eval_weights: the weights that were evaluated, by name of the policy.
        ctx.eval_metrics: the score, unless it is the mean return; length and return of the episodes, as the sum over agents;
            the return of each agent as custom_metrics/return/AGENT_mean, _min and _max; the mean return of the agents of each
            policy as custom_metrics/policy_return/POLICY_mean, _min and _max; the counters at the time of the evaluated
            weights, seconds, and the metrics that each policy logged while acting.

    Args:
        cfg: uses policy.eval.evaluator, env.n_evaluator_episode and env.stop_value.
        policies: the eval_mode of each policy, by name.
        env: from `make_multi_agent_envs`, not the one used for collecting.
        policy_of: function or mapping from an agent to the name of its policy.
        score: function from the mean undiscounted return of each agent to the number that is compared with env.stop_value;
            None for the sum. The return of an agent is 0 in episodes in which it took no part.

    Raises:
        ValueError: an agent has no policy, a policy has no agent, or cfg.log.video_every is not 0.
        SpaceError: the agents of a policy have different spaces, or the policy was made for other spaces.
    """
    require("multi_agent_evaluator", cfg, "policy.eval.evaluator", RUN_CONFIG)
    require_evaluations("multi_agent_evaluator", cfg)
    require_modes("multi_agent_evaluator", policies, "eval_mode")
    if cfg.log.video_every:
        raise ValueError(f"cfg.log.video_every = {cfg.log.video_every}, and multi_agent_evaluator films nothing: set it to 0.")
    worker = make_multi_agent_worker(env, policies, policy_of)
    value = mean_return if score is None else _scored(score, env.possible_agents)
    return InteractionEvaluator("multi_agent_evaluator", cfg, tuple(policies.values()), env, worker, value, measure=score)


def _scored(score: Callable[[dict[Any, float]], float], agents: Sequence[Any]) -> Callable[[Sequence[EpisodeResult]], float]:
    """A function from episodes to the score of the agents' mean returns."""

    def value(episodes: Sequence[EpisodeResult]) -> float:
        returns = [episode.info["return"] for episode in episodes]
        return float(score({agent: mean_of([one.get(agent, 0.0) for one in returns]) for agent in agents}))

    return value


AgentsCollector = MultiAgentCollector  # its name in earlier versions
agents_evaluator = multi_agent_evaluator  # its name in earlier versions
