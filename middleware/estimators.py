"""Estimators: put advantages and returns beside what was collected.

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

from collections.abc import Callable

from ding_lite.config import PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import with_leaves
from ding_lite.engine import contract
from ding_lite.functional import gae
from ding_lite.policy import CollectMode


def gae_estimator(cfg: PPOConfig, policy: CollectMode) -> Callable[[OnlineRLContext], None]:
    """Turn this iteration's rollout into a training batch with advantages.

    Reads:
        ctx.trajectories: reward [T, B] float, in the environment's own units (scale rewards in the environment);
            terminated, truncated [T, B] bool; obs, next_obs.
    Writes:
        ctx.train_data: the rollout plus value, next_value, advantage and return_, [T, B] float; and valid [T, B] bool, where
            some steps were only resets.

    Args:
        cfg: uses policy.collect.discount_factor and policy.collect.gae_lambda, both in [0, 1].
        policy: adds value and next_value, by its newest critic.

    Reference:
        Schulman et al. (2016), https://arxiv.org/abs/1506.02438, eq. 16.
    """
    gamma, lambda_ = cfg.policy.collect.discount_factor, cfg.policy.collect.gae_lambda

    # The learner, because the newest critic judges: not the copy that collects.
    @contract(reads=("trajectories",), writes=("train_data",), uses=(policy.learner,), stage="process")
    def estimate(ctx: OnlineRLContext) -> None:
        assert ctx.trajectories is not None
        batch = policy.with_values(ctx.trajectories.batch)
        advantage = gae(
            batch.reward, batch.value, batch.next_value, batch.terminated, batch.truncated, gamma=gamma, lambda_=lambda_
        )
        ctx.train_data = with_leaves(batch, advantage=advantage, return_=advantage + batch.value)

    return estimate
