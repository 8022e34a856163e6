"""Estimators: compute advantages and returns of the collected data."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ding_lite.basics import foreign_arguments
from ding_lite.config import OnPolicyRunConfig, RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data.trees import has_leaf, with_leaves
from ding_lite.engine import contract
from ding_lite.functional import discounted_return, gae
from ding_lite.middleware.arguments import discount_factor_of, require, require_mode, warn_of_other_settings
from ding_lite.middleware.collected import COLLECTED_TERMS, collected_data, copied_batch, require_single_steps
from ding_lite.middleware.foreign_names import ARGUMENTS
from ding_lite.policy import CollectMode

_NEEDED = ("reward", "terminated", "truncated")
_FIX = "Leave nstep_reward_enhancer out: returns reach to the end of each episode by themselves."


@foreign_arguments(ARGUMENTS["gae_estimator"])
def gae_estimator(cfg: OnPolicyRunConfig, policy: CollectMode) -> Callable[[OnlineRLContext], None]:
    """Make a training batch with advantages from this iteration's data.

    Reads:
        ctx.trajectories, or ctx.episodes if whole episodes were collected: reward [T, B] float; terminated, truncated
            [T, B] bool; obs, next_obs.
    Writes:
        ctx.train_data: the same batch with value, next_value, advantage and return_, [T, B] float; and with valid [T, B] bool,
            if some rows are not steps.

    Args:
        cfg: uses policy.collect.discount_factor and policy.collect.gae_lambda, both in [0, 1].
        policy: adds value and next_value of its newest critic.

    Raises:
        RuntimeError: in an iteration, rewards are sums of several steps.

    Reference:
        Schulman et al. (2016), https://arxiv.org/abs/1506.02438, eq. 16.
    """
    wanted = "policy.collect.gae_lambda"
    require(
        "gae_estimator", cfg, wanted, f"a configuration with {wanted} and policy.collect.discount_factor, such as PPOConfig"
    )
    _require_critic("gae_estimator", policy)
    discount_factor_of("gae_estimator", cfg)
    warn_of_other_settings("gae_estimator", cfg, policy, "collect.discount_factor", "collect.gae_lambda")

    # The learner, because the newest critic estimates the values, not the copy that collects.
    @contract(**COLLECTED_TERMS, writes=("train_data",), uses=(policy.learner,), stage="process")
    def estimate(ctx: OnlineRLContext) -> None:
        found = collected_data(ctx, "gae_estimator", wants="pieces", needs=_NEEDED)
        if not len(found):
            ctx.train_data = None
            return
        require_single_steps(found.columns, "gae_estimator", _FIX)
        batch = policy.with_values(copied_batch(found))
        gamma, lambda_ = discount_factor_of("gae_estimator", cfg), cfg.policy.collect.gae_lambda  # may change in a run
        advantage = gae(
            batch.reward, batch.value, batch.next_value, batch.terminated, batch.truncated, gamma=gamma, lambda_=lambda_
        )
        ctx.train_data = with_leaves(batch, advantage=advantage, return_=advantage + batch.value)

    return estimate


def montecarlo_return_estimator(
    cfg: RunConfig | CollectMode, policy: CollectMode | None = None
) -> Callable[[OnlineRLContext], None]:
    """Make a training batch with Monte Carlo returns from this iteration's data.

        return_t = sum_k gamma^k * reward_{t+k}, to the end of the episode; advantage = return_ - value

    If an episode is cut by a time limit or by the end of the rollout, its return bootstraps from the critic. Without a critic,
    its return ends there, so collect whole episodes.

    Reads:
        ctx.episodes, or ctx.trajectories if no whole episodes were collected: reward [T, B] float; terminated, truncated
            [T, B] bool.
    Writes:
        ctx.train_data: the same batch with return_ and advantage, [T, B] float, 0 in rows that are not steps; valid [T, B]
            bool; and, with a critic, value and next_value [T, B] float.

    Args:
        cfg: uses policy.collect.discount_factor, or policy.discount_factor, in [0, 1]. Also accepts the policy's collect_mode
            instead: its configuration is used then, but not its critic.
        policy: collect_mode whose newest critic is subtracted, if it has one; None for advantage = return_.

    Raises:
        TypeError: the configuration has no discount_factor; or `policy` is no collect_mode.
        RuntimeError: in an iteration, rewards are sums of several steps.

    Reference:
        Williams (1992), "Simple statistical gradient-following algorithms for connectionist reinforcement learning".
    """
    if policy is not None:
        _require_critic("montecarlo_return_estimator", policy)
    settings = cfg.cfg if isinstance(cfg, CollectMode) else cfg
    discount_factor_of("montecarlo_return_estimator", settings)
    critic = policy if policy is not None and _has_critic(policy) else None

    @contract(**COLLECTED_TERMS, writes=("train_data",), uses=() if critic is None else (critic.learner,), stage="process")
    def estimate(ctx: OnlineRLContext) -> None:
        found = collected_data(ctx, "montecarlo_return_estimator", wants="pieces", needs=_NEEDED)
        if not len(found):
            ctx.train_data = None
            return
        require_single_steps(found.columns, "montecarlo_return_estimator", _FIX)
        batch = copied_batch(found)
        if not has_leaf(batch, "valid"):
            batch = with_leaves(batch, valid=torch.ones_like(batch.terminated))
        if critic is not None:
            batch = critic.with_values(batch)
        bootstrap = None if critic is None else batch.next_value
        gamma = discount_factor_of("montecarlo_return_estimator", settings)  # may change in a run
        return_ = discounted_return(batch.reward, batch.terminated, batch.truncated, gamma=gamma, bootstrap=bootstrap)
        advantage = return_ if critic is None else return_ - batch.value
        no_step = ~batch.valid
        ctx.train_data = with_leaves(
            batch, return_=return_.masked_fill(no_step, 0), advantage=advantage.masked_fill(no_step, 0)
        )

    return estimate


def _require_critic(who: str, policy: object) -> None:
    require_mode(who, policy, "collect_mode", "with_values", "learner")


def _has_critic(policy: CollectMode) -> bool:
    return bool(getattr(policy, "has_critic", True))  # a mode of another library may lack this attribute
