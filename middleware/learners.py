"""Learners: gradient steps on what was fetched or estimated.

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ding_lite.config import DQNConfig, RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import contract, engaged
from ding_lite.middleware.arguments import require
from ding_lite.middleware.fetchers import offpolicy_data_fetcher
from ding_lite.policy import LearnMode

AnyRLContext = OnlineRLContext | OfflineRLContext

_TOUCHES: Any = {
    "reads": ("train_data", "train_iter"),
    "writes": ("train_output", "train_iter"),
    "may_read": ("policy_version",),
}


def trainer(cfg: RunConfig, policy: LearnMode) -> Callable[[AnyRLContext], None]:
    """Learn from one batch. Does nothing where there is none yet.

    Reads:
        ctx.train_data: what the policy's loss wants; ctx.train_iter.
    Writes:
        ctx.train_output: what to log, scalar tensors by name; policy_lag is how many gradient steps older the weights were
            that collected this iteration's data, where it was collected.
        ctx.train_iter: gradient steps counted on.

    Args:
        cfg: nothing of it; in the seed's place.
        policy: learns.
    """
    require("trainer", policy, "train_iter", "policy.learn_mode")

    @contract(**_TOUCHES, uses=(policy,), stage="learn")
    def train(ctx: AnyRLContext) -> None:
        _learn(policy, ctx)

    return train


def multistep_trainer(cfg: RunConfig, policy: LearnMode) -> Callable[[AnyRLContext], None]:
    """Learn from a rollout in several epochs of minibatches, as the policy does that.

    Reads:
        ctx.train_data: what the policy's loss wants, [T, B, ...]; ctx.train_iter.
    Writes:
        ctx.train_output: what to log, means over all gradient steps, scalar tensors by name.
        ctx.train_iter: gradient steps counted on.

    Args:
        cfg: nothing of it; in the seed's place.
        policy: learns; its own configuration says how many epochs, and of what size the minibatches are.
    """
    require("multistep_trainer", policy, "train_iter", "policy.learn_mode")

    @contract(**_TOUCHES, uses=(policy,), stage="learn")
    def train(ctx: AnyRLContext) -> None:
        _learn(policy, ctx)

    return train


def _learn(policy: LearnMode, ctx: AnyRLContext) -> None:
    if ctx.train_data is None:
        return
    before, lag = policy.train_iter, _lag(policy, ctx)
    ctx.train_output = {**policy.forward(ctx.train_data), **lag}
    ctx.train_iter += policy.train_iter - before


def _lag(policy: LearnMode, ctx: AnyRLContext) -> dict[str, torch.Tensor]:
    """How many gradient steps older the weights were that collected this iteration's data than those that learn from it."""
    version = getattr(ctx, "policy_version", -1)
    return {} if version < 0 else {"policy_lag": torch.tensor(float(policy.version - version))}


class OffPolicyLearner:
    """Fetch and learn, `update_per_collect` times.

    Reads:
        ctx.train_iter.
    Writes:
        ctx.train_data: the last batch; None while there are too few transitions to begin.
        ctx.train_output: what to log, one dict of scalar tensors a gradient step; policy_lag is that of the first.
        ctx.train_iter: gradient steps counted on.

    Args:
        cfg: uses policy.learn.update_per_collect, and what offpolicy_data_fetcher uses.
        policy: learns.
        buffer_: sampled for each gradient step.
    """

    def __init__(self, cfg: DQNConfig, policy: LearnMode, buffer_: ReplayBuffer) -> None:
        self._policy, self._times = policy, cfg.policy.learn.update_per_collect
        self._fetch = offpolicy_data_fetcher(cfg, buffer_)
        self._train = trainer(cfg, policy)
        contract(
            reads=("train_iter",),
            writes=("train_data", "train_output", "train_iter"),
            may_read=("policy_version",),
            uses=(buffer_, policy),
            stage="learn",
        )(self)

    def __call__(self, ctx: OnlineRLContext) -> None:
        outputs: list[dict[str, Any]] = []
        lag = _lag(self._policy, ctx)  # as it is before the first of these steps
        for _ in range(self._times):
            with engaged(self._fetch, ctx):
                if ctx.train_data is None:
                    return
                self._train(ctx)
            outputs.append({**ctx.train_output, **lag})
        ctx.train_output = outputs
