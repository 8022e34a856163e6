"""Reward normalizers: scale the collected rewards for learning."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import contract
from ding_lite.functional import discounted_sum
from ding_lite.middleware.arguments import discount_factor_of, require_mode
from ding_lite.middleware.collected import require_columns, require_no_train_data, require_single_steps, rollout_of
from ding_lite.nn import RunningNorm
from ding_lite.policy import LearnMode


def reward_normalizer(cfg: RunConfig, policy: LearnMode) -> Callable[[OnlineRLContext], None]:
    """Divide rewards by the running standard deviation of discounted returns, so that values are about 1.

        R_t    = reward_t + gamma * R_{t-1} within the episode
        reward = clip(reward / sqrt(Var(R) + 1e-8), -10, 10)

    Var(R) is over all steps of all environments up to the end of this rollout. Reported returns are not scaled.

    Reads:
        ctx.trajectories: reward [T, B] float; terminated, truncated [T, B] bool.
    Writes:
        ctx.trajectories: the same with scaled reward; raw_reward has the one of the environment.

    Args:
        cfg: uses policy.collect.discount_factor, or policy.discount_factor, in [0, 1].
        policy: policy.learn_mode; its state will include the state of the normalizer, as "reward_normalizer".

    Raises:
        RuntimeError: in an iteration, rewards are scaled or sums of several steps already, or advantages were made of them.

    Reference:
        Engstrom et al. (2020), https://arxiv.org/abs/2005.12729, section 3: "reward scaling".
    """
    require_mode("reward_normalizer", policy, "learn_mode", "attach")
    scale = _ReturnScale(discount_factor_of("reward_normalizer", cfg))
    policy.attach("reward_normalizer", scale)

    @contract(reads=("trajectories",), writes=("trajectories",), may_read=("train_data",), uses=(policy,), stage="process")
    def normalize(ctx: OnlineRLContext) -> None:
        require_no_train_data(ctx, "reward_normalizer")
        if ctx.trajectories is None:
            raise RuntimeError(
                "reward_normalizer found no ctx.trajectories: put a StepCollector before it. Whole episodes have no order in "
                "time, which a running return needs."
            )
        rollout = rollout_of(ctx.trajectories, "reward_normalizer", "whole")
        require_columns(rollout, "reward_normalizer", ("reward", "terminated", "truncated"))
        columns = rollout.columns
        if rollout.has_scaled_rewards:
            raise RuntimeError(
                "reward_normalizer found rewards that are scaled already, and would be scaled twice: put it into the pipeline "
                "once."
            )
        require_single_steps(columns, "reward_normalizer", "Put reward_normalizer before nstep_reward_enhancer.")
        reward = np.asarray(columns["reward"])
        scale.gamma = discount_factor_of("reward_normalizer", cfg)  # may change in a run
        scale.update(reward, np.asarray(columns["terminated"] | columns["truncated"]), rollout.valid, rollout.begins)
        ctx.trajectories = rollout.with_columns(reward=scale.scaled(reward), raw_reward=columns.get("raw_reward", reward))
        ctx.trajectories.has_scaled_rewards = True

    return normalize


class _ReturnScale:
    """The variance of discounted returns, and the running return of each environment, across rollouts."""

    unchecked_entries = ("carried",)  # a saved state may have another number of environments
    state_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {**RunningNorm.state_ranges, "carried": (-math.inf, math.inf)}

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        """The discount factor."""
        self._returns = RunningNorm()
        self._carried: np.ndarray[Any, Any] = np.zeros(0)  # [B], gamma * R of the last step, 0 where that ended an episode

    def update(
        self,
        reward: np.ndarray[Any, Any],
        done: np.ndarray[Any, Any],
        valid: np.ndarray[Any, Any] | None,
        begins: np.ndarray[Any, Any] | None,
    ) -> None:
        """Update with the next rewards, ends of episodes and valid rows, each [T, B]; see `Trajectories.begins`."""
        count = reward.shape[1]
        if len(self._carried) != count:
            self._carried = np.zeros(count)
        if begins is not None:  # after a reset of the environments, the last episode may have no end
            self._carried = np.where(begins, 0.0, self._carried)
        # Rewards that are not finite are left out here; they stay in the rollout, where the check of the loss finds them.
        x = np.where(np.isfinite(reward), reward, 0.0).astype(np.float64)
        if valid is not None:
            x[~valid] = 0.0
        goes_on = self.gamma * ~done
        x[:1] += self._carried
        returns = discounted_sum(x[::-1].copy(), np.concatenate([goes_on[:-1][::-1], np.zeros((1, count))]))[::-1].copy()
        self._carried = (goes_on * returns)[-1] if len(returns) else self._carried
        self._returns.update(torch.from_numpy(returns if valid is None else returns[valid]))

    def scaled(self, reward: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The scaled rewards, float32. Those that are not finite stay as they are."""
        limit = self._returns.limit
        clipped = np.clip(reward * self._returns.scale.item(), -limit, limit)
        return np.where(np.isfinite(reward), clipped, reward).astype(np.float32)

    def state_dict(self) -> dict[str, Tensor]:
        """The running statistics and returns."""
        return {**self._returns.state_dict(), "carried": torch.from_numpy(self._carried.copy())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. With another number of environments, running returns start at 0.

        Raises:
            ValueError: the state has no running returns, [B] float, or numbers that are not finite. Nothing is changed.
        """
        carried = state.get("carried")
        if not isinstance(carried, Tensor) or carried.ndim != 1 or not carried.is_floating_point():
            raise ValueError(f"a state of reward_normalizer has 'carried', a tensor [B] of floats, got {carried!r:.60}.")
        trial = copy.deepcopy(self._returns)
        trial.load_state_dict({name: leaf for name, leaf in state.items() if name != "carried"})
        for name, leaf in {**trial.state_dict(), "carried": carried}.items():
            if not leaf.isfinite().all():
                raise ValueError(f"this state of reward_normalizer has {name} = {leaf.tolist()!r:.60}, which is not finite.")
        self._returns.load_state_dict(trial.state_dict())
        self._carried = carried.cpu().numpy().copy()
