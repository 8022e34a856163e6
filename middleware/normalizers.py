"""Normalizers: numbers of what was collected, brought to a scale that learning copes with."""

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
from ding_lite.middleware.collected import require_no_train_data, require_single_steps, rollout_of
from ding_lite.nn import RunningNorm
from ding_lite.policy import LearnMode


def reward_normalizer(cfg: RunConfig, policy: LearnMode) -> Callable[[OnlineRLContext], None]:
    """Divide rewards by the standard deviation that discounted returns have had so far, so that values are about 1.

        R_t    = reward_t + gamma * R_{t-1} within the episode
        reward = clip(reward / sqrt(Var(R) + 1e-8), -10, 10)

    Var(R) is over all steps of all environments up to this rollout's end. What is counted and reported as return stays in the
    environment's own units.

    Reads:
        ctx.trajectories: reward [T, B] float; terminated, truncated [T, B] bool.
    Writes:
        ctx.trajectories: the same with reward scaled, and as it was in raw_reward.

    Args:
        cfg: uses policy.collect.discount_factor, or policy.discount_factor, in [0, 1].
        policy: its state holds that of the normalizer from now on, as "reward_normalizer".

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
                "reward_normalizer found no ctx.trajectories: put a StepCollector before it; whole episodes have no order in "
                "which a running return could be carried on."
            )
        rollout = rollout_of(ctx.trajectories, "reward_normalizer", "whole")
        columns = rollout.columns
        if "raw_reward" in columns:
            raise RuntimeError(
                "reward_normalizer found the column 'raw_reward', so that rewards are scaled already, and would be scaled "
                "twice: put it into the pipeline once."
            )
        require_single_steps(rollout, "reward_normalizer", "Put reward_normalizer before nstep_reward_enhancer.")
        reward = np.asarray(columns["reward"])
        scale.update(reward, np.asarray(columns["terminated"] | columns["truncated"]), rollout.valid)
        ctx.trajectories = rollout.with_columns(reward=scale.scaled(reward), raw_reward=reward)

    return normalize


class _ReturnScale:
    """The spread of discounted returns, and each environment's return so far, from rollout to rollout."""

    varying = ("carried",)  # a state may be of another number of environments
    state_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {**RunningNorm.state_ranges, "carried": (-math.inf, math.inf)}

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._returns = RunningNorm()
        self._carried: np.ndarray[Any, Any] = np.zeros(0)  # [B], gamma * R of the last step, 0 where that ended an episode

    def update(self, reward: np.ndarray[Any, Any], done: np.ndarray[Any, Any], valid: np.ndarray[Any, Any] | None) -> None:
        """Take in the rewards [T, B] that follow those of before, with where episodes ended and which rows are steps."""
        count = reward.shape[1]
        if len(self._carried) != count:
            self._carried = np.zeros(count)
        # A reward that is no number says nothing of the spread; it stays in the rollout for the loss to complain of.
        x = np.where(np.isfinite(reward), reward, 0.0).astype(np.float64)
        if valid is not None:
            x[~valid] = 0.0
        goes_on = self._gamma * ~done
        x[:1] += self._carried
        returns = discounted_sum(x[::-1].copy(), np.concatenate([goes_on[:-1][::-1], np.zeros((1, count))]))[::-1].copy()
        self._carried = (goes_on * returns)[-1] if len(returns) else self._carried
        self._returns.update(torch.from_numpy(returns if valid is None else returns[valid]))

    def scaled(self, reward: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Rewards, float32."""
        limit = self._returns.limit
        return np.clip(reward * self._returns.scale.item(), -limit, limit).astype(np.float32)

    def state_dict(self) -> dict[str, Tensor]:
        """What it goes on from."""
        return {**self._returns.state_dict(), "carried": torch.from_numpy(self._carried.copy())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; with another number of environments, each with a return of 0 so far.

        Raises:
            ValueError: a state without the returns so far, [B] float, or with numbers that are not finite. Nothing is changed.
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
