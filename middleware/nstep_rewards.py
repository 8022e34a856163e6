"""N-step rewards: turn transitions into n-step transitions before they are stored."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch

from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Trajectories
from ding_lite.data.trees import map_leaves
from ding_lite.engine import contract
from ding_lite.functional import nstep_return
from ding_lite.middleware.arguments import SettingsReadOnce, policy_settings, require_settings
from ding_lite.middleware.collected import REWRITE_TERMS, rewrite

_NEEDED = ("reward", "terminated", "truncated", "next_obs")


def nstep_reward_enhancer(cfg: RunConfig) -> Callable[[OnlineRLContext], None]:
    """Turn each transition into an n-step transition, shorter if its episode or the rollout ends earlier.

        reward_t   = sum_{i<k} gamma^i * reward_{t+i}, k <= n steps
        discount_t = gamma^k
        target_t   = reward_t + discount_t * (1 - terminated_t) * V(next_obs_t)

    At the end of a rollout, k is smaller, and the target is the exact k-step target.

    Reads:
        ctx.trajectories, or ctx.episodes if whole episodes were collected: reward [T, B] float; terminated,
            truncated [T, B] bool; next_obs.
    Writes:
        the same field: reward as above; next_obs, terminated and truncated of each window's last step; and discount [T, B]
            float32. All other columns are those of the window's first step.

    Args:
        cfg: uses policy.nstep, at least 1, and policy.discount_factor, in [0, 1].

    Warns once, in the first iteration whose rollout is shorter than n steps, so that no window has n steps.

    Raises:
        RuntimeError: in an iteration, the rewards are n-step sums already.

    Reference:
        Sutton and Barto (2018), "Reinforcement Learning", eq. 7.1.
    """
    require_settings("nstep_reward_enhancer", cfg, "policy.nstep", "policy.discount_factor")
    n = policy_settings(cfg).nstep
    has_warned = False

    @contract(**REWRITE_TERMS, stage="process")
    def enhance(ctx: OnlineRLContext) -> None:
        nonlocal has_warned
        if not has_warned and isinstance(ctx.trajectories, Trajectories) and ctx.trajectories.num_steps < n:
            has_warned = True
            _warn_of_short_rollouts(ctx.trajectories, n)
        gamma = policy_settings(cfg).discount_factor  # here, because it may change in a run
        rewrite(ctx, "nstep_reward_enhancer", lambda rollout: _with_nstep_rewards(rollout, n, gamma), "pieces", _NEEDED)

    enhance.begin_run = SettingsReadOnce("nstep_reward_enhancer", cfg, "nstep")  # type: ignore[attr-defined]
    return enhance


def _warn_of_short_rollouts(rollout: Trajectories, n: int) -> None:
    steps, envs = rollout.num_steps, rollout.num_envs
    warnings.warn(
        f"policy.nstep = {n} is longer than a rollout, which has {steps} steps in each of {envs} environments, so no "
        f"reward is a sum of {n}: set policy.collect.n_sample = {n * envs} or more, or policy.nstep = {steps}.",
        stacklevel=3,
    )


def _with_nstep_rewards(rollout: Trajectories, n: int, gamma: float) -> Trajectories:
    columns = rollout.columns
    if "discount" in columns:
        raise RuntimeError(
            "nstep_reward_enhancer found the column 'discount': rewards are sums of several steps already and would be "
            "summed again. Use it only once in the pipeline."
        )
    reward, terminated, truncated = (torch.from_numpy(columns[name]) for name in ("reward", "terminated", "truncated"))
    valid = None if rollout.valid is None else torch.from_numpy(rollout.valid)
    window = nstep_return(reward, terminated, truncated, n=n, gamma=gamma, valid=valid)
    added = {"reward": window.return_.numpy(), "discount": window.discount.to(torch.float32).numpy()}
    if n > 1:
        ends = window.last.numpy(), np.arange(rollout.num_envs)
        for name in ("next_obs", "terminated", "truncated"):
            added[name] = map_leaves(lambda leaf: leaf[ends], columns[name])
    return rollout.with_columns(**added)
